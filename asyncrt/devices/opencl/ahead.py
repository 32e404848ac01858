"""How do programs that will be wanted get to the driver before anybody asks for them?

All in one call of C (`_programs.c`), beside which Python's other threads go on. Where that was not built, or the loader
is not to be called directly, nothing is loaded ahead.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .arguments import loader

LoadAll: TypeAlias = Callable[[int, int, bytes, Sequence[tuple[bytes, str]]], tuple[int, ...]]
"""``(context, device, options, programs) -> addresses``: of each program its binary and the name of one of its kernels;
0 stands for one that the driver refuses."""

_CALLS = ("clCreateProgramWithBinary", "clBuildProgram", "clCreateKernel", "clReleaseKernel", "clReleaseProgram")


@functools.cache
def load_all() -> LoadAll | None:
    """Return what loads programs; None where nothing does."""
    library = loader()
    if library is None:
        return None
    try:
        from . import _programs

        addresses = tuple([ctypes.cast(library[name], ctypes.c_void_p).value for name in _CALLS])
    except (ImportError, AttributeError):
        return None

    def load(context: int, device: int, options: bytes, programs: Sequence[tuple[bytes, str]]) -> tuple[int, ...]:
        wanted = tuple([(binary, name.encode()) for binary, name in programs])
        found: Any = _programs.load(addresses, context, device, options, wanted)
        return tuple(found)

    return load
