"""A statement for every index of a shape: the frame of kernels that are neither element-wise nor a plain copy.

The statement sees the flat index and, for each strided operand, the offset of the index in it. An operand need not be
a buffer: strides that are 1 on one axis and 0 on the others give the coordinate on that axis. Axes that all operands
walk as one are merged first; shapes, strides and sizes are arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import FOUND, KernelSource, Launch, Ref
from asyncrt.kernels.indices import LOOK, NOTE, TELL
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT32, DataType, row_major
from asyncrt.memory.view import collapse

from .grid import GPU_GROUP, cut_rows, round_up


class WalkedBuffer(NamedTuple):
    """A buffer that the statement sees as pointer `name`; `access` is "r", "w" or "rw"."""

    name: str
    ref: Ref
    dtype: DataType
    access: str


def walk(
    name: str,
    statement: str,
    shape: Sequence[int],
    buffers: Sequence[WalkedBuffer],
    traits: DeviceTraits,
    *,
    offsets: Sequence[tuple[str, Sequence[int]]] = (),
    ints: Sequence[tuple[str, int]] = (),
    work: int = 1,
    helpers: str = "",
    looks: bool = False,
) -> Launch | None:
    """Return the launch that carries out *statement* for every index of *shape*; None if there is none.

    Args:
        name: For traces.
        statement: OpenCL C that sees ``i``, the flat row-major index, the *offsets* and the *ints*. Statements of
            different indices may run at once. It must not ``return``, and names ending in ``_`` are taken.
        offsets: ``(name, strides over shape)``.
        ints: ``(name, value)``.
        work: Roughly how many elements one statement visits, to cut the work well.
        helpers: OpenCL C functions that the statement calls; ``$`` stands for the kernel's unique name.
        looks: Whether the statement checks the indices that it reads from the buffer ``index``
            (`indices.py:remembered`); the launch then has a buffer where it notes one that is out of range.
    """
    if 0 in shape:
        return None
    if looks:
        buffers, helpers = (*buffers, WalkedBuffer("found", FOUND, INT32, "rw")), NOTE + helpers
    shape = tuple(shape)
    dims, (_, *strides) = collapse(shape, row_major(shape), *(s for _, s in offsets))
    inner, outer = dims[-1], dims[:-1]
    rows = 1
    for d in outer:
        rows *= d
    steps = tuple(s[-1] for s in strides)
    decode = tuple(x for a in range(len(outer) - 1, -1, -1) for x in (outer[a], *(s[a] for s in strides)))
    source = _kernel(
        name,
        statement,
        tuple((b.name, b.dtype, b.access) for b in buffers),
        tuple((n, s if s in (0, 1) else 2) for (n, _), s in zip(offsets, steps, strict=True)),
        tuple(n for n, _ in ints),
        len(outer),
        traits.is_cpu,
        helpers,
        looks,
    )
    refs = tuple(b.ref for b in buffers)
    values = tuple(v for _, v in ints)
    if not traits.is_cpu:
        grid = (round_up(rows * inner, GPU_GROUP),)
        return Launch(source, refs, (inner, rows, *values, *steps, *decode), grid, (GPU_GROUP,))
    work = max(1, work)
    cut = cut_rows(rows, inner * work, traits, align=16 if work == 1 else work)
    sizes = (inner, rows, cut.chunk // work, cut.rows_per_item)
    return Launch(source, refs, (*sizes, *values, *steps, *decode), cut.grid, (1, 1))


@functools.cache
def _kernel(
    name: str,
    statement: str,
    buffers: tuple[tuple[str, DataType, str], ...],
    offsets: tuple[tuple[str, int], ...],
    ints: tuple[str, ...],
    axes: int,
    cpu: bool,
    helpers: str,
    looks: bool,
) -> KernelSource:
    names = [n for n, _ in offsets]
    decode = ["int rest_ = r_;", *(f"int {n}_o = 0;" for n in names)]
    for a in range(axes):
        moves = " ".join(f"{n}_o += q_ * {n}_{a}_;" for n in names)
        decode.append(f"{{ const int d_ = rest_ / n{a}_; const int q_ = rest_ - d_ * n{a}_; {moves} rest_ = d_; }}")
    step = {0: "", 1: " + c_", 2: " + c_ * {}_e"}
    each = "const int i = r_ * n_ + c_; " + " ".join(f"const int {n} = {n}_o{step[p].format(n)};" for n, p in offsets)
    row = "\n    ".join(decode)
    look, tell = (LOOK, TELL) if looks else ("", "")
    if cpu:
        head = ["n_", "rows_", "chunk_", "per_item_"]
        body = f"""
  const int r1_ = min(((int)get_global_id(1) + 1) * per_item_, rows_);
  const int c0_ = (int)get_global_id(0) * chunk_, c1_ = min(c0_ + chunk_, n_);
  {look}
  for (int r_ = (int)get_global_id(1) * per_item_; r_ < r1_; r_++) {{
    {row}
    for (int c_ = c0_; c_ < c1_; c_++) {{
      {each}
      {statement}
    }}
  }}
  {tell}"""
    else:
        head = ["n_", "rows_"]
        body = f"""
  const int id_ = (int)get_global_id(0);
  if (id_ >= rows_ * n_) return;
  const int r_ = id_ / n_, c_ = id_ - r_ * n_;
    {row}
  {look}
  {each}
  {statement}
  {tell}"""
    decoded = (x for a in range(axes) for x in (f"n{a}_", *(f"{n}_{a}_" for n in names)))
    sizes = (*head, *ints, *(f"{n}_e" for n in names), *decoded)
    return kernel(name, buffers, sizes, body, helpers=helpers)


def lines(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return *shape* as ``(outer, extent, inner)`` around *axis*."""
    outer = inner = 1
    for d in shape[:axis]:
        outer *= d
    for d in shape[axis + 1 :]:
        inner *= d
    return outer, shape[axis], inner
