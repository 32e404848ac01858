"""`OrtValue`: a tensor in memory that it shares, as ONNX Runtime's tests of it ask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from .api import CONSTANT, raised, session

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_value_of_an_array_says_what_it_is(ort: Any) -> None:
    """Shape, type, device and size."""
    value = ort.OrtValue.ortvalue_from_numpy(X)

    assert list(value.shape()) == [2, 3]
    assert (value.data_type(), value.element_type()) == ("tensor(float)", TensorProto.FLOAT)
    assert (value.device_name(), value.tensor_size_in_bytes()) == ("cpu", 24)
    assert (value.is_tensor(), value.is_sparse_tensor(), value.is_tensor_sequence()) == (True, False, False)
    assert value.has_value()
    np.testing.assert_array_equal(X, value.numpy())


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int8, np.int32, np.int64, np.float16, np.float64])
def test_values_have_the_types_of_their_arrays(dtype: Any, ort: Any) -> None:
    """And give them back as they are."""
    array = np.array([0, 1], dtype)

    value = ort.OrtValue.ortvalue_from_numpy(array)

    expected = {"float64": "double"}.get(array.dtype.name, array.dtype.name)
    assert value.data_type() == f"tensor({expected})"
    assert value.numpy().dtype == array.dtype


def test_a_value_shares_its_memory_with_its_array(ort: Any) -> None:
    """What is written to one is read from the other; an array that is not contiguous is copied."""
    array = X.copy()
    value = ort.OrtValue.ortvalue_from_numpy(array)
    turned = ort.OrtValue.ortvalue_from_numpy(array.T)

    value.update_inplace(2 * X)

    assert value.data_ptr() == array.ctypes.data
    np.testing.assert_array_equal(2 * X, array)
    np.testing.assert_array_equal(X.T, turned.numpy())
    assert turned.data_ptr() != array.ctypes.data


def test_a_value_takes_another_values_numbers(ort: Any) -> None:
    """Of the same size; anything else is refused and changes nothing."""
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())

    value.update_inplace(ort.OrtValue.ortvalue_from_numpy(3 * X))

    np.testing.assert_array_equal(3 * X, value.numpy())
    assert raised(ort, lambda: value.update_inplace(X[:1]))[0] == "RuntimeError"
    assert raised(ort, lambda: value.update_inplace([1]))[0] == "TypeError"
    np.testing.assert_array_equal(3 * X, value.numpy())


@pytest.mark.parametrize("element", [np.float32, np.dtype(np.float32), "float32", TensorProto.FLOAT])
def test_a_value_is_made_of_a_shape_and_a_type(element: Any, ort: Any) -> None:
    """The type is NumPy's, its name, or ONNX's number."""
    value = ort.OrtValue.ortvalue_from_shape_and_type((2, 3), element)
    value.update_inplace(X)

    assert (list(value.shape()), value.data_type()) == ([2, 3], "tensor(float)")
    np.testing.assert_array_equal(X, value.numpy())


def test_a_value_may_have_a_type_that_numpy_has_not(ort: Any) -> None:
    """Its bytes come as integers of the same size."""
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint16), TensorProto.BFLOAT16)
    empty = ort.OrtValue.ortvalue_from_shape_and_type([2], TensorProto.BFLOAT16)

    assert (value.data_type(), value.element_type()) == ("tensor(bfloat16)", TensorProto.BFLOAT16)
    assert (empty.data_type(), empty.tensor_size_in_bytes()) == ("tensor(bfloat16)", 4)
    wrong = np.zeros(2, np.uint8)
    make = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
    assert raised(ort, lambda: make(wrong, TensorProto.BFLOAT16))[0] == "RuntimeError"


def test_what_cannot_be_a_value_is_refused(ort: Any) -> None:
    """Lists, texts, sizes below zero, devices that there are not, and what is no value of the C API."""
    make = ort.OrtValue.ortvalue_from_numpy
    expected = {
        "list": (lambda: make([1]), "RuntimeError"),
        "texts": (lambda: make(np.array(["a"])), "RuntimeError"),
        "size": (lambda: ort.OrtValue.ortvalue_from_shape_and_type([2, -3], np.float32), "RuntimeError"),
        "device": (lambda: make(X, "cuda", 0), "RuntimeError"),
        "no value": (lambda: ort.OrtValue(3), "ValueError"),
    }

    assert {n: raised(ort, call)[0] for n, (call, _) in expected.items()} == {n: e for n, (_, e) in expected.items()}


def test_values_go_to_other_libraries_and_come_from_them(ort: Any) -> None:
    """By NumPy's protocol and by DLPack, without a copy where there need be none."""
    array = np.array([1, 2, 3], np.float64)
    value = ort.OrtValue.from_dlpack(array)

    assert value.data_ptr() == array.ctypes.data
    assert value.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(array, np.from_dlpack(value))
    np.testing.assert_array_equal(array, np.asarray(value))
    assert np.asarray(value, np.float32).dtype == np.float32
    assert ort.OrtValue.from_dlpack(value).data_ptr() == array.ctypes.data
    assert ort.OrtValue.from_dlpack(value.__dlpack__()).numpy().tolist() == [1, 2, 3]


def test_a_run_takes_and_gives_values(ort: Any) -> None:
    """By the names of inputs and outputs; what does not fit is refused as in any run."""
    made = session(ort, CONSTANT)
    value = ort.OrtValue.ortvalue_from_numpy(X)

    for names in (["y"], None):
        (result,) = made.run_with_ort_values(names, {"x": value})
        np.testing.assert_array_equal(X + [1, 2, 3], result.numpy())
    wrong = ort.OrtValue.ortvalue_from_numpy(X.astype(np.float64))
    assert raised(ort, lambda: made.run_with_ort_values(None, {"x": wrong}))[0] == "InvalidArgument"


def test_values_are_copied_to_values(ours: Any) -> None:
    """Several at once; ONNX Runtime does it between devices alone."""
    targets = [ours.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32) for _ in range(2)]

    ours.copy_tensors([ours.OrtValue.ortvalue_from_numpy(n * X) for n in (1, 2)], targets)

    for n, target in enumerate(targets, 1):
        np.testing.assert_array_equal(n * X, target.numpy())
