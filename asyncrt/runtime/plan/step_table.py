"""From which numbers are the launches of a recipe made? The table that a loop in C goes through (`_steps.c`).

It is for devices whose argument records are those of `devices/opencl/record.py`.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from asyncrt.devices.opencl.record import pack_record

from .chunk_plan import BufferName, Pack, PlanStep

_Numbers: TypeAlias = tuple[int, ...]
Fill: TypeAlias = Callable[
    [
        list[Any], int, int, type[PlanStep], tuple[Any, ...], bytes, _Numbers, _Numbers,
        tuple[_Numbers, _Numbers] | None,
    ],
    int,
]  # fmt: skip


class StepRecipe(NamedTuple):
    """How to make a step. All that is made of numbers says where these are among all numbers.

    It is plain ints, which a garbage collection does not go through: there are thousands of steps in all recipes.

    Attributes:
        kernel: The kernel, or what returns it for the number that chooses it.
        chosen: That number; -1 if none does.
        bases: Where the tensors begin, among the beginnings of tensors; -1 is the last, that of others' memory.
        offsets: In these tensors.
    """

    node: int
    kernel: Any
    buffers: tuple[BufferName, ...]
    group: tuple[int, ...] | None
    varying: tuple[int, ...]
    chosen: int
    bases: tuple[int, ...]
    offsets: tuple[int, ...]
    ints: tuple[int, ...]
    grid: tuple[int, ...]
    local: tuple[int, ...]

    @property
    def reads(self) -> set[int]:
        """All numbers that it is made of, and of each tensor `~` its place among the bases."""
        # Nothing is read of those that count from the end: memory of others begins at 0.
        read = {*self.offsets, *self.ints, *self.grid, *self.local, *[~base for base in self.bases if base >= 0]}
        return read | {self.chosen} if self.chosen >= 0 else read


class StepTable(NamedTuple):
    """How to make steps.

    Attributes:
        steps: What of each step is no number.
        table: Where each step's row begins, and the rows: how many places there are of each kind, and all places.
    """

    fill: Fill
    steps: tuple[StepRecipe, ...]
    table: bytes

    def put(
        self,
        steps: list[Any],
        begin: int,
        end: int,
        numbers: _Numbers,
        base: _Numbers,
        before: tuple[_Numbers, _Numbers] | None,
    ) -> int:
        """Put steps into a list in which those are that were made before; returns how many of them are the same.

        Args:
            begin, end: Which of them.
            before: What those were made of that there are; None if there are none.

        Raises:
            OverflowError: A number does not fit into a launch's record.
        """
        return self.fill(steps, begin, end, PlanStep, self.steps, self.table, numbers, base, before)


def step_table(steps: tuple[StepRecipe, ...], bases: int, pack: Pack) -> StepTable | None:
    """Return the table of steps; None where the loop was not built, or the device has other records.

    Args:
        bases: How many beginnings there are.
    """
    fill = _native_fill()
    if fill is None or pack is not pack_record:
        return None
    table, starts = array("i"), array("i")
    for step in steps:
        starts.append(len(steps) + len(table))
        table.extend((step.chosen, len(step.bases), len(step.ints), len(step.grid), len(step.local)))
        table.extend([base % bases for base in step.bases])
        for places in (step.offsets, step.ints, step.grid, step.local):
            table.extend(places)
    return StepTable(fill, steps, (starts + table).tobytes())


@functools.cache
def _native_fill() -> Fill | None:
    try:
        from . import _steps
    except ImportError:
        return None
    return _steps.fill
