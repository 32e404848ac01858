"""May steps of different sequences run as one inference, and may their pasts be of different lengths? Tried out.

A shorter past is filled up at its beginning. That is harmless only if the model masks what a mask of zeros says, and
takes positions from an input or from the mask; and rows have to be independent of each other. So two steps that wait
are run with pasts drawn at random, each alone and then together, before any are run together in earnest. What fills a
past up is random here, too, so that a model that looks at it shows that.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import IndexOutOfRange, InputError, ShapeError
from asyncrt.layout import Array, Layout, PartialShape, layout_of
from asyncrt.runtime.numerics import difference, is_float, tolerance

from .stack import StackPart, stack, unstack
from .state_axes import RowTensor, StateAxes

Arrays: TypeAlias = "dict[int, Array]"
Run: TypeAlias = Callable[[Arrays], Awaitable[Arrays]]
"""Runs the model on all of its inputs, the state's too; returns all outputs."""

_SHORT, _LONG = 3, 8  # pasts


class Sharing(enum.Enum):
    """Which steps may run as one inference."""

    ANY_LENGTH = "steps of any length"
    EQUAL_LENGTH = "steps of sequences that are equally long"
    NONE = "no steps"


@attrs.frozen
class SharedSafety:
    """What was found.

    Attributes:
        sharing: Which steps may run as one.
        why: What stands against more; empty if nothing does.
        along: The dims of inputs that grow with the past.
        error: The largest difference that was let pass, as a share of the largest element.
    """

    sharing: Sharing
    why: str = ""
    along: frozenset[str] = frozenset()
    error: float = 0.0

    def __str__(self) -> str:
        return f"{self.sharing.value} share an inference" + (f": {self.why}" if self.why else "")


async def try_out(
    run: Run, axes: StateAxes, steps: Sequence[tuple[Arrays, Sequence[Array]]], names: Callable[[int], str]
) -> SharedSafety:
    """Return which steps may run as one.

    Args:
        names: Of values.
        steps: Two: the inputs of each, and its state, of which the shapes count.

    Raises:
        IndexOutOfRange: The inputs of a step may be to blame, which says nothing of others.
    """
    return await _SharingTrial(run, axes, steps, names).result()


class _Alone:
    """A step that ran alone."""

    def __init__(self, part: StackPart, outputs: Arrays) -> None:
        self.part, self.outputs = part, outputs


