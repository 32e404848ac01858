"""DFT and STFT: discrete Fourier transforms of a signal, or of windows of it. They run on the host.

The last axis holds a real part and, with two elements, an imaginary part; STFT takes a real signal without it, too, as
ONNX Runtime does and exporters write it. The axis of DFT is an attribute before
opset 20 and an input from then on.

Source: ONNX DFT-20, DFT-17, STFT-17.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import check, normal_axis
from asyncrt.layout import Array, Shape

_AXIS_IS_INPUT = 20


def _complex(x: Any, wide: Any = np.float64) -> Any:
    """Return the signal without its last axis, in the precision *wide*."""
    wide = x.astype(wide)
    return wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]


def _parts(y: Any, dtype: np.dtype[Any]) -> Array:
    return np.stack([y.real, y.imag], axis=-1).astype(dtype)


def _transform(call: Call) -> tuple[int, int]:
    """The axis of the transform, and its length."""
    shape = call.shape(0)
    check(call, len(shape) >= 2, "its input must have a signal axis and one for real and imaginary parts")
    _check_parts(call, shape[-1])
    if call.attributes.opset < _AXIS_IS_INPUT:
        axis = call.attributes.get("axis", 1)
    else:
        axis = call.ints(2)[0] if call.has(2) else -2
    axis = normal_axis(call, axis, len(shape))
    check(call, axis != len(shape) - 1, "the last axis is not one of the signal")
    if call.has(1):
        length = call.ints(1)[0]
    else:
        length = 2 * (shape[axis] - 1) if _inverse_onesided(call) == (True, True) else shape[axis]
    check(call, isinstance(length, Dim) or length > 0, f"a transform of length {length}")
    return axis, length


def _inverse_onesided(call: Call) -> tuple[bool, bool]:
    return bool(call.attributes.get("inverse", 0)), bool(call.attributes.get("onesided", 0))


def _dft_infer(call: Call) -> tuple[Shape]:
    (axis, length), shape = _transform(call), call.shape(0)
    inverse, onesided = _inverse_onesided(call)
    bins = length // 2 + 1 if onesided and not inverse else length
    result = [*shape[:-1], 1 if onesided and inverse else 2]
    result[axis] = bins
    return (tuple(result),)


def _check_parts(call: Call, parts: int) -> None:
    check(call, isinstance(parts, Dim) or parts in (1, 2), f"the last axis has {parts} elements, not 1 or 2")


def _dft_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    given = [None if i is None else int(np.asarray(i).reshape(-1)[0]) for i in inputs[1:]] + [None, None]
    axis = attributes.get("axis", 1) if attributes.opset < _AXIS_IS_INPUT else -2 if given[1] is None else given[1]
    axis = axis % x.ndim
    # In its own precision, as in onnx's reference: an imaginary part that vanishes there vanishes here, too.
    signal, length = _complex(x, np.float64 if x.dtype == np.float64 else np.float32), given[0]
    inverse, onesided = bool(attributes.get("inverse", 0)), bool(attributes.get("onesided", 0))
    if inverse and onesided:
        return (np.fft.irfft(signal, n=length, axis=axis)[..., None].astype(x.dtype),)
    if inverse:
        return (_parts(np.fft.ifft(signal, n=length, axis=axis), x.dtype),)
    y = np.fft.fft(signal, n=length, axis=axis)
    if onesided:
        y = y.take(range(y.shape[axis] // 2 + 1), axis=axis)
    return (_parts(y, x.dtype),)


def _dft_nbytes(call: Call) -> int:
    """The signal in float64 and as complex numbers, and the whole spectrum some times over."""
    (axis, length), shape = _transform(call), call.shape(0)
    spectrum = math.prod(shape[:axis]) * length * math.prod(shape[axis + 1 : -1])
    return 24 * math.prod(shape) + 16 * 6 * spectrum


def _stft_infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    wanted = "its input must have batch and signal, and may have one axis for real and imaginary parts"
    check(call, len(shape) in (2, 3), wanted)
    if len(shape) == 3:
        _check_parts(call, shape[2])
    step = call.ints(1)[0]
    check(call, step > 0, f"frame_step is {step}")
    check(call, not call.has(2) or len(call.shape(2)) == 1, "its window must be a vector")
    length = call.ints(3)[0] if call.has(3) else call.shape(2)[0] if call.has(2) else shape[1]
    if call.has(2):
        check(call, call.shape(2) == (length,), f"the window has shape {call.shape(2)}, frames have {length} elements")
    if not isinstance(length, Dim) and not isinstance(shape[1], Dim):
        check(call, 0 < length <= shape[1], f"frames of {length} in a signal of {shape[1]} elements")
    bins = length // 2 + 1 if call.attributes.get("onesided", 1) else length
    return ((shape[0], (shape[1] - length) // step + 1, bins, 2),)


def _stft_nbytes(call: Call) -> int:
    """The signal as complex numbers, and all frames with their spectra some times over."""
    (result,) = _stft_infer(call)
    length = call.ints(3)[0] if call.has(3) else call.shape(2)[0] if call.has(2) else call.shape(0)[1]
    return 24 * math.prod(call.shape(0)) + 16 * 6 * result[0] * result[1] * length


def _stft_reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    step: Any = inputs[1]
    window: Any = inputs[2] if len(inputs) > 2 else None
    given: Any = inputs[3] if len(inputs) > 3 else None
    hop = int(step.reshape(-1)[0])
    length = int(given.reshape(-1)[0]) if given is not None else x.shape[1] if window is None else len(window)
    frames = np.lib.stride_tricks.sliding_window_view(_complex(x if x.ndim == 3 else x[..., None]), length, axis=1)[:, ::hop]
    y = np.fft.fft(frames if window is None else frames * window.astype(np.float64), axis=2)
    return (_parts(y[:, :, : length // 2 + 1] if attributes.get("onesided", 1) else y, x.dtype),)


def _i64(value: int) -> Array:
    return np.array(value, np.int64)


OPERATORS = (
    Operator(
        name="DFT",
        infer=_dft_infer,
        reference=_dft_reference,
        host_nbytes=_dft_nbytes,
        shape_infer_dependencies=(1, 2),
        examples=(
            Example(("f32[2,10,1]",), opset=20),
            Example(("f32[2,10,2]", _i64(8), _i64(1)), {"inverse": 1}, opset=20),
            Example(("f32[2,10,4,1]", None, _i64(-2)), {"onesided": 1}, opset=20),
            Example(("f32[2,6,2]", _i64(9)), {"onesided": 1, "inverse": 1}, opset=20),
            Example(("f32[2,10,4,2]", _i64(12)), {"axis": 2}, opset=17),
            Example(("f64[2,9,4,1]",), {"onesided": 1}, opset=17),
        ),
    ),
    Operator(
        name="STFT",
        infer=_stft_infer,
        reference=_stft_reference,
        host_nbytes=_stft_nbytes,
        shape_infer_dependencies=(1, 3),
        examples=(
            Example(("f32[1,64,1]", _i64(8), "f32[16]"), opset=17),
            Example(("f32[2,65,1]", _i64(7), None, _i64(15)), {"onesided": 1}, opset=17),
            Example(("f32[2,40,2]", _i64(5), "f32[10]", _i64(10)), {"onesided": 0}, opset=17),
        ),
    ),
)
