"""DepthToSpace, SpaceToDepth: blocks of channels become blocks of pixels, and back.

Source: ONNX DepthToSpace-13, SpaceToDepth-13. In mode DCR the block is the outer part of the
channels, in CRD the inner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape
from asyncrt.memory.view import View


def _divides(call: Call, block: int, dim: int, what: str) -> None:
    check(call, isinstance(dim, Dim) or dim % block == 0, f"{dim} {what} cannot be cut into {block}")


def _image(call: Call) -> tuple[tuple[int, int, int, int], int]:
    shape, block = call.shape(0), call.attributes["blocksize"]
    check(call, len(shape) == 4, f"its input must have 4 axes, it has {len(shape)}")
    check(call, block > 0, f"the blocksize is {block}")
    n, c, h, w = shape
    return (n, c, h, w), block


def _to_space(call: Call) -> tuple[Shape, tuple[int, ...]]:
    """The input's shape with its channels cut, and the order in which its axes are put together again."""
    (n, c, h, w), block = _image(call)
    _divides(call, block * block, c, "channels")
    kept = c // (block * block)
    if call.attributes.get("mode", "DCR") == "DCR":
        return (n, block, block, kept, h, w), (0, 3, 4, 1, 5, 2)
    return (n, kept, block, block, h, w), (0, 1, 4, 2, 5, 3)


def _to_depth(call: Call) -> tuple[Shape, tuple[int, ...]]:
    (n, c, h, w), block = _image(call)
    _divides(call, block, h, "rows")
    _divides(call, block, w, "columns")
    order = (0, 3, 5, 1, 2, 4) if call.attributes.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return (n, c, h // block, block, w // block, block), order


def _space_infer(call: Call) -> tuple[Shape]:
    cut, order = _to_space(call)
    n, kept, h, inner, w, innermost = (cut[axis] for axis in order)
    return ((n, kept, h * inner, w * innermost),)


def _depth_infer(call: Call) -> tuple[Shape]:
    cut, order = _to_depth(call)
    n, a, b, c, h, w = (cut[axis] for axis in order)  # channels and the two sides of a block, in either order
    return ((n, a * b * c, h, w),)


def _space_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    (n, c, h, w), b = x.shape, attributes["blocksize"]
    kept = c // (b * b)
    if attributes.get("mode", "DCR") == "DCR":
        parts = x.reshape(n, b, b, kept, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, kept, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return (parts.reshape(n, kept, h * b, w * b).copy(),)


def _depth_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    (n, c, h, w), b = x.shape, attributes["blocksize"]
    order = (0, 3, 5, 1, 2, 4) if attributes.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    parts = x.reshape(n, c, h // b, b, w // b, b).transpose(order)
    return (parts.reshape(n, c * b * b, h // b, w // b).copy(),)


def _operator(
    name: str,
    infer: Callable[[Call], Sequence[Shape]],
    reference: Callable[[Attributes, Sequence[Array | None]], Sequence[Array]],
    cut: Callable[[Call], tuple[Shape, tuple[int, ...]]],
    *examples: Example,
) -> Operator:
    def views(call: Call) -> tuple[ViewOf]:
        shape, order = cut(call)
        return (ViewOf(0, View.dense(shape).permute(order)),)

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        return materialise(call, views(call), traits)

    return Operator(
        name=name,
        infer=infer,
        reference=reference,
        implement=implement,
        views=views,
        why="blocks of these shapes stay where they are",
        examples=examples,
    )


OPERATORS = (
    _operator(
        "DepthToSpace",
        _space_infer,
        _space_reference,
        _to_space,
        Example(("f32[2,8,3,5]",), {"blocksize": 2}),
        Example(("f32[2,8,3,5]",), {"blocksize": 2, "mode": "CRD"}),
        Example(("f16[1,9,2,2]",), {"blocksize": 3, "mode": "DCR"}),
        Example(("i64[1,4,1,1]",), {"blocksize": 2, "mode": "CRD"}),
        Example(("f32[2,3,4,5]",), {"blocksize": 1}),
    ),
    _operator(
        "SpaceToDepth",
        _depth_infer,
        _depth_reference,
        _to_depth,
        Example(("f32[2,3,4,6]",), {"blocksize": 2}),
        Example(("i32[1,1,6,9]",), {"blocksize": 3}),
        Example(("f16[1,2,2,2]",), {"blocksize": 2}),
        Example(("f32[2,3,4,5]",), {"blocksize": 1}),
    ),
)
