"""Does what attention gives for a row depend on the rows that are calculated with it?"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import pytest

from asyncrt.kernels.attention.attention import attention_impl
from asyncrt.kernels.attention.interface import Attention, AttentionTensor
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import inp, out
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, layout_of

from ...ops.run import run_impl

HEADS, QUERIES, KEYS, SIZE = 2, 200, 300, 20


class Sees(NamedTuple):
    """Which keys a query sees: those from `left` before its place to its place, and those the mask lets it see."""

    left: int
    mask: str


SEEN = [Sees(-1, "none"), Sees(-1, "keys"), Sees(90, "none"), Sees(90, "rows"), Sees(3, "bool")]
OTHERS = [Sees(-1, "doubles"), Sees(-1, "rows of doubles"), Sees(-1, "integers")]
CASES = pytest.mark.parametrize("sees", SEEN, ids=str)


@CASES
@pytest.mark.parametrize(("first", "count"), [(0, 5), (37, 60), (150, 50)])
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(first: int, count: int, sees: Sees) -> None:
    """Fewer queries, from another one on: they are in other blocks, beside others, and begin at other keys."""
    whole = attend(sees, 0, QUERIES)

    part = attend(sees, first, count)

    assert whole[:, first : first + count].tobytes() == part.tobytes()


@CASES
@pytest.mark.parametrize("compute_units", [1, 64])
def test_a_row_has_the_same_bits_however_many_cores_there_are(compute_units: int, sees: Sees) -> None:
    """More cores get smaller blocks."""
    expected = attend(sees, 0, QUERIES)

    result = attend(sees, 0, QUERIES, compute_units)

    assert expected.tobytes() == result.tobytes()


@pytest.mark.parametrize("sees", SEEN + OTHERS, ids=str)
def test_rows_are_those_of_plain_arithmetic(sees: Sees) -> None:
    """Against a softmax in double precision over the matrix of all scores."""
    query, key, value, mask = given(sees)
    place = np.arange(QUERIES)[:, None]
    seen = np.arange(KEYS) <= place
    if sees.left >= 0:
        seen &= np.arange(KEYS) >= place - sees.left
    if mask is not None:
        seen &= mask.astype(bool) if mask.dtype == bool else np.True_
    scores = 0.25 * query.astype(np.float64) @ key.transpose(0, 2, 1)
    if mask is not None and mask.dtype != bool:
        scores = scores + mask
    weights = np.where(seen, np.exp(scores), 0)
    sums = weights.sum(axis=-1, keepdims=True)
    expected = weights / np.where(sums == 0, 1, sums) @ value

    result = attend(sees, 0, QUERIES)

    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def given(sees: Sees) -> tuple[Array, Array, Array, Array | None]:
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal((HEADS, n, SIZE)).astype(np.float32) for n in (QUERIES, KEYS, KEYS))
    mask = {
        "none": lambda: None,
        "keys": lambda: random.standard_normal(KEYS).astype(np.float32),
        "rows": lambda: random.standard_normal((QUERIES, KEYS)).astype(np.float32),
        "doubles": lambda: random.standard_normal(KEYS),
        "rows of doubles": lambda: random.standard_normal((QUERIES, KEYS)),
        "integers": lambda: random.integers(-3, 3, KEYS),
        "bool": lambda: random.random((QUERIES, KEYS)) < 0.5,
    }[sees.mask]()
    return query, key, value, mask


@functools.cache
def attend(sees: Sees, first: int, count: int, compute_units: int = 2) -> Array:
    """Return the rows of *count* queries from the one at *first* on."""
    query, key, value, mask = given(sees)
    query = np.ascontiguousarray(query[:, first : first + count])
    if mask is not None and mask.ndim == 2:
        mask = np.ascontiguousarray(mask[first : first + count])
    inputs = (query, key, value) if mask is None else (query, key, value, mask)
    operands = (query, key, value)
    tensors = [AttentionTensor(inp(i), layout_of(x).dtype, 0, x[0].size, SIZE) for i, x in enumerate(operands)]
    row = 0 if mask is None or mask.ndim == 1 else KEYS
    whole = Attention(
        *tensors, AttentionTensor(out(0), tensors[0].dtype, 0, count * SIZE, SIZE), batch=1, kv_heads=HEADS, group=1,
        queries=count, keys=KEYS, size=SIZE, value_size=SIZE, scale=0.25, causal=True, offset=first, left=sees.left,
        mask=None if mask is None else AttentionTensor(inp(3), layout_of(mask).dtype, 0, 0, row), mask_keys=KEYS,
    )  # fmt: skip
    layouts = tuple(layout_of(x) for x in inputs)
    target = Layout(tensors[0].dtype, query.shape)
    call = Call("a", Attributes(), layouts, (None,) * len(inputs), (target,), (target.dtype,))
    impl = attention_impl(whole, (), (), DeviceTraits("cpu", compute_units))
    assert impl.name == "blocks"
    (result,) = run_impl(impl, call, inputs)
    return result
