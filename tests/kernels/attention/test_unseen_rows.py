"""What do the kernels of attention give for a query that sees no key, and for one whose weights are NaN?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from asyncrt.kernels.attention.attention import attention_impl
from asyncrt.kernels.attention.interface import Attention, AttentionTensor
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import inp, out
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array, Layout, layout_of

from ...ops.run import run_impl

KEYS, SIZE = 20, 16
CHECKING = [
    (DeviceTraits("cpu", 2), 2, "tiles of 2 rows"),
    (DeviceTraits("cpu", 2), 80, "blocks"),
    (DeviceTraits("gpu", 8), 10, "group per 8 rows"),
    (DeviceTraits("gpu", 1), 80, "group per 64 rows"),
    (DeviceTraits("gpu", 8, max_group=64), 10, "rows"),
]


def each_of(kernels: list[tuple[DeviceTraits, int, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("traits", "queries", "kernel"), kernels, ids=lambda p: p if isinstance(p, str) else ""
    )


@pytest.mark.parametrize("unseen", [0.0, math.nan])
@each_of([*CHECKING, (DeviceTraits("gpu", 8), 7, "group per row")])
def test_only_the_row_that_sees_no_key_is_what_was_asked_for(
    traits: DeviceTraits, queries: int, kernel: str, unseen: float
) -> None:
    """Every kernel, with a mask of minus infinity in the row of query 1."""
    q, k, v = given(queries, KEYS)
    mask = np.zeros((queries, KEYS), np.float32)
    mask[1] = -np.inf

    result = attend(traits, kernel, (q, k, v, mask), unseen=unseen)

    expected = plain(q, k, v)
    expected[1] = unseen
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@each_of(CHECKING)
def test_a_row_of_nan_weighs_nothing_where_weights_are_checked(
    traits: DeviceTraits, queries: int, kernel: str
) -> None:
    """Every kernel, over more keys than it treats at once: NaN in a query, and in the score of a last key.

    Zeros times an infinite value become NaN.
    """
    keys = 300
    q, k, v = given(queries, keys)
    q[0, 5] = np.nan
    mask = np.zeros((queries, keys), np.float32)
    mask[1, -1] = np.nan
    v[7, 3] = np.inf

    result = attend(traits, kernel, (q, k, v, mask), checked=True)

    expected = plain(q, k, v)
    expected[:2] = 0
    expected[:2, 3] = np.nan
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def given(queries: int, keys: int) -> list[Array]:
    random = np.random.default_rng(0)
    return [random.standard_normal((n, SIZE)).astype(np.float32) for n in (queries, keys, keys)]


def plain(q: Array, k: Array, v: Array) -> Array:
    weights = np.exp(0.25 * q.astype(np.float64) @ k.T)
    expected: Array = weights / weights.sum(axis=1, keepdims=True) @ v
    return expected


def attend(
    traits: DeviceTraits, kernel: str, inputs: tuple[Array, ...], unseen: float = 0.0, *, checked: bool = False
) -> Array:
    """Run the kernel of that name, which must be the one that is chosen."""
    q, k, _, _ = inputs
    rows = [AttentionTensor(inp(i), FLOAT32, 0, 0, SIZE) for i in range(3)]
    whole = Attention(
        *rows, AttentionTensor(out(0), FLOAT32, 0, 0, SIZE), batch=1, kv_heads=1, group=1, queries=len(q), keys=len(k),
        size=SIZE,
        value_size=SIZE, scale=0.25,
        mask=AttentionTensor(inp(3), FLOAT32, 0, 0, len(k)), mask_keys=len(k), unseen=unseen,
        checked=checked,
    )  # fmt: skip
    layouts = tuple(layout_of(x) for x in inputs)
    call = Call("a", Attributes(), layouts, (None,) * 4, (Layout(FLOAT32, q.shape),), (FLOAT32,))
    impl = attention_impl(whole, (), (), traits)
    assert impl.name.startswith(kernel)
    assert ("parts of the keys" in impl.name) == (kernel == "group per 8 rows" and len(k) == 300)
    (result,) = run_impl(impl, call, inputs)
    return result
