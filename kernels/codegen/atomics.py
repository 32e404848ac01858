"""What work-items of CPU devices that share work wait by. They tell each other how far they are by Clang's atomics.

OpenCL C's own atomics say nothing about other memory before version 2.0, and drivers need not have those of 2.0.
"""

from __future__ import annotations

import platform

_PAUSES = {"x86_64": "pause", "AMD64": "pause", "aarch64": "yield", "arm64": "yield"}
"""By the machine, what leaves a core's other thread alone for a moment."""


def pause() -> str:
    """Return the statement of a loop that waits for another core."""
    name = _PAUSES.get(platform.machine())
    return "" if name is None else f'__asm__ volatile("{name}");'


SCHED_YIELD = "extern int sched_yield(void);"
"""Declares what lets another thread have the core, for devices with the feature "sched_yield"."""
