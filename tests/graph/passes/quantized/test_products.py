"""Models with QuantizeLinear and DequantizeLinear: which products become products of integers, and what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.find import open_device
from asyncrt.devices.opencl import dot_product as opencl_dot
from asyncrt.devices.opencl.dot_product import processor_says
from asyncrt.layout import Array

from ....builders import model, node
from ....second_opinion import onnxruntime_gives, reference_gives

pytestmark = pytest.mark.usefixtures("shared_programs")

DEVICES = ("simulated", "host", None)
BYTES: tuple[Any, ...] = (np.uint8, np.int8)
STEP = np.float32(0.05)


def integers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


async def outcome(
    loaded: onnx.ModelProto, requests: Sequence[Mapping[str, Array]], device: str | None, **options: Any
) -> tuple[list[Array], list[str]]:
    """Return output y of each request, and the operators of the last one's nodes."""
    async with Runtime(device, options=RuntimeOptions(warm=False, check_hazards=True, **options)) as rt:
        found = await rt.load(loaded)
        return [(await found.infer(r))["y"] for r in requests], [n.operator for n in found.explain()]


def multiplies_integers(device: str | None) -> bool:
    """Whether it does; GPUs calculate such models as they are written."""
    found = open_device(device)
    try:
        return found.info.is_cpu
    finally:
        found.close()


READ = [node("q = QuantizeLinear(x, sx, zx)"), node("d = DequantizeLinear(q, sx, zx)")]
WRITE = [node("qy = QuantizeLinear(p, sy, zx)"), node("y = DequantizeLinear(qy, sy, zx)")]
ADDED = [node("a = Add(m, b)"), node("p = Relu(a)")]
SPELLINGS = {
    "MatMul": ([node("f = DequantizeLinear(w, sw, zw)", axis=1), node("m = MatMul(d, f)"), *ADDED], False),
    "Gemm": ([node("f = DequantizeLinear(w, sw, zw)", axis=1), node("p = Gemm(d, f, b)")], False),
    "Gemm, transposed": ([node("f = DequantizeLinear(w, sw, zw)", axis=0), node("p = Gemm(d, f, b)", transB=1)], True),
    "Transpose": (
        [node("f = DequantizeLinear(w, sw, zw)", axis=0), node("t = Transpose(f)", perm=[1, 0]),
         node("m = MatMul(d, t)"), *ADDED],
        True,
    ),
}  # fmt: skip


def quantized(spelling: str, left: Any, right: Any, *, per_column: bool, k: int = 70, n: int = 45) -> onnx.ModelProto:
    """Return a product as exporters quantise it."""
    nodes, turned = SPELLINGS[spelling]
    weights, zero = integers(right, k, n, seed=1), 0 if right is np.int8 else 128
    constants = {
        "w": weights.T.copy() if turned else weights, "sx": STEP, "sy": np.float32(1.3), "b": floats(n, seed=2),
        "zx": np.array(117 if left is np.uint8 else -5, left),
        "sw": np.linspace(0.01, 0.03, n, dtype=np.float32) if per_column else np.float32(0.02),
        "zw": np.full(n, zero, right) if per_column else np.array(zero + 3, right),
    }  # fmt: skip
    return model([*READ, *nodes, *WRITE], [f"x f32[s,{k}]"], ["y"], constants)


