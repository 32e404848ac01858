"""Texts, sequences, optionals and maps: what callers give and get, and what goes between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import onnx
import pytest
import pytest_asyncio

from asyncrt import BatchingError, IndexOutOfRange, InputError, ModelTypeError, Runtime, RuntimeOptions, ShapeError
from asyncrt.kinds import STRING, sequence_of
from asyncrt.layout import NARROW_TYPES, PartialLayout
from asyncrt.serve.protocol.messages import TensorInfo

FLOAT8 = NARROW_TYPES[0]

pytestmark = pytest.mark.skipif(STRING.numpy.kind != "T", reason="NumPy has no arrays of texts")

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((1, 3), -1, np.float32)


@pytest_asyncio.fixture(params=["host", None], ids=["host", "opencl"])
async def rt(request: pytest.FixtureRequest) -> AsyncIterator[Runtime]:
    async with Runtime(request.param, options=RuntimeOptions(warm=False)) as runtime:
        yield runtime


def parsed(text: str, ml: str = "") -> onnx.ModelProto:
    """Return a model from its text."""
    opsets = '"" : 21' + (', "ai.onnx.ml" : 3' if ml else "")
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{opsets}]>\n{text}")


GROWN = parsed("""grown (seq(float[m, 3]) s, float[n, 3] x) => (seq(float[m, 3]) t, float[k, 3] y, int64 n) {
    r = Relu (x)
    t = SequenceInsert (s, r)
    c = ConcatFromSequence <axis = 0> (t)
    y = Neg (c)
    n = SequenceLength (t)
}""")


@pytest.mark.asyncio
async def test_tensors_go_through_a_sequence_from_kernel_to_kernel(rt: Runtime) -> None:
    """A list comes in, what a kernel made is added to it, and a kernel takes what all of it is joined to."""
    model = await rt.load(GROWN)

    got = await model.infer({"s": [A, B], "x": B})

    np.testing.assert_array_equal(got["y"], -np.concatenate([A, B, np.zeros((1, 3))]))
    assert got["n"] == 3
    assert [t.tolist() for t in got["t"]] == [A.tolist(), B.tolist(), [[0, 0, 0]]]


@pytest.mark.asyncio
async def test_requests_at_once_keep_their_own_sequences(rt: Runtime) -> None:
    """Plans are for shapes, and a sequence of other tensors is another request's."""
    model = await rt.load(GROWN)
    given = [[A * i] * i for i in range(1, 9)]

    answers = await asyncio.gather(*(model.infer({"s": s, "x": A}) for s in given))

    for s, got in zip(given, answers, strict=True):
        np.testing.assert_array_equal(got["y"], -np.concatenate([*s, A]))


@pytest.mark.asyncio
async def test_what_a_caller_gets_is_his_own(rt: Runtime) -> None:
    """Writing to it changes neither what was given nor what another request gets."""
    model = await rt.load(parsed("same (seq(float[n]) s) => (seq(float[n]) t) { t = Identity (s) }"))
    given = [np.ones(2, np.float32)]

    first = (await model.infer({"s": given}))["t"]
    first[0][:] = 7
    first.append(first[0])

    assert given[0].tolist() == [1, 1]
    assert [t.tolist() for t in (await model.infer({"s": given}))["t"]] == [[1, 1]]


@pytest.mark.asyncio
async def test_a_loop_carries_a_sequence(rt: Runtime) -> None:
    """Each iteration adds a tensor, of a shape of its own."""
    model = await rt.load(parsed("""counted (int64 trips, seq(float[m]) s) => (seq(float[m]) t) {
        t = Loop <body = step (int64 i, bool going, seq(float[m]) before) => (bool more, seq(float[m]) after) {
            more = Identity (going)
            zero = Constant <value = int64[1] {0}> ()
            size = Unsqueeze (i, zero)
            new = ConstantOfShape <value = float[1] {2}> (size)
            after = SequenceInsert (before, new)
        }> (trips, , s)
    }"""))

    got = await model.infer({"trips": np.array(3), "s": [np.ones(1, np.float32)]})

    assert [t.tolist() for t in got["t"]] == [[1], [], [2], [2, 2]]


@pytest.mark.asyncio
async def test_what_is_absent_is_none(rt: Runtime) -> None:
    """An optional input that is None has no element, and an optional output without one is None."""
    model = await rt.load(parsed("""asked (optional(float[n]) x) => (bool there, optional(float[n]) y) {
        there = OptionalHasElement (x)
        y = Identity (x)
    }"""))

    nothing, something = await model.infer({"x": None}), await model.infer({"x": A[0]})

    assert (bool(nothing["there"]), nothing["y"]) == (False, None)
    assert (bool(something["there"]), something["y"].tolist()) == (True, A[0].tolist())


@pytest.mark.asyncio
@pytest.mark.parametrize("dtype", [object, np.str_, STRING.numpy])
async def test_texts_come_in_any_form_and_go_out_as_objects(rt: Runtime, dtype: Any) -> None:
    """NumPy has three, and all ONNX operators that only move data take texts."""
    model = await rt.load(parsed("""words (string[n, 2] x, string[1] tail) => (string[k] y, bool[n, 2] same) {
        minus = Constant <value = int64[1] {-1}> ()
        flat = Reshape (x, minus)
        y = Concat <axis = 0> (flat, tail)
        same = Equal (x, tail)
    }"""))

    got = await model.infer({"x": np.array([["a", "ü"], ["", "b"]], dtype), "tail": np.array(["b"], dtype)})

    assert got["y"].dtype == object
    assert got["y"].tolist() == ["a", "ü", "", "b", "b"]
    assert got["same"].tolist() == [[False, False], [False, True]]


