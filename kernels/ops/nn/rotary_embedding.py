"""RotaryEmbedding: pairs of a head's elements turned by an angle that depends on the position.

Pairs are elements k and ``k + half`` of a head, or neighbours where `interleaved`; elements from
`rotary_embedding_dim` on stay as they are. An input of three axes without `num_heads` has as many heads as its caches
are wide, as ONNX Runtime's own operator of that name.

Source: ONNX RotaryEmbedding-23.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import FOUND, Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.indices import LOOK, NOTE, TELL, Indices, clamped
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT32, INT64, Array, DataType, Shape


def infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    check(call, len(shape) in (3, 4), "its input must have 3 or 4 axes")
    if len(shape) == 3:
        heads = _heads(call.attributes, shape, call.shape(1))
        check(call, isinstance(heads, Dim) or heads > 0, "an input of 3 axes needs num_heads")
        check(call, isinstance(heads, Dim) or isinstance(shape[2], Dim) or shape[2] % heads == 0, f"{shape[2]} elements in {heads} heads")
    if any(isinstance(d, Dim) for s in (shape, call.shape(1), call.shape(2)) for d in s):
        return (shape,)
    batch, _, length, size = _extents(call.attributes, shape, call.shape(1))
    turned = call.attributes.get("rotary_embedding_dim", 0) or size
    check(call, turned % 2 == 0 and turned <= size, f"{turned} of {size} elements cannot be turned")
    cache = (turned // 2,) if call.has(3) else (batch, length, turned // 2)
    for index in (1, 2):
        found = call.shape(index)
        fits = found[1:] == cache and found[0] > 0 if call.has(3) else found == cache
        check(call, fits or 0 in shape, f"input {index} has shape {found}, which ends in {turned // 2} where it fits")
    if call.has(3):
        rows = call.shape(1)[0], call.shape(2)[0]
        check(call, rows[0] == rows[1], f"the caches have {rows[0]} and {rows[1]} rows")
        check(call, call.shape(3) == (batch, length), f"position_ids must have shape {(batch, length)}")
    return (shape,)


def _heads(attributes: Attributes, shape: Shape, cache: Shape) -> int:
    """Return how many heads an input of three axes has; where nothing says it, a cache is for all of a head."""
    given: int = attributes.get("num_heads", 0)
    whole = 2 * cache[-1] if cache and not attributes.get("rotary_embedding_dim", 0) else 0
    return given or (shape[2] // whole if isinstance(whole, Dim) or whole else 0)


def _extents(attributes: Attributes, shape: Shape, cache: Shape) -> tuple[int, int, int, int]:
    """Return batch, heads, sequence length and head size."""
    if len(shape) == 4:
        return shape
    heads = _heads(attributes, shape, cache)
    return shape[0], heads, shape[1], shape[2] // heads


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, cos, sin = inputs[:3]
    assert x is not None
    assert cos is not None
    assert sin is not None
    batch, heads, length, size = _extents(attributes, x.shape, cos.shape)
    wide: Any = x.astype(np.float64)
    if x.ndim == 3:
        wide = wide.reshape(batch, length, heads, size).transpose(0, 2, 1, 3)
    turned = attributes.get("rotary_embedding_dim", 0) or size
    c: Any = cos.astype(np.float64)
    s: Any = sin.astype(np.float64)
    if len(inputs) > 3 and inputs[3] is not None:
        c, s = c[inputs[3]], s[inputs[3]]
    c, s = c[:, None], s[:, None]
    near = bool(attributes.get("interleaved", 0))
    first = slice(0, turned, 2) if near else slice(0, turned // 2)
    second = slice(1, turned, 2) if near else slice(turned // 2, turned)
    y = wide.copy()
    y[..., first] = c * wide[..., first] - s * wide[..., second]
    y[..., second] = s * wide[..., first] + c * wide[..., second]
    if x.ndim == 3:
        y = y.transpose(0, 2, 1, 3)
    return (np.ascontiguousarray(y.reshape(x.shape)).astype(x.dtype),)


def indices(call: Call) -> Indices | None:
    return Indices(3, ((0, call.shape(1)[0] - 1),)) if call.has(3) else None


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape = call.shape(0)
    batch, heads, length, size = _extents(call.attributes, shape, call.shape(1))
    half = (call.attributes.get("rotary_embedding_dim", 0) or size) // 2
    whole = heads * length * size
    steps = (whole, length * size, size) if len(shape) == 4 else (whole, size, heads * size)
    near, positions = bool(call.attributes.get("interleaved", 0)), call.has(3)
    known = call.value(3) is not None
    rows, refs = batch * heads * length, (inp(0), inp(1), inp(2), out(0))
    buffers = refs if not positions else (*refs, inp(3)) if known else (*refs, inp(3), FOUND)
    ints = (rows, heads, length, size, half, *steps, call.shape(1)[0] if positions else 0)
    k = _kernel(call.dtype(0), call.dtype(1), near, positions, known, traits.is_cpu)
    if traits.is_cpu:
        cut = cut_rows(rows, size, traits)
        per_item = cut.rows_per_item
        return Impl("rows", (Launch(k, buffers, (*ints, per_item), (-(-rows // per_item),), (1,)),))
    grid = (round_up(rows * (size - half), GPU_GROUP),)
    return Impl("pairs", (Launch(k, buffers, (*ints, 1), grid, (GPU_GROUP,)),))


@functools.cache
def _kernel(
    dtype: DataType, cache: DataType, near: bool, positions: bool, known: bool, cpu: bool
) -> KernelSource:
    t = compute_type(dtype)
    a, b = ("2 * k", "2 * k + 1") if near else ("k", "k + half_")
    at, looks = "b * length + s", positions and not known
    look, tell = (LOOK, TELL) if looks else ("", "")
    find = f"long v = index[{at}]; {clamped('v', 'places', at, known=known)}" if positions else f"const int v = {at};"
    row = f"""
    const int h = r % heads, s = r / heads % length, b = r / heads / length;
    {find}
    const int o = b * xb + h * xh + s * xs, place = (int)v * half_;"""
    turn = f"""{{
      const {t} c = LOAD({cache.name}, cosines, place + k), n = LOAD({cache.name}, sines, place + k);
      const {t} u = LOAD({dtype.name}, x, o + {a}), v = LOAD({dtype.name}, x, o + {b});
      STORE({dtype.name}, y, o + {a}, c * u - n * v);
      STORE({dtype.name}, y, o + {b}, n * u + c * v);
    }}"""

    def copied(place: str) -> str:
        """An element that is not turned; not by assignment, which half takes only with the fp16 extension."""
        return f"STORE({dtype.name}, y, o + {place}, LOAD({dtype.name}, x, o + {place}));"

    if cpu:
        body = f"""
  const int r1 = min(((int)get_global_id(0) + 1) * per_item, rows);
  {look}
  for (int r = (int)get_global_id(0) * per_item; r < r1; r++) {{
    {row}
    for (int k = 0; k < half_; k++) {turn}
    for (int d = 2 * half_; d < size; d++) {copied("d")}
  }}
  {tell}"""
    else:
        body = f"""
  const int id = (int)get_global_id(0), each = size - half_;
  if (id >= rows * each) return;
  const int r = id / each, k = id - r * each;
  {look}
  {row}
  if (k < half_) {turn} else {copied("half_ + k")}
  {tell}"""
    buffers: tuple[tuple[str, DataType, str], ...] = (
        ("x", dtype, "r"), ("cosines", cache, "r"), ("sines", cache, "r"), ("y", dtype, "w"),
    )  # fmt: skip
    if positions:
        buffers += (("index", INT64, "r"),)
    if looks:
        buffers += (("found", INT32, "rw"),)
    ints = ("rows", "heads", "length", "size", "half_", "xb", "xh", "xs", "places", "per_item")
    return kernel("rotary_embedding", buffers, ints, body, helpers=NOTE if looks else "")


_POSITIONS = np.array([[3, 0, 6, 2, 2], [1, 2, 3, 4, 5]], np.int64)

OPERATOR = Operator(
    name="RotaryEmbedding",
    infer=infer,
    reference=reference,
    implement=implement,
    indices=indices,
    value_hints=(3,),
    compares_hints=False,
    examples=(
        Example(("f32[2,3,5,8]", "f32[2,5,4]", "f32[2,5,4]"), opset=23),
        Example(("f32[2,3,5,8]", "f32[7,4]", "f32[7,4]", _POSITIONS), {"interleaved": 1}, opset=23),
        Example(("f32[2,5,24]", "f32[7,4]", "f32[7,4]", _POSITIONS), {"num_heads": 3}, opset=23),
        Example(("f32[2,3,5,8]", "f32[2,5,2]", "f32[2,5,2]"), {"rotary_embedding_dim": 4}, opset=23),
        Example(
            ("f32[2,5,27]", "f32[2,5,2]", "f32[2,5,2]"),
            {"rotary_embedding_dim": 4, "num_heads": 3, "interleaved": 1}, opset=23,
        ),
        Example(("f16[2,3,5,8]", "f16[2,5,4]", "f16[2,5,4]"), opset=23),
    ),
)  # fmt: skip
