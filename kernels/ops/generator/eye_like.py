"""EyeLike: ones on the k-th diagonal and zeros elsewhere, in the shape of a matrix.  Source: ONNX EyeLike-22."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from asyncrt.errors import ModelTypeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape, dtype_from_onnx


def infer(call: Call) -> tuple[Shape]:
    check(call, len(call.shape(0)) == 2, f"its input must be a matrix, it has {len(call.shape(0))} axes")
    return (call.shape(0),)


def types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    wanted = attributes.get("dtype")
    result = inputs[0] if wanted is None else dtype_from_onnx(wanted)
    if result is None:
        raise ModelTypeError(f"EyeLike to the ONNX type {wanted}, which asyncrt does not have")
    return (result,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    wanted = dtype_from_onnx(attributes["dtype"]) if "dtype" in attributes else None
    dtype = x.dtype if wanted is None else wanted.numpy
    return (np.eye(x.shape[0], x.shape[1], _diagonal(attributes, x.shape), dtype=dtype),)


def _diagonal(attributes: Attributes, shape: Shape) -> int:
    """Return k, or a diagonal beyond the matrix where it is further beyond."""
    k: int = attributes.get("k", 0)
    return max(-shape[0], min(shape[1], k))


def implement(call: Call, traits: DeviceTraits) -> Impl:
    """A kernel of the output alone: of its input only the shape counts."""
    rows, columns = call.outputs[0].shape
    diagonal = _diagonal(call.attributes, (rows, columns))
    k = _kernel(call.outputs[0].dtype, traits.is_cpu)
    sizes = (columns, rows, diagonal)
    if not traits.is_cpu:
        return Impl("eye", (Launch(k, (out(0),), sizes, (round_up(rows * columns, GPU_GROUP),), (GPU_GROUP,)),))
    cut = cut_rows(rows, columns, traits)
    return Impl("eye", (Launch(k, (out(0),), (*sizes, cut.chunk, cut.rows_per_item), cut.grid, (1, 1)),))


@functools.cache
def _kernel(dtype: DataType, cpu: bool) -> KernelSource:
    t = compute_type(dtype)
    if cpu:
        body = f"""
  const int r1 = min(((int)get_global_id(1) + 1) * per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int r = (int)get_global_id(1) * per_item; r < r1; r++)
    for (int c = c0; c < c1; c++) STORE({dtype.name}, y, r * n + c, ({t})(c - r == k));"""
    else:
        body = f"""
  const int id = (int)get_global_id(0);
  if (id >= rows * n) return;
  STORE({dtype.name}, y, id, ({t})(id % n - id / n == k));"""
    return kernel("eye", (("y", dtype, "w"),), ("n", "rows", "k", *(("chunk", "per_item") if cpu else ())), body)


OPERATOR = Operator(
    name="EyeLike",
    infer=infer,
    reference=reference,
    implement=implement,
    types=types,
    examples=(
        Example(("f32[4,4]",)),
        Example(("i32[3,5]",), {"k": 1}),
        Example(("i64[5,3]",), {"k": -2}),
        Example(("f32[5,3]",), {"k": 99, "dtype": 7}),
        Example(("i32[2,7]",), {"dtype": 10}),
        Example(("bool[70,90]",), {"dtype": 9}),
        Example(("f32[3,3]",), {"dtype": 11}),
    ),
)
