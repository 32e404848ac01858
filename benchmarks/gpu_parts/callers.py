"""How many requests do many callers get at once, each by itself, and how many tokens in batches of all lengths?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import attrs
import numpy as np

import asyncrt

from .. import measure as m
from .. import models, networks
from ..models import LONGEST, MEDIAN, SIGMA
from .bench import TOLERANCES, Bench
from .bert import FULL_NETWORK, SMALL_NETWORK
from .findings import OURS, REQUESTS, TOKENS, Aim, Finding


@attrs.frozen
class Load:
    """Who asks for what.

    Attributes:
        callers: Who ask for texts of *length* tokens at once, each number by itself.
        count: Their requests of a turn.
        crowd: Who ask for texts of log-normal lengths.
        crowd_count: Their requests of a turn.
        longest: Of these lengths; median and spread are those of the benchmark of servers.
        batches: `max_batch` of each way to put them together; the first is what users get who say nothing.
        full: A batch without padding, with which the crowd is compared: (texts, tokens).
        blocks: Turns at most.
    """

    callers: tuple[int, ...] = (1, 4, 16)
    length: int = 64
    count: int = 512
    crowd: int = 256
    crowd_count: int = 1536
    longest: int = LONGEST
    batches: tuple[int | None, ...] = (None, 256)
    full: tuple[int, int] = (64, 256)
    blocks: int = 6


SMALL = Load(callers=(1, 3), length=5, count=6, crowd=4, crowd_count=8, longest=9, batches=(None,), full=(2, 8))
RATE = Aim(8000, of="figure")  # of the most callers
SHARE = Aim(0.9)
CHECKED = 32
"""Requests whose results in batches are compared with those alone."""


async def measure(bench: Bench) -> AsyncIterator[Finding]:
    """Measure callers who ask again when they are answered."""
    load = bench.pick(Load(), SMALL)
    short = attrs.evolve(bench, settings=attrs.evolve(bench.settings, blocks=min(bench.settings.blocks, load.blocks)))
    async with bench.runtime() as rt:
        for dtype, tolerance in TOLERANCES.items():
            network = networks.encoder(dtype, *bench.pick(FULL_NETWORK, SMALL_NETWORK))
            loaded = await bench.load(rt, f"BERT in {dtype.__name__}, for callers", network)
            async for finding in _alone(short, load, loaded, dtype.__name__):
                yield finding
            async for finding in _together(short, load, loaded, dtype.__name__, tolerance):
                yield finding


async def _alone(bench: Bench, load: Load, loaded: asyncrt.Model, dtype: str) -> AsyncIterator[Finding]:
    """Measure requests that run each by itself."""
    requests = [models.tokens(1, load.length, seed) for seed in range(load.count)]
    blocks = {str(n): partial(m.closed_loop, loaded.infer, requests, n) for n in load.callers}
    samples = await m.interleave(blocks, bench.settings)
    for callers in load.callers:
        yield Finding(
            part="callers", case=f"{dtype} {callers} at once, 1 x {load.length}", unit=REQUESTS,
            samples={OURS: samples[str(callers)]}, aim=RATE if callers == max(load.callers) else None,
        )  # fmt: skip


async def _together(
    bench: Bench, load: Load, loaded: asyncrt.Model, dtype: str, tolerance: float
) -> AsyncIterator[Finding]:
    """Measure requests that run in batches, beside one caller's batches without padding."""
    lengths = log_normal(load.crowd_count, load.longest)
    requests = [models.tokens(1, length, seed) for seed, length in enumerate(lengths)]
    inputs, full = models.tokens(*load.full), f"{load.full[0]} x {load.full[1]} at once"

    async def row() -> float:
        return load.full[0] * load.full[1] / await m.awaited(partial(loaded.infer, inputs), bench.settings.block_s)()

    for max_batch in load.batches:
        async with loaded.batched(max_batch=max_batch) as batched:
            answers = await asyncio.gather(*map(batched.infer, requests[:CHECKED]))
            for request, answer in zip(requests, answers, strict=False):
                m.check_equal("batched", answer.values(), (await loaded.infer(request)).values(), tolerance)

            async def crowd(batched: asyncrt.Batched = batched) -> float:
                return await m.closed_loop(batched.infer, requests, load.crowd) * float(np.mean(lengths))

            samples = await m.interleave({OURS: crowd, full: row}, bench.settings)
        how = "batched()" if max_batch is None else f"batched(max_batch={max_batch})"
        yield Finding(
            part="callers", case=f"{dtype} {load.crowd} callers, {how}", unit=TOKENS, samples=samples, against=full,
            aim=SHARE,
        )  # fmt: skip


def log_normal(count: int, longest: int) -> list[int]:
    """Return lengths of texts, up to *longest*."""
    drawn = np.random.default_rng(0).lognormal(np.log(MEDIAN), SIGMA, count)
    return [int(length) for length in np.clip(drawn, 1, longest)]
