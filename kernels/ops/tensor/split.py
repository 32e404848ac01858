"""Split: a tensor cut into pieces along an axis.

Source: ONNX Split-18; sizes are an attribute before opset 13 and an input from then on, where none are given the
pieces are equal, and from opset 18 the last may be smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.ops._values import ceil_div, known
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.shapes import check, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape
from asyncrt.memory.view import View


def _axis(call: Call) -> int:
    return normal_axis(call, call.attributes.get("axis", 0), len(call.shape(0)))


def _equal(dim: int, pieces: int) -> list[int]:
    """Sizes as equal as can be: where *pieces* does not divide *dim*, the last is smaller."""
    size = ceil_div(dim, pieces)
    return [size] * (pieces - 1) + [dim - size * (pieces - 1)]


def _sizes(call: Call) -> list[int]:
    dim, pieces = call.shape(0)[_axis(call)], len(call.output_types)
    if call.has(1) or "split" in call.attributes:
        sizes = call.ints(1) if call.has(1) else list(call.attributes["split"])
        check(call, len(sizes) == pieces, f"{len(sizes)} sizes for {pieces} outputs")
        if not any(isinstance(s, Dim) for s in (*sizes, dim)):
            check(call, min(sizes) >= 0 and sum(sizes) == dim, f"sizes {sizes} do not add up to {dim}")
        return sizes
    wanted = call.attributes.get("num_outputs", pieces)
    check(call, wanted == pieces, f"num_outputs is {wanted}, the node has {pieces} outputs")
    sizes = _equal(dim, pieces)
    if not isinstance(dim, Dim):
        fits = sizes[-1] >= 0 if call.attributes.opset >= 18 else sizes[-1] == sizes[0]
        check(call, fits, f"{dim} elements cannot be cut into {pieces} pieces")
    return sizes


def infer(call: Call) -> tuple[Shape, ...]:
    shape, axis = call.shape(0), _axis(call)
    return tuple((*shape[:axis], size, *shape[axis + 1 :]) for size in _sizes(call))


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    x, given = inputs[0], inputs[1] if len(inputs) > 1 else None
    assert x is not None
    axis = attributes.get("axis", 0)
    if given is not None:
        sizes = known(given).tolist()
    else:
        sizes = attributes.get("split") or _equal(x.shape[axis], attributes.outputs)
    return tuple(part.copy() for part in np.split(x, np.cumsum(sizes)[:-1], axis))


def views(call: Call) -> tuple[ViewOf, ...]:
    whole, axis = View.dense(call.shape(0)), _axis(call)
    result: list[ViewOf] = []
    start = 0
    for size in _sizes(call):
        result.append(ViewOf(0, whole.slice(axis, start, size)))
        start = start + size
    return tuple(result)


def why_not(call: Call) -> str:
    return f"cuts axis {_axis(call)}, once for each index of the axes before it"


def implement(call: Call, traits: DeviceTraits) -> Impl:
    return materialise(call, views(call), traits)


def _i64(*values: int) -> Array:
    return np.array(values, np.int64)


OPERATOR = Operator(
    name="Split",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="each piece is one piece of its input",
    why_not=why_not,
    shape_infer_dependencies=(1,),
    examples=(
        Example(("f32[6,4]",), {"num_outputs": 3}, outputs=3, opset=18),
        Example(("f32[2,7,3]",), {"num_outputs": 3, "axis": 1}, outputs=3, opset=18),
        Example(("f32[2,3,8]",), {"axis": -1}, outputs=2, opset=13),
        Example(("f16[2,9]",), {"axis": 1, "split": (2, 4, 3)}, outputs=3, opset=11),
        Example(("i64[2,9]", _i64(8, 1)), {"axis": 1}, outputs=2, opset=13),
        Example(("i32[5,3]", _i64(2, 0, 3)), outputs=3),
        Example(("bool[1,4,3]", _i64(1, 3)), {"axis": -2}, outputs=2),
        Example(("f32[5,3]",), {"num_outputs": 1}, opset=18),
    ),
)
