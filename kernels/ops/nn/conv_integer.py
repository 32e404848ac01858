"""ConvInteger and QLinearConv: convolutions of 8-bit integers less their zero points, in 32 bits.

ConvInteger gives the 32-bit sums. QLinearConv adds its bias, scales, rounds half to even, adds a zero point and
saturates. `SCALED` gives them scaled, as float32; `passes/quantized/products.py` puts it where a model dequantises both
operands.

Source: ONNX ConvInteger-10, QLinearConv-10.
"""

# pyright: reportGeneralTypeIssues=false
# A dim may be symbolic while loading.

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim, Undetermined
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue
from asyncrt.kernels.impl import Impl, inp
from asyncrt.kernels.int8.conv_interface import IntegerConv
from asyncrt.kernels.int8.convolution import integer_conv
from asyncrt.kernels.int8.inputs import Places, scales_of, zeros_of
from asyncrt.kernels.int8.quantize import saturate
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.window import patch_elements, window
from asyncrt.kernels.shapes import check, check_channels, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT32, Array, DataType, Shape, dtype_of, show_shape


def _infer(places: Places, call: Call) -> tuple[Shape]:
    x, w = call.shape(0), call.shape(places.w)
    check(call, len(x) == len(w) and len(x) > 2, "data and weights need two axes and the spatial ones")
    groups = call.attributes.get("group", 1)
    with contextlib.suppress(Undetermined):  # only a request can tell
        check(call, groups > 0 and x[1] == w[1] * groups and w[0] % groups == 0, "channels and groups do not fit")
    axes = len(x) - 2
    check(call, all(isinstance(k, Dim) or k > 0 for k in w[2:]), f"a window of {show_shape(w[2:])} has no elements")
    for name, length, least in (
        ("kernel_shape", axes, 1), ("strides", axes, 1), ("dilations", axes, 1), ("pads", 2 * axes, 0)
    ):  # fmt: skip
        given = call.attributes.get(name)
        fits = given is None or (len(given) == length and min(given) >= least)
        check(call, fits, f"{name} must have {length} elements of at least {least}")
    for index in (places.x_zero, places.x_scale, places.y_scale, places.y_zero):
        check_channels(call, index, 1)
    for index in (places.w_zero, places.w_scale):
        check_channels(call, index, w[0])
    if places.bias is not None and call.has(places.bias):
        check(call, len(call.shape(places.bias)) == 1, "the bias must be a vector")
        with contextlib.suppress(Undetermined):
            check(call, call.shape(places.bias)[0] == w[0], f"the bias must have {w[0]} elements")
    if call.attributes.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        steps = call.attributes.get("strides") or (1,) * axes
        return ((x[0], w[0], *((d + s - 1) // s for d, s in zip(x[2:], steps, strict=True))),)
    pads, strides, windows = _windows(call.attributes, x, w)
    spatial: list[int] = []
    for axis in range(axes):
        room = x[axis + 2] + pads[axis] + pads[axis + axes] - windows[axis]
        with contextlib.suppress(Undetermined):
            check(call, room >= 0, f"the window is larger than the padded axis {axis + 2}")
        spatial.append(room // strides[axis] + 1)
    return ((x[0], w[0], *spatial),)


def _windows(attributes: Attributes, x: Shape, w: Shape) -> tuple[list[int], tuple[int, ...], list[int]]:
    """Return pads (all begins, then all ends), strides and the windows' lengths."""
    axes = len(x) - 2
    strides = tuple(attributes.get("strides") or (1,) * axes)
    dilations = attributes.get("dilations") or (1,) * axes
    windows = [(k - 1) * d + 1 for k, d in zip(w[2:], dilations, strict=True)]
    mode = attributes.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return list(attributes.get("pads") or (0,) * (2 * axes)), strides, windows
    if mode == "VALID":
        return [0] * (2 * axes), strides, windows
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ShapeError(f"auto_pad is {mode!r}")
    begins, ends = [], []
    for dim, stride, extent in zip(x[2:], strides, windows, strict=True):
        needed = (-(-dim // stride) - 1) * stride + extent - dim
        total = needed if needed > 0 else 0
        small = total // 2
        begins.append(small if mode == "SAME_UPPER" else total - small)
        ends.append(total - small if mode == "SAME_UPPER" else small)
    return begins + ends, strides, windows


def _convolve(attributes: Attributes, x: Any, w: Any, x_zero: Array | None, w_zero: Array | None) -> Any:
    """Return the sums in int64; NumPy multiplies float64 many times as fast, and exactly up to 2 ** 53."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    if x_zero is not None:
        x = x - x_zero.astype(np.float64).reshape(())
    if w_zero is not None:
        w = w - w_zero.astype(np.float64).reshape(-1, *(1,) * (w.ndim - 1))
    axes = x.ndim - 2
    pads, strides, windows = _windows(attributes, x.shape, w.shape)
    padded = np.pad(x, [(0, 0), (0, 0), *((pads[a], pads[a + axes]) for a in range(axes))])
    dilations = attributes.get("dilations") or (1,) * axes
    views = np.lib.stride_tricks.sliding_window_view(padded, windows, axis=tuple(range(2, axes + 2)))
    steps = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilations)
    views = views[(slice(None), slice(None), *steps, *taps)]
    groups = attributes.get("group", 1)
    parts = zip(np.split(views, groups, axis=1), np.split(w, groups, axis=0), strict=True)
    summed = [1, *range(2 + axes, 2 + 2 * axes)], list(range(1, 2 + axes))
    sums = np.concatenate([np.moveaxis(np.tensordot(p, q, axes=summed), -1, 1) for p, q in parts], axis=1)
    return sums.astype(np.int64)


def _integer_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x_zero = inputs[2] if len(inputs) > 2 else None
    w_zero = inputs[3] if len(inputs) > 3 else None
    return (_convolve(attributes, inputs[0], inputs[1], x_zero, w_zero).astype(np.int32),)


def _linear_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = inputs[:8]
    assert x_scale is not None
    assert w_scale is not None
    assert y_scale is not None
    assert y_zero is not None
    sums = _convolve(attributes, x, w, x_zero, w_zero)
    channels = (-1, *(1,) * (sums.ndim - 2))
    if len(inputs) > 8 and inputs[8] is not None:
        sums = sums + inputs[8].astype(np.int64).reshape(channels)
    sums = sums.astype(np.int32)  # as they are kept
    factor: Any = x_scale.astype(np.float32).reshape(()) * w_scale.astype(np.float32).reshape(channels)
    kind = dtype_of(y_zero.dtype)
    assert kind is not None
    scaled = sums.astype(np.float32) * (factor / y_scale.astype(np.float32).reshape(()))
    return (saturate(scaled, y_zero.reshape(()), kind),)


def _scaled_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, w, x_scale, w_scale, x_zero, w_zero = inputs
    assert x_scale is not None
    assert w_scale is not None
    sums = _convolve(attributes, x, w, x_zero, w_zero)
    factor: Any = x_scale.astype(np.float32).reshape(()) * w_scale.astype(np.float32)
    return (np.asarray(sums.astype(np.float32) * factor.reshape(-1, *(1,) * (sums.ndim - 2))).astype(np.float32),)


def _host_nbytes(places: Places, call: Call) -> int:
    """What all windows see in the order of the product; operands less their zero points; sums; eight bytes each."""
    x, w, (result,) = call.shape(0), call.shape(places.w), _infer(places, call)
    view = window(call.name, call.attributes, x[2:], w[2:])
    return 8 * (2 * patch_elements(x[0] * x[1], view) + 3 * count(w) + 2 * count(x) + 5 * count(result))


_INTEGER = Places(w=1, x_zero=2, w_zero=3)
_LINEAR = Places(w=3, x_zero=2, w_zero=5, x_scale=1, w_scale=4, y_scale=6, y_zero=7, bias=8)
_SCALED = Places(w=1, x_scale=2, w_scale=3, x_zero=4, w_zero=5)


def _implement(places: Places, call: Call, traits: DeviceTraits, epilogue: Epilogue | None = None) -> Impl:
    x, w = call.shape(0), call.shape(places.w)
    view = window(call.name, call.attributes, x[2:], w[2:])
    zeros = zeros_of(places, call)
    group = call.attributes.get("group", 1)
    conv = IntegerConv(
        call.dtype(0), call.dtype(places.w), call.outputs[0].dtype, places.w, call.constants[places.w], x[0], group, w[1],
        w[0] // group, view.as_3d(call.name), zeros.refs, zeros.per_column, zeros.neutral, scales_of(places, call),
        inp(places.bias) if places.bias is not None and call.has(places.bias) else None,
    )  # fmt: skip
    return integer_conv(conv, traits, call.outputs[0].shape, epilogue)


def _integer_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    return (INT32,)


def _linear_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    assert inputs[7] is not None
    return (inputs[7],)


def _scaled_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    return (FLOAT32,)


def _scale(value: float) -> Array:
    return np.array(value, np.float32)


def _u8(value: int) -> Array:
    return np.array(value, np.uint8)


_FACTORS = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
SCALED = Operator(
    name="ConvScaled",
    infer=functools.partial(_infer, _SCALED),
    reference=_scaled_reference,
    implement=functools.partial(_implement, _SCALED),
    host_nbytes=functools.partial(_host_nbytes, _SCALED),
    with_epilogue=functools.partial(_implement, _SCALED),
    converts=True,
    value_hints=(5,),
    compares_hints=False,
    types=_scaled_types,
    domain="asyncrt",
    examples=(
        Example(("u8[1,2,5,6]", "i8[4,2,3,3]", _scale(0.02), _FACTORS, _u8(3), None), {"pads": (1, 0, 1, 2)}),
        Example(("i8[2,4,7]", "u8[4,1,3]", _scale(0.5), _scale(0.3), None, _u8(130)), {"group": 4}),
    ),
)

OPERATORS = (
    SCALED,
    Operator(
        name="ConvInteger",
        infer=functools.partial(_infer, _INTEGER),
        reference=_integer_reference,
        implement=functools.partial(_implement, _INTEGER),
        host_nbytes=functools.partial(_host_nbytes, _INTEGER),
        with_epilogue=functools.partial(_implement, _INTEGER),
        converts=True,
        value_hints=(3,),
        compares_hints=False,
        types=_integer_types,
        examples=(
            Example(("u8[1,2,5,6]", "u8[3,2,3,3]", _u8(2)), {"pads": (1, 1, 1, 1)}),
            Example(("u8[2,4,7]", "u8[4,2,3]", _u8(2), _u8(3)), {"group": 2, "strides": (2,), "dilations": (2,)}),
            Example(("u8[1,1,5,5]", "u8[1,1,2,2]"), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
        ),
    ),
    Operator(
        name="QLinearConv",
        infer=functools.partial(_infer, _LINEAR),
        reference=_linear_reference,
        implement=functools.partial(_implement, _LINEAR),
        host_nbytes=functools.partial(_host_nbytes, _LINEAR),
        value_hints=(5,),
        compares_hints=False,
        types=_linear_types,
        examples=(
            Example(
                ("u8[1,2,5,6]", _scale(0.02), _u8(3), "u8[4,2,3,3]", _FACTORS, _u8(1), _scale(0.05), _u8(7)),
                {"pads": (1, 0, 1, 2)},
            ),
            Example(
                ("u8[2,2,6]", _scale(0.02), _u8(3), "u8[4,1,3]", _scale(0.3), _u8(1), _scale(0.05), _u8(7), "i32[4]"),
                {"group": 2},
            ),
        ),
    ),
)
