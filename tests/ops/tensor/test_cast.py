"""Casts that onnx's evaluator warns about, and casts of symbolic dims."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt.devices.base import Device
from asyncrt.dims import Dim, Undetermined
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.operator import Example
from asyncrt.kernels.ops.tensor.cast import OPERATORS
from asyncrt.layout import BOOL, FLOAT16, FLOAT32, INT32, INT64, Array, DataType

from ..run import arrays, make_call, reference, run_impl, traits_of

CAST = OPERATORS[0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([65504, 65519, 65520, -1e9, 1e30], np.float32), [65504, 65504, np.inf, -np.inf, np.inf]),
        (np.array([65504, 65519.999999, 65520, -1e300]), [65504, 65504, np.inf, -np.inf]),
        (np.array([65519, 65520, -(2**40)], np.int64), [65504, np.inf, -np.inf]),
    ],
)
def test_what_float16_cannot_hold_becomes_infinite(values: Array, expected: list[float], device: Device) -> None:
    """The largest float16 is 65504; from 65520 on the nearest is infinity."""
    example = Example((values,), {"to": FLOAT16.onnx})
    if values.dtype == np.float64 and "fp64" not in device.info.features:
        pytest.skip("the device has no float64")
    inputs = arrays(example)
    wanted = reference(CAST, example, inputs)
    call = make_call(CAST, example, inputs, wanted, constant=False)
    assert CAST.implement is not None
    (got,) = run_impl(CAST.implement(call, traits_of(device)), call, inputs)

    np.testing.assert_array_equal(wanted[0], np.array(expected, np.float16))
    np.testing.assert_array_equal(got, np.array(expected, np.float16))


@pytest.mark.parametrize("length", [16, 1], ids=["vectors", "single elements"])
def test_floats_become_integers_by_one_rule(length: int, device: Device) -> None:
    """Towards 0, and the least integer of 32 bits for what does not fit or is no number; as vectors and one by one."""
    limit = 2.0**31
    values = np.array([1.9, -1.9, limit - 128, limit, -limit, -limit - 256, 1e30, np.inf, -np.inf, np.nan], np.float32)
    least = -(2**31)
    expected = np.array([1, -1, 2**31 - 128, least, least, least, least, least, least, least], np.int32)
    example = Example((np.repeat(values, length),), {"to": INT32.onnx})
    inputs = arrays(example)
    wanted = reference(CAST, example, inputs)
    call = make_call(CAST, example, inputs, wanted, constant=False)
    assert CAST.implement is not None
    (got,) = run_impl(CAST.implement(call, traits_of(device)), call, inputs)

    np.testing.assert_array_equal(wanted[0], np.repeat(expected, length))
    np.testing.assert_array_equal(got, np.repeat(expected, length))


def _dims(values: list[object], to: DataType) -> Array:
    (result,) = CAST.reference(Attributes({"to": to.onnx}), [np.array(values, object)])
    return result


def test_dims_stay_dims_as_int64() -> None:
    """A dim cast to the type of dims is itself."""
    seq = Dim.named("seq")

    result = _dims([seq, 3], INT64).tolist()

    assert result[0] is seq
    assert result[1] == 3


def test_what_is_not_known_of_a_dim_is_not_guessed() -> None:
    """Neither a dim as a float nor whether it is zero is known while loading."""
    for to in (FLOAT32, BOOL):
        with pytest.raises(Undetermined):
            _dims([Dim.named("seq")], to)


def test_plain_ints_are_cast() -> None:
    """An object array without symbolic dims is an int64 array."""
    result = _dims([2, 0], FLOAT32)

    assert result.dtype == np.float32
    assert result.tolist() == [2, 0]
