"""Rows taken from a tensor by indices that are on the device: what Gather, GatherND and Compress share."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from asyncrt.kernels.call import Call
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import FOUND, KernelSource, Launch, Ref, inp, out
from asyncrt.kernels.indices import LOOK, NOTE, TELL, Indices, clamped, from_either_end
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT32, Array, DataType, row_major
from asyncrt.memory.view import View

from .copy import BITS
from .grid import GPU_GROUP, cut_rows, round_up
from .walk import WalkedBuffer, walk

_FEW = 16  # indices that are checked first: most sequences that are no progression show it early


def check_not_empty(call: Call, extents: Sequence[int], result: Sequence[int]) -> None:
    """Raise `ShapeError` if elements of *result* are to come from axes of which one has no element."""
    known = all(isinstance(d, int) for d in (*extents, *result))
    check(call, not known or 0 not in extents or 0 in result, "it takes elements from an empty axis")


def normal_indices(indices: Array, extent: int) -> npt.NDArray[np.int64]:
    """Return *indices* counted from the front, for a reference; raises `IndexOutOfRange` if one is not in range."""
    from_either_end(1, extent).check("", indices)
    at = indices.astype(np.int64)
    return np.where(at < 0, at + extent, at)


def progression(indices: Sequence[int], extent: int) -> tuple[int, int] | None:
    """Return first and step of *indices*, which may be negative, on an axis of *extent* elements.

    None if they are no arithmetic progression, or out of range.
    """
    if len(indices) > _FEW:
        found = progression(indices[:_FEW], extent)
        if found is None:
            return None
        places = np.asarray(indices)
        if (places < 0).any():
            places = np.where(places < 0, places + int(extent), places)
        first, step = found
        same = np.array_equal(places, first + step * np.arange(len(places)))
        return found if same and 0 <= int(places[-1]) < extent else None
    at = [i + extent if i < 0 else i for i in indices]
    if not at or any(i < 0 or i >= extent for i in at):
        return None
    step = at[1] - at[0] if len(at) > 1 else 0
    if any(b - a != step for a, b in itertools.pairwise(at)):
        return None
    return at[0], step


def run_start(places: npt.NDArray[np.int64]) -> int | None:
    """Return the first of *places* if they are one number after the other, else None."""
    if not places.size or (places.size > 1 and places[1] != places[0] + 1):
        return None
    first = int(places[0])
    return first if np.array_equal(places, np.arange(first, first + places.size)) else None


def known_ints(call: Call, index: int) -> npt.NDArray[np.int64] | None:
    """Return the value of input *index* as int64 if it is known; raises `Undetermined` if symbolic dims are in it."""
    value = call.value(index)
    if value is None:
        return None
    if value.dtype == object:
        return np.array([int(v) for v in value.reshape(-1).tolist()], np.int64).reshape(value.shape)
    return value.astype(np.int64)


def look_at(call: Call, indices: Indices, traits: DeviceTraits) -> Launch | None:
    """Return the launch that only checks indices, and notes one that is out of range; None if there are no indices."""
    layout, view = call.inputs[indices.input], call.view(indices.input)
    assert layout is not None
    levels = range(len(indices.ranges))
    outside = " || ".join(
        f"(i % {len(levels)} == {k} && (v < least{k}{'' if most is None else f' || v > most{k}'}))"
        for k, (_, most) in zip(levels, indices.ranges, strict=True)
    )
    ints = [(f"least{k}", indices.ranges[k][0]) for k in levels]
    ints += [(f"most{k}", most) for k in levels if (most := indices.ranges[k][1]) is not None]
    return walk(
        "look_at_indices",
        f"const long v = index[p]; if ({outside}) $_note(found, i, v);",
        layout.shape,
        (WalkedBuffer("index", inp(indices.input), layout.dtype, "r"),),
        traits,
        offsets=(("p", view.strides),),
        ints=ints,
        looks=True,
    )


def progression_view(shape: Sequence[int], axis: int, count: Sequence[int], first: int, step: int) -> View:
    """Return the view of a dense tensor of *shape* whose *axis* is replaced by axes *count*, of a progression."""
    strides = row_major(shape)
    mine = tuple(s * step * strides[axis] for s in row_major(count))
    return View(
        (*shape[:axis], *count, *shape[axis + 1 :]),
        (*strides[:axis], *mine, *strides[axis + 1 :]),
        first * strides[axis],
    )


def gather_rows(
    itemsize: int,
    index: Ref,
    index_type: DataType,
    traits: DeviceTraits,
    *,
    batches: int,
    count: int,
    batch_step: int,
    index_step: int,
    dims: Sequence[int],
    steps: Sequence[int],
    inner: int,
    known: bool,
) -> Launch:
    """Return the launch that makes output 0, ``[batches, count, inner]``, of rows of input 0.

    Row ``(b, j)`` begins in the input at ``b * batch_step`` plus, for each ``l``, ``steps[l]`` times the index at
    ``[b * index_step + j, l]``. Negative indices count from the end of ``dims[l]``.

    Args:
        itemsize: Bytes of the data's elements.
        index: The buffer of indices, of *index_type*.
        known: Whether all indices are known to be in range. Otherwise one that is not is clamped and noted.
    """
    rows = batches * count
    ints = (inner, rows, count, batch_step, index_step, *dims, *steps)
    source = _kernel(BITS[itemsize], index_type, len(dims), traits.is_cpu, inner == 1, known)
    refs = (inp(0), index, out(0)) if known else (inp(0), index, out(0), FOUND)
    if not traits.is_cpu:
        return Launch(source, refs, ints, (round_up(rows * inner, GPU_GROUP),), (GPU_GROUP,))
    cut = cut_rows(rows, inner, traits)
    return Launch(source, refs, (*ints, cut.chunk, cut.rows_per_item), cut.grid, (1, 1))


@functools.cache
def _kernel(dtype: DataType, index_type: DataType, depth: int, cpu: bool, single: bool, known: bool) -> KernelSource:
    find = "int at = b * batch_step; long v;\n" + "\n".join(
        f"    v = index[(b * index_step + j) * {depth} + {level}]; if (v < 0) v += d{level}; "
        + clamped("v", f"d{level}", f"(b * index_step + j) * {depth} + {level}", known=known)
        + f" at += (int)v * s{level};"
        for level in range(depth)
    )
    ints = ["n", "rows", "count", "batch_step", "index_step", *(f"{k}{level}" for k in "ds" for level in range(depth))]
    look, tell = ("", "") if known else (LOOK, TELL)
    if cpu:
        ints += ["chunk", "per_item"]
        copy = """int c = c0;
    for (; c + 16 <= c1; c += 16) vstore16(vload16(0, x + at + c), 0, y + r * n + c);
    for (; c < c1; c++) y[r * n + c] = x[at + c];"""
        body = f"""
  const int r0 = (int)get_global_id(1) * per_item, r1 = min(r0 + per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  int b = r0 / count, j = r0 - b * count;
  {look}
  for (int r = r0; r < r1; r++) {{
    {find}
    {"y[r] = x[at];" if single else copy}
    if (++j == count) {{ j = 0; b++; }}
  }}
  {tell}"""
    else:
        body = f"""
  const int id = (int)get_global_id(0);
  if (id >= rows * n) return;
  const int r = id / n, c = id - r * n, b = r / count, j = r - b * count;
  {look}
    {find}
  y[id] = x[at + c];
  {tell}"""
    buffers: tuple[tuple[str, DataType, str], ...] = (("x", dtype, "r"), ("index", index_type, "r"), ("y", dtype, "w"))
    if known:
        return kernel("gather", buffers, tuple(ints), body)
    return kernel("gather", (*buffers, ("found", INT32, "rw")), tuple(ints), body, helpers=NOTE)
