"""A request's plan needs kernels that are not built yet: does the request wait, or does NumPy answer it meanwhile?

A choice carries its reason. It depends on the kernels and on the plan, never on what other requests do: a request that
NumPy is to answer, and that has to wait for that, goes to the device all the same if its kernels come first.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

import attrs

from asyncrt.kernels.resident.kernel_cache import Expected
from asyncrt.runtime.plan.bound_plan import BoundPlan

SHORT_S = 0.25
"""Seconds for which a request waits for kernels that are expected by then."""
PATIENCE_S = 3.0
"""Seconds for which a request waits for kernels once NumPy has answered enough; then NumPy goes on.

Builds get the processor meanwhile. Where others have it, they take as many times as long as there are others.
"""
LOADING_S = 2.0
"""Seconds for which a request waits for kernels that only have to be loaded, which is sooner done than NumPy is."""
# NumPy's temporaries are a few times as large as the tensors: a convolution's patches are nine times its input for a
# window of three by three, and one node's are there at a time.
_TEMPORARIES = 4


@attrs.frozen
class Wait:
    """The request waits for its kernels.

    Attributes:
        at_most_s: Seconds after which NumPy answers it all the same; None waits as long as it takes.
    """

    why: str
    at_most_s: float | None = None


@attrs.frozen
class StandIn:
    """NumPy answers the request, unless its kernels come before that has begun or is done."""

    why: str


Choice: TypeAlias = Wait | StandIn


def choose(expected: Expected, nbytes: int, limit: int, patience_s: float = 0.0) -> Choice:
    """Return whether a request waits for kernels.

    Args:
        expected: Which are missing, and when they are expected.
        nbytes: Of memory that the request's plan needs.
        limit: Bytes that a request may make on the host.
        patience_s: Seconds for which it rather waits than have NumPy answer.
    """
    if not expected.missing:
        return Wait("every kernel is there")
    count = f"{expected.missing} of {expected.wanted} kernels are not there yet"
    if nbytes * _TEMPORARIES > limit:
        return Wait(f"{count}, and NumPy would need more than {limit} bytes of the host")
    if patience_s:
        return Wait(f"{count}, and NumPy has answered enough", patience_s)
    if not expected.building:
        return Wait(f"{count}, but lie on disk", LOADING_S)
    if expected.seconds <= SHORT_S:
        return Wait(count, SHORT_S)
    return StandIn(count)


class KernelsMissing(Exception):
    """The request is to be answered by NumPy; this never leaves `Network`.

    Attributes:
        why: The reason.
        bound: Is done when the device has all that the request's plan needs.
    """

    def __init__(self, why: str, bound: asyncio.Task[BoundPlan]) -> None:
        super().__init__(why)
        self.why, self.bound = why, bound
