"""Products of few rows whose work-groups normalise these rows for themselves, in either kernel and any layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Normalisation, inp, out
from asyncrt.kernels.matmul import few_rows_mma
from asyncrt.kernels.matmul.product import Bias, Epilogue, Operand, matmul, takes_normalised
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, FLOAT32, Array, Layout, layout_of
from asyncrt.memory.view import View

from ...ops.run import run_impl
from ..emulated_mma import emulated_mma as emulated_mma  # a fixture
from .test_gpu_regimes import LARGE, MMA

TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
EPSILON = 1e-2


def filled(dtype: str, *shape: int) -> Array:
    number = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return (np.random.default_rng(shape).standard_normal(shape) + 0.5).astype(number)


def carried_out(
    inputs: Sequence[Array], statistics: str, traits: DeviceTraits, *, turned: bool = False
) -> tuple[str, Array]:
    """Return the name of the kernel and the product of normalised rows.

    Args:
        inputs: These rows, the right-hand side, a bias, the factors, perhaps what is added to each column, and at the
            end an operand of the epilogue.
    """
    x, weights, bias, scale, *shift, added = inputs
    view = View(weights.shape, (1, weights.shape[0]), 0) if turned else View.dense(weights.shape)
    stored = np.ascontiguousarray(weights.T) if turned else weights
    made = Layout(layout_of(x).dtype, (len(x), weights.shape[1]))
    impl = matmul(
        "product",
        Operand(inp(0), layout_of(x).dtype, View.dense(x.shape)),
        Operand(inp(1), layout_of(weights).dtype, view),
        out(0),
        (),
        traits,
        bias=Bias(inp(2), layout_of(bias).dtype, 0, 1),
        epilogue=Epilogue("v + a0", (Operand(inp(len(inputs) - 1), layout_of(added).dtype, View.dense(added.shape)),)),
        normal=Normalisation(statistics, EPSILON, inp(3), inp(4) if shift else None),
    )
    given = [x, stored, bias, scale, *shift, added]
    call = Call("p", Attributes(), tuple(map(layout_of, given)), (None,) * len(given), (made,), (made.dtype,))
    (result,) = run_impl(impl, call, given)
    return impl.name, result


def expected(inputs: Sequence[Array], statistics: str) -> Any:
    x, weights, bias, scale, *shift, added = inputs
    wide = x.astype(np.float64)
    if statistics == "layer":
        wide -= wide.mean(axis=-1, keepdims=True)
    normal = wide / np.sqrt(np.square(wide).mean(axis=-1, keepdims=True) + EPSILON) * scale.astype(np.float64)
    if shift:
        normal += shift[0].astype(np.float64)
    rows = normal.astype(x.dtype).astype(np.float64)
    return rows @ weights.astype(np.float64) + bias.astype(np.float64) + added.astype(np.float64)


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("statistics", "shifted"), [("layer", True), ("layer", False), ("rms", False)])
@pytest.mark.parametrize(
    ("dtype", "kernel", "sizes"),
    [
        ("float16", "strips", (1, 264, 72)),
        ("float16", "strips", (8, 520, 40)),
        ("bfloat16", "strips", (3, 264, 24)),
        ("float16", "few rows", (5, 67, 33)),
        ("float16", "few rows", (1, 264, 51)),
        ("float32", "few rows", (1, 1100, 70)),
        ("float32", "few rows", (8, 264, 72)),
        ("bfloat16", "few rows", (2, 130, 12)),
    ],
)
def test_rows_are_normalised_before_they_are_multiplied(
    dtype: str,
    kernel: str,
    sizes: tuple[int, int, int],
    statistics: str,
    shifted: bool,
    turned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by its own elements and rounded to its dtype; bias and epilogue come behind the product as always."""
    monkeypatch.setattr("asyncrt.kernels.matmul.product.strip_kernel", few_rows_mma.strip_kernel)
    m, k, n = sizes
    shift = [filled(dtype, k, 1)[:, 0]] if shifted else []
    inputs = [filled(dtype, m, k), filled(dtype, k, n), filled(dtype, n), filled(dtype, k), *shift, filled(dtype, m, n)]

    name, got = carried_out(inputs, statistics, MMA if kernel == "strips" else LARGE, turned=turned)

    assert kernel in name
    wanted, tolerance = expected(inputs, statistics), TOLERANCES[dtype]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


def test_many_or_long_rows_are_normalised_once() -> None:
    """By a launch of their own: all work-groups would do the same again."""
    normal = Normalisation("layer", EPSILON, inp(3), None)

    def takes(m: int, k: int, dtype: Any = FLOAT16, traits: DeviceTraits = MMA) -> bool:
        return takes_normalised(Layout(dtype, (1, m, k)), Layout(dtype, (k, 768)), normal, traits)

    assert takes(1, 768)
    assert takes(8, 768)
    assert takes(1, 3072, FLOAT32)
    assert not takes(9, 768)
    assert not takes(8, 1024)
    assert not takes(1, 5000, FLOAT32)
    assert not takes(1, 768, traits=DeviceTraits("cpu", 2))
    assert not takes(1, 768, traits=DeviceTraits("gpu", 132, max_group=64))
