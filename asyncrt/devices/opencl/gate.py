"""May the device begin on a plan's first launches while the others are still being enqueued?

As a rule it should. But where a launch takes the device less time than it takes the host to enqueue the next one, the
device is idle between any two, and on Intel's runtime for CPUs each launch then wakes a thread that has just gone to
sleep: for 200 launches of one work-item 415 µs pass rather than 350, and 1.5 ms where others want the cores, too. So
such launches stay behind a gate, which is a user event that the queue waits for, until all of them are enqueued.

Nothing waits for a gate but what is behind it, and it is open again before the call that has shut it returns.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from asyncrt.devices.base import PreparedLaunch

from .arguments import loader
from .drivers import INTEL_CPU

_FEW = 16  # launches that are enqueued before the device could have gone to sleep
GAINS = frozenset({INTEL_CPU})
"""Platforms and kinds of devices that were measured to gain by a gate."""
_ITEMS = 2  # work-items of a launch, on average, that take no longer than enqueueing it


def are_tiny(launches: Sequence[PreparedLaunch]) -> bool:
    """Whether the launches take the device about as long as they take the host."""
    items = sum([math.prod(grid) for _, _, _, grid, _, _ in launches])
    return len(launches) >= _FEW and items <= _ITEMS * len(launches)


class Gate(NamedTuple):
    """Keeps what is enqueued from starting for a while.

    Attributes:
        context: The address of the driver's.
        create, wait, set, release: The loader's functions.
    """

    context: int
    create: Callable[[int, None], int | None]
    wait: Callable[[int, int, ctypes.Array[ctypes.c_void_p], None], int]
    set: Callable[[int, int], int]
    release: Callable[[int], int]

    def shut(self, queue: int) -> int | None:
        """Let what is enqueued from here on wait for `open()`; None if the driver has no memory left for that."""
        event = self.create(self.context, None)
        if event is not None and self.wait(queue, 1, (ctypes.c_void_p * 1)(event), None):
            self.release(event)
            return None
        return event

    def open(self, event: int) -> int:
        """Let it start; returns the driver's refusal, or 0."""
        status = self.set(event, 0)
        self.release(event)
        return status


def find_gate(platform: str, kind: str, context: int) -> Gate | None:
    """Return the gate of a context; None where the driver has not been tried, or the loader is not to be called."""
    library = loader() if (platform, kind) in GAINS else None
    calls = None if library is None else _calls(library)
    return None if calls is None else Gate(context, *calls)


@functools.cache
def _calls(library: ctypes.PyDLL) -> tuple[Any, Any, Any, Any] | None:
    """Return the loader's functions; None if it lacks one."""
    # To set an event hands all that waits for it to the driver's threads, so here the GIL is given up.
    releasing = ctypes.CDLL(library._name)  # noqa: SLF001  # there is no other name of it
    try:
        create, wait = library["clCreateUserEvent"], library["clEnqueueBarrierWithWaitList"]
        set, release = releasing["clSetUserEventStatus"], library["clReleaseEvent"]
    except AttributeError:
        return None
    create.argtypes, create.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_void_p
    wait.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p]
    set.argtypes, release.argtypes = [ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p]
    return create, wait, set, release
