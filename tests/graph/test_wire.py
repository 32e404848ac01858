"""Where the large tensors of a model lie in its bytes, and what is left without them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from asyncrt.graph.reading.wire import without_tensors

from ..zoo import zoo
from .models import f32, model, node

ZOO = {m.name: m.path for m in zoo()}


def small() -> onnx.ModelProto:
    """A product with two constants of 48 and 16 bytes."""
    constants = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.arange(4, dtype=np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    return model(nodes, [f32("x", 2, 3)], ["y"], constants)


def put_back(data: bytes, least: int) -> tuple[onnx.ModelProto, int]:
    """The model parsed without its large tensors, which are then put back; and how many they were."""
    rest, places = without_tensors(memoryview(data), least) or (data, {})
    parsed = onnx.ModelProto.FromString(rest)
    for index, place in places.items():
        assert not parsed.graph.initializer[index].HasField("raw_data")
        parsed.graph.initializer[index].raw_data = data[place]
    return parsed, len(places)


@pytest.mark.parametrize("name", ZOO)
def test_a_model_and_its_tensors_together_are_the_model(name: str) -> None:
    """Whatever wrote the file: nothing is lost, and nothing is in another place."""
    data = ZOO[name].read_bytes()

    parsed, count = put_back(data, 1)

    assert parsed == onnx.ModelProto.FromString(data)
    assert count == sum(bool(t.raw_data) for t in parsed.graph.initializer)


@pytest.mark.parametrize(("least", "count"), [(1, 2), (16, 2), (17, 1), (48, 1)])
def test_small_tensors_stay(least: int, count: int) -> None:
    """Those of fewer bytes than asked for are left where they are."""
    source = small()

    parsed, found = put_back(source.SerializeToString(), least)

    assert (parsed, found) == (source, count)


def test_a_model_without_large_tensors_is_left_alone() -> None:
    """There is nothing to gain."""
    assert without_tensors(memoryview(small().SerializeToString()), 49) is None


def test_a_tensor_of_very_many_numbers_one_by_one_is_left_to_protobuf() -> None:
    """It reads them a hundred times as fast; a hostile file has a million sizes of one tensor."""
    source = small()
    source.graph.initializer[1].dims.extend([1] * 65_000)
    few, _ = put_back(source.SerializeToString(), 48)
    source.graph.initializer[1].dims.extend([1] * 1_000)

    assert len(few.graph.initializer[1].dims) == 65_001
    assert without_tensors(memoryview(source.SerializeToString()), 48) is None


def test_lengths_of_several_bytes_are_read_and_written() -> None:
    """Texts and tensors of more than 127 and 16383 bytes."""
    for length in (1, 127, 128, 129, 16383, 16384, 2_100_000):
        source = small()
        source.graph.doc_string = "d" * length
        source.graph.initializer[1].raw_data = bytes(length)

        parsed, _ = put_back(source.SerializeToString(), 1)

        assert parsed == source


@pytest.mark.parametrize(
    "unusual",
    [
        small().SerializeToString() * 2,  # two graphs, which parsing merges
        small().SerializeToString() + b"\x3b\x3c",  # a group
        small().SerializeToString() + b"\x38\x01",  # a graph that is a number
        small().SerializeToString() + b"\x3a" + b"\xff" * 10,  # a length without an end
        b"",
        b"\xff",
        bytes(1000),
    ],
)
def test_what_is_unusual_is_left_to_protobuf(unusual: bytes) -> None:
    """It may know what to make of it, or says what is wrong."""
    assert without_tensors(memoryview(unusual), 1) is None


def test_a_tensor_whose_data_is_there_twice_stays() -> None:
    """The last counts, which is for protobuf to know."""
    source = small()
    twice = source.graph.initializer[0]
    data = source.SerializeToString()
    tensor = twice.SerializeToString()
    at = data.index(tensor)
    again = onnx.TensorProto(raw_data=bytes(48)).SerializeToString()
    whole = data[: at - 2] + b"\x2a" + bytes([len(tensor) + len(again)]) + tensor + again + data[at + len(tensor) :]
    start = whole.index(b"\x3a") + 1
    old = source.graph.ByteSize()
    data = whole[:start] + _varint(old + len(again)) + whole[start + len(_varint(old)) :]

    parsed, count = put_back(data, 1)

    assert parsed == onnx.ModelProto.FromString(data)
    assert (parsed.graph.initializer[0].raw_data, count) == (bytes(48), 1)


def _varint(number: int) -> bytes:
    return bytes([number & 127 | 128, number >> 7]) if number > 127 else bytes([number])


def test_a_model_that_is_cut_short_anywhere_names_no_bytes_beyond_its_end() -> None:
    """Nor does one in which any byte is another."""
    data = small().SerializeToString()
    random = np.random.default_rng(0)
    damaged = [data[:end] for end in range(len(data))]
    for _ in range(2000):
        other = bytearray(data)
        other[random.integers(len(data))] = random.integers(256)
        damaged.append(bytes(other))

    found = [(d, without_tensors(memoryview(d), 1)) for d in damaged]

    assert all(p.stop <= len(d) for d, f in found if f is not None for p in f[1].values())
    assert sum(f is None for _, f in found) > len(data) // 2
