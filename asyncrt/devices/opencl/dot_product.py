"""Does a driver multiply four pairs of bytes at once, if asked by name?

Processors with VNNI have an instruction for it, which no function of OpenCL C becomes: on Intel's runtime `dot` is a
call for each element. Kernels that gain by it (`kernels/int8/product.py`) name it, where ``ASYNCRT_DOT`` is defined.
What a driver makes of such a name is its own affair, and may be wrong without a word; so it is tried first, on a
processor that says it can, and defined only if all sums are right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from asyncrt.layout import Array

from .target import CPUINFO

WANTED = "ASYNCRT_DOT"
"""What the text of a kernel has in it that gains by the instruction."""

TRIAL = """__kernel void asyncrt_dot(__global int* x) {
  int16 sums = vload16(0, x);
  const int16 unsigned_ones = vload16(1, x), signed_ones = vload16(2, x);
  __asm__("vpdpbusd %2, %1, %0" : "+vr"(sums) : "vr"(unsigned_ones), "vr"(signed_ones));
  vstore16(sums, 3, x);
}"""


Trial: TypeAlias = Callable[[str, str, Array], Array]
"""Builds a text, and returns an array after its kernel, whose name comes second, has changed it."""


class Dots:
    """What one driver is told when it builds a text.

    Args:
        run: Has the driver run the trial.
        possible: Whether the device is this machine's processor.
    """

    def __init__(self, run: Trial, *, possible: bool, path: Path = CPUINFO) -> None:
        self._run = run
        self._right: bool | None = None if possible and has_instruction(path) else False

    def options(self, text: str) -> bytes:
        """Return the options to add for *text*. Blocks at the first text that gains by them."""
        if WANTED not in text:
            return b""
        if self._right is None:
            self._right = multiplies_bytes(self._run)
        return b" -D " + WANTED.encode() if self._right else b""


@functools.cache
def has_instruction(path: Path = CPUINFO) -> bool:
    """Return whether this machine's processor says that it has the instruction, on 512 bits."""
    try:
        flags = next((line for line in path.read_text().splitlines() if line.startswith("flags")), "")
    except OSError:  # another system: nobody knows
        return False
    return {"avx512f", "avx512_vnni"} <= set(flags.split())


def multiplies_bytes(run: Trial) -> bool:
    """Whether the trial's sums are right; whatever it raises means no."""
    given = np.zeros((4, 16), np.int32)
    given[:3] = np.random.default_rng(0).integers(-(2**31), 2**31, (3, 16))
    unsigned, signed = given[1].view(np.uint8).astype(np.int64), given[2].view(np.int8).astype(np.int64)
    wanted = (given[0] + (unsigned * signed).reshape(16, 4).sum(axis=1)).astype(np.int32)
    try:
        got = run(TRIAL, "asyncrt_dot", given)
    except Exception:
        return False
    return bool((got[3] == wanted).all())
