"""What batching is told: one record per thing that can happen, each with the time at which it did."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from .batch_shape import BatchShape


class Arrived(NamedTuple):
    """A request wants to run. Lower `priority` goes first.

    `due` is when its caller wants the answer; `strict` says that an answer after that is of no use.
    """

    at: float
    request: int
    form: BatchShape
    rows: int = 1
    nbytes: int = 0
    priority: int = 0
    due: float = math.inf
    strict: bool = False


class Left(NamedTuple):
    """A request's caller is gone: cancelled, or out of time. For a request that is not known it changes nothing."""

    at: float
    request: int


class Began(NamedTuple):
    """A batch is being put together from the members it has now; who leaves later leaves an empty place."""

    at: float
    batch: int


class BatchFinished(NamedTuple):
    """A batch is over, and its members have their answers.

    `typical` unless it failed, was given up, or went a way that only a lone request goes: nothing is learned from it.
    """

    at: float
    batch: int
    typical: bool = True


class Failed(NamedTuple):
    """A batch failed, and one of its members may be to blame: each is to run alone.

    `too_large` says that memory was short, so that such batches are not to be made again.
    """

    at: float
    batch: int
    too_large: bool = False


class Ticked(NamedTuple):
    """Time has passed."""

    at: float


class Closing(NamedTuple):
    """No more will come: nothing waits for company any longer."""

    at: float


Happening: TypeAlias = Arrived | Left | Began | BatchFinished | Failed | Ticked | Closing
