"""Which elements of an operator's inputs are indices, which range is allowed, and what happens to an index out of range?

The host checks the indices that it knows before anything is launched. All others are checked by the kernels that use
them, or by a launch of their own. A kernel that meets an index out of range uses one in range instead, or leaves the
element out, so that it touches no memory of other nodes. It also notes the index in a *finding*, memory of that request
alone that was filled with zeros. The host reads the findings together with a result.

A finding is four 32-bit words: whether there is a note, the position of the index, and the index. Only the first note
is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from asyncrt.errors import IndexOutOfRange
from asyncrt.layout import INT32, Array, Layout

FINDING = Layout(INT32, (4,))

NOTE = """
void $_note(__global int* found, const int position, const long index) {
  if (atomic_cmpxchg(found, 0, 1) == 0) { found[1] = position; *(__global long*)(found + 2) = index; }
}"""
"""OpenCL C that notes an index out of range."""

LOOK = "int outside = -1;"
TELL = "if (outside >= 0) $_note(found, outside, index[outside]);"
"""OpenCL C before and behind a loop over indices, in which `remembered()` is: it notes the first that was found."""


def remembered(position: str) -> str:
    """Return OpenCL C that remembers the position of an index that is out of range."""
    return f"if (outside < 0) outside = {position};"


def clamped(index: str, extent: str, position: str, *, known: bool) -> str:
    """Return OpenCL C that brings *index*, a long counted from the front, into range.

    Args:
        known: Whether it is known to be in range; otherwise the kernel remembers its *position* if it was not.
    """
    clamp = f"{index} = clamp({index}, 0L, (long){extent} - 1);"
    return clamp if known else f"if ({index} < 0 || {index} >= {extent}) {{ {clamp} {remembered(position)} }}"


class Indices(NamedTuple):
    """Elements of an input that are indices.

    Attributes:
        input: Which input.
        ranges: The least and the greatest value of successive elements, repeated from the first range. None as the
            greatest: there is no upper bound.
        ignored: A value that is not an index.
    """

    input: int
    ranges: tuple[tuple[int, int | None], ...]
    ignored: int | None = None

    def refused(self, node: str, position: int, index: int) -> IndexOutOfRange:
        """Return the error for an index that is out of range."""
        return IndexOutOfRange(node, self.input, position, index, *self.ranges[position % len(self.ranges)])

    def check(self, node: str, array: Array) -> None:
        """Raise `IndexOutOfRange` for the first element of *array* that is out of range, if one is."""
        position = self.first_outside(array)
        if position is not None:
            raise self.refused(node, position, int(array.reshape(-1)[position]))

    def first_outside(self, array: Array) -> int | None:
        """Return the position of the first element of *array* that is out of range; None if there is none."""
        flat = array.reshape(-1)
        found: list[int] = []
        for level, (least, most) in enumerate(self.ranges):
            mine = flat[level :: len(self.ranges)]
            # As Python's ints, so that traced ints (`runtime/plan/traced_int.py`) see the comparison.
            if not mine.size or (int(mine.min()) >= least and (most is None or int(mine.max()) <= most)):
                continue
            outside = (mine < least) | (False if most is None else mine > most)
            if self.ignored is not None:
                outside &= mine != self.ignored
            found += [level + len(self.ranges) * int(k) for k in np.flatnonzero(outside)[:1]]
        return min(found, default=None)


def from_either_end(input: int, *extents: int) -> Indices:
    """Return indices of axes that have *extents* elements; negative ones count from the end."""
    return Indices(input, tuple([(-extent, extent - 1) for extent in extents]))


def noted(finding: Array) -> tuple[int, int] | None:
    """Return the position and the index that a finding notes, or None if it notes nothing."""
    return (int(finding[1]), int(finding[2:].view(np.int64)[0])) if finding[0] else None


def note(position: int | None, array: Array) -> Array:
    """Return a finding that notes an element of *array*, or nothing."""
    finding = np.zeros(FINDING.shape, np.int32)
    if position is not None:
        finding[:2] = 1, position
        finding[2:].view(np.int64)[0] = array.reshape(-1)[position]
    return finding
