"""Products of few rows that normalise these for themselves and write them out, for others that read them."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Launch, Normalisation, inp, out
from asyncrt.kernels.matmul import few_rows_mma
from asyncrt.kernels.matmul.product import Epilogue, Operand, matmul
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, DataType, Layout, layout_of
from asyncrt.memory.view import View

from ...ops import run
from ..emulated_mma import emulated_mma as emulated_mma  # a fixture
from .test_gpu_regimes import LARGE
from .test_gpu_regimes import MMA as MMA_OF_LITTLE_MEMORY
from .test_normalised_rows import EPSILON, TOLERANCES, filled

MMA = attrs.evolve(MMA_OF_LITTLE_MEMORY, local_memory=1 << 17)


def product(dtype: DataType, m: int, k: int, n: int, traits: DeviceTraits = MMA) -> Any:
    """Return how rows are multiplied, cut off at 0."""
    a, b = Operand(inp(0), dtype, View.dense((m, k))), Operand(inp(1), dtype, View.dense((k, n)))
    return matmul("product", a, b, out(0), (), traits, epilogue=Epilogue("fmax(v, 0.0f)"))


def of_rows(launch: Launch, k: int, statistics: str = "layer", *, shifted: bool = True) -> Launch | None:
    assert launch.of_rows is not None
    return launch.of_rows(Normalisation(statistics, EPSILON, inp(2), inp(3) if shifted else None), k, out(1))


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize(("statistics", "shifted"), [("layer", True), ("rms", False)])
@pytest.mark.parametrize(
    ("dtype", "sizes", "offset"),
    [
        ("float16", (5, 264, 72), 0),
        ("float16", (16, 384, 40), 0),
        ("float16", (23, 264, 24), 0),
        ("float16", (23, 264, 24), 2),
        ("float16", (16, 264, 24), 2),
        ("bfloat16", (13, 520, 40), 0),
    ],
)
def test_normalised_rows_are_multiplied_and_kept(
    dtype: str, sizes: tuple[int, int, int], offset: int, statistics: str, shifted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Both are what two launches would make, also where buffers begin anywhere."""
    monkeypatch.setattr("asyncrt.kernels.matmul.product.strip_kernel", few_rows_mma.strip_kernel)
    m, k, n = sizes
    shift = [filled(dtype, k, 1)[:, 0]] if shifted else []
    inputs = [filled(dtype, m, k), filled(dtype, k, n), filled(dtype, k), *shift]
    kind = layout_of(inputs[0]).dtype
    impl = product(kind, m, k, n)
    both = of_rows(impl.launches[0], k, statistics, shifted=shifted)
    assert both is not None
    made = Layout(kind, (m, n)), Layout(kind, (m, k))
    call = Call("p", Attributes(), tuple(map(layout_of, inputs)), (None,) * len(inputs), made, (kind,) * 2)

    monkeypatch.setattr(run, "PAD", run.PAD + offset)
    result, rows = run.run_impl(impl._replace(launches=(both,)), call, inputs)

    wide = inputs[0].astype(np.float64)
    if statistics == "layer":
        wide -= wide.mean(axis=-1, keepdims=True)
    wide = wide / np.sqrt(np.square(wide).mean(axis=-1, keepdims=True) + EPSILON) * inputs[2].astype(np.float64)
    wide += shift[0].astype(np.float64) if shifted else 0
    tolerance = TOLERANCES[dtype]
    np.testing.assert_allclose(rows.astype(np.float64), wide, rtol=tolerance, atol=tolerance)
    wanted = np.maximum(rows.astype(np.float64) @ inputs[1].astype(np.float64), 0)
    np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * wanted.max())


def test_long_rows_and_many_are_normalised_before() -> None:
    """A lane holds only so many elements; and a sequence's row goes where keys and values are kept instead."""
    for m, k, n, fits in ((32, 1024, 768, True), (16, 1032, 768, False), (8, 2048, 64, True), (33, 64, 64, False)):
        assert (of_rows(product(FLOAT16, m, k, n).launches[0], k) is not None) is fits
    assert of_rows(product(FLOAT16, 16, 1024, 64, MMA_OF_LITTLE_MEMORY).launches[0], 1024) is None
    assert product(FLOAT16, 1, 384, 768).launches[0].of_rows is None
    assert product(FLOAT16, 16, 384, 768, LARGE).launches[0].of_rows is None
