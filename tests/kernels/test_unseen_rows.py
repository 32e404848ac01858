"""What the kernels of attention give for a query that sees no key: zeros as the operator wants, or NaN as a softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asyncrt.devices.find import open_device
from asyncrt.kernels.attention import Attention, Tensor, attention_impl
from asyncrt.kernels.impl import inp, out
from asyncrt.kernels.operator import Attributes, Call, DeviceTraits
from asyncrt.layout import FLOAT32, Layout, layout_of

from ..ops.run import run_impl

KEYS, SIZE = 20, 16


@pytest.mark.parametrize("unseen", [0.0, math.nan])
@pytest.mark.parametrize(
    ("traits", "queries", "kernel"),
    [
        (DeviceTraits("cpu", 2), 2, "tiles of 2 rows"),
        (DeviceTraits("cpu", 2), 80, "blocks"),
        (DeviceTraits("gpu", 8), 10, "group per 8 rows"),
        (DeviceTraits("gpu", 8, max_group=64), 10, "rows"),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_only_the_row_that_sees_no_key_is_what_was_asked_for(
    traits: DeviceTraits, queries: int, kernel: str, unseen: float
) -> None:
    """Every kernel, with a mask of minus infinity in the row of query 1."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((n, SIZE)).astype(np.float32) for n in (queries, KEYS, KEYS))
    mask = np.zeros((queries, KEYS), np.float32)
    mask[1] = -np.inf
    rows = [Tensor(inp(i), FLOAT32, 0, 0, SIZE) for i in range(3)]
    whole = Attention(
        *rows, Tensor(out(0), FLOAT32, 0, 0, SIZE), batch=1, kv_heads=1, group=1, queries=queries, keys=KEYS, size=SIZE,
        value_size=SIZE, scale=0.25, mask=Tensor(inp(3), FLOAT32, 0, 0, KEYS), mask_keys=KEYS, unseen=unseen,
    )  # fmt: skip
    inputs = (q, k, v, mask)
    layouts = tuple(layout_of(x) for x in inputs)
    call = Call("a", Attributes(), layouts, (None,) * 4, (Layout(FLOAT32, q.shape),), (FLOAT32,))

    impl = attention_impl(whole, (), (), traits)
    (result,) = run_impl(impl, call, inputs, open_device(None))

    weights = np.exp(0.25 * q.astype(np.float64) @ k.T)
    expected = weights / weights.sum(axis=1, keepdims=True) @ v
    expected[1] = unseen
    assert impl.name == kernel
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
