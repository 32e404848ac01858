"""Cases that do each thing that must be found, for the test of what finds them."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time

import numpy as np

from .crew import IDLE_S
from .models import LIMITS, Place
from .watching import MORE_BYTES

_WORKS = "import time\nwhile time.process_time() < {}: pass"


async def _waits(place: Place) -> None:
    await asyncio.Event().wait()


async def _is_slow(place: Place) -> None:
    end = time.process_time() + 2.3
    while time.process_time() < end:
        pass


async def _dies(place: Place) -> None:
    ctypes.string_at(1)


async def _raises(place: Place) -> None:
    raise IndexError("list index out of range")


async def _takes_memory(place: Place) -> None:
    np.ones(LIMITS["host"] + MORE_BYTES + (20 << 20), np.uint8)


async def _reads(place: Place) -> None:
    (place.folder / "model" / "up" / "secret").read_bytes()


async def _waits_for_a_process(place: Place) -> None:
    """As it does for a compiler that works."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _WORKS.format(IDLE_S + 0.5))
    await process.wait()


async def _is_right(place: Place) -> None:
    (place.folder / "model" / "weights.bin").read_bytes()
    np.ones(LIMITS["host"], np.uint8)


CASES = {
    "hang": _waits, "crash": _dies, "untyped IndexError faulty.py:_raises": _raises, "slow": _is_slow,
    "memory": _takes_memory, "read": _reads,
}  # fmt: skip
"""By the kind of what is to be found."""

RIGHT = (_is_right, _waits_for_a_process)
"""In which nothing is to be found."""


async def attack(seed: int, place: Place) -> None:
    """Run the case of that number."""
    await [*CASES.values(), *RIGHT][seed](place)
