"""How long will a batch take? Learned from those that have run: seconds = a * work + b, for each class of shapes.

A run that took far longer than others of its kind, because a kernel was built or the machine was busy, must not change
the answer, so the line is Tukey's resistant one: through the medians of the outer thirds of the latest runs. Of two
values in the middle the lower one is the median, because runs are disturbed in one direction only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from statistics import median_low
from typing import NamedTuple

from asyncrt.lru import LruCache

_LATEST = 24  # runs of a class that count
_CLASSES = 256  # the one unused longest leaves first
_SPREAD = 1.5  # works that differ less than by this factor say nothing of a slope


class Line(NamedTuple):
    """Seconds of a batch: `per_work` times its work, and `fixed`. If not `told`, which of the two is a guess.

    `seen` is the work of the runs behind a guess.
    """

    per_work: float
    fixed: float
    told: bool = True
    seen: float = math.inf

    def __call__(self, work: float) -> float:
        return self.per_work * work + self.fixed

    def at_least(self, work: float) -> float:
        """Return the seconds that can be counted on: a guess says nothing of more work than was seen."""
        return self(min(work, self.seen))


class _Runs:
    """The latest runs of a class, and the line through them."""

    def __init__(self, latest: int = _LATEST) -> None:
        self._latest: deque[tuple[int, float]] = deque(maxlen=latest)
        self._line: Line | None = None
        self._wait = 0

    def add(self, work: int, seconds: float) -> None:
        self._latest.append((work, seconds))
        # The line is drawn anew when a sixth of the runs are others.
        self._wait -= 1
        if self._wait <= 0:
            self._line, self._wait = None, len(self._latest) // 6

    def line(self, other: Line | None = None) -> Line:
        """Return the line, with the slope of *other* where these runs are too much alike to tell it."""
        if self._line is None:
            self._line = resistant_line(list(self._latest), other)
        return self._line


def resistant_line(runs: list[tuple[int, float]], other: Line | None = None) -> Line:
    """Return the line through the medians of the outer thirds of *runs*; neither number of it is less than 0.

    If the works are too much alike, the slope is that of *other*; without one, or if that is a guess, all of the time
    is taken to grow with the work.
    """
    told, seen = True, math.inf
    runs = sorted(runs)
    third = max(1, len(runs) // 3)
    left, right = runs[:third], runs[-third:]
    x0, x1 = median_low(w for w, _ in left), median_low(w for w, _ in right)
    if x1 > _SPREAD * x0:
        slope = (median_low(s for _, s in right) - median_low(s for _, s in left)) / (x1 - x0)
    elif other is not None and other.told:
        slope = other.per_work
    else:
        slope, told, seen = median_low(s / max(w, 1) for w, s in runs), False, x1
    slope = max(slope, 0.0)
    fixed = median_low(s - slope * w for w, s in runs)
    if fixed < 0:  # the slope is too steep for these runs: the line through nothing that fits them
        slope, fixed = median_low(s / max(w, 1) for w, s in runs), 0.0
    return Line(slope, fixed, told, seen)


class CostModel:
    """The lines of a model's classes of shapes."""

    def __init__(self) -> None:
        self._all = _Runs(4 * _LATEST)
        self._classes: LruCache[Hashable, _Runs] = LruCache(_CLASSES)
        #: The class of the latest run: often it is that of the next, too.
        self._newest: tuple[Hashable, _Runs] | None = None
        self._seen = 0

    def __repr__(self) -> str:
        if not self._seen:
            return "<CostModel that has seen nothing>"
        a, b, *_ = self._all.line()
        seen = f"{self._seen} runs of {len(self._classes)} classes"
        return f"<CostModel {b * 1e3:.3f} ms + {a * 1e6:.3f} ms per million, {seen}>"

    def observe(self, kind: Hashable, work: int, seconds: float) -> None:
        """A batch of *work* in the class *kind* took so long."""
        self._seen += 1
        self._all.add(work, seconds)
        newest = self._newest
        if newest is None or newest[0] is not kind:
            newest = self._newest = kind, self._class(kind)
        newest[1].add(work, seconds)

    def _class(self, kind: Hashable) -> _Runs:
        runs = self._classes.get(kind)
        if runs is None:
            runs = _Runs()
            self._classes.put(kind, runs)
        return runs

    def cautious(self, kind: Hashable) -> Line | None:
        """Return the line with the smaller fixed part, of that class or of all: runs of similar sizes tell it badly.

        Padding that this line favours is worth it even where the fixed part is underestimated.
        """
        line = self.line(kind)
        if line is None or not line.told:
            return line
        everything = self._all.line()
        if not everything.told or everything.fixed >= line.fixed:
            return line
        return Line(max(line.per_work, everything.per_work), everything.fixed)

    def line(self, kind: Hashable) -> Line | None:
        """Return what to expect in that class; of one that was never seen, what holds for all; None at first."""
        if not self._seen:
            return None
        everything = self._all.line()
        runs = self._classes.peek(kind)
        return everything if runs is None else runs.line(everything)
