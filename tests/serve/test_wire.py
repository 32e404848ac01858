"""Tensors on the wire: what is written is what is read, and what is no tensor is refused, whatever it is."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncrt.layout import DATA_TYPES, DataType, layout_of
from asyncrt.serve.errors import BadRequest, ServeError, TooLarge
from asyncrt.serve.http.codec import decompressed, format_infer, parse_infer
from asyncrt.serve.protocol.datatypes import DATATYPES, datatype, from_json, from_raw, name_of, to_json, to_raw
from asyncrt.serve.protocol.messages import InferResponse

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(data=st.data(), dtype=st.sampled_from(DATA_TYPES), shape=SHAPES, at=st.integers(0, 7))
@settings(max_examples=200)
def test_raw_bytes_are_the_tensor_wherever_they_begin(
    data: st.DataObject, dtype: DataType, shape: tuple[int, ...], at: int
) -> None:
    """Bit for bit, NaN and all, aligned or not."""
    count = int(np.prod(shape)) * dtype.itemsize
    raw = data.draw(st.binary(min_size=count, max_size=count))
    if dtype.name == "bool":
        raw = bytes(byte & 1 for byte in raw)
    found = from_raw(dtype, shape, memoryview(b"x" * at + raw)[at:], "x")

    assert layout_of(found).dtype is dtype
    assert found.shape == shape
    assert found.flags.aligned
    assert raw == bytes(to_raw(found))


@given(data=st.data(), dtype=st.sampled_from(DATA_TYPES), shape=SHAPES)
@settings(max_examples=200)
def test_json_is_the_tensor(data: st.DataObject, dtype: DataType, shape: tuple[int, ...]) -> None:
    """Nested or flat; each number that a datatype has comes back as it was."""
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.is_float else dtype.numpy
    drawn = data.draw(hnp.arrays(wide, shape, elements={"allow_nan": False} if dtype.is_float else None))
    with np.errstate(over="ignore"):
        array = drawn.astype(dtype.numpy)
    flat = json.loads(json.dumps(to_json(array)))
    nested = np.array(flat, dtype=object).reshape(shape).tolist() if array.ndim > 1 and array.size else flat

    np.testing.assert_array_equal(array, from_json(dtype, shape, flat, "x"))
    np.testing.assert_array_equal(array, from_json(dtype, shape, nested, "x"))


@given(JSON, st.binary(max_size=16), st.none() | st.integers(-2, 40))
@settings(max_examples=300)
def test_whatever_comes_is_a_request_or_an_error_of_the_server(found: Any, behind: bytes, length: int | None) -> None:
    """Never another exception, which would be a status of 500."""
    for value in (found, {"inputs": found}, {"inputs": [found]}, {"inputs": [], "parameters": found, "outputs": found}):
        body = json.dumps(value).encode() + behind
        with contextlib.suppress(ServeError):
            parse_infer(body, None if length is None else str(length))
    tensor = {"name": "x", "shape": found, "datatype": "FP32", "data": found, "parameters": {"binary_data_size": found}}
    for less in ("", "parameters", "data"):
        with contextlib.suppress(ServeError):
            parse_infer(json.dumps({"inputs": [{k: v for k, v in tensor.items() if k != less}]}).encode(), None)


@given(JSON, st.sampled_from(DATATYPES))
@settings(max_examples=300)
def test_whatever_comes_as_data_is_a_tensor_or_an_error_of_the_server(found: Any, name: str) -> None:
    """Nothing is guessed at: a text is no number, and half a number no integer."""
    dtype = datatype(name, "x")
    size = np.array(found, dtype=object).size if isinstance(found, list) else 1
    with contextlib.suppress(BadRequest):
        array = from_json(dtype, (size,), found, "x")
        assert array.dtype == dtype.numpy
        assert "'" not in repr(found)


def test_an_answer_has_its_tensors_as_they_were_asked_for() -> None:
    """Those as bytes lie behind the JSON in its order, and each says how many they are."""
    outputs = {"a": np.arange(3, dtype=np.int16), "b": np.array([1.5], np.float16), "c": np.zeros((0, 2))}
    asked = {
        "inputs": [],
        "outputs": [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}, {"name": "c"}],
        "parameters": {"binary_data_output": False},
    }
    request = parse_infer(json.dumps(asked).encode(), None)
    parts, length = format_infer(InferResponse("m", "1", "", outputs), request)
    body = b"".join(parts)
    assert length is not None
    found = {o["name"]: o for o in json.loads(body[:length])["outputs"]}

    assert found["a"]["parameters"] == {"binary_data_size": 6}
    assert body[length:] == outputs["a"].tobytes()
    assert found["b"] == {"name": "b", "datatype": "FP16", "shape": [1], "data": [1.5]}
    assert found["c"] == {"name": "c", "datatype": "FP64", "shape": [0, 2], "data": []}
    assert {name_of(layout_of(array).dtype) for array in outputs.values()} <= set(DATATYPES)


def test_a_body_that_is_encoded_is_decoded_up_to_the_limit() -> None:
    """What is cut short, or something else, is refused."""
    import gzip

    body = gzip.compress(b" " * 1000)

    assert decompressed(body, "gzip", 1000) == b" " * 1000
    with pytest.raises(TooLarge):
        decompressed(body, "gzip", 999)
    for wrong in (body[:-9], b"no gzip"):
        with pytest.raises(BadRequest):
            decompressed(wrong, "gzip", 1000)
