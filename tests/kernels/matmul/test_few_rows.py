"""Products of few rows on GPUs: which kernel reads the right-hand side how, and that each gives the product."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncrt.devices.base import AVX512
from asyncrt.kernels.codegen.epilogue import Epilogue, bind
from asyncrt.kernels.impl import KernelSource, inp
from asyncrt.kernels.matmul import few_rows_mma
from asyncrt.kernels.matmul.few_rows import Stream, choose_stream, stream_kernel
from asyncrt.kernels.matmul.few_rows_mma import Strip, choose_strip
from asyncrt.kernels.matmul.interface import ProductForm
from asyncrt.kernels.matmul.product import Bias
from asyncrt.kernels.persistent.walker import function_of
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, FLOAT32, DataType
from asyncrt.runtime.plan.traced_int import Recording

from ..emulated_mma import emulated_mma as emulated_mma  # a fixture
from .test_gpu_regimes import LARGE, MMA, product
from .test_matmul_epilogue import filled, operand
from .test_matmul_epilogue import product as epilogue_product

FORM = ProductForm("product", FLOAT16, FLOAT16, None, "", "", 0, False, bind(None, (1, 1)).form, AVX512)
TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}


def operands(left: Any, right: Any, dtype: str) -> list[Any]:
    random = np.random.default_rng(0)
    number = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return [random.standard_normal(shape).astype(number) for shape in (left, right)]


def assert_is_product(got: Any, a: Any, b: Any, dtype: str) -> None:
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    tolerance = TOLERANCES[dtype]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, 4, 1), (2, 4, 2), (4, 4, 2)], ids=str)
@pytest.mark.parametrize(
    ("left", "right"), [((1, 8), (8, 8)), ((7, 520), (520, 72)), ((3, 2, 264), (3, 264, 24))]
)
def test_tensor_cores_multiply_what_lanes_have_read(
    sizes: Any, whole: bool, left: Any, right: Any, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of columns that fill no strip, of terms that fill no step, of batches, and of either layout."""
    assert_strip_multiplies(monkeypatch, Strip(*sizes, order == "F", whole), left, right, "float16")


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, 4, 1), (2, 4, 2), (4, 4, 2)], ids=str)
def test_tensor_cores_multiply_the_other_half_precision(sizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in as many bytes, and multiplied by an instruction of its own."""
    turned, whole = sizes[0] == 2, sizes[0] != 4

    assert_strip_multiplies(monkeypatch, Strip(*sizes, turned, whole), (7, 520), (520, 72), "bfloat16")


def assert_strip_multiplies(
    monkeypatch: pytest.MonkeyPatch, strip: Strip, left: Any, right: Any, dtype: str
) -> None:
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_strip", lambda *given: strip)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.strip_kernel", few_rows_mma.strip_kernel)
    rows = min(8 * strip.eights, 8 * left[-2] + 1)
    a, b = operands((*left[:-2], rows, left[-1]), right, dtype)

    got, which = product(a, b, "F" if strip.turned else "C", MMA)

    assert which == f"tensor cores, strips of {strip.columns}"
    assert_is_product(got, a, b, dtype)


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize("rows", [1, 11, 23, 67])
def test_bias_and_operands_meet_their_elements(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read before the product is known."""
    monkeypatch.setattr("asyncrt.kernels.matmul.product.strip_kernel", few_rows_mma.strip_kernel)
    inputs = [filled(rows, 264), filled(264, 72), filled(72), filled(rows, 72), filled(rows, 1)]
    inputs = [x.astype(np.float16) for x in inputs]
    bias = Bias(inp(2), FLOAT16, 0, 1)
    operands = operand(3, inputs[3], inputs[3]), operand(4, inputs[4], np.broadcast_to(inputs[4], (rows, 72)))

    which, got = epilogue_product(inputs, MMA, Epilogue("(v > 0 ? v : 0) * a1 + a0", operands), bias=bias)

    assert which.startswith("tensor cores, strips")
    a, b, c, added, factor = (x.astype(np.float64) for x in inputs)
    wanted = np.maximum(a @ b + c, 0) * factor + added
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())


