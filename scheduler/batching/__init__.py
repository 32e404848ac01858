"""Which waiting requests run as one, and when: a state machine like `scheduler/state.py`, with a clock that it is told.

`BatchingState` takes happenings and gives instructions. It knows forms and amounts of work, not arrays.
"""

from __future__ import annotations

from .batch_shape import BatchShape
from .options import BatchOptions
from .state import BatchingState, BatchingStatistics

__all__ = ["BatchOptions", "BatchShape", "BatchingState", "BatchingStatistics"]
