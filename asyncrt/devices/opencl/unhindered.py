"""How is a large library loaded while other threads of Python go on?

`ctypes.CDLL` keeps the interpreter to itself for as long as the dynamic linker works: for Intel's runtime with its
compiler that is as long as asyncrt takes to import. A function that is called through ctypes does not, and the linker's
own `dlopen` is one.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path


def load_beside(library: Path) -> None:
    """Load a library as `ctypes.CDLL` does, if that can be; whether it could, `ctypes.CDLL` says at once then."""
    opens = _dlopen()
    if opens is not None:
        opens(os.fsencode(library), os.RTLD_NOW)


@functools.cache
def _dlopen() -> Callable[[bytes, int], int | None] | None:
    """Return the linker's function; None where there is none of that name."""
    try:
        found = ctypes.CDLL(None).dlopen
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    opens: Callable[[bytes, int], int | None] = found
    return opens
