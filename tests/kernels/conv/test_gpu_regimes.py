"""Convolutions as GPUs carry them out, on whatever device there is."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue, Operand
from asyncrt.kernels.conv import tensor_cores
from asyncrt.kernels.impl import Impl, inp
from asyncrt.kernels.matmul import few_rows_mma
from asyncrt.kernels.matmul import tensor_cores as products
from asyncrt.kernels.matmul.gpu import Regime
from asyncrt.kernels.matmul.tensor_cores import FLAT, LARGE, MIDDLE, SMALL, TINY, MatrixTile
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.ops.nn import conv, conv_transpose
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, layout_of
from asyncrt.memory.view import View

from ...ops.run import run_impl
from ..emulated_mma import emulated_mma as emulated_mma  # a fixture

GPU = DeviceTraits("gpu", 132, max_group=1024)
MMA = DeviceTraits("gpu", 132, max_group=1024, features=frozenset({"mma"}))

CASES: dict[str, tuple[Operator, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "of one cell": (conv.OPERATOR, (3, 40, 5, 7), (70, 40, 1, 1), {}),
    "of few channels": (conv.OPERATOR, (2, 3, 19, 23), (33, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
    "padded": (conv.OPERATOR, (1, 24, 9, 11), (130, 24, 3, 3), {"pads": (1, 0, 1, 2)}),
    "in groups": (conv.OPERATOR, (2, 32, 8, 9), (40, 16, 3, 3), {"group": 2, "dilations": (2, 1), "pads": (1,) * 4}),
    "on a line": (conv.OPERATOR, (2, 17, 140), (16, 17, 5), {"strides": (3,)}),
    "in space": (conv.OPERATOR, (2, 8, 4, 5, 6), (20, 8, 2, 3, 2), {"pads": (1, 1, 0, 0, 1, 1), "strides": (1, 2, 1)}),
    "transposed": (conv_transpose.OPERATOR, (2, 20, 6, 5), (20, 18, 3, 4), {"strides": (2, 3), "pads": (1, 1, 0, 1)}),
    "transposed, in groups": (conv_transpose.OPERATOR, (1, 16, 5, 4), (16, 17, 2, 2), {"strides": (2, 2), "group": 2}),
}


def convolved(
    case: str, dtype: Any, traits: DeviceTraits, *, constant: bool, adds: bool = True
) -> tuple[Array, Array, Impl]:
    """Return what is expected, what came, and from what; another tensor may be added to the results."""
    operator, data, filters, attributes = CASES[case]
    rng = np.random.default_rng(0)
    outputs = filters[1] * attributes.get("group", 1) if operator is conv_transpose.OPERATOR else filters[0]
    inputs = [rng.standard_normal(s).astype(dtype) for s in (data, filters, (outputs,))]
    inputs[1] = (inputs[1] * np.prod(filters[1:]) ** -0.5).astype(dtype)
    layouts = tuple(map(layout_of, inputs))
    made = layouts[0].dtype
    call = Call("node", Attributes(attributes), layouts, (None,) * 3, (), (made,), (False, constant, constant))
    (shape,) = operator.infer(call)
    call = call._replace(outputs=(Layout(made, tuple(shape)),))
    (expected,) = operator.reference(call.attributes, [x.astype(np.float64) for x in inputs])
    other = rng.standard_normal(shape).astype(dtype)
    added = Epilogue("v + a0", (Operand(inp(3), made, View.dense(tuple(shape))),))
    assert operator.with_epilogue is not None
    impl = operator.with_epilogue(call, traits, added)
    if not adds:
        impl, other = operator.implement(call, traits), np.zeros_like(other)
    (got,) = run_impl(impl, call, [*inputs, other] if adds else inputs)
    return expected + other.astype(np.float64), got.astype(np.float64), impl


@pytest.mark.parametrize(
    ("regime", "constant"),
    [(Regime.SLICES, True), (Regime.NARROW, True), (Regime.NARROW, False), (Regime.WIDE, True)],
    ids=["slices", "narrow", "narrow, not packed", "wide"],
)
@pytest.mark.parametrize("case", CASES)
def test_each_regime_gives_the_convolution(
    case: str, constant: bool, regime: Regime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sizes that fill no tile, of windows beyond the borders, of filters that were packed and of others."""
    monkeypatch.setattr("asyncrt.kernels.conv.gpu.choose_regime", lambda *given: regime)

    expected, got, impl = convolved(case, np.float32, GPU, constant=constant)

    assert regime.value in impl.name
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_floats_are_multiplied_as_well(dtype: Any) -> None:
    """On devices without tensor cores."""
    expected, got, _ = convolved("padded", dtype, GPU, constant=True)

    tolerance = 1e-10 if dtype is np.float64 else 2e-3
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize(
    ("case", "dtype", "tile"),
    [
        *((case, np.float16, SMALL) for case in CASES),
        *((case, np.float16, t) for case in ("of few channels", "in groups") for t in (TINY, MIDDLE, FLAT, LARGE)),
        ("padded", ml_dtypes.bfloat16, TINY),
    ],
)
def test_tensor_cores_give_the_convolution(
    case: str, dtype: Any, tile: MatrixTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of half precision, with sums in float32."""
    monkeypatch.setattr(tensor_cores, "choose_tile", lambda *given: tile)

    expected, got, impl = convolved(case, dtype, MMA, constant=True)

    assert f"tensor cores {tile.rows}x{tile.columns}" in impl.name
    if tile.slices == 1:  # whose lanes are others where nothing is added
        alone, without, _ = convolved(case, dtype, MMA, constant=True, adds=False)
        np.testing.assert_allclose(without, alone, rtol=2e-3, atol=2e-3 * np.abs(alone).max())
    tolerance = 2e-3 if dtype is np.float16 else 2e-2
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize(
    ("data", "channels", "dtype", "kernel"),
    [
        ((3, 40, 6, 8), 130, np.float16, "conv1x1_mma"),
        ((3, 40, 6, 8), 70, np.float16, "conv1x1_strips"),
        ((3, 40, 8), 130, ml_dtypes.bfloat16, "conv1x1_mma"),
        ((3, 40, 3, 4), 70, np.float16, "conv_mma"),
        ((3, 44, 6, 8), 70, np.float16, "conv_mma"),
        ((3, 44, 3, 4), 70, np.float32, "conv1x1_mma"),
        ((3, 42, 3, 4), 70, np.float32, "conv_s"),
    ],
)
def test_windows_of_one_cell_are_products_where_copies_may_begin_at_rows(
    data: tuple[int, ...], channels: int, dtype: Any, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the better kernels; of others, elements are read one by one."""
    monkeypatch.setattr("asyncrt.kernels.matmul.product.tensor_core_kernel", products.tensor_core_kernel)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.strip_kernel", few_rows_mma.strip_kernel)
    monkeypatch.setitem(CASES, "case", (conv.OPERATOR, data, (channels, data[1], *(1 for _ in data[2:])), {}))

    expected, got, impl = convolved("case", dtype, MMA, constant=True)

    assert impl.launches[-1].kernel.name.startswith(kernel)
    tolerance = {np.float32: 2e-6, np.float16: 2e-3}.get(dtype, 2e-2)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