class _SharingTrial:
    def __init__(
        self, run: Run, axes: StateAxes, steps: Sequence[tuple[Arrays, Sequence[Array]]], names: Callable[[int], str]
    ) -> None:
        self._run, self._axes, self._steps, self._names = run, axes, steps, names
        self._random = np.random.default_rng(0)
        self.error = 0.0
        states = [(s, a) for s, a in zip(axes.states, steps[0][1], strict=True)]
        #: The state among what is not kept: here all of it goes over the host.
        self._inputs = (*axes.inputs, *(RowTensor(s.input, s.rows, _dims(axes, s.grows, a.ndim)) for s, a in states))
        self._outputs = (*axes.outputs, *(RowTensor(s.output, s.rows, _dims(axes, s.grows, a.ndim, axes.appended))
                                          for s, a in states))  # fmt: skip

    async def result(self) -> SharedSafety:
        axes = self._axes
        sizes = [axes.sizes(arrays, _layouts(state)) for arrays, state in self._steps]
        along = frozenset.intersection(*(axes.growing_along(s) for s in sizes))
        try:
            short = [await self._alone(0, _SHORT, along), await self._alone(1, _SHORT, along)]
        except IndexOutOfRange:
            raise
        except (ShapeError, InputError) as error:
            return SharedSafety(Sharing.NONE, f"a step with a past drawn at random does not run ({error.message})")
        if why := await self._together([short[1], short[0], short[1]], frozenset()):
            return SharedSafety(Sharing.NONE, f"two steps as one are not what they are alone: {why}")
        if axes.past is None:
            return SharedSafety(Sharing.EQUAL_LENGTH, error=self.error)
        if not along:
            why = f"no input has the dim of '{axes.past}' and what is appended, so nothing masks a past's beginning"
            return SharedSafety(Sharing.EQUAL_LENGTH, why, error=self.error)
        return await self._lengths(short, along)

    async def _lengths(self, short: list[_Alone], along: frozenset[str]) -> SharedSafety:
        """Whether a past may be filled up."""
        axes = self._axes
        assert axes.past is not None
        try:
            long = await self._alone(1, _LONG, along)
            other = await self._alone(0, _SHORT, along)
            holed = await self._alone(0, _LONG - 1, along, hole=True)
        except IndexOutOfRange:
            raise
        except (ShapeError, InputError) as error:
            return SharedSafety(Sharing.EQUAL_LENGTH, f"a longer past does not run ({error.message})")
        if not any(self._off(short[0].outputs[t.id], other.outputs[t.id]) for t in axes.outputs):
            return SharedSafety(Sharing.EQUAL_LENGTH, "the past was found not to matter, which proves nothing")
        everything = along | {axes.past}
        if why := await self._together([short[0], long, holed, short[1]], everything):
            return SharedSafety(Sharing.EQUAL_LENGTH, f"a past that is filled up gives other results: {why}")
        return SharedSafety(Sharing.ANY_LENGTH, "", along, self.error)

    async def _alone(self, which: int, past: int, along: frozenset[str], *, hole: bool = False) -> _Alone:
        """Run a step with another past; where the caller's masks have a zero in it, if there is to be a *hole*."""
        axes, (given, state) = self._axes, self._steps[which]
        sizes = axes.sizes(given, _layouts(state))
        arrays: Arrays = {}
        resized = dict.fromkeys(along, past + axes.new(sizes))
        if axes.past is not None:
            resized[axes.past] = past
        for tensor in axes.inputs:
            array = given[tensor.id]
            for axis, name in enumerate(tensor.names):
                size = resized.get(name or "")
                if size is not None and array.shape[axis]:
                    # All of what a mask says of the newest one.
                    array = np.repeat(np.take(array, [-1], axis=axis), size, axis=axis)
                    if hole:
                        array[(slice(None),) * axis + (1,)] = 0
            arrays[tensor.id] = np.asarray(array, order="C")
        rows = 1
        for s, old in zip(axes.states, state, strict=True):
            rows = old.shape[s.rows]
            arrays[s.input] = self._draw(s.shape_of(old.shape, rows, past), old.dtype)
        part = StackPart(arrays, {**sizes, **resized}, rows)
        return _Alone(part, await self._run(dict(arrays)))

    async def _together(self, alone: Sequence[_Alone], along: frozenset[str]) -> str:
        """Run steps as one and compare; "" or what was wrong."""
        axes = self._axes
        past = axes.past
        longest = max(a.part.sizes[past] for a in alone) if past is not None else 0
        parts: list[StackPart] = []
        start = 0
        for a in alone:
            pad = longest - a.part.sizes[past] if past is not None else 0
            parts.append(attrs.evolve(a.part, pad=pad, start=start))
            start += a.part.rows
        arrays = stack(self._inputs, parts, along, start)
        for s in axes.states:
            if s.grows is not None:
                self._fill(arrays[s.input], s.rows, s.grows, parts)
        try:
            outputs = await self._run(arrays)
            answers = [unstack(self._outputs, outputs, part, along) for part in parts]
        except (ShapeError, InputError) as error:
            return error.message
        except (KeyError, IndexError) as error:
            return f"an output cannot be taken apart ({error})"
        for a, answer in zip(alone, answers, strict=True):
            for tensor in self._outputs:
                expected = a.outputs[tensor.id]
                off = difference(expected, answer[tensor.id])
                if off > tolerance(expected.dtype):
                    return f"'{self._names(tensor.id)}' is off by {off:.1e} of its largest element"
                self.error = max(self.error, off)
        return ""

    def _fill(self, array: Array, rows: int, grows: int, parts: Iterable[StackPart]) -> None:
        """Write something to what is filled up of a past."""
        for part in parts:
            index = [slice(None)] * array.ndim
            index[rows], index[grows] = slice(part.start, part.start + part.rows), slice(0, part.pad)
            hole = array[tuple(index)]
            hole[...] = self._draw(hole.shape, array.dtype)

    def _off(self, a: Array, b: Array) -> bool:
        return difference(a, b) > tolerance(a.dtype)

    def _draw(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if is_float(dtype):
            return self._random.standard_normal(shape).astype(dtype)
        return self._random.integers(0, 2, shape).astype(dtype)


def _dims(axes: StateAxes, grows: int | None, rank: int, more: int | Dim | None = None) -> PartialShape:
    """The dims of a tensor of the state, of which only the one that grows matters."""
    if grows is None or axes.past is None:
        return (0,) * rank
    length = Dim.named(axes.past) + (0 if more is None else more)
    return tuple(length if axis == grows else 0 for axis in range(rank))


def _layouts(state: Sequence[Array]) -> list[Layout]:
    return [layout_of(array) for array in state]
