"""Strided copies: what carries out every operator that only moves data.

One kernel per element size and number of axes left after merging; shapes, strides and offsets are arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Call
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, Ref, inp, out
from asyncrt.kernels.operator import ViewOf
from asyncrt.kernels.reach import MOST
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import UINT8, UINT16, UINT32, UINT64, DataType
from asyncrt.memory.view import View, collapse

from .grid import GPU_GROUP, cut_rows, round_up

BITS: dict[int, DataType] = {1: UINT8, 2: UINT16, 4: UINT32, 8: UINT64}
MAX_AXES = 12


def copy_launch(
    source: Ref, src: View, target: Ref, dst: View, itemsize: int, traits: DeviceTraits
) -> Launch | None:
    """Return the launch that copies *src* of one buffer to *dst* of another; None if there is nothing to copy.

    Args:
        source, target: The buffers.
        src, dst: Views of the same shape, in elements of *itemsize* bytes.
    """
    if 0 in src.shape:
        return None
    walk = _walk(src, dst)
    ints = (src.offset, dst.offset, *walk.ints)
    if not traits.is_cpu:
        k = _gpu_kernel(BITS[itemsize], walk.axes)
        grid: tuple[int, ...] = (round_up(walk.rows * walk.inner, GPU_GROUP),)
        return Launch(k, (source, target), ints + walk.strides, grid, (GPU_GROUP,))
    cut = cut_rows(walk.rows, walk.inner, traits)
    k = _cpu_kernel(BITS[itemsize], walk.axes, walk.unit)
    return Launch(k, (source, target), (*ints, cut.chunk, cut.rows_per_item, *walk.strides), cut.grid, (1, 1))


def copy_two_launch(
    sources: tuple[Ref, Ref], srcs: tuple[View, View], targets: tuple[Ref, Ref], dsts: tuple[View, View],
    itemsize: int, traits: DeviceTraits,
) -> Launch | None:
    """Return the launch that makes two copies; None where they differ in more than in their buffers and offsets, or
    where it could not count the elements of both."""
    (src, other), (dst, place) = srcs, dsts
    if (src.shape, src.strides, dst.strides) != (other.shape, other.strides, place.strides) or 0 in src.shape:
        return None
    walk = _walk(src, dst)
    if 2 * walk.rows * walk.inner > MOST:
        return None
    buffers, ints = (*sources, *targets), (src.offset, dst.offset, other.offset, place.offset, *walk.ints)
    k = _kernel_of_two(BITS[itemsize], walk.axes, traits.is_cpu)
    if not traits.is_cpu:
        grid: tuple[int, ...] = (round_up(2 * walk.rows * walk.inner, GPU_GROUP),)
        return Launch(k, buffers, ints + walk.strides, grid, (GPU_GROUP,))
    cut = cut_rows(2 * walk.rows, walk.inner, traits)
    return Launch(k, buffers, (*ints, cut.chunk, cut.rows_per_item, *walk.strides), cut.grid, (1, 1))


def copied_as_made(launch: Launch, src: View, dst: View) -> Launch | None:
    """Return the launch that makes output 0 as *launch* does, and copies *src* of it to *dst* of one more output; None
    where it cannot.

    Its first output has one row. What is copied lies side by side there, and in rows that are as long in *dst*.
    """
    dims, (ss, ds) = collapse(src.shape, src.strides, dst.strides)
    *rows, columns = dims
    if launch.also is None or 0 in src.shape or len(rows) > 1:
        return None
    if ss[-1] != 1 or ds[-1] != 1 or (rows and ss[0] != columns):
        return None
    before = sum(ref.kind == "output" for ref in launch.buffers)
    count, apart = (rows[0] * columns, ds[0]) if rows else (columns, 0)
    return launch._replace(
        kernel=launch.also(before),
        buffers=(*launch.buffers, out(before)),
        ints=(*launch.ints, src.offset, count, columns, apart, dst.offset),
    )


class _Walk(NamedTuple):
    """How a kernel goes through what is copied.

    Attributes:
        rows, inner: How many rows, and elements of one.
        steps: From element to element of a row, of the source and of the target.
        strides: Of each axis of the rows, the innermost first: its size, and the two strides.
    """

    rows: int
    inner: int
    steps: tuple[int, int]
    strides: tuple[int, ...]

    @property
    def axes(self) -> int:
        """Of the rows."""
        return len(self.strides) // 3

    @property
    def ints(self) -> tuple[int, ...]:
        """What kernels are told of the rows."""
        return self.inner, *self.steps, self.rows

    @property
    def unit(self) -> bool:
        """Whether elements of a row lie side by side."""
        return self.steps[0] == 1 and self.steps[1] == 1


def _walk(src: View, dst: View) -> _Walk:
    dims, (ss, ds) = collapse(src.shape, src.strides, dst.strides)
    if len(dims) > MAX_AXES:
        raise ShapeError(f"a copy over {len(dims)} axes that cannot be merged; at most {MAX_AXES} are supported")
    inner, outer = dims[-1], dims[:-1]
    rows = 1
    for d in outer:
        rows *= d
    strides = tuple(x for axis in range(len(outer) - 1, -1, -1) for x in (outer[axis], ss[axis], ds[axis]))
    return _Walk(rows, inner, (ss[-1], ds[-1]), strides)


def takes_any_view(call: Call, index: int, view: View) -> bool:
    """Copies and element-wise kernels read each element once: through any strides, at no more than a copy costs."""
    return True


def _names(axes: int) -> tuple[str, ...]:
    return tuple(x for a in range(axes) for x in (f"d{a}", f"s{a}", f"t{a}"))


def _decode(axes: int) -> str:
    """From row number r to the row's first element: axis 0 is the innermost of the outer axes."""
    lines = ["int rest = r; int so = so0, to = to0;"]
    lines += [
        f"{{ const int q = rest / d{a}; const int i = rest - q * d{a}; so += i * s{a}; to += i * t{a}; rest = q; }}"
        for a in range(axes)
    ]
    return "\n".join(lines)


