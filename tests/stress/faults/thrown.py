"""An exception out of any line: the n-th time that a line of some functions runs, it raises instead."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import attrs


class Injected(Exception):
    """What is thrown: no code expects it."""


class Place(NamedTuple):
    """A line."""

    file: str
    function: str
    line: int


@attrs.define
class Thrower:
    """Counts how often each line runs, and raises once.

    Attributes:
        wanted: Says of a file and a function whether its lines count.
        at: The line that raises, and the how-many-th time; None only counts.
        always: Whether it raises each time from then on.
    """

    wanted: Callable[[str, str], bool]
    at: tuple[Place, int] | None = None
    always: bool = False
    met: Counter[Place] = attrs.field(factory=Counter)
    thrown: int = 0

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if self.at is not None and (code.co_name, code.co_filename) != (self.at[0].function, self.at[0].file):
            return None
        if not self.wanted(code.co_filename, code.co_name):
            return None
        # Who asks for counts is told of what goes wrong there, and nobody waits for it.
        return None if "statistics" in _callers(frame) else self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            code = frame.f_code
            place = Place(code.co_filename, code.co_name, frame.f_lineno)
            self.met[place] += 1
            if self.at is not None and place == self.at[0] and self._due(self.met[place]):
                self.thrown += 1
                raise Injected(f"{Path(place.file).name}:{place.line} in {place.function}()")
        return self._line

    def _due(self, times: int) -> bool:
        assert self.at is not None
        return times >= self.at[1] if self.always else times == self.at[1]

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Watch this thread while this lasts."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)


def _callers(frame: FrameType) -> list[str]:
    """The names of the few functions that called it."""
    names: list[str] = []
    caller = frame.f_back
    while caller is not None and len(names) < 4:
        names.append(caller.f_code.co_name)
        caller = caller.f_back
    return names


def places(met: Counter[Place], times: Sequence[float]) -> list[tuple[Place, int]]:
    """Return each line that ran, with those of its runs that are this far on: 0 is the first, 1 the last."""
    found: list[tuple[Place, int]] = []
    for place, count in sorted(met.items()):
        found += [(place, n) for n in sorted({1 + round(share * (count - 1)) for share in times})]
    return found