STREAMS = {
    "columns at once": ("C", {"lanes": 8, "each": 4, "whole": 4}),
    "sixteen bytes": ("C", {"lanes": 8, "each": 8, "whole": 8}),
    "few columns": ("C", {"lanes": 2, "each": 4, "whole": 4, "ahead": 1}),
    "one by one": ("C", {"lanes": 32, "each": 4, "whole": 1, "ahead": 1}),
    "terms at once": ("F", {"lanes": 32, "each": 4, "whole": 8, "depth": 8}),
    "terms one by one": ("F", {"lanes": 32, "each": 1, "whole": 1}),
}


@pytest.mark.parametrize(
    ("dtype", "rows", "left"),
    [
        *(("float16", rows, left) for rows in (1, 4, 8) for left in (False, True)),
        *((dtype, rows, left) for dtype in ("float32", "bfloat16") for rows, left in ((4, False), (8, True))),
    ],
)
@pytest.mark.parametrize("case", STREAMS)
def test_each_stream_gives_the_product(
    case: str, rows: int, left: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of columns that fill no group, of terms that fill no step, of fewer and of more rows than a tile has."""
    order, shape = STREAMS[case]
    a, b = operands((11, 328), (328, 72), dtype)
    if shape["whole"] * b.itemsize > 16 or (left and shape["whole"] == 1):
        pytest.skip("so much is not read at once")
    stream = Stream(rows=rows, turned=order == "F", left=left, **shape)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_stream", lambda *given: stream)

    got, which = product(a, b, order, LARGE)

    assert which == f"few rows, {stream.columns} columns"
    assert_is_product(got, a, b, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 1), (1, 1)), ((1, 130), (130, 33)), ((2, 200), (200, 70)), ((1, 67), (67, 250)), ((3, 1, 40), (3, 40, 6))],
)
def test_rows_may_begin_anywhere(left: Any, right: Any, dtype: str) -> None:
    """Nothing is read that is not the matrix's or before it, and the neighbours' elements are in no sum."""
    a, b = operands(left, right, dtype)

    got, which = product(a, b, "C", LARGE)

    assert which.startswith("few rows")
    assert_is_product(got, a, b, dtype)


@pytest.mark.parametrize(
    ("sizes", "strides", "dtype", "stream"),
    [
        ((1, 4096, 4096, 1), (4096, 1), FLOAT32, Stream(1, False, 8, 4, 4, True)),
        ((1, 768, 3072, 1), (768, 1), FLOAT32, Stream(1, False, 2, 4, 4, True)),
        ((8, 768, 3072, 1), (1, 3072), FLOAT32, Stream(8, True, 32, 1, 4, True)),
        ((8, 4096, 4096, 1), (1, 4096), FLOAT16, Stream(8, True, 32, 4, 8, True, depth=8)),
        ((1, 50257, 768, 1), (50257, 1), FLOAT16, Stream(1, False, 16, 8, 8, False, 8, ahead=1)),
        ((2, 50257, 768, 1), (50257, 1), FLOAT16, Stream(2, False, 32, 4, 1, False, ahead=1)),
        ((4, 1000, 2048, 1), (1, 2049), FLOAT32, Stream(4, True, 32, 1, 1, False)),
        ((32, 4096, 4096, 1), (4096, 1), FLOAT32, Stream(8, False, 8, 4, 4, True, ahead=1)),
        ((33, 4096, 4096, 1), (4096, 1), FLOAT32, None),
        ((1, 64, 64, 1), (128, 2), FLOAT32, None),
    ],
)
def test_a_right_hand_side_is_read_as_it_lies(sizes: Any, strides: Any, dtype: DataType, stream: Stream | None) -> None:
    """By 16 bytes where there are so many side by side, in groups of as few columns as keep the device busy."""
    form = FORM._replace(a=dtype, b=dtype)

    found = choose_stream(form, sizes, (sizes[2], 1, 0), (*strides, 0), LARGE)

    assert found == stream


def test_few_rows_are_those_of_tensor_cores_where_a_device_has_them() -> None:
    """And lines of the left-hand side begin at multiples of 16 bytes."""

    def strip(m: int, n: int, k: int = 768, *strides: int) -> Strip | None:
        return choose_strip(FORM, (m, n, k, 1), (k, 1, 0), (*(strides or (n, 1)), 0), MMA)

    assert strip(1, 4096) == Strip(1, 4, 3, False)
    assert strip(32, 4096) == Strip(4, 4, 2, False)
    assert strip(8, 768) == Strip(1, 2, 3, False)
    assert strip(1, 768, 768, 1, 768) == Strip(1, 2, 3, True)
    assert strip(16, 50304) == Strip(2, 4, 1, False)
    assert strip(16, 50257) == Strip(2, 4, 1, False, False)
    assert strip(1, 50257) is None
    assert strip(33, 4096) is None
    assert strip(97, 768) is None
    assert strip(1, 4096, 767) is None


def test_groups_share_rows_where_each_has_a_multiprocessor() -> None:
    """Sixteen rows each if there are enough multiprocessors for that, else 32; more groups than those are slower."""

    def strip(m: int, n: int) -> Strip | None:
        return choose_strip(FORM, (m, n, 768, 1), (768, 1, 0), (n, 1, 0), MMA)

    assert strip(23, 1536) == Strip(2, 4, 2, False)
    assert strip(23, 4096) == Strip(4, 4, 2, False)
    assert strip(33, 384) == Strip(4, 2, 2, False)
    assert strip(96, 1152) == Strip(4, 4, 2, False)
    assert strip(96, 1536) is None
    assert strip(33, 381) is None


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize("features", [LARGE, MMA], ids=["any device", "tensor cores"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("columns", [64, 67])
def test_buffers_may_begin_anywhere(
    features: DeviceTraits, order: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of parts of others do, which were not moved; but for tensor cores no bit depends on it."""
    monkeypatch.setattr("asyncrt.kernels.matmul.product.strip_kernel", few_rows_mma.strip_kernel)
    a, b = operands((1 if columns % 2 else 5, 136), (136, columns), "float16")
    usual, _ = product(a, b, order, features)
    monkeypatch.setattr("tests.ops.run.PAD", 258)

    got, which = product(a, b, order, features)

    assert_is_product(got, a, b, "float16")
    if "tensor cores" not in which:
        np.testing.assert_array_equal(got, usual)


def test_equal_operands_give_equal_bits() -> None:
    """Parts of sums are added in their order, whichever work-item is first."""
    a, b = operands((2, 4000), (4000, 40), "float32")

    results = [product(a, b, "C", LARGE)[0].tobytes() for _ in range(3)]

    assert len(set(results)) == 1


@pytest.mark.parametrize(
    "source",
    [
        few_rows_mma.strip_kernel(FORM, Strip(4, 4, 2, False)),
        stream_kernel(FORM, Stream(1, False, 16, 8, 8, False, 8)),
        stream_kernel(FORM, Stream(8, True, 32, 4, 8, True, depth=8)),
    ],
    ids=lambda source: source.name,
)
def test_each_kernel_can_be_a_function_of_the_persistent_one(source: KernelSource) -> None:
    """Its arrays in local memory have a place there."""
    function = function_of(source)

    assert function is not None
    assert 0 < function.own <= 48 << 10


def test_the_choice_holds_for_many_rows() -> None:
    """So that a recipe of one size tells the plans of others."""
    recording = Recording()
    rows = recording.size(20)

    choose_stream(FORM, (rows, 768, 768, 1), (768, 1, 0), (768, 1, 0), LARGE)
    choose_strip(FORM, (rows, 768, 768, 1), (768, 1, 0), (768, 1, 0), MMA)

    assert recording.asked_any
    assert not recording.fixed


def test_how_wide_groups_of_adjacent_columns_are_is_calculated() -> None:
    """Positions of a picture are such columns: one formula gives the width for all sizes, and asks nothing but whether
    rows begin at multiples of 16 bytes."""
    form = FORM._replace(a=FLOAT32, b=FLOAT32)
    units = LARGE.compute_units
    widths = set[int]()
    for n in range(64, 96 * units, 32):
        recording = Recording()
        columns = recording.size(n)

        found = choose_stream(form, (8, columns, 64, 1), (64, 1, 0), (columns, 1, 0), LARGE)

        plain = choose_stream(form, (8, n, 64, 1), (64, 1, 0), (n, 1, 0), LARGE)
        assert found is not None
        assert plain is not None
        wide = next((x for x in (8, 4) if 3 * -(-n // (4 * x)) >= 2 * units), 2)
        assert (int.__index__(found.lanes), plain.lanes) == (wide, wide)
        assert not recording.fixed
        widths.add(wide)
    assert widths == {2, 4, 8}
