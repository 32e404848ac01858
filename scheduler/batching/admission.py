"""May a request wait? Not if too many do, or if its answer would come after it is due."""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from .cost import Line
from .options import BatchOptions
from .waiting import Waiting

_EARLIER = 0.125  # weight of the newest batch in what is typical of batches


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


def backlog_s(
    ahead: Iterable[Waiting], line: Line, typical: Typical, options: BatchOptions, streams: int
) -> float:
    """Return the seconds that *streams* need for those that wait."""
    rows = work = 0
    for request in ahead:
        rows += request.rows
        work += request.work
    batches = math.ceil(rows / (typical.rows or options.max_batch))
    return (line.per_work * work / typical.own + line.fixed * batches) / streams
