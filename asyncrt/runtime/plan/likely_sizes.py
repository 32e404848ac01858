"""For which sizes is a model planned while it is loaded, before any request has come?

Such plans tell which kernels are needed, and leave recipes. Planning evaluates nodes on the host, and a size that is
ordinary for one axis is too large for five at once. So each guess may cost little, and all of them together at most
some seconds. A guess that would cost more is left out, and the first request of that size does its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from asyncrt.dims import Dim
from asyncrt.graph.ir import Program
from asyncrt.layout import Array, Layout
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.cooperative import Slices

_T = TypeVar("_T")

_ELEMENTS = 1 << 18  # of inputs whose values decide, which are made for a guess
NBYTES = 4 << 20
"""That nodes on the host may make in a guess, if a request may make as many."""
LIKELY_ARENA = 64 << 20
"""Bytes of an arena above which sizes are not likely enough to have memory before they come."""
# Of the thread's own time; models of the zoo take up to 5 ms for each node.
_PATIENCE_S, _PATIENCE_PER_NODE_S = 2.0, 0.05

_PICTURES = (1, 224, 320), (1, 320, 480), (1, 480, 416)
# What the first dim and the others, in turn, may be. Pictures come first: a recipe of theirs holds for most sizes.
# Height and width are no one size, and many models take steps of 32 only. Decisions change at few sizes: half an octave
# apart most are met, each by as many as make a recipe trusted.
SIZES = (
    *_PICTURES,
    *[(1, round(2 ** (half / 2)) + more) for half in range(4, 17) for more in range(3)],
    (3, 17), (5, 18), (3, 66), (5, 69),
)  # fmt: skip
# Ones, small odd numbers, and a batch of one with long other axes, because kernels differ by which axes are units and
# by how many rows there are. None of them is worth a recipe.
ODD_SIZES = (
    (1, 1), None, *[(1, n) for n in (2, 4, 7, 32, 64, 224)],
    (2, 16), (2, 64), (4, 1), (4, 3), (4, 33), (24, 1), (24, 33),
)  # fmt: skip
MANY_ROWS = tuple(
    (batch, round(2 ** (half / 2)) + more) for batch in (8, 32, 128) for half in range(7, 17) for more in range(3)
)
"""For GPUs, whose tiles follow from all rows together: those of one row of the batch tell little of others."""
GPU_SIZES = (
    *_PICTURES,
    # There kernels also follow from whether rows of positions begin where a copy may: sizes that are asked for often
    # come before those that are only different, which may use up the time.
    (1, 224, 224), (8, 224, 224), (32, 224, 224), (1, 480, 640), (1, 640, 640),
    *SIZES[len(_PICTURES) :], *MANY_ROWS,
)  # fmt: skip
CLOSER_SIZES = (
    # How wide a tile is follows from the positions of a row, or of all rows together: few sizes have one of its own.
    # Neighbours are far apart in time: where planning ends early, what has been tried is of all kinds.
    *((1, 32 * (3 + n // 19), 32 * (3 + n % 19)) for n in (137 * i % 19**2 for i in range(19**2))),
    *((1, round(2 ** (eighth / 8)) + more) for eighth in range(24, 65) for more in range(3)),
)

BATCHES = tuple((batch, *size[1:]) for batch in (2, 3) for size in CLOSER_SIZES)
"""By which recipes are compared that were made for a batch of one: they are trusted once each size has varied."""


class GuessAllowance:
    """What all guesses at the sizes of one program may cost.

    Args:
        nbytes: That a guess may make on the host.
        clock: Seconds that they have taken.
        go_on: Asked after each slice; may pause, and says whether there is to be another.
    """

    def __init__(
        self,
        program: Program,
        nbytes: int,
        clock: Callable[[], float] = time.thread_time,
        *,
        go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._program, self._nbytes, self._go_on = program, nbytes, go_on
        self._stopped = False
        self._clock = clock
        self._end = clock() + _PATIENCE_S + _PATIENCE_PER_NODE_S * len(program.nodes)

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return self._stopped or self._clock() > self._end

    def budget(self) -> HostBudget:
        """Return what a guess may make on the host."""
        return HostBudget(self._nbytes)

    def values(self, layouts: Sequence[Layout]) -> dict[int, Array] | None:
        """Return ones for the inputs whose values decide; None if these would be too many."""
        decide = self._program.value_inputs
        wanted = {id: x for id, x in zip(self._program.inputs, layouts, strict=True) if id in decide}
        elements, nbytes = sum([x.count for x in wanted.values()]), sum([x.nbytes for x in wanted.values()])
        if elements > _ELEMENTS or nbytes > self._nbytes:
            return None
        return {id: np.ones(x.shape, x.dtype.numpy) for id, x in wanted.items()}

    def finished(self, work: Slices[_T]) -> _T | None:
        """Do the work and return what comes of it; None if the time is over before it is done."""
        while not self.spent:
            try:
                piece = next(work)
            except StopIteration as end:
                result: _T = end.value
                return result
            if piece is not None:
                piece()
            self._stopped = not self._go_on()
        work.close()
        return None


def sample_layouts(program: Program, sizes: Sequence[tuple[int, ...] | None]) -> list[list[Layout]]:
    """Return input layouts of a few likely sizes, to find out which kernels a program needs.

    Dims of the same name are equal, as in a request.

    Args:
        sizes: The first dim's and those of the others, which take them in turn; None makes all of them different. A
            first dim that is no input's first axis is one of the others: then the batch is of one size.
    """
    axes: dict[str, int] = {}
    for id in program.inputs:
        for axis, dim in enumerate(program.values[id].layout.shape or ()):
            if isinstance(dim, Dim) and (name := dim.name) is not None:
                axes[name] = min(axis, axes.get(name, axis))
    names = list(axes)
    others = 0 if names and axes[names[0]] else 1  # the number of the first of them
    samples = [
        {n: 2 * i + 3 if size is None else _of(size, i - others) for i, n in enumerate(names)}
        for size in sizes
    ]
    result: dict[tuple[Layout, ...], None] = {}
    for sample in samples if names else [{}]:
        layouts: list[Layout] = []
        for id in program.inputs:
            dtype, shape = program.values[id].layout
            if dtype is None or shape is None:
                return []
            dims = [sample.get(d.name or "", 1) if isinstance(d, Dim) else d for d in shape]
            layouts.append(Layout(dtype, tuple(dims)))
        result[tuple(layouts)] = None
    return [*map(list, result)]


def _of(size: tuple[int, ...], number: int) -> int:
    """Return the size of the dim of that number among those that are not first; -1 stands for the first."""
    return size[0] if number < 0 else size[1 + number % (len(size) - 1)]