#: Left, right, and whether each column has a scale: any two with any two of these in each half.
KINDS = (
    (np.uint8, np.uint8, False), (np.uint8, np.int8, True), (np.int8, np.uint8, True), (np.int8, np.int8, False),
    (np.uint8, np.uint8, True), (np.uint8, np.int8, False), (np.int8, np.uint8, False), (np.int8, np.int8, True),
)  # fmt: skip
CHOSEN = {"MatMul": KINDS[:4], "Gemm": KINDS[4:], "Gemm, transposed": KINDS[5:7], "Transpose": KINDS[1:3]}
PRODUCTS = [
    pytest.param(spelling, left, right, per_column, id=f"{spelling}-{left.__name__}-{right.__name__}-{per_column}")
    for spelling, kinds in CHOSEN.items()
    for left, right, per_column in kinds
]


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
@pytest.mark.parametrize(("spelling", "left", "right", "per_column"), PRODUCTS)
async def test_a_product_of_dequantised_operands_is_one_of_integers(
    spelling: str, left: Any, right: Any, per_column: bool, device: str | None
) -> None:
    """On CPUs. What is quantised again is at most one step from what ONNX Runtime and the model as written give."""
    loaded = quantized(spelling, left, right, per_column=per_column)
    requests = [{"x": 3 * floats(rows, 70, seed=rows)} for rows in (1, 2, 9, 70)]

    got, operators = await outcome(loaded, requests, device)
    plain, written = await outcome(loaded, requests, device, without={"integer_products"})
    apart, _ = await outcome(loaded, requests, device, without={"fuse"})

    assert ("MatMulScaled" in operators) == multiplies_integers(device)
    assert bool({"MatMul", "Gemm"} & set(operators)) != multiplies_integers(device)
    assert "MatMulScaled" not in written
    for request, ours, floating, unfused in zip(requests, got, plain, apart, strict=True):
        expected = onnxruntime_gives(loaded, request)["y"]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1.31)
        np.testing.assert_allclose(ours, floating, rtol=0, atol=1.31)
        assert np.mean(ours != expected) < 0.01, "few sums are so near to a tie"
        assert ours.tobytes() == unfused.tobytes()


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_a_dynamically_quantised_model_gives_what_onnx_says(device: str | None) -> None:
    """DynamicQuantizeLinear, MatMulInteger, and what makes floats of its sums, element by element the same.

    The truth is onnx's reference, whose sums are exact on every processor.
    """
    nodes = [
        node("q, s, z = DynamicQuantizeLinear(x)"), node("p = MatMulInteger(q, w, z, zw)"), node("c = Cast(p)", to=1),
        node("f = Mul(s, sw)"), node("m = Mul(c, f)"), node("y = Add(m, b)"),
    ]  # fmt: skip
    constants = {
        "w": integers(np.int8, 70, 45), "zw": np.int8(0), "sw": np.linspace(0.01, 0.03, 45, dtype=np.float32),
        "b": floats(45),
    }  # fmt: skip
    loaded = model(nodes, ["x f32[r,s,70]"], ["y"], constants)
    requests = [{"x": floats(2, rows, 70, seed=rows)} for rows in (1, 5, 40)]

    got, _ = await outcome(loaded, requests, device)

    for request, ours in zip(requests, got, strict=True):
        np.testing.assert_allclose(ours, reference_gives(loaded, request)["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.asyncio
@pytest.mark.parametrize("zero", ["absent", "neutral", "other", "per column"])
@pytest.mark.parametrize(("left", "right"), [(a, b) for a in (np.uint8, np.int8) for b in (np.uint8, np.int8)])
async def test_packed_bytes_give_exact_sums(left: Any, right: Any, zero: str) -> None:
    """For every sign, with any zero point, whatever the sizes leave over; with the instruction and without it."""
    for k, n in ((3, 5), (64, 96), (130, 33)):
        weights, za = integers(right, k, n), integers(left, 1)[0]
        zb = {
            "absent": None, "neutral": right(0 if right is np.int8 else 128), "other": integers(right, 1, seed=3)[0],
            "per column": integers(right, n, seed=4),
        }[zero]  # fmt: skip
        constants = {"w": weights, "za": za} | ({} if zb is None else {"zb": zb})
        given = f"x {'u8' if left is np.uint8 else 'i8'}[s,{k}]"
        product = node(f"y = MatMulInteger(x, w, za{'' if zb is None else ', zb'})")
        loaded = model([product], [given], ["y"], constants)
        requests = [{"x": integers(left, rows, k, seed=rows)} for rows in (1, 7, 8, 65)]

        got, _ = await outcome(loaded, requests, None)

        wide = weights.astype(np.int64) - (0 if zb is None else np.asarray(zb, np.int64))
        for request, ours in zip(requests, got, strict=True):
            np.testing.assert_array_equal((request["x"].astype(np.int64) - int(za)) @ wide, ours)


@pytest.mark.asyncio
@pytest.mark.parametrize("macro", ["none", *(i.macro for i in opencl_dot.INSTRUCTIONS)])
async def test_sums_are_exact_whichever_instruction_makes_them(monkeypatch: pytest.MonkeyPatch, macro: str) -> None:
    """Each that a processor may have, or none.

    Rows are longer than a block of bytes that are widened at a time, and end in the middle of a number.
    """
    if macro != "none" and not next(i.flags for i in opencl_dot.INSTRUCTIONS if i.macro == macro) <= processor_says():
        pytest.skip("the processor has it not")
    monkeypatch.setattr(opencl_dot, "INSTRUCTIONS", [i for i in opencl_dot.INSTRUCTIONS if i.macro == macro])
    k, n = 291, 45
    weights, za, zb = integers(np.uint8, k, n), integers(np.int8, 1)[0], integers(np.uint8, n, seed=4)
    product = model(
        [node("y = MatMulInteger(x, w, za, zb)")], [f"x i8[s,{k}]"], ["y"], {"w": weights, "za": za, "zb": zb}
    )
    filters, zf = integers(np.int8, 21, 19, 3, 3), integers(np.int8, 1, seed=5)[0]
    convolution = model(
        [node("y = ConvInteger(x, w, za, zb)")], ["x u8[s,19,h,20]"], ["y"],
        {"w": filters, "za": np.array(7, np.uint8), "zb": zf},
    )  # fmt: skip
    matrices = [{"x": integers(np.int8, rows, k, seed=rows)} for rows in (1, 7, 65)]
    images = [{"x": integers(np.uint8, 2, 19, 5, 20)}]

    products, _ = await outcome(product, matrices, None, without={"disk_cache"})
    convolutions, _ = await outcome(convolution, images, None, without={"disk_cache"})

    for request, ours in zip(matrices, products, strict=True):
        wide = weights.astype(np.int64) - zb
        np.testing.assert_array_equal((request["x"].astype(np.int64) - za) @ wide, ours)
    windows = np.lib.stride_tricks.sliding_window_view(images[0]["x"].astype(np.int64) - 7, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,mcij->nmhw", windows, filters.astype(np.int64) - zf)
    np.testing.assert_array_equal(expected, convolutions[0])


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_one_dequantised_value_may_have_several_readers(device: str | None) -> None:
    """Two products and a sum read it: on CPUs the products take the integers, the sum the floats."""
    nodes = [
        *READ, node("f = DequantizeLinear(w, sw)"), node("m = MatMul(d, f)"), node("n = MatMul(d, f)"),
        node("t = Add(m, n)"), node("y = Add(t, d)"),
    ]  # fmt: skip
    constants = {"w": integers(np.int8, 40, 40), "sx": STEP, "zx": np.uint8(100), "sw": np.float32(0.01)}
    loaded = model(nodes, ["x f32[s,40]"], ["y"], constants)
    request = {"x": floats(6, 40)}

    (got,), operators = await outcome(loaded, [request], device)

    assert operators.count("MatMulScaled") == 2 * multiplies_integers(device)
    np.testing.assert_allclose(got, onnxruntime_gives(loaded, request)["y"], rtol=1e-5, atol=1e-5)


TALL = 70_000
LEFT_ALONE = {
    "sums that 32 bits may not hold": (
        [*READ, node("f = DequantizeLinear(w, sw)"), node("y = MatMul(d, f)")], f"x f32[s,{TALL}]",
        {"w": np.full((TALL, 1), 127, np.int8), "sw": np.float32(1e-4)}, (2, TALL),
    ),
    "a scale for each row of the weights": (
        [*READ, node("f = DequantizeLinear(w, sw)", axis=0), node("y = MatMul(d, f)")], "x f32[s,40]",
        {"w": integers(np.int8, 40, 40), "sw": np.linspace(0.01, 0.02, 40, dtype=np.float32)}, (3, 40),
    ),
    "a scale for each column of the left": (
        [node("q = QuantizeLinear(x, sc, zc)", axis=1), node("d = DequantizeLinear(q, sc, zc)", axis=1),
         node("f = DequantizeLinear(w, sw)"), node("y = MatMul(d, f)")], "x f32[s,40]",
        {"w": integers(np.int8, 40, 9), "sw": np.float32(0.01), "sc": np.linspace(0.01, 0.02, 40, dtype=np.float32),
         "zc": np.zeros(40, np.int8)}, (3, 40),
    ),
    "weights of 32 bits": (
        [*READ, node("f = DequantizeLinear(w, sw)"), node("y = MatMul(d, f)")], "x f32[s,40]",
        {"w": integers(np.int8, 40, 9).astype(np.int32), "sw": np.float32(0.01)}, (3, 40),
    ),
    "a Gemm that scales": (
        [*READ, node("f = DequantizeLinear(w, sw)"), node("y = Gemm(d, f)", alpha=0.5)], "x f32[s,40]",
        {"w": integers(np.int8, 40, 9), "sw": np.float32(0.01)}, (3, 40),
    ),
    "floats on the left": (
        [node("f = DequantizeLinear(w, sw)"), node("y = MatMul(x, f)")], "x f32[s,40]",
        {"w": integers(np.int8, 40, 9), "sw": np.float32(0.01)}, (3, 40),
    ),
}  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["host", None], ids=lambda d: d or "opencl")
@pytest.mark.parametrize("case", LEFT_ALONE)
async def test_what_is_no_product_of_integers_is_calculated_as_written(case: str, device: str | None) -> None:
    """Where scales differ along the sum, or integers might not hold it."""
    nodes, given, constants, shape = LEFT_ALONE[case]
    loaded = model(nodes, [given], ["y"], {"sx": STEP, "zx": np.uint8(100), **constants}, opset=21)
    request = {"x": floats(*shape)}

    (got,), operators = await outcome(loaded, [request], device)

    assert "MatMulScaled" not in operators
    np.testing.assert_allclose(got, onnxruntime_gives(loaded, request)["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_steps_between_element_wise_nodes_are_part_of_their_kernel(device: str | None) -> None:
    """Dequantise, add, quantise: one kernel, with the integers that three give."""
    nodes = [
        node("a = DequantizeLinear(x, sx, zx)"), node("b = DequantizeLinear(w, sw)", axis=1), node("c = Add(a, b)"),
        node("r = Relu(c)"), node("y = QuantizeLinear(r, sy, zy)"),
    ]  # fmt: skip
    constants = {
        "w": integers(np.int8, 3, 40), "sx": STEP, "zx": np.uint8(100),
        "sw": np.linspace(0.01, 0.02, 40, dtype=np.float32), "sy": np.float32(0.0625), "zy": np.int8(-100),
    }  # fmt: skip
    loaded = model(nodes, ["x u8[3,40]"], ["y"], constants)
    requests = [{"x": integers(np.uint8, 3, 40, seed=i)} for i in range(3)]

    got, _ = await outcome(loaded, requests, device)
    apart, _ = await outcome(loaded, requests, device, without={"fuse"})

    assert [a.tobytes() for a in got] == [a.tobytes() for a in apart]
    for request, ours in zip(requests, got, strict=True):
        np.testing.assert_array_equal(onnxruntime_gives(loaded, request)["y"], ours)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_dynamic_levels_are_those_of_onnx_runtime_for_every_size(device: str | None) -> None:
    """Less than a vector, vectors and a rest, what one work-item takes and what several do; only one sign, or two."""
    nodes = [
        node("q, s, z = DynamicQuantizeLinear(x)"), node("w = Cast(q)", to=1), node("v = Cast(z)", to=1),
        node("u = Unsqueeze(v, zero)"), node("t = Unsqueeze(s, zero)"), node("y = Concat(w, u, t)", axis=0),
    ]  # fmt: skip
    loaded = model(nodes, ["x f32[n]"], ["y"], {"zero": np.array([0])}, opset=17)
    drawn = [floats(n, seed=n) for n in (1, 15, 16, 17, 8192, 8193, 12345)]
    requests = [{"x": x} for one in drawn for x in (3 * one, np.abs(one), -np.abs(one))]

    got, _ = await outcome(loaded, requests, device)

    for request, ours in zip(requests, got, strict=True):
        np.testing.assert_array_equal(onnxruntime_gives(loaded, request)["y"], ours)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "borders": ((2, 3, 9, 21), (17, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strides": ((1, 4, 15, 37), (70, 4, 3, 3), {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    "steps of three": ((1, 2, 40, 70), (9, 2, 2, 2), {"strides": [3, 3]}),
    "one cell": ((2, 7, 5, 9), (20, 7, 1, 1), {}),
    "one axis, dilated": ((1, 5, 50), (9, 5, 3), {"dilations": [2], "pads": [2, 2]}),
    "three axes": ((1, 2, 5, 6, 18), (8, 2, 2, 3, 3), {"pads": [0, 1, 1, 0, 1, 1]}),
    "groups": ((1, 6, 7, 17), (40, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "few filters": ((1, 6, 7, 17), (6, 1, 3, 3), {"group": 6}),
    "many channels": ((1, 96, 4, 5), (12, 96, 3, 3), {"pads": [1, 1, 1, 1]}),
}


BYTE_CONVOLUTIONS = [
    pytest.param(case, zero, left, right, id=f"{case}-{zero}-{left.__name__}-{right.__name__}")
    for a, case in enumerate(CONVOLUTIONS)
    for b, zero in enumerate(["absent", "neutral", "other", "for each filter"])
    for c, (left, right) in enumerate((left, right) for left in BYTES for right in BYTES)
    if (a + b + c) % 2 == 0  # each case has each zero and each sign, and each zero each sign
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("case", "zero", "left", "right"), BYTE_CONVOLUTIONS)
async def test_convolutions_of_bytes_give_exact_sums(case: str, zero: str, left: Any, right: Any) -> None:
    """What the borders add is nothing: they are the zero point."""
    shape, filters, attributes = CONVOLUTIONS[case]
    weights, za = integers(right, *filters), integers(left, 1)[0]
    zb = {
        "absent": None, "neutral": right(0 if right is np.int8 else 128), "other": integers(right, 1, seed=3)[0],
        "for each filter": integers(right, filters[0], seed=4),
    }[zero]  # fmt: skip
    constants = {"w": weights, "za": za} | ({} if zb is None else {"zb": zb})
    spatial = ",".join("hwd"[: len(shape) - 2])
    given = f"x {'u8' if left is np.uint8 else 'i8'}[n,{shape[1]},{spatial}]"
    convolution = node(f"y = ConvInteger(x, w, za{'' if zb is None else ', zb'})", **attributes)
    loaded = model([convolution], [given], ["y"], constants)
    x = integers(left, *shape, seed=7)

    (got,), _ = await outcome(loaded, [{"x": x}], None)

    zeros = np.asarray(0 if zb is None else zb, np.float64).reshape(-1, *(1,) * (len(shape) - 1))
    wide = weights.astype(np.float64) - zeros
    floating = model([node("y = Conv(x, w)", **attributes)], [f"x f64[n,{shape[1]},{spatial}]"], ["y"], {"w": wide})
    (expected,), _ = await outcome(floating, [{"x": x.astype(np.float64) - float(za)}], "host")
    np.testing.assert_array_equal(expected, got)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
@pytest.mark.parametrize("case", CONVOLUTIONS)
async def test_a_convolution_of_dequantised_operands_is_one_of_integers(case: str, device: str | None) -> None:
    """With its bias, and what follows, until the next QuantizeLinear; at most one step from ONNX Runtime."""
    shape, filters, attributes = CONVOLUTIONS[case]
    k = int(np.prod(filters[1:]))
    nodes = [
        *READ, node("f = DequantizeLinear(w, sw)", axis=0), node("c = Conv(d, f, b)", **attributes),
        node("p = Relu(c)"), *WRITE,
    ]  # fmt: skip
    constants = {
        "w": integers(np.int8, *filters, seed=1), "sx": STEP, "zx": np.uint8(117), "b": floats(filters[0], seed=2),
        "sw": np.linspace(0.5, 1.5, filters[0], dtype=np.float32) / np.float32(50 * k**0.5),
        "sy": np.float32(0.05),
    }  # fmt: skip
    spatial = ",".join("hwd"[: len(shape) - 2])
    loaded = model(nodes, [f"x f32[n,{shape[1]},{spatial}]"], ["y"], constants)
    request = {"x": 2 * floats(*shape)}

    (got,), operators = await outcome(loaded, [request], device)
    (apart,), _ = await outcome(loaded, [request], device, without={"fuse"})

    assert ("ConvScaled" in operators) == multiplies_integers(device)
    expected = onnxruntime_gives(loaded, request)["y"]
    assert len(np.unique(expected)) > 10
    np.testing.assert_allclose(got, expected, rtol=0, atol=0.0501)
    assert np.mean(got != expected) < 0.01, "few sums are so near to a tie"
    np.testing.assert_allclose(apart, got, rtol=0, atol=0 if "ConvScaled" in operators else 0.0501)


@pytest.mark.asyncio
async def test_a_long_chain_of_steps_is_cut_where_a_kernel_takes_no_more_operands() -> None:
    """Every scale and zero point is one; what is grouped while loading can be carried out in one kernel."""
    nodes, constants = [], {}
    for i in range(8):
        given = f"s{i - 1}" if i else "x"
        nodes += [
            node(f"q{i} = QuantizeLinear({given}, sx{i}, zx{i})"), node(f"d{i} = DequantizeLinear(q{i}, sx{i}, zx{i})"),
            node(f"s{i} = Add(d{i}, b{i})"),
        ]  # fmt: skip
        constants |= {f"sx{i}": np.float32(0.01 * (i + 1)), f"zx{i}": np.uint8(100 + i), f"b{i}": floats(40, seed=i)}
    nodes.append(node("y = Relu(s7)"))
    loaded = model(nodes, ["x f32[s,40]"], ["y"], constants)
    request = {"x": floats(3, 40)}

    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        found = await rt.load(loaded)
        got = (await found.infer(request))["y"]
        explained = list(found.explain())

    np.testing.assert_allclose(got, onnxruntime_gives(loaded, request)["y"], rtol=1e-6, atol=1e-6)
    assert not [n.why for n in explained if "operands" in n.why]
    assert sum(n.decision == "ran" for n in explained) <= 4


@pytest.mark.asyncio
@pytest.mark.parametrize("turned", [False, True])
async def test_a_sum_of_two_quantised_products_is_calculated_behind_one_of_bytes(turned: bool) -> None:
    """As a residual connection with a convolution of its own is: the other product stores 8 bits, not its floats."""
    nodes = [*READ, node("f = DequantizeLinear(w, sw)")]
    for name in "ab":
        nodes += [
            node(f"m{name} = MatMul(d, f)"), node(f"q{name} = QuantizeLinear(m{name}, sy, zx)"),
            node(f"d{name} = DequantizeLinear(q{name}, sy, zx)"),
        ]  # fmt: skip
    nodes += [node("t = Add(db, da)" if turned else "t = Add(da, db)"), node("p = Relu(t)"), *WRITE]
    constants = {
        "w": integers(np.int8, 40, 40), "sx": STEP, "zx": np.uint8(100), "sw": np.float32(0.01), "sy": np.float32(0.3)
    }
    loaded, request = model(nodes, ["x f32[s,40]"], ["y"], constants), {"x": floats(6, 40)}

    async with Runtime(options=RuntimeOptions(warm=False, check_hazards=True)) as rt:
        found = await rt.load(loaded)
        got = (await found.infer(request))["y"]
        ran = [n.node for n in found.explain() if n.decision == "ran"]

    products = [name for name in ran if name.startswith(("Quantize", "q"))]
    assert not rt.info.is_cpu or len(products) == 2, ran  # that of the input, and that of the other product
    np.testing.assert_allclose(got, onnxruntime_gives(loaded, request)["y"], rtol=0, atol=0.301)


@pytest.mark.asyncio
@pytest.mark.parametrize("group", [1, 12])
async def test_what_follows_a_convolution_may_be_a_number_for_each_column(group: int) -> None:
    """So that a filter's positions are several rows of what is stored, each of a length that no vector has."""
    nodes = [
        *READ, node("f = DequantizeLinear(w, sw)"), node("c = Conv(d, f)", group=group, pads=[1, 1, 1, 1]),
        node("m = Mul(c, row)"), node("p = Relu(m)"), *WRITE,
    ]  # fmt: skip
    constants = {
        "w": integers(np.int8, 12, 12 // group, 3, 3), "sx": STEP, "zx": np.uint8(100), "sw": np.float32(0.01),
        "row": np.linspace(0.5, 2, 21, dtype=np.float32), "sy": np.float32(0.05),
    }  # fmt: skip
    loaded, request = model(nodes, ["x f32[n,12,h,21]"], ["y"], constants), {"x": floats(2, 12, 9, 21)}

    (got,), operators = await outcome(loaded, [request], None)

    assert ("ConvScaled" in operators) == multiplies_integers(None)
    np.testing.assert_allclose(got, onnxruntime_gives(loaded, request)["y"], rtol=0, atol=0.0501)