@functools.cache
def _cpu_kernel(dtype: DataType, axes: int, unit: bool) -> KernelSource:
    move = "for (int c = c0; c < c1; c++) y[to + c * ti] = x[so + c * si];"
    if unit:  # in vectors: compilers make none of this loop, since to them the buffers might overlap
        move = """int c = c0;
    for (; c + 16 <= c1; c += 16) vstore16(vload16(0, x + so + c), 0, y + to + c);
    for (; c < c1; c++) y[to + c] = x[so + c];"""
    body = f"""
  const int r1 = min(((int)get_global_id(1) + 1) * per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int r = (int)get_global_id(1) * per_item; r < r1; r++) {{
    {_decode(axes)}
    {move}
  }}"""
    ints = ("so0", "to0", "n", "si", "ti", "rows", "chunk", "per_item", *_names(axes))
    return kernel("copy", (("x", dtype, "r"), ("y", dtype, "w")), ints, body)


@functools.cache
def _gpu_kernel(dtype: DataType, axes: int) -> KernelSource:
    body = f"""
  const int id = (int)get_global_id(0);
  if (id >= rows * n) return;
  const int r = id / n, c = id - r * n;
  {_decode(axes)}
  y[to + c * ti] = x[so + c * si];"""
    ints = ("so0", "to0", "n", "si", "ti", "rows", *_names(axes))
    return kernel("copy", (("x", dtype, "r"), ("y", dtype, "w")), ints, body)


@functools.cache
def _kernel_of_two(dtype: DataType, axes: int, is_cpu: bool) -> KernelSource:
    chosen = f"""const int second = both >= rows, r = both - second * rows;
    const int so0 = second ? so2 : so1, to0 = second ? to2 : to1;
    __global const {dtype.c}* x = second ? x2 : x1;
    __global {dtype.c}* y = second ? y2 : y1;
    {_decode(axes)}"""
    ints = ("chunk", "per_item") if is_cpu else ()
    if is_cpu:
        body = f"""
  const int end = min(((int)get_global_id(1) + 1) * per_item, 2 * rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int both = (int)get_global_id(1) * per_item; both < end; both++) {{
    {chosen}
    int c = c0;
    if (si == 1 && ti == 1)
      for (; c + 16 <= c1; c += 16) vstore16(vload16(0, x + so + c), 0, y + to + c);
    for (; c < c1; c++) y[to + c * ti] = x[so + c * si];
  }}"""
    else:
        body = f"""
  const int id = (int)get_global_id(0);
  if (id >= 2 * rows * n) return;
  const int both = id / n, c = id - both * n;
  {chosen}
  y[to + c * ti] = x[so + c * si];"""
    sizes = ("so1", "to1", "so2", "to2", "n", "si", "ti", "rows", *ints, *_names(axes))
    buffers = (("x1", dtype, "r"), ("x2", dtype, "r"), ("y1", dtype, "w"), ("y2", dtype, "w"))
    return kernel("copy_two", buffers, sizes, body)


def materialise(call: Call, views: Sequence[ViewOf], traits: DeviceTraits) -> Impl:
    """Return the implementation that writes each view out densely."""
    launches: list[Launch] = []
    for index, (source, view) in enumerate(views):
        itemsize = call.dtype(source).itemsize
        if call.strided:
            composed = view.through(call.view(source))
            assert composed is not None, "views that cannot be read through each other are written out first"
            view = composed
        launch = copy_launch(inp(source), view, out(index), View.dense(view.shape), itemsize, traits)
        if launch is not None:
            launches.append(launch)
    return Impl("copy", tuple(launches))
