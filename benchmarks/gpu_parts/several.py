"""How many requests a second do several devices of a kind answer, over those of one?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import MappingProxyType

import attrs
import numpy as np

import asyncrt

from .. import measure as m
from .. import models, networks
from .bench import Bench
from .bert import FULL_NETWORK, SMALL_NETWORK
from .findings import OURS, REQUESTS, Aim, Finding


@attrs.frozen
class Load:
    """What callers of all devices ask for.

    Attributes:
        size: Texts and tokens of a request.
        callers: For each device.
        count: Requests of a turn, for each device.
        blocks: Turns at most.
    """

    size: tuple[int, int]
    callers: int = 8
    count: int = 200
    blocks: int = 6


LOADS = [Load((1, 64), count=400), Load((8, 128))]
SMALL = [Load((1, 4), callers=2, count=4)]
AIMS: Mapping[int, Aim] = MappingProxyType({2: Aim(1.9), 4: Aim(3.6)})
"""By the number of devices."""

ONE = "one device"


async def measure(bench: Bench) -> AsyncIterator[Finding]:
    """Measure all devices of the kind, or those that are named with commas between them, beside the first of them."""
    named = bench.settings.device or "gpu"
    everyone = named if "," in named or ":" in named else f"{named}:*"
    if everyone == "host:*":
        bench.notes.append("There is one host, so there is nothing to share requests out to.")
        return
    async with asyncrt.Runtime(everyone) as all_of_them, bench.runtime() as first:
        devices = len(all_of_them.infos)
        if devices == 1:
            bench.notes.append(f"There is one device {everyone!r}, so there is nothing to share requests out to.")
            return
        network = networks.encoder(np.float32, *bench.pick(FULL_NETWORK, SMALL_NETWORK))
        name = f"{devices} devices"
        loaded = {OURS: await bench.load(all_of_them, name, network), ONE: await bench.load(first, ONE, network)}
        for load in bench.pick(LOADS, SMALL):
            requests = [models.tokens(*load.size, seed) for seed in range(devices * load.count)]
            blocks = {
                name: partial(m.closed_loop, model.infer, requests, devices * load.callers)
                for name, model in loaded.items()
            }
            settings = attrs.evolve(bench.settings, blocks=min(bench.settings.blocks, load.blocks))
            samples = await m.interleave(blocks, settings)
            case = f"{devices} devices, {devices * load.callers} callers of {load.size[0]} x {load.size[1]}"
            yield Finding(
                part="several", case=case, unit=REQUESTS, samples=samples, against=ONE, aim=AIMS.get(devices)
            )  # fmt: skip
