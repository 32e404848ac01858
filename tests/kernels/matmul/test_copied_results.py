"""Products of one row that write parts of it elsewhere, too: keys and values to where a sequence keeps them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.matmul import few_rows_mma
from asyncrt.kernels.matmul.product import Epilogue, Operand, matmul
from asyncrt.kernels.patterns.copy import copied_as_made
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Layout, layout_of
from asyncrt.memory.view import View

from ...ops.run import run_impl
from ..emulated_mma import emulated_mma as emulated_mma  # a fixture
from .test_gpu_regimes import LARGE, MMA

TERMS, HEADS, SIZE, ROOM = 264, 3, 24, 7
WIDE = HEADS * SIZE


def of_one_row(rows: int, dtype: Any, traits: DeviceTraits) -> Impl:
    """Return the product of *rows* rows that are queries, keys and values, cut off at 0."""
    kind = layout_of(np.zeros(1, dtype)).dtype
    a, b = (Operand(inp(i), kind, View.dense(s)) for i, s in enumerate(((rows, TERMS), (TERMS, 3 * WIDE))))
    return matmul("product", a, b, out(0), (), traits, epilogue=Epilogue("fmax(v, 0.0f)"))


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize(("dtype", "kernel"), [("float16", "strips"), ("float16", "few rows"), ("float32", "few rows")])
def test_parts_of_a_row_are_written_where_they_are_kept(
    dtype: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each head behind what is there of it, and nowhere else; the row itself is what it is without."""
    monkeypatch.setattr("asyncrt.kernels.matmul.product.strip_kernel", few_rows_mma.strip_kernel)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((1, TERMS), (TERMS, 3 * WIDE)))
    impl = of_one_row(1, dtype, MMA if kernel == "strips" else LARGE)
    launch, kept = impl.launches[0], View.dense((1, HEADS, ROOM, SIZE))
    for part in (1, 2):
        head = View((1, HEADS, 1, SIZE), (3 * WIDE, SIZE, 3 * WIDE, 1), part * WIDE)
        both = copied_as_made(launch, head, kept.slice(2, 3 + part, 1))
        assert both is not None
        launch = both
    made = layout_of(a).dtype
    layouts = Layout(made, (1, 3 * WIDE)), *[Layout(made, kept.shape)] * 2
    call = Call("p", Attributes(), (layout_of(a), layout_of(b)), (None,) * 2, layouts, (made,) * 3)

    row, keys, values = run_impl(impl._replace(launches=(launch,)), call, [a, b])

    assert kernel in impl.name
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0)
    np.testing.assert_allclose(row.astype(np.float64), wanted, rtol=4e-3, atol=4e-3 * wanted.max())
    for part, written in ((1, keys), (2, values)):
        own = row[0, part * WIDE : (part + 1) * WIDE].reshape(HEADS, SIZE)
        assert written[0, :, 3 + part].tobytes() == own.tobytes()
        assert not np.array_equal(written[0, :, 2], own)


def test_what_lies_otherwise_is_copied_by_itself() -> None:
    """Several rows, and parts whose elements do not lie side by side."""
    kept = View.dense((1, HEADS, ROOM, SIZE)).slice(2, 3, 1)
    head = View((1, HEADS, 1, SIZE), (3 * WIDE, SIZE, 3 * WIDE, 1), 0)
    apart = View((1, HEADS, 1, SIZE), (3 * WIDE, 1, 3 * WIDE, HEADS), 0)
    one, two = (of_one_row(rows, "float32", LARGE).launches[0] for rows in (1, 2))

    assert copied_as_made(one, head, kept) is not None
    assert copied_as_made(one, apart, kept) is None
    assert copied_as_made(two, head, kept) is None
