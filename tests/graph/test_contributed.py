"""Operators of ONNX Runtime's own domain give what ONNX Runtime gives, from nodes of ONNX alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime_state
import pytest
from onnx import defs, helper

from asyncrt.errors import ModelFormatError, ModelTypeError, UnsupportedOperatorError
from asyncrt.graph.rewriting.contributed import contributed_schema
from asyncrt.layout import Array

from ..second_opinion import onnxruntime_gives
from .models import compute, f32, model, node, program

MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(18)


def _f(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def _q(*shape: int, dtype: type = np.uint8) -> Array:
    """Small enough that sums of two products fit into 16 bits, on any processor."""
    low, high = (0, 120) if dtype is np.uint8 else (-60, 60)
    return RNG.integers(low, high, shape).astype(dtype)


def _s(value: float) -> Array:
    return np.array(value, np.float32)


def _z(value: int, dtype: type = np.uint8) -> Array:
    return np.array(value, dtype)


class Case(NamedTuple):
    """A node: its inputs (None is absent), its attributes, and which outputs are wanted."""

    op: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = {}
    outputs: Sequence[str] = ("y0",)
    domain: str = MICROSOFT
    constants: int = 99
    """Inputs from this one on are constants."""


def source_of(case: Case) -> onnx.ModelProto:
    """Return a model of the node, whose dims are not known before a request."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(case.inputs)]
    infos = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype), [f"{n}_{k}" for k in range(np.ndim(a))]
        )
        for i, (n, a) in enumerate(zip(names, case.inputs, strict=True))
        if a is not None and i < case.constants
    ]
    held = {
        n: a for i, (n, a) in enumerate(zip(names, case.inputs, strict=True)) if a is not None and i >= case.constants
    }
    wanted = [name for name in case.outputs if name]
    made = node(case.op, names, list(case.outputs), domain=case.domain, **case.attributes)
    return model([made], infos, wanted, held, opset=16, domains=[MICROSOFT])


def check(case: Case, relative: float = 2e-4, absolute: float = 2e-5, steps: int = 0) -> None:
    """Assert that asyncrt and ONNX Runtime agree; integers up to *steps*."""
    source = source_of(case)
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(case.inputs) if a is not None and i < case.constants}
    expected = onnxruntime_gives(source, feeds)

    got = compute(program(source), feeds)

    for (name, e), g in zip(expected.items(), got, strict=True):
        assert (e.dtype, e.shape) == (g.dtype, g.shape), name
        if e.dtype.kind in "iu":
            assert np.abs(e.astype(int) - g.astype(int)).max(initial=0) <= steps, name
        else:
            np.testing.assert_allclose(g, e, relative, absolute, err_msg=name)


_GEMM = (_f(4, 6), _f(6, 5), _f(5))
_CONV = (_f(1, 3, 7, 8), _f(4, 3, 3, 3), _f(4))
_HIDDEN = (_f(2, 5, 8), _f(2, 5, 8), _f(8), _f(8), _f(8))


