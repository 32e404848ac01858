"""What a kernel needs whose work-groups stay on the device and walk a table: addresses, and local memory.

Buffers of NVIDIA's driver stay where they are until they are released, and a kernel may read what an address points to
that another kernel was given as its argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.devices.base import Allocation

from ..record import pack_record

LANES = 32
_OWN_NBYTES = 8 << 10  # of the walker itself: rows, addresses, and what its groups meet by
_LOCAL_KIB = {(9, 0): 208}
"""KiB of local memory that the arrays of one kernel may take, by compute capability, where it was tried. The driver
names 48, which is true of arrays that are arguments. Of the 227 of a multiprocessor a part stays with the cache."""


def local_memory(major: int, minor: int, said: int) -> int:
    """Return how many bytes of local memory a work-group may have.

    Args:
        major, minor: The compute capability.
        said: What the driver says.
    """
    return max(said, _LOCAL_KIB.get((major, minor), 0) << 10)


def local_space(local: int) -> int:
    """Return how many bytes of *local* the steps of one group of the walker may have."""
    return local - _OWN_NBYTES


class Addresses:
    """Where buffers begin.

    Args:
        cl: pyopencl.
        context, device: Of all buffers.

    Attributes:
        finder: The kernel by which they are found.
    """

    finder: Any = None

    def __init__(self, cl: Any, context: Any, device: Any) -> None:
        self._cl, self._context = cl, context
        self._queue = cl.CommandQueue(context, device)

    def of(self, allocations: Sequence[Allocation]) -> list[int]:
        """Return the address of each; blocks for those that were not asked for before."""
        cl = self._cl
        fresh = list({id(a): a for a in allocations if getattr(a, "address", None) is None}.values())
        if fresh:
            found = np.zeros(len(fresh), np.int64)
            target = cl.Buffer(self._context, cl.mem_flags.WRITE_ONLY, found.nbytes)
            for i, allocation in enumerate(fresh):
                self.finder.set_args(allocation, target, pack_record((0, 0), (i,)))
                cl.enqueue_nd_range_kernel(self._queue, self.finder, (1,), None)
            cl.enqueue_copy(self._queue, found, target)
            for allocation, address in zip(fresh, found, strict=True):
                allocation.address = int(address)
        return [a.address for a in allocations]

    def read(self, allocation: Allocation, nbytes: int) -> bytes:
        """Return the first bytes of an allocation. Blocks."""
        found = np.empty(nbytes, np.uint8)
        self._cl.enqueue_copy(self._queue, found, allocation)
        return found.tobytes()
