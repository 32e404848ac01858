"""Requests with whatever a seed decides: faults, cancellations, streams, memory, and how fast the device is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import attrs

from asyncrt import DeadlineExceeded, DeviceError, RuntimeOptions
from asyncrt.devices.faults import SITES, Fault
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.errors import DeviceCommandError, KernelBuildError, OutOfDeviceMemory
from asyncrt.scheduler.policies import policy_names

from ..paths import drawn
from .scenarios import Outcome, cancel_when_launched, expected, opened, run, several

_ERRORS = {"allocate": OutOfDeviceMemory, "build": KernelBuildError}


def random_fault(chance: random.Random) -> Fault:
    """A fault at one of the first calls or commands."""
    site = chance.choice([s for s in SITES if s != "fill"])
    error = _ERRORS.get(site, chance.choice((DeviceCommandError, OutOfDeviceMemory)))
    return Fault(site, chance.randrange(1, 60), error, chance.random() < 0.2, chance.random() < 0.5)


def random_run(seed: int) -> Outcome:
    """Run requests at once and after each other; each is exact, or told what was injected, and nothing is left."""
    chance = random.Random(seed)
    faults = [random_fault(chance) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
    device = SimulatedDevice(seed, memory=1 << 20, faults=faults, spreads=chance.random() < 0.7)
    options = RuntimeOptions(
        warm=chance.random() < 0.1,
        without=drawn(chance, 0.25),
        memory_limit=chance.choice((9 << 11, 5 << 12, 1 << 16, None)),
        max_in_flight=chance.choice((1, 2, 3, 8, 64)),
        policy=chance.choice(policy_names()),
    )
    cancelled = {n for n in range(1, 40) if chance.random() < chance.choice((0, 0.1, 0.4))}
    streams, count = chance.randrange(1, 5), chance.randrange(1, 9)
    # Seconds, of commands that take up to a millisecond each.
    deadlines = [chance.choice((None, 0.0, 0.001, 0.01, 0.1)) for _ in range(count)] if chance.random() < 0.3 else []
    options = attrs.evolve(options, branches=chance.random() < 0.5)

    async def main() -> Outcome:
        async with opened(device, options, streams) as rt:
            cancel_when_launched(rt, cancelled.__contains__)
            return await several(rt, count, deadlines=deadlines)

    try:
        outcome: Outcome = run(main())
        for index, got in enumerate([*outcome.together, *outcome.after]):
            _check(index, got, faults, deadlines)
    except BaseException as error:
        error.add_note(f"seed {seed}: python -m tests.stress --run {seed}; faults {faults}")
        raise
    return outcome


def _check(index: int, got: object, faults: Sequence[Fault], deadlines: Sequence[float | None]) -> None:
    if isinstance(got, dict):
        assert expected(index) == got, index
    elif isinstance(got, DeadlineExceeded):
        assert deadlines[index] is not None, index
    elif not isinstance(got, asyncio.CancelledError):
        assert isinstance(got, DeviceError), got
        assert faults, got
        if isinstance(got, OutOfDeviceMemory) and any(f.site == "allocate" for f in faults):
            return  # a block that is larger than needed was taken instead, and the rest did not do
        root: BaseException = got
        while root.__cause__ is not None:
            root = root.__cause__
        assert "injected" in str(root), got