@pytest.mark.parametrize(
    "case",
    [
        Case("FusedMatMul", (_f(2, 3, 4, 5), _f(5, 6)), {"alpha": 0.5}),
        Case("FusedMatMul", (_f(2, 5, 4), _f(2, 6, 5)), {"transA": 1, "transB": 1}),
        Case("FusedMatMul", (_f(4, 2, 5), _f(2, 5, 6)), {"transBatchA": 1}),
        Case("FusedMatMul", (_f(5, 2, 4), _f(2, 5, 6)), {"transBatchA": 1, "transA": 1}),
        Case("FusedMatMul", (_f(2, 3, 5), _f(5, 4)), constants=1),
        Case("FusedGemm", _GEMM, {"activation": "Relu", "alpha": 0.5, "beta": 2.0}),
        Case("FusedGemm", _GEMM, {"activation": "LeakyRelu", "activation_alpha": 0.2}),
        Case("FusedConv", _CONV, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
        Case("FusedConv", _CONV, {"activation": "Clip", "activation_params": [-0.5, 0.5]}),
        Case("FusedConv", _CONV, {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
        Case("FusedConv", (*_CONV, _f(1, 4, 5, 6)), {"activation": "Relu"}),
        Case("NhwcMaxPool", (_q(1, 7, 8, 3),), {"kernel_shape": [3, 3], "strides": [2, 2]}),
        Case("Gelu", (_f(3, 7),)),
        Case("BiasGelu", (_f(3, 7), _f(7))),
        Case("FastGelu", (_f(3, 7), _f(7))),
        Case("FastGelu", (_f(3, 7),)),
        Case("QuickGelu", (_f(3, 7),)),
        Case("QuickGelu", (_f(3, 7),), {"alpha": 0.7}),
        Case("SkipLayerNormalization", _HIDDEN, {"epsilon": 1e-5}, ("y0", "", "", "y3")),
        Case("SkipLayerNormalization", _HIDDEN[:3]),
        Case("SkipLayerNormalization", (_f(2, 5, 8), _f(5, 8), _f(8), None, _f(8))),
        Case("SkipSimplifiedLayerNormalization", _HIDDEN[:4], {"epsilon": 1e-6}, ("y0", "", "", "y3")),
        Case("SimplifiedLayerNormalization", (_f(2, 5, 8), _f(8)), {"epsilon": 1e-6}, domain=""),
        Case("SimplifiedLayerNormalization", (_f(2, 5, 8), _f(8)), {"epsilon": 1e-6}, ("y0", "y1"), domain=""),
        Case("LayerNormalization", (_f(2, 5, 8), _f(8), _f(8)), domain=""),
    ],
    ids=lambda case: case.op,
)
def test_fused_operators(case: Case) -> None:
    """Products, convolutions, activations and normalisations as ONNX Runtime's optimiser writes them."""
    check(case)


@pytest.mark.parametrize("segments", [True, False])
def test_embeddings_are_summed_and_normalised(segments: bool) -> None:
    """Its second output counts the tokens of each mask."""
    ids, kinds = RNG.integers(0, 9, (2, 5)).astype(np.int32), RNG.integers(0, 2, (2, 5)).astype(np.int32)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
    tables = (_f(9, 8), _f(12, 8), _f(2, 8) if segments else None)
    inputs = (ids, kinds if segments else None, *tables, _f(8), _f(8), mask)

    check(Case("EmbedLayerNormalization", inputs, {"epsilon": 1e-6}, ("y0", "y1", "y2"), constants=2))


_QKV, _W, _B = _f(2, 5, 16), _f(16, 48), _f(48)
_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)


@pytest.mark.parametrize(
    "case",
    [
        Case("Attention", (_QKV, _W, _B), {"num_heads": 4}),
        Case("Attention", (_QKV, _W, _B), {"num_heads": 4, "unidirectional": 1, "scale": 0.3}),
        Case("Attention", (_QKV, _W, _B, _MASK), {"num_heads": 4}),
        Case("Attention", (_QKV, _W, _B, _MASK.sum(1).astype(np.int32)), {"num_heads": 4}),
        Case("Attention", (_QKV, _W, _B, np.tile(_MASK[:, None], (1, 5, 1))), {"num_heads": 4}),
        Case("Attention", (_QKV, _W, _B, None, _f(2, 2, 4, 3, 4)), {"num_heads": 4}, ("y0", "y1")),
        Case("Attention", (_QKV, _W, _B, None, None, _f(2, 4, 5, 5)), {"num_heads": 4}),
        Case("Attention", (_QKV, _f(16, 56), _f(56)), {"num_heads": 4, "qkv_hidden_sizes": [16, 16, 24]}),
        Case("MultiHeadAttention", (_f(2, 5, 16), _f(2, 7, 16), _f(2, 7, 24)), {"num_heads": 4}),
        Case("MultiHeadAttention", (_f(2, 5, 16), _f(2, 7, 16), _f(2, 7, 16), _f(48)), {"num_heads": 4}),
        Case("MultiHeadAttention", (_f(2, 5, 16), _f(2, 5, 16), _f(2, 5, 16), None, _MASK), {"num_heads": 4}),
        Case("MultiHeadAttention", (_f(2, 5, 16), _f(2, 4, 7, 4), _f(2, 4, 7, 4)), {"num_heads": 4}),
        Case(
            "MultiHeadAttention",
            (_f(2, 1, 16), _f(2, 1, 16), _f(2, 1, 16), None, None, _f(2, 4, 1, 7), _f(2, 4, 6, 4), _f(2, 4, 6, 4)),
            {"num_heads": 4},
            ("y0", "y1", "y2"),
        ),
        Case("MultiHeadAttention", (_f(2, 5, 16), _f(2, 5, 16), _f(2, 5, 16)), {"num_heads": 4, "unidirectional": 1}),
    ],
    ids=lambda case: case.op,
)
def test_attention(case: Case) -> None:
    """Masks of one, two and three axes, caches, biases, and what is packed."""
    check(case)


def test_packed_queries_keys_and_values() -> None:
    """What ONNX Runtime has on GPUs alone is the same as when they come apart."""
    packed = _f(2, 5, 4, 3, 4)
    apart = [np.ascontiguousarray(packed[:, :, :, i]).reshape(2, 5, 16) for i in range(3)]
    (expected,) = onnxruntime_gives(
        source_of(Case("MultiHeadAttention", apart, {"num_heads": 4})), {f"x{i}": a for i, a in enumerate(apart)}
    ).values()

    for inputs in ((packed,), (apart[0], np.ascontiguousarray(packed[:, :, :, 1:]))):
        source = source_of(Case("MultiHeadAttention", inputs, {"num_heads": 4}))

        (got,) = compute(program(source), {f"x{i}": a for i, a in enumerate(inputs)})

        np.testing.assert_allclose(got, expected, 2e-4, 2e-5)


_COS, _SIN = _f(20, 4), _f(20, 4)
_AT = RNG.integers(0, 20, (2, 5))


@pytest.mark.parametrize(
    "case",
    [
        Case("RotaryEmbedding", (_f(2, 3, 5, 8), _AT, _COS, _SIN)),
        Case("RotaryEmbedding", (_f(2, 5, 24), _AT, _COS, _SIN)),
        Case("RotaryEmbedding", (_f(2, 5, 24), np.array([7]), _COS, _SIN), {"interleaved": 1}),
        Case("RotaryEmbedding", (_f(2, 3, 5, 8), np.array([7]), _COS, _SIN)),
        Case("RotaryEmbedding", (_f(2, 5, 48), _AT, _COS, _SIN), {"num_heads": 3, "rotary_embedding_dim": 8}),
    ],
    ids=lambda case: case.op,
)
def test_rotary_embeddings(case: Case) -> None:
    """Of each token, or from one place on; of three axes and four."""
    check(case)


def _grouped(
    length: int, valid: Sequence[int], past: int, total: int, *, packed: bool = False, **attributes: Any
) -> Case:
    batch, heads, shared, size = len(valid), 4, 2, 16
    if packed:
        qkv: Sequence[Array | None] = (_f(batch, length, (heads + 2 * shared) * size), None, None)
    else:
        qkv = tuple(_f(batch, length, n * size) for n in (heads, shared, shared))
    cache = (_f(batch, shared, past, size), _f(batch, shared, past, size))
    inputs = (*qkv, *cache, np.array(valid, np.int32) - 1, np.array(total, np.int32))
    if attributes.get("do_rotary"):
        inputs = (*inputs, _f(20, 8), _f(20, 8))
    given = {"num_heads": heads, "kv_num_heads": shared, **attributes}
    return Case("GroupQueryAttention", inputs, given, ("y0", "y1", "y2"))


@pytest.mark.parametrize(
    "case",
    [
        _grouped(5, (5, 5), 0, 5),
        _grouped(5, (5, 5), 0, 5, do_rotary=1, packed=True),
        _grouped(1, (7, 7), 6, 7, do_rotary=1),
        _grouped(1, (7, 7), 6, 7, do_rotary=1, rotary_interleaved=1, scale=0.2, softcap=3.0),
        _grouped(1, (4, 7), 6, 7, do_rotary=1),
        _grouped(1, (7, 7), 16, 7, do_rotary=1),
        _grouped(6, (6, 6), 0, 6, local_window_size=3),
        _grouped(1, (9, 9), 8, 9, local_window_size=3),
        _grouped(3, (9,), 6, 9, do_rotary=1, packed=True),
    ],
    ids=["prompt", "packed", "token", "interleaved", "ragged", "buffer", "window", "token in a window", "chunk"],
)
def test_grouped_queries_and_their_cache(case: Case) -> None:
    """Prompts and tokens, of sequences of different lengths, with caches that grow and caches of fixed length."""
    source = source_of(case)
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(case.inputs) if a is not None}
    expected = list(onnxruntime_gives(source, feeds).values())

    got = compute(program(source), feeds)

    valid = case.inputs[5]
    assert valid is not None
    np.testing.assert_allclose(got[0], expected[0], 2e-4, 2e-5)
    for e, g in zip(expected[1:], got[1:], strict=True):
        assert e.shape == g.shape
        for b, last in enumerate(valid + 1):
            np.testing.assert_allclose(g[b, :, :last], e[b, :, :last], 2e-4, 2e-5)  # beyond it is whatever was there


_SOFTMAX = (_s(0.1), _z(60), _s(1 / 256), _z(0))
_A8, _B8 = _q(2, 5, 6), _q(6, 7, dtype=np.int8)


@pytest.mark.parametrize(
    "case",
    [
        Case("QuantizeLinear", (_f(3, 4), _s(0.1), _z(3))),
        Case("QuantizeLinear", (_f(3, 4), np.float32([0.1, 0.2, 0.3]), np.uint8([1, 2, 3])), {"axis": 0}),
        Case("DequantizeLinear", (_q(3, 4), _s(0.1), _z(3))),
        Case("QLinearAdd", (_q(3, 4), _s(0.1), _z(3), _q(4), _s(0.2), _z(9), _s(0.3), _z(5))),
        Case("QLinearMul", (_q(3, 4), _s(0.1), _z(3), _q(4), _s(0.02), _z(9), _s(0.3), _z(5))),
        Case(
            "QLinearAdd",
            (
                _q(3, 4, dtype=np.int8), _s(0.1), _z(3, np.int8), _q(3, 4, dtype=np.int8), _s(0.2), _z(-9, np.int8),
                _s(0.3), _z(5, np.int8),
            ),
        ),
        Case("QLinearSigmoid", (_q(3, 40), _s(0.1), _z(60), _s(1 / 256), _z(0)), constants=1),
        Case("QLinearLeakyRelu", (_q(3, 40), _s(0.1), _z(60), _s(0.1), _z(20)), {"alpha": 0.3}, constants=1),
        Case("QLinearSoftmax", (_q(3, 4, 5), *_SOFTMAX), {"opset": 13, "axis": 1}, constants=1),
        Case("QLinearSoftmax", (_q(3, 4, 5), *_SOFTMAX), {"opset": 12, "axis": 1}, constants=1),
        Case(
            "QLinearConcat", (_s(0.2), _z(5), _q(3, 4), _s(0.1), _z(3), _q(2, 4), _s(0.3), _z(7)), {"axis": 0},
        ),
        Case("QLinearGlobalAveragePool", (_q(1, 3, 5, 5), _s(0.1), _z(3), _s(0.05), _z(2)), {"channels_last": 0}),
        Case("QLinearGlobalAveragePool", (_q(1, 5, 5, 3), _s(0.1), _z(3), _s(0.05), _z(2)), {"channels_last": 1}),
        Case(
            "QLinearAveragePool", (_q(1, 3, 6, 6), _s(0.1), _z(3), _s(0.1), _z(2)),
            {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 0},
        ),
        Case(
            "QLinearAveragePool", (_q(1, 6, 6, 3), _s(0.1), _z(3), _s(0.1), _z(2)),
            {"kernel_shape": [2, 2], "strides": [2, 2], "channels_last": 1},
        ),
        Case(
            "QLinearWhere",
            (RNG.random((3, 4)) < 0.5, _q(3, 4), _s(0.1), _z(3), _q(3, 4), _s(0.2), _z(9), _s(0.3), _z(5)),
            constants=2,
        ),
        Case("MatMulIntegerToFloat", (_A8, _B8, _s(0.1), _s(0.2), _z(60), _z(3, np.int8), _f(7))),
        Case("MatMulIntegerToFloat", (_A8, _B8, _s(0.1), abs(_f(7)), _z(60), None)),
        Case("DynamicQuantizeMatMul", (_f(2, 5, 6), _B8, abs(_f(7)), np.zeros(7, np.int8), _f(7))),
        Case("DynamicQuantizeMatMul", (_f(2, 5, 6), _B8, _s(0.2))),
        Case(
            "QGemm",
            (
                _q(4, 6), _s(0.1), _z(60), _q(5, 6, dtype=np.int8), _s(0.2), _z(3, np.int8),
                RNG.integers(-99, 99, 5).astype(np.int32), _s(2.0), _z(99),
            ),
            {"transB": 1},
        ),
        Case(
            "QAttention",
            (
                _q(2, 5, 16), _q(16, 48, dtype=np.int8), _f(48), _s(0.02), _s(0.01), _MASK, _z(60), _z(0, np.int8),
            ),
            {"num_heads": 4},
        ),
    ],
    ids=lambda case: case.op,
)  # fmt: skip
def test_quantised_operators(case: Case) -> None:
    """Products are exact; elsewhere a result is at most one step from what ONNX Runtime's tables give."""
    check(case, steps=1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [True, False])
def test_rows_of_a_quantised_table(bits: int, zeros: bool) -> None:
    """Tokens of a vocabulary in blocks of few bits, gathered and taken to floats."""
    rows, width, block = 9, 96, 32
    data = RNG.integers(0, 256, (rows, width * bits // 8)).astype(np.uint8)
    points = RNG.integers(0, 256, (rows, -(-3 * bits // 8))).astype(np.uint8) if zeros else None
    inputs = (data, np.array([[1, 8, 0], [3, 3, 5]]), abs(_f(rows, 3)), points)

    check(Case("GatherBlockQuantized", inputs, {"bits": bits, "block_size": block}, constants=2))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("per_column", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("size", "dtype"), [(6, np.int8), (24, np.int8), (25, np.uint8)])
def test_a_quantised_lstm(direction: str, per_column: bool, rows: int, size: int, dtype: type) -> None:
    """Weights are what they were; inputs are quantised, and each row's state before it is multiplied.

    ONNX Runtime takes one scale for the states of all rows, so each row is asked for by itself: rows have the same
    numbers in another order, and so the inputs' scale. Weights leave a bit free, which processors without instructions
    for bytes need: there, ONNX Runtime adds pairs of products in 16 bits.
    """
    rng = np.random.default_rng(18)
    ways, width = (1 if direction == "forward" else 2), 5
    columns = (ways, 4 * size) if per_column else (ways,)
    scales = [rng.uniform(0.004, 0.02, columns).astype(np.float32) for _ in range(2)]
    middle = 0 if dtype is np.int8 else 64
    zero = np.full(columns, middle, dtype)
    weights = [(rng.integers(-64, 64, (ways, n, 4 * size)) + middle).astype(dtype) for n in (width, size)]
    bias = rng.standard_normal((ways, 8 * size)).astype(np.float32)
    once = rng.standard_normal((7, 1, width)).astype(np.float32)
    x = np.concatenate([np.roll(once, row, axis=0) for row in range(rows)], axis=1)
    given = {"hidden_size": size, "direction": direction}

    def case(x: Array) -> Case:
        held = (*weights, bias, None, None, None, None, scales[0], zero, scales[1], zero)
        return Case("DynamicQuantizeLSTM", (x, *held), given, ("y0", "y1", "y2"), constants=1)

    got = compute(program(source_of(case(x))), {"x0": x})

    for row in range(rows):
        alone = np.ascontiguousarray(x[:, row : row + 1])
        expected = onnxruntime_gives(source_of(case(alone)), {"x0": alone})
        for (name, e), g in zip(expected.items(), got, strict=True):
            np.testing.assert_allclose(g[..., row : row + 1, :], e, 8e-6, 2e-6, err_msg=f"{name} of row {row}")


def test_convolutions_over_the_last_axis() -> None:
    """NhwcConv and QLinearConv with channels_last are what Conv and QLinearConv are of images turned round."""
    x, w, b = _CONV
    turned = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    plain = compute(program(source_of(Case("Conv", (x, w, b), domain=""))), {"x0": x, "x1": w, "x2": b})

    got = compute(program(source_of(Case("NhwcConv", (turned, w, b)))), {"x0": turned, "x1": w, "x2": b})

    np.testing.assert_allclose(got[0], plain[0].transpose(0, 2, 3, 1), 1e-6)


def test_products_of_integers_with_zero_points() -> None:
    """ONNX Runtime names MulInteger, and has no kernel of it for CPUs."""
    a, b = _q(3, 4), _q(3, 4)
    source = source_of(Case("MulInteger", (a, _z(3), b, _z(9))))

    (got,) = compute(program(source), {"x0": a, "x1": _z(3), "x2": b, "x3": _z(9)})

    np.testing.assert_array_equal(got, (a.astype(np.int32) - 3) * (b.astype(np.int32) - 9))


def test_signatures_are_those_of_onnxruntime() -> None:
    """How many inputs there are, which may be absent, and every attribute with its kind and default.

    A newer ONNX Runtime may have more inputs behind those, and more attributes; they need not be given.
    """
    compared = 0
    for theirs in onnxruntime_state.get_all_operator_schema():
        mine = contributed_schema(theirs.domain, theirs.name)
        if mine is None or theirs.domain != MICROSOFT:
            continue
        compared += 1
        options, here = [int(p.option) for p in theirs.inputs], [p.option.value for p in mine.inputs]
        assert options[: len(here)] == here, theirs.name
        assert set(options[len(here) :]) <= {defs.OpSchema.FormalParameterOption.Optional.value}, theirs.name
        assert len(theirs.outputs) == len(mine.outputs), theirs.name
        for name, attribute in theirs.attributes.items():
            own = mine.attributes.get(name)
            if own is None:
                assert not attribute.required, (theirs.name, name)
                continue
            assert str(attribute.type).rpartition(".")[2] == own.type.name, (theirs.name, name)
            assert attribute.required == own.required, (theirs.name, name)
            default = onnx.AttributeProto.FromString(attribute._default_value)  # noqa: SLF001
            if default.type and own.default_value is not None and own.default_value.type:
                assert helper.get_attribute_value(default) == helper.get_attribute_value(own.default_value), name

    assert compared > 35


@pytest.mark.parametrize(
    ("error", "message", "case"),
    [
        (UnsupportedOperatorError, "no attribute 'axis'", Case("Gelu", (_f(2),), {"axis": 1})),
        (ModelFormatError, "takes 2 inputs, it has 1", Case("BiasGelu", (_f(2),))),
        (ModelTypeError, "is int64", Case("Gelu", (np.arange(3),))),
        (ModelFormatError, "needs the attribute 'num_heads'", Case("Attention", (_QKV, _W, _B))),
        (UnsupportedOperatorError, "activation 'Foo'", Case("FusedConv", _CONV, {"activation": "Foo"})),
        (UnsupportedOperatorError, "do_rotary", Case("Attention", (_QKV, _W, _B), {"num_heads": 4, "do_rotary": 1})),
        (UnsupportedOperatorError, "no operator Foo", Case("Foo", (_f(2),))),
    ],
)
def test_a_wrong_node_is_refused(error: type[Exception], message: str, case: Case) -> None:
    """As nodes of ONNX's own domain are: what is wrong is said of the node, before anything runs."""
    with pytest.raises(error, match=message):
        program(source_of(case))


def test_a_model_need_not_say_the_version_of_the_domain() -> None:
    """ONNX Runtime's optimiser leaves it out."""
    source = model([node("Gelu", ["x"], ["y"], domain=MICROSOFT)], [f32("x", 3)], ["y"])

    assert [n.operator.name for n in program(source).nodes] == ["Gelu"]
