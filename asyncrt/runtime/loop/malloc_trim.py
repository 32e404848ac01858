"""How does memory get back to the system that this process has freed, but the C library keeps for later?

Loading a model allocates a lot for a moment, on several threads, for each of which glibc keeps memory of its own. To
give it back takes as long as the process is large, up to a tenth of a second, so that small models do without.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

_WORTH = 16 << 20  # bytes


def give_back_freed(nbytes: int) -> None:
    """Have the C library give back what it can, if it is one that does so when asked.

    Args:
        nbytes: How much came and went, about: little is not worth the time.
    """
    trim = _malloc_trim() if nbytes >= _WORTH else None
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # it is not glibc
        return None
