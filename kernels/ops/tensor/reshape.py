"""The Reshape family: the same elements under another shape, or none at all.

Source: ONNX Reshape-21, Flatten-21, Squeeze-21, Unsqueeze-21, Identity-21, Dropout-13 (inference).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from asyncrt.dims import Dim, Undetermined
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, out
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.fill import fill_launch
from asyncrt.kernels.shapes import count, normal_axes, reference_call, same_shape
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape, show_shape
from asyncrt.memory.view import View


def _reshape(call: Call) -> tuple[Shape]:
    shape, wanted = call.shape(0), call.ints(1)
    allow_zero = bool(call.attributes.get("allowzero", 0))
    result: list[int] = []
    unknown = None
    for axis, dim in enumerate(wanted):
        if isinstance(dim, Dim):
            result.append(dim)
        elif dim == 0 and not allow_zero:
            if axis >= len(shape):
                raise ShapeError(f"'{call.name}': shape {wanted} copies axis {axis}, which {show_shape(shape)} lacks")
            result.append(shape[axis])
        elif dim == -1:
            if unknown is not None:
                raise ShapeError(f"'{call.name}': shape {wanted} has more than one -1")
            unknown = axis
            result.append(1)
        elif dim < 0:
            raise ShapeError(f"'{call.name}': shape {wanted} has a dim below -1")
        else:
            result.append(dim)
    total, known = count(shape), count(result)
    if unknown is not None:
        if not isinstance(known, Dim) and known == 0:
            if not isinstance(total, Dim) and total != 0:
                raise ShapeError(f"'{call.name}': {show_shape(shape)} does not reshape to {wanted}")
            result[unknown] = _beside_none(call, shape, result)
        else:
            result[unknown] = total // known
    try:
        fits = count(result) == total
    except Undetermined:
        fits = True  # only a request can tell
    if not fits:
        raise ShapeError(
            f"'{call.name}': {show_shape(shape)} of {total} elements does not reshape to {wanted}",
            hint="the shape may have been traced for one size of a dynamic dim",
        )
    return (tuple(result),)


def _beside_none(call: Call, shape: Shape, result: Sequence[int]) -> int:
    """Return the dim for -1 where another one is 0: what it is for any other number of elements, by all other dims."""
    dims, known = (math.prod(d for d in s if d != 0) for s in (shape, result))
    if dims % known:
        raise ShapeError(f"'{call.name}': no dim in the place of -1 makes {show_shape(shape)} of {list(result)}")
    return dims // known


def _flatten(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    axis = call.attributes.get("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise ShapeError(f"'{call.name}': axis {axis} is outside a tensor of rank {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return ((count(shape[:axis]), count(shape[axis:])),)


def _axes(call: Call) -> list[int] | None:
    """Axes are an attribute before opset 13 and an input from then on."""
    if call.has(1):
        return call.ints(1)
    axes = call.attributes.get("axes")
    return None if axes is None else list(axes)


def _squeeze(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    axes = _axes(call)
    if axes is None:
        return (tuple(d for d in shape if d != 1),)
    dropped = normal_axes(call, axes, len(shape))
    for axis in dropped:
        if not isinstance(shape[axis], Dim) and shape[axis] != 1:
            raise ShapeError(f"'{call.name}': axis {axis} of {show_shape(shape)} is not 1 and cannot be squeezed")
    return (tuple(d for axis, d in enumerate(shape) if axis not in dropped),)


def _unsqueeze(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    axes = _axes(call) or []
    added = frozenset(normal_axes(call, axes, len(shape) + len(axes)))
    rest = iter(shape)
    return (tuple(1 if axis in added else next(rest) for axis in range(len(shape) + len(axes))),)


def _dropout(call: Call) -> Sequence[Shape]:
    training, ratio = call.value(2), call.value(1)
    if training is not None and training.any() and (ratio is None or ratio.any()):
        raise ShapeError(f"'{call.name}': Dropout in training mode is random; asyncrt runs inference only")
    return (call.shape(0),) * len(call.output_types)


def _reference(infer: Callable[[Call], Sequence[Shape]]) -> Callable[..., Sequence[Array]]:
    """The reference of a reshape is NumPy's reshape to the inferred shape."""

    def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
        x = inputs[0]
        assert x is not None
        return (x.reshape(tuple(infer(reference_call("reference", attributes, inputs))[0])).copy(),)

    return reference


def _dropout_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array, Array]:
    x = inputs[0]
    assert x is not None
    return x.copy(), np.ones(x.shape, np.bool_)


def views(call: Call) -> tuple[ViewOf]:
    return (ViewOf(0, View.dense(call.outputs[0].shape)),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    return materialise(call, views(call), traits)


def _dropout_views(call: Call) -> tuple[ViewOf] | None:
    return views(call) if len(call.outputs) == 1 else None


def _dropout_implement(call: Call, traits: DeviceTraits) -> Impl:
    copied = implement(call, traits)
    if len(call.outputs) == 1:
        return copied
    mask = fill_launch(out(1), call.outputs[1].count, np.ones((), np.bool_), traits)
    return Impl("copy and mask", copied.launches + (() if mask is None else (mask,)))


def _operator(
    name: str,
    infer: Callable[[Call], Sequence[Shape]],
    why: str,
    examples: tuple[Example, ...],
    dependencies: tuple[int, ...] = (),
) -> Operator:
    return Operator(
        name=name,
        infer=infer,
        reference=_reference(infer),
        implement=implement,
        views=views,
        why=why,
        shape_infer_dependencies=dependencies,
        examples=examples,
    )


_I64 = np.int64
OPERATORS = (
    _operator(
        "Reshape",
        _reshape,
        "same bytes, other shape",
        (
            Example(("f32[2,3,4]", np.array([4, -1], _I64))),
            Example(("f32[2,3,4]", np.array([0, 2, -1, 2], _I64))),
            Example(("i64[1]", np.array([], _I64))),
        ),
        dependencies=(1,),
    ),
    _operator(
        "Flatten",
        _flatten,
        "same bytes, other shape",
        (Example(("f32[2,3,4]",)), Example(("f32[2,3,4]",), {"axis": 0}), Example(("f32[2,3,4]",), {"axis": -1})),
    ),
    _operator(
        "Squeeze",
        _squeeze,
        "unit axes removed",
        (Example(("f32[1,3,1]",), opset=13), Example(("f32[1,3,1]", np.array([-1], _I64)), opset=13)),
        dependencies=(1,),
    ),
    _operator(
        "Unsqueeze",
        _unsqueeze,
        "unit axes added",
        (Example(("f32[3,4]", np.array([0, -1], _I64)), opset=13),),
        dependencies=(1,),
    ),
    _operator("Identity", same_shape, "its output is its input", (Example(("f32[3,4]",)), Example(("bool[5]",)))),
    Operator(
        name="Dropout",
        infer=_dropout,
        shape_infer_dependencies=(1, 2),
        reference=_dropout_reference,
        implement=_dropout_implement,
        views=_dropout_views,
        why="dropout does nothing in inference",
        examples=(
            Example(("f32[3,4]",)),
            Example(("f32[3,37]",), outputs=2),
            Example(("f16[5]", np.array(0.3, np.float16)), outputs=2, opset=13),
        ),
    ),
)
