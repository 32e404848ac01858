"""What a reference makes on the host is no more than is told before it runs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Operator, host_nbytes
from asyncrt.kernels.registry import operators
from asyncrt.kinds import held, sequence_of
from asyncrt.layout import FLOAT32, STRING, Array, Layout, layout_of

RANDOM = np.random.default_rng(0)


def f32(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def scalar(number: float, dtype: Any = np.int64) -> Array:
    return np.array(number, dtype)


def texts(count: int, words: int = 1) -> Array:
    """Return lines of words, of a hundred different ones."""
    lines = [" ".join(f"word{n}" for n in row) for row in RANDOM.integers(0, 100, (count, words))]
    return np.array(lines, STRING.numpy)


WORDS = tuple(f"word{n}" for n in range(100))
PARTS = held((f32(200, 300), f32(100, 300)))
ROWS = dict(enumerate(RANDOM.random(5000).tolist()))
PADDED = {"mark": 1, "pad_value": "#", "mincharnum": 1}

#: For each operator that tells its own bytes: calls of some megabytes, of different proportions.
CASES: dict[str, list[tuple[tuple[Array | None, ...], dict[str, Any]]]] = {
    "AffineGrid": [
        ((f32(2, 2, 3), np.array([2, 1, 300, 400])), {}),
        ((f32(1, 3, 4), np.array([1, 1, 50, 60, 70])), {}),
    ],
    "Attention": [
        ((f32(1, 2, 300, 16), f32(1, 2, 500, 16), f32(1, 2, 500, 16)), {}),
        ((f32(1, 4, 4, 64), f32(1, 2, 3000, 64), f32(1, 2, 3000, 8)), {"is_causal": 1}),
    ],
    "AveragePool": [
        ((f32(1, 2, 200, 200),), {"kernel_shape": (9, 9)}),
        ((f32(1, 2, 600, 600),), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ],
    "BlackmanWindow": [((scalar(300_000),), {})],
    "CastMap": [((held(ROWS),), {}), ((held(ROWS),), {"map_form": "SPARSE", "max_map": 9000, "cast_to": "TO_INT64"})],
    "CategoryMapper": [((texts(9000),), {"cats_strings": WORDS, "cats_int64s": tuple(range(100))})],
    "Col2Im": [((f32(1, 3 * 9, 200 * 200), np.array([202, 202]), np.array([3, 3])), {})],
    "ConcatFromSequence": [((PARTS,), {"axis": 0})],
    "Conv": [((f32(1, 3, 200, 200), f32(8, 3, 5, 5)), {}), ((f32(2, 16, 64, 64), f32(16, 16, 1, 1)), {})],
    "ConvInteger": [
        ((np.ones((1, 3, 200, 200), np.uint8), np.ones((8, 3, 5, 5), np.uint8)), {"pads": (9, 9, 9, 9)}),
        ((np.ones((2, 16, 64, 64), np.uint8), np.ones((16, 8, 3, 3), np.uint8), scalar(3, np.uint8)), {"group": 2}),
    ],
    "ConvScaled": [
        (
            (
                np.ones((1, 3, 200, 200), np.uint8), np.ones((8, 3, 5, 5), np.int8), scalar(0.1, np.float32),
                scalar(0.1, np.float32), scalar(3, np.uint8), None,
            ),
            {"pads": (9, 9, 9, 9)},
        ),
    ],
    "DFT": [
        ((f32(1, 4, 1), scalar(200_000)), {"opset": 20}),
        ((f32(20, 10_000, 2), None, scalar(1)), {"opset": 20, "inverse": 1}),
        ((f32(20, 20_000, 1),), {"opset": 20, "onesided": 1}),
    ],
    "DictVectorizer": [((held(ROWS),), {"int64_vocabulary": tuple(range(2000, 9000))})],
    "GridSample": [
        ((f32(1, 3, 100, 100), f32(1, 200, 200, 2)), {"mode": "cubic", "opset": 20}),
        ((f32(1, 1, 300, 300), f32(1, 200, 200, 2)), {"padding_mode": "reflection", "opset": 16}),
        ((f32(2, 40, 10, 10), f32(2, 60, 60, 2)), {"mode": "nearest", "opset": 20}),
    ],
    "ImageSample": [((f32(2, 40, 10, 10), f32(2, 60, 60, 2)), {"mode": "nearest"})],
    "HammingWindow": [((scalar(300_000),), {"periodic": 0})],
    "HannWindow": [((scalar(300_000),), {})],
    "LabelEncoder": [
        ((texts(9000),), {"keys_strings": WORDS, "values_floats": tuple(range(100))}),
        ((np.arange(9000) % 200,), {"keys_int64s": tuple(range(100)), "values_strings": WORDS}),
    ],
    "LpPool": [((f32(1, 2, 200, 200),), {"kernel_shape": (7, 7), "p": 3})],
    "MatMulNBits": [
        (
            (f32(40, 512), np.ones((300, 16, 16), np.uint8), f32(4800)),
            {"N": 300, "K": 512, "bits": 4, "block_size": 32},
        ),
        (
            (f32(4000, 500), np.ones((8, 16, 16), np.uint8), f32(128)),
            {"N": 8, "K": 500, "bits": 4, "block_size": 32, "accuracy_level": 4},
        ),
    ],
    "MaxPool": [
        ((f32(1, 2, 200, 200),), {"kernel_shape": (7, 7)}),
        ((f32(1, 1, 9, 9),), {"kernel_shape": (1, 1), "strides": (400, 400), "pads": (400, 400, 400, 400)}),
    ],
    "MaxRoiPool": [
        ((f32(2, 8, 200, 200), np.array([[0, 0, 0, 199, 199]] * 40, np.float32)), {"pooled_shape": (3, 3)}),
    ],
    "MaxUnpool": [
        ((f32(1, 4, 300, 300), np.arange(360_000).reshape(1, 4, 300, 300)),
         {"kernel_shape": (2, 2), "strides": (2, 2)}),
        ((f32(1, 1, 1, 1), np.zeros((1, 1, 1, 1), np.int64)), {"kernel_shape": (1000, 1000)}),
    ],
    "MelWeightMatrix": [
        ((scalar(128), scalar(16_000), scalar(16_000), scalar(0, np.float32), scalar(8000, np.float32)), {}),
    ],
    "NonMaxSuppression": [
        ((f32(1, 20_000, 4), f32(1, 2, 20_000), scalar(5), scalar(2, np.float32)), {}),
        ((f32(2, 200, 4), f32(2, 40, 200), scalar(200), scalar(2, np.float32)), {}),
    ],
    "NonZero": [((np.ones((20, 30, 200), np.uint8),), {}), ((np.eye(1000, dtype=np.float32),), {})],
    "OneHotEncoder": [((texts(3000),), {"cats_strings": WORDS, "zeros": 1})],
    "Optional": [((f32(3, 4),), {})],
    "OptionalGetElement": [((held([f32(3, 4)]),), {})],
    "OptionalHasElement": [((held([f32(3, 4)]),), {})],
    "PairwiseShares": [((RANDOM.random((4000, 10)).astype(np.float32),), {}), ((f32(40, 780),), {})],
    "Resize": [
        ((f32(1, 3, 200, 100), None, None, np.array([1, 3, 300, 400])), {"mode": "linear"}),
        ((f32(1, 65_536), None, np.array([1, 4], np.float32)), {"mode": "linear"}),
        ((f32(1, 2, 300, 300), None, None, np.array([1, 2, 100, 90])), {"mode": "cubic", "antialias": 1}),
        ((f32(1, 3, 100, 100), None, np.array([1, 1, 3, 3], np.float32)), {"mode": "nearest"}),
    ],
    "QLinearConv": [
        (
            (np.ones((1, 3, 200, 200), np.uint8), scalar(1, np.float32), scalar(0, np.uint8),
             np.ones((8, 3, 5, 5), np.uint8), scalar(1, np.float32), scalar(0, np.uint8), scalar(1, np.float32),
             scalar(0, np.uint8)),
            {"strides": (2, 2)},
        ),
    ],
    "RoiAlign": [
        ((f32(1, 4, 64, 64), np.array([[0, 0, 300, 200]], np.float32), np.array([0])),
         {"output_height": 3, "opset": 16}),
        ((f32(1, 32, 9, 9), np.array([[0, 0, 3, 2]] * 9, np.float32), np.zeros(9, np.int64)),
         {"output_height": 7, "output_width": 7, "sampling_ratio": 4, "mode": "max", "opset": 16}),
    ],
    "STFT": [
        ((f32(2, 20_000, 1), scalar(40), f32(256)), {"opset": 17}),
        ((f32(1, 9000, 2), scalar(30), None, scalar(500)), {"opset": 17, "onesided": 0}),
    ],
    "SequenceAt": [((held((f32(3, 4),) * 9), scalar(1)), {})],
    "SequenceConstruct": [((f32(3, 4), f32(3, 4)), {})],
    "SequenceEmpty": [((), {})],
    "SequenceErase": [((held((f32(3, 4),) * 9), scalar(1)), {})],
    "SequenceInsert": [((held((f32(3, 4),) * 9), f32(3, 4)), {})],
    "SequenceLength": [((held((f32(3, 4),) * 9),), {})],
    "SplitToSequence": [((f32(20_000, 3),), {"axis": 0}), ((f32(20_000), scalar(7)), {"axis": 0})],
    "Tokenizer": [
        ((texts(300, 30),), {**PADDED, "separators": (" ",)}),
        ((texts(300),), {**PADDED, "separators": ("",)}),
    ],
    "TopK": [((f32(40, 5000), scalar(3)), {}), ((f32(200_000), scalar(200_000)), {"largest": 0})],
    "Multinomial": [((f32(300, 400),), {"sample_size": 500})],
    "RandomNormal": [((), {"shape": (300, 200)})],
    "RandomNormalLike": [((f32(300, 200),), {})],
    "RandomUniform": [((), {"shape": (300, 200)})],
    "RandomUniformLike": [((f32(300, 200),), {})],
    "TreeScores": [
        (
            (f32(20_000, 4), np.array([[0, 0, 1, 2], [-1, 0, 0, 1], [-1, 0, 1, 1]] * 3, np.int32),
             np.array([0, 3, 6], np.int32), np.array([0, 2], np.int32), f32(2), f32(3)),
            {},
        ),
    ],
    "Unique": [
        ((RANDOM.integers(0, 9, 300_000),), {}), ((RANDOM.permutation(300_000),), {"sorted": 0}),
        ((RANDOM.integers(0, 9, (50_000, 3)).astype(np.int8),), {"axis": 0}),
    ],
    "VolumeSample": [((f32(1, 3, 20, 30, 40), f32(1, 10, 40, 50, 3)), {"mode": "linear"})],
    "ZipMap": [((RANDOM.random((900, 20)).astype(np.float32),), {"classlabels_strings": WORDS[:20]})],
}  # fmt: skip
SLACK = 1 << 16  # bytes: what Python itself takes


def told() -> dict[str, Operator]:
    return {o.name: o for o in operators().values() if o.host_nbytes is not None}


def call_of(operator: Operator, inputs: tuple[Array | None, ...], attributes: dict[str, Any]) -> Call:
    opset = attributes.get("opset", 0)
    attributes = {name: x for name, x in attributes.items() if name != "opset"}
    layouts = tuple(
        None if x is None else Layout(sequence_of(FLOAT32), ()) if x.dtype == object else layout_of(x) for x in inputs
    )
    return Call("n", Attributes(attributes, opset, 1), layouts, inputs, (), (FLOAT32,), (False,) * len(inputs))


def test_each_operator_that_tells_has_a_case() -> None:
    """And no other has."""
    assert CASES.keys() == told().keys()


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, cases in CASES.items() for number in range(len(cases))]
)
def test_a_reference_makes_no_more_than_is_told(name: str, number: int) -> None:
    """At its peak; and what is told is no more than forty times as much."""
    operator, (inputs, attributes) = told()[name], CASES[name][number]
    call = call_of(operator, inputs, attributes)

    expected = host_nbytes(operator, call)
    tracemalloc.start()
    with np.errstate(all="ignore"):
        results = operator.reference(call.attributes, inputs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(results)
    assert peak <= expected + SLACK
    assert expected <= 40 * peak


def test_where_nothing_is_told_it_is_the_outputs_and_what_is_calculated_in_doubles() -> None:
    """An Add of 3 and 4 elements gives 12; moving data takes the output twice."""
    by_name = {o.name: o for o in operators().values()}
    add = call_of(by_name["Mod"], (f32(3, 1), f32(1, 4)), {})
    expand = call_of(by_name["Expand"], (f32(3, 1), np.array([3, 4])), {})

    assert host_nbytes(by_name["Mod"], add) == 12 * 4 + 8 * (12 + 3 + 4)
    assert host_nbytes(by_name["Expand"], expand) == 12 * 4 + 8 * (12 + 12)
