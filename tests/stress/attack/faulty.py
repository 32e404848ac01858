"""Cases that do each thing that must be found, for the test of what finds them."""

from __future__ import annotations

import asyncio
import ctypes
import time

import numpy as np

from .models import LIMITS, Place
from .watching import MORE_BYTES


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


async def _is_right(place: Place) -> None:
    (place.folder / "model" / "weights.bin").read_bytes()
    np.ones(LIMITS["host"], np.uint8)


CASES = {
    "hang": _waits, "crash": _dies, "untyped IndexError faulty.py:_raises": _raises, "slow": _is_slow,
    "memory": _takes_memory, "read": _reads, "": _is_right,
}  # fmt: skip
"""By the kind of what is to be found; nothing for the last."""


async def attack(seed: int, place: Place) -> None:
    """Run the case of that number."""
    await list(CASES.values())[seed](place)
