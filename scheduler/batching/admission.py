"""May a request wait? Not if too many wait already, nor if its answer would come too late."""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from .cost import Line
from .options import USUAL_ROWS, BatchOptions
from .waiting import QueuedRequest

_EARLIER = 0.125  # weight of the newest batch in what is typical of batches
_STEP = 0.15  # how far one request that took longer than expected moves what is allowed for
_LATE = 0.0015  # the share of requests that may
_MOST = 8.0

SOONEST_S = 0.001
"""Who is refused is not told to come again sooner."""


@attrs.define
class Typical:
    """What batches are like that were formed while many waited.

    Attributes:
        rows: How many rows they have; None until there was one.
        own: The share of their work that is not padding.
    """

    rows: float | None = None
    own: float = 1.0

    def saw(self, rows: int, own: float) -> None:
        """One went, while more than it could take waited."""
        if self.rows is None:
            self.rows, self.own = rows, own
        else:
            self.rows += _EARLIER * (rows - self.rows)
            self.own += _EARLIER * (own - self.own)


@attrs.define
class DelayAllowance:
    """How much longer than expected a request may take that is let in.

    It goes up when a request took longer, and down when one did not, so that it settles where a few in a thousand take
    longer. Only requests count that were expected to take a good part of the time they had.
    """

    factor: float = 2.25

    def saw(self, expected: float, took: float, had: float) -> None:
        """A request that had to be over in *had* seconds took so long."""
        if 2 * self.factor * expected < had:
            return
        if took > self.factor * expected:
            self.factor = min(self.factor * (1 + _STEP), _MOST)
        else:
            self.factor = max(self.factor * (1 - _STEP * _LATE), 1.0)


def backlog_s(
    ahead: Iterable[QueuedRequest], line: Line, typical: Typical, options: BatchOptions, streams: int
) -> float:
    """Return the seconds that *streams* need for those that wait."""
    rows = work = 0
    for request in ahead:
        rows += request.rows
        work += request.work
    batches = math.ceil(rows / (typical.rows or min(options.max_batch, USUAL_ROWS)))
    return line.at_least(work / typical.own / batches) * batches / streams if batches else 0.0


def retry_s(before: float, own: float, allowed: float) -> float:
    """Return after how many seconds a request would be let in that is refused now, if nobody else came.

    Args:
        before: Seconds until those that are here have had their turn. Who comes then goes at once, whatever is
            expected of it.
        own: Seconds that it takes itself.
        allowed: Seconds that it may be expected to take, waiting included.
    """
    return max(min(before, before + own - allowed), SOONEST_S)
