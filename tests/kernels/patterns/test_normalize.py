"""Rows that a GPU normalises, on whatever device there is: the result of plain arithmetic, however long a row is."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.patterns.normalize import Affine, normalize_rows
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Layout, layout_of

from ...ops.run import run_impl


@pytest.mark.parametrize("n", [1, 100, 256, 257, 768, 1000, 1024, 1500])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_row_is_normalised_by_a_group(n: int, dtype: type) -> None:
    """Elements that its work-items do not hold are read again."""
    random = np.random.default_rng(0)
    x, scale, bias = (random.standard_normal(shape).astype(dtype) for shape in ((3, n), n, n))
    number = layout_of(x).dtype
    affine = Affine(inp(1), inp(2), number)
    launch = normalize_rows("layer", inp(0), out(0), number, 3, n, 1e-5, DeviceTraits("gpu", 132), affine=affine)
    inputs = (x, scale, bias)
    call = Call("n", Attributes(), tuple(map(layout_of, inputs)), (None,) * 3, (Layout(number, (3, n)),), (number,))

    (got,) = run_impl(Impl("rows", (launch,)), call, inputs)

    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * scale + bias
    tolerance = 1e-5 if dtype is np.float32 else 5e-3
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=tolerance, atol=tolerance)