@pytest.mark.asyncio
async def test_labels_that_are_texts_are_chosen_by_what_kernels_calculate(rt: Runtime) -> None:
    """Texts in, probabilities out, and a list of dicts behind them."""
    model = await rt.load(parsed("""classify (string[n, 1] x) => (string[n] label, seq(map(string, float)) scores) {
        hot = ai.onnx.ml.OneHotEncoder <cats_strings = ["red", "blue"]> (x)
        rows = ai.onnx.ml.FeatureVectorizer <inputdimensions = [2]> (hot)
        label, y = ai.onnx.ml.LinearClassifier <classlabels_strings = ["no", "yes"], coefficients = [4.0, -4.0,
            -4.0, 4.0], intercepts = [0.0, 0.0], post_transform = "SOFTMAX"> (rows)
        scores = ai.onnx.ml.ZipMap <classlabels_strings = ["no", "yes"]> (y)
    }""", ml="ml"))  # fmt: skip

    got = await model.infer({"x": np.array([["blue"], ["red"], ["green"]])})

    assert got["label"].tolist() == ["yes", "no", "no"]
    assert [{k: round(v, 3) for k, v in row.items()} for row in got["scores"]] == [
        {"no": 0.0, "yes": 1.0}, {"no": 1.0, "yes": 0.0}, {"no": 0.5, "yes": 0.5},
    ]  # fmt: skip


WRONG = [
    ("seq(float[n])", A, "expected seq(float32), a list"),
    ("seq(float[n])", [A, A.astype(np.float64)], "input 'x'[1]: expected float32, got float64[2,3]"),
    ("optional(int64[n])", A, "input 'x': expected int64, got float32[2,3]"),
    ("string[n]", np.array([1, 2]), "expected string"),
    ("string[n]", np.array(["a", 1], object), "some elements are no str"),
    ("string[n]", np.array([["a"]]), "expected rank 1"),
    ("map(int64, float)", [1], "a dict"),
    ("map(int64, float)", {"a": 1.0}, "a key of input 'x': expected int64"),
    ("map(string, int64)", {"a": 1.5}, "expected int64, got 1.5"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("kind", "given", "told"), WRONG)
async def test_another_kind_is_an_input_error(kind: str, given: Any, told: str) -> None:
    """It names the input, says what was expected and what came; the next request is answered."""
    async with Runtime("host") as rt:
        model = await rt.load(parsed(f"same ({kind} x, float[1] z) => (float[1] y) {{ y = Neg (z) }}"))
        with pytest.raises(InputError) as caught:
            await model.infer({"x": given, "z": A[0, :1]})

    assert told in str(caught.value)


@pytest.mark.asyncio
async def test_places_outside_a_sequence_are_told(rt: Runtime) -> None:
    """As indices of a Gather are, and an optional that is asked for what it has not."""
    model = await rt.load(parsed("at (seq(float[n]) s, int64 i) => (float[n] y) { y = SequenceAt (s, i) }"))
    with pytest.raises(IndexOutOfRange, match="index 2 is out of range: it must be from -2 to 1"):
        await model.infer({"s": [A[0], A[1]], "i": np.array(2)})
    empty = await rt.load(parsed("got (optional(float[n]) x) => (float[n] y) { y = OptionalGetElement (x) }"))
    with pytest.raises(ShapeError, match="no element"):
        await empty.infer({"x": None})


@pytest.mark.asyncio
async def test_kinds_that_do_not_fit_are_told_while_loading(rt: Runtime) -> None:
    """A sequence where a tensor is wanted, and a sequence of tensors of another dtype."""
    for text in (
        "wrong (seq(float[n]) s) => (float[n] y) { y = Neg (s) }",
        "wrong (seq(float[n]) s, int64[n] x) => (seq(float[n]) t) { e = Identity (x) t = SequenceInsert (e, x) }",
    ):
        with pytest.raises(ModelTypeError):
            await rt.load(parsed(text))


@pytest.mark.asyncio
async def test_nodes_of_onnx_own_evaluator_are_told(rt: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    """A warning while loading and the explanation say which they are; what they make goes on to kernels."""
    model = await rt.load(parsed("""counted (string[n] x) => (float[2] y) {
        counts = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0,
            ngram_counts = [0], ngram_indexes = [0, 1], pool_strings = ["a", "b"]> (x)
        y = Neg (counts)
    }"""))

    got = await model.infer({"x": np.array(["b", "a", "b"])})

    assert got["y"].tolist() == [-1, -2]
    assert [r.getMessage() for r in caplog.records] == [
        "'counted': 1 of 2 nodes run in onnx's own evaluator, in Python, which may take thousands of times as long as "
        "a kernel: 'TfIdfVectorizer_0' (TfIdfVectorizer)"
    ]
    assert "onnx's own evaluator" in model.explain().nodes[0].why


@pytest.mark.asyncio
async def test_what_joins_requests_says_that_it_joins_tensors_of_numbers_alone(rt: Runtime) -> None:
    """Of inputs and of outputs."""
    for kind in ("string[n, 2]", "seq(float[n])"):
        model = await rt.load(parsed(f"same ({kind} x, float[n, 2] z) => (float[n, 2] y) {{ y = Neg (z) }}"))
        with pytest.raises(BatchingError, match="only tensors of numbers are joined"):
            async with model.batched():
                pass


def test_the_protocol_of_the_server_says_which_tensors_it_has() -> None:
    """A model that takes or gives others is refused when it is loaded."""
    for dtype in (STRING, sequence_of(STRING), FLOAT8):
        with pytest.raises(ModelTypeError, match="tensors of the server cannot be"):
            TensorInfo.of("x", PartialLayout(dtype, (2,)))
