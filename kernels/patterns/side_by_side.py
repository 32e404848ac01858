"""Tensors copied side by side: several inputs become parts of each row of one output, in one launch.

A row is everything from the axis on along which they lie. Of each part there are an offset and two strides, from row to
row and from element to element, so dense tensors, slices and broadcasts go together; what has more strides than that is
copied by a launch of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, inp, out
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import DataType
from asyncrt.memory.view import View, collapse

from .copy import BITS, copy_launch
from .grid import GPU_GROUP, cut_rows, round_up

MOST = 8
"""Inputs of one launch: each is an argument, and is asked for in each turn."""


class Part(NamedTuple):
    """An input that becomes a part of the output's rows.

    Attributes:
        input: Which of the node.
        view: How it is read.
        place: Which part of the output it becomes.
    """

    input: int
    view: View
    place: View


class _Rows(NamedTuple):
    """Where a part's rows lie: elements in a row, and strides from row to row and within one."""

    part: Part
    width: int
    along: int
    within: int


def side_by_side(parts: Sequence[Part], axis: int, itemsize: int, traits: DeviceTraits) -> tuple[Launch, ...]:
    """Return the launches that copy *parts*, which follow each other along *axis*, in elements of *itemsize* bytes."""
    launches: list[Launch | None] = []
    for group in _groups(parts, axis):
        if len(group) > 1:
            launches.append(_launch(group, axis, itemsize, traits))
        else:
            number, view, place = group[0].part
            launches.append(copy_launch(inp(number), view, out(0), place, itemsize, traits))
    return tuple(launch for launch in launches if launch is not None)


def _groups(parts: Sequence[Part], axis: int) -> Iterator[list[_Rows]]:
    """Yield neighbours that one launch can copy; a part that no launch can share is alone."""
    group: list[_Rows] = []
    for part in parts:
        if 0 in part.view.shape:
            continue
        rows = _rows(part, axis)
        if group and (rows is None or len(group) == MOST):
            yield group
            group = []
        if rows is None:
            yield [_Rows(part, 0, 0, 0)]
        else:
            group.append(rows)
    if group:
        yield group


def _rows(part: Part, axis: int) -> _Rows | None:
    """Return where a part's rows lie; None if that takes more than two strides."""
    shape, strides, _ = part.view
    outer, (along,) = collapse(shape[:axis], strides[:axis])
    inner, (within,) = collapse(shape[axis:], strides[axis:])
    if max(len(outer), len(inner)) > 1:
        return None
    return _Rows(part, inner[0], along[0], within[0])


def _launch(group: Sequence[_Rows], axis: int, itemsize: int, traits: DeviceTraits) -> Launch:
    first = group[0].part
    rows = 1
    for dim in first.view.shape[:axis]:
        rows = rows * dim
    width = sum(rows_of.width for rows_of in group)
    # One row says nothing of the stride to the next.
    whole = first.place.strides[axis - 1] if axis else width
    ints = (first.place.offset, rows, width, whole)
    each = tuple(x for r in group for x in (r.part.view.offset, r.width, r.along, r.within))
    buffers = (*(inp(r.part.input) for r in group), out(0))
    if not traits.is_cpu:
        grid: tuple[int, ...] = (round_up(rows * width, GPU_GROUP),)
        return Launch(_gpu_kernel(BITS[itemsize], len(group)), buffers, ints + each, grid, (GPU_GROUP,))
    cut = cut_rows(rows, width, traits)
    source = _cpu_kernel(BITS[itemsize], len(group))
    return Launch(source, buffers, (*ints, cut.grid[0], cut.rows_per_item, *each), cut.grid, (1, 1))


def _ints(parts: int) -> tuple[str, ...]:
    return tuple(f"{name}{part}" for part in range(parts) for name in ("o", "n", "a", "w"))


def _of_part(name: str, parts: int) -> str:
    """Return the expression of what is called *name* and has a number, for the part p."""
    return "".join(f"p == {part} ? {name}{part} : " for part in range(parts - 1)) + f"{name}{parts - 1}"


@functools.cache
def _cpu_kernel(dtype: DataType, parts: int) -> KernelSource:
    """An item copies a piece of each part of some rows. Parts of few elements are walked along the rows."""
    body = f"""
  const int r0 = (int)get_global_id(1) * per_item, r1 = min(r0 + per_item, rows);
  const int piece = (int)get_global_id(0);
  int start = to;
  for (int p = 0; p < {parts}; p++) {{
    const __global {dtype.c}* x = {_of_part("x", parts)};
    const int o = {_of_part("o", parts)}, n = {_of_part("n", parts)};
    const int a = {_of_part("a", parts)}, w = {_of_part("w", parts)};
    const int chunk = ((n + pieces - 1) / pieces + 15) / 16 * 16;
    const int c0 = min(piece * chunk, n), c1 = min(c0 + chunk, n);
    if (c1 - c0 < 4) {{
      for (int c = c0; c < c1; c++)
        for (int r = r0; r < r1; r++) y[start + r * whole + c] = x[o + r * a + c * w];
    }} else {{
      for (int r = r0; r < r1; r++) {{
        const __global {dtype.c}* from = x + o + r * a;
        __global {dtype.c}* into = y + start + r * whole;
        int c = c0;
        if (w == 1) for (; c + 16 <= c1; c += 16) vstore16(vload16(0, from + c), 0, into + c);
        for (; c < c1; c++) into[c] = from[c * w];
      }}
    }}
    start += n;
  }}"""
    buffers = (*((f"x{part}", dtype, "r") for part in range(parts)), ("y", dtype, "w"))
    ints = ("to", "rows", "width", "whole", "pieces", "per_item", *_ints(parts))
    return kernel("side_by_side", buffers, ints, body)


@functools.cache
def _gpu_kernel(dtype: DataType, parts: int) -> KernelSource:
    find = "\n  ".join(
        f"{'' if part == 0 else 'else '}if ((c -= n{part}) < 0) "
        f"y[into] = x{part}[o{part} + r * a{part} + (c + n{part}) * w{part}];"
        for part in range(parts)
    )
    body = f"""
  const int id = (int)get_global_id(0);
  if (id >= rows * width) return;
  const int r = id / width;
  int c = id - r * width;
  const int into = to + r * whole + c;
  {find}"""
    buffers = (*((f"x{part}", dtype, "r") for part in range(parts)), ("y", dtype, "w"))
    return kernel("side_by_side", buffers, ("to", "rows", "width", "whole", *_ints(parts)), body)
