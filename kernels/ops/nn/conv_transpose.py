"""ConvTranspose: the gradient of a convolution, which spreads each input element over a window of the output.

To kernels it is the convolution of the input, with ``stride - 1`` zeros between its elements, by the flipped filter.

Source: ONNX ConvTranspose-22.
"""

# pyright: reportGeneralTypeIssues=false
# A dim may be symbolic while loading.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue
from asyncrt.kernels.conv.convolution import convolution
from asyncrt.kernels.conv.interface import Convolution
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.window import MAX_SPATIAL, Window
from asyncrt.kernels.reach import check_extent
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape


class _Geometry(NamedTuple):
    """Per spatial axis; `before` is what is cut from the output's front."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    outs: tuple[int, ...]


def _geometry(call: Call, spatial: Sequence[int], size: Sequence[int]) -> _Geometry:
    axes, attributes = len(spatial), call.attributes

    def per_axis(attribute: str, default: int, least: int, entries: int = axes) -> tuple[int, ...]:
        values = tuple(attributes.get(attribute) or (default,) * entries)
        fits = len(values) == entries and all(v >= least for v in values)
        check(call, fits, f"{attribute} {list(values)} does not fit {axes} spatial axes")
        return values

    check(call, 1 <= axes <= MAX_SPATIAL, f"{axes} spatial axes; 1 to {MAX_SPATIAL} are supported")
    strides, dilations = per_axis("strides", 1, 1), per_axis("dilations", 1, 1)
    extra, pads = per_axis("output_padding", 0, 0), per_axis("pads", 0, 0, 2 * axes)
    auto_pad = attributes.get("auto_pad", "NOTSET") or "NOTSET"
    check(call, auto_pad in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), f"auto_pad {auto_pad!r} is not known")
    wanted = tuple(attributes.get("output_shape") or ())
    check(call, len(wanted) in (0, axes, axes + 2), f"output_shape {list(wanted)} does not fit {axes} spatial axes")
    wanted = wanted[-axes:]
    before: list[int] = []
    outs: list[int] = []
    for axis, dim in enumerate(spatial):
        check(call, isinstance(dim, Dim) or dim > 0, f"spatial axis {axis} has no elements")
        full = strides[axis] * (dim - 1) + extra[axis] + (size[axis] - 1) * dilations[axis] + 1
        if wanted or auto_pad.startswith("SAME"):
            out = wanted[axis] if wanted else dim * strides[axis]
            total = full - out
            if not isinstance(total, Dim) and total < 0:
                total = 0
            small, large = total // 2, total - total // 2
            before.append(small if auto_pad == "SAME_UPPER" else large)
        elif auto_pad == "VALID":
            out = full
            before.append(0)
        else:
            out = full - pads[axis] - pads[axis + axes]
            before.append(pads[axis])
        check(call, isinstance(out, Dim) or out >= 0, f"axis {axis} of {dim} is cut to {out} elements")
        outs.append(out)
    return _Geometry(strides, dilations, tuple(before), tuple(outs))


def infer(call: Call) -> tuple[Shape]:
    x, w = call.shape(0), call.shape(1)
    check(call, len(x) >= 3 and len(x) == len(w), f"data of rank {len(x)} and a filter of rank {len(w)} do not fit")
    group = call.attributes.get("group", 1)
    check(call, group >= 1, f"group {group} is less than 1")
    if not isinstance(x[1], Dim) and not isinstance(w[0], Dim):
        check(call, x[1] == w[0], f"the data has {x[1]} channels, the filter {w[0]}")
        check(call, x[1] % group == 0, f"{x[1]} channels are not {group} equal groups")
    size, given = w[2:], call.attributes.get("kernel_shape")
    if given and not any(isinstance(d, Dim) for d in size):
        check(call, tuple(given) == size, f"kernel_shape {list(given)} is not the filter's {list(size)}")
    if call.has(2) and not any(isinstance(d, Dim) for d in (*call.shape(2), w[1])):
        check(call, call.shape(2) == (w[1] * group,), f"the bias must have {w[1] * group} elements")
    return ((x[0], w[1] * group, *_geometry(call, x[2:], size).outs),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, w = inputs[0], inputs[1]
    assert x is not None
    assert w is not None
    group, size, spatial = attributes.get("group", 1), w.shape[2:], x.shape[2:]
    g = _geometry(Call("ConvTranspose", attributes, (), ()), spatial, size)
    n, filters, axes = x.shape[0], w.shape[1] * group, len(size)
    grouped = x.astype(np.float64).reshape(n, group, -1, *spatial)
    weight = w.astype(np.float64).reshape(group, w.shape[0] // group, *w.shape[1:])
    reach = [
        max((d - 1) * s + (k - 1) * e + 1, b + o)
        for d, s, k, e, b, o in zip(spatial, g.strides, size, g.dilations, g.before, g.outs, strict=True)
    ]
    y = np.zeros((n, group, w.shape[1], *reach), np.float64)
    for cell in np.ndindex(*size):
        part = np.einsum("ngc...,gcm->ngm...", grouped, weight[(slice(None),) * 3 + cell])
        at: tuple[Any, ...] = tuple(
            slice(c * e, c * e + (d - 1) * s + 1, s)
            for c, e, d, s in zip(cell, g.dilations, spatial, g.strides, strict=True)
        )
        y[(slice(None),) * 3 + at] += part
    inside: tuple[Any, ...] = tuple(slice(b, b + o) for b, o in zip(g.before, g.outs, strict=True))
    y = y[(slice(None),) * 3 + inside].reshape(n, filters, *g.outs)
    if len(inputs) > 2 and inputs[2] is not None:
        y = y + inputs[2].astype(np.float64).reshape(1, -1, *(1,) * axes)
    return (y.astype(x.dtype),)


def implement(call: Call, traits: DeviceTraits, epilogue: Epilogue | None = None) -> Impl:
    x, w = call.shape(0), call.shape(1)
    group, size, axes = call.attributes.get("group", 1), w[2:], len(w) - 2
    g = _geometry(call, x[2:], size)
    before = tuple((k - 1) * d - b for k, d, b in zip(size, g.dilations, g.before, strict=True))
    view = Window(size, (1,) * axes, g.dilations, before, before, x[2:], g.outs).as_3d(call.name)
    for axis, (dim, stride, outside) in enumerate(zip(x[2:], g.strides, before, strict=True)):
        check_extent(call.name, f"spatial axis {axis} with zeros between", dim * stride + abs(outside))
    lead = (1,) * (MAX_SPATIAL - axes)
    steps = (*lead, *g.strides)
    conv = Convolution(
        call.dtype(0), x[0], group, x[1] // group, w[1], view, (steps[0], steps[1], steps[2]), True, call.has(2)
    )
    return convolution(conv, traits, constant=call.constants[1], after=epilogue)


OPERATOR = Operator(
    name="ConvTranspose",
    infer=infer,
    reference=reference,
    implement=implement,
    with_epilogue=implement,
    examples=(
        Example(("f32[1,3,5,6]", "f32[3,9,3,3]", "f32[9]"), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        Example(("f32[2,4,4,4]", "f32[4,17,2,2]"), {"strides": (2, 2)}),
        Example(("f32[1,3,7]", "f32[3,2,4]", "f32[2]"), {"strides": (3,), "output_padding": (1,)}),
        Example(("f32[1,2,3,4,3]", "f32[2,8,2,2,2]"), {"strides": (2, 1, 2)}),
        Example(("f32[1,3,5,5]", "f32[3,8,3,3]"), {"dilations": (2, 2)}),
        Example(("f32[1,2,5,5]", "f32[2,8,3,3]"), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
        Example(("f32[1,2,5,5]", "f32[2,8,3,3]"), {"pads": (2, 2, 2, 2)}),
        Example(("f32[1,2,4,4]", "f32[2,3,1,1]"), {"strides": (1, 1)}),
        Example(("f32[1,3,6,7]", "f32[3,4,3,3]", "f32[4]"), {"strides": (2, 3), "dilations": (3, 2), "pads": (1, 2, 0, 1)}),
        Example(("f32[2,2,4,17]", "f32[2,3,4,2]", "f32[3]"), {"strides": (2, 2), "pads": (1, 0, 1, 0)}),
        Example(("f32[1,4,3,3]", "f32[4,1,3,3]"), {"group": 4}),
        Example(("f16[1,3,5,5]", "f16[3,4,3,3]"), {"strides": (2, 2)}),
    ),
)
