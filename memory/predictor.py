"""How large should new memory be, so that a shape that keeps growing does not need another block each time?

The rule is that of OpenVINO's GPU plugin, with its constants. Shapes that grew twice by the same small step get room
for the next ten; any other history of three gets a tenth more elements. The answer is meant for new memory only, so
that one guess serves the steps after it. What is left out is the exception for blocked formats: layouts here are dense.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import attrs
from attrs import validators as v

_HISTORY = 3  # shapes: two steps, which is the least that can be compared


@attrs.frozen(kw_only=True)
class PredictorSettings:
    """When growth counts as steady, and how much room to give.

    Attributes:
        iterations: Steps that there shall be room for where growth is steady.
        max_step_nbytes: Steady growth by larger slices (one index of each axis that grows) is not followed.
        max_dim_step: Nor is growth by more indices of an axis at once.
        percent: Elements to add where growth is not steady; 0 adds none.
    """

    iterations: int = attrs.field(default=10, validator=v.ge(1))
    max_step_nbytes: int = attrs.field(default=16 << 10, validator=v.ge(0))
    max_dim_step: int = attrs.field(default=2, validator=v.ge(0))
    percent: int = attrs.field(default=10, validator=v.ge(0))


#: For sizes in bytes as shapes of one axis: there the step of the axis is what has to be at most 16 KiB.
SIZES = PredictorSettings(max_dim_step=16 << 10)


class ShapePredictor:
    """The last three shapes of one tensor, and what to expect after them."""

    __slots__ = ("_settings", "_shapes")

    def __init__(self, settings: PredictorSettings | None = None) -> None:
        self._settings = settings or PredictorSettings()
        self._shapes: deque[tuple[int, ...]] = deque(maxlen=_HISTORY)

    def __repr__(self) -> str:
        return f"<ShapePredictor {list(self._shapes)}>"

    @property
    def last(self) -> tuple[int, ...] | None:
        """The shape recorded last."""
        return self._shapes[-1] if self._shapes else None

    def record(self, shape: Sequence[int]) -> None:
        """Note the shape that is needed now, whether or not new memory is needed for it."""
        self._shapes.append(tuple(shape))

    def predict(self, bits: int, *, iterations: int | None = None, axis: int | None = None) -> tuple[int, ...] | None:
        """Return the shape to allocate for the one recorded last.

        Args:
            bits: Of one element.
            iterations: Steps to give room for, instead of those of the settings.
            axis: The axis known to grow, one index at a time; with *iterations* it needs no history.

        Returns:
            A shape of at least as many elements. Where growth is steady no axis is shorter; otherwise all elements are
            on the first axis. None where nothing is known yet, or nothing is to be added.
        """
        if not self._shapes:
            return None
        shape = self._shapes[-1]
        if axis is not None and iterations is not None:
            return tuple(d + iterations if a == axis else d for a, d in enumerate(shape))
        if len(self._shapes) < _HISTORY:
            return None
        step = self._steady_step(bits)
        if step is not None:
            times = self._settings.iterations if iterations is None else iterations
            return tuple(d + s * times for d, s in zip(shape, step, strict=True))
        if not self._settings.percent or not shape:
            return None
        count = math.prod(shape)
        return (count + count * self._settings.percent // 100, *(1 for _ in shape[1:]))

    def _steady_step(self, bits: int) -> tuple[int, ...] | None:
        """By how much each axis grew both times; None if it did not, or by more than is to be followed."""
        first, second, third = self._shapes
        step = _step(first, second)
        if step is None or not any(step) or step != _step(second, third):
            return None
        if max(step) > self._settings.max_dim_step:
            return None
        slice_ = math.prod(d if s == 0 else 1 for d, s in zip(third, step, strict=True))
        return step if -(-bits * slice_ // 8) <= self._settings.max_step_nbytes else None


def _step(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return by how much each axis grew; None if one shrank, or there are more or fewer of them."""
    if len(before) != len(after) or any(a < b for b, a in zip(before, after, strict=True)):
        return None
    return tuple(a - b for b, a in zip(before, after, strict=True))
