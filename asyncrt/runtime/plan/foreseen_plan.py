"""The plan of a step that may come, made in slices; when it is asked for, the rest is made at once."""

from __future__ import annotations

from typing import Any, NamedTuple

from asyncrt.runtime.cooperative import Slices

from .bound_plan import BoundPlan
from .chunk_plan import ChunkPlan


class Guessed(NamedTuple):
    """A plan, and what it is bound to if it is."""

    plan: ChunkPlan
    bound: BoundPlan | None


class Guess:
    """The plan of a step that may come.

    Args:
        signature: Of that step.
        work: Makes the plan, unless there is no recipe for it.
    """

    def __init__(self, signature: Any, work: Slices[Guessed | None]) -> None:
        self.signature = signature
        self._work = work
        self._plan: Guessed | None = None
        self._done = False

    def go_on(self) -> bool:
        """Make a slice of it; returns whether there is more to do."""
        if not self._done:
            try:
                next(self._work)
            except StopIteration as end:
                self._plan, self._done = end.value, True
            except Exception:  # if that step comes, it is planned anew and raises the error itself
                self._done = True
        return not self._done

    def plan(self) -> Guessed | None:
        """Return the plan, with all of it that is left made now."""
        while self.go_on():
            pass
        return self._plan
