"""Attention as GPUs with many query rows carry it out: the result of plain arithmetic, whatever the sizes."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from asyncrt.kernels.attention.attention import attention_impl
from asyncrt.kernels.attention.interface import Attention, AttentionTensor
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, KernelSource, inp, out
from asyncrt.kernels.persistent.walker import function_of
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, layout_of

from ...ops.run import run_impl
from ..emulated_mma import emulated_mma as emulated_mma  # a fixture


class Case(NamedTuple):
    """Extents, and what a query sees: keys up to `offset` behind its place, `left` before it, and those of the mask."""

    batch: int = 1
    kv_heads: int = 2
    group: int = 1
    queries: int = 130
    keys: int = 150
    size: int = 32
    value_size: int = 32
    causal: bool = False
    offset: int = 0
    left: int = -1
    softcap: float = 0.0
    mask: str = ""
    dtype: str = "float32"


CASES = [
    Case(),
    Case(queries=64, keys=64, size=64, value_size=64),
    Case(batch=2, queries=70, keys=1, size=3, value_size=5),
    Case(keys=65, size=80, value_size=48),
    Case(keys=70, size=128, value_size=128),
    Case(keys=70, size=20, value_size=256),
    Case(kv_heads=2, group=3, queries=50, causal=True, offset=100),
    Case(causal=True, offset=20, left=30),
    Case(softcap=2.0, mask="float32"),
    Case(batch=2, mask="bool"),
    Case(dtype="float16", mask="float16"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_those_of_plain_arithmetic(case: Case) -> None:
    """Against a softmax in double precision over the matrix of all scores."""
    inputs = given(case)
    expected = plain(case, *[x.astype(np.float64) if x.dtype != bool else x for x in inputs])

    result = attend(case, inputs)

    tolerance = {"float32": 2e-6, "float16": 1e-3}[case.dtype]
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize(("kernel", "units"), [("64 rows", 1), ("16 rows", 132)])
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (Case(mask="bool"), "bfloat16"),
        (Case(keys=70, size=128, value_size=128, softcap=2.0, mask="float32"), "float16"),
        (Case(kv_heads=2, group=3, queries=50, size=40, value_size=24, causal=True, offset=100, left=30), "float16"),
        (Case(), "float32"),
        (Case(mask="bool", batch=2, keys=31), "float32"),
        (Case(keys=70, size=64, value_size=64, softcap=2.0, mask="float32"), "float32"),
        (Case(kv_heads=2, group=3, queries=50, size=36, value_size=20, causal=True, offset=100, left=30), "float32"),
    ],
    ids=str,
)
def test_tensor_cores_give_the_same(case: Case, dtype: str, kernel: str, units: int) -> None:
    """Of half precision: the weights are rounded to it before they meet the values. Of floats: as exactly as others.
    Also where a work-group's parts share the keys, as there are fewer tiles than processors."""
    inputs = given(case._replace(dtype=dtype, mask=dtype if case.mask == "float32" else case.mask))
    expected = plain(case, *[x.astype(np.float64) if x.dtype != bool else x for x in inputs])

    result = attend(case, inputs, frozenset({"mma"}), kernel, units)

    tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-6}[dtype]
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.usefixtures("emulated_mma")
@pytest.mark.parametrize(("kernel", "units"), [("64 rows", 1), ("16 rows", 132)])
def test_what_has_no_two_parts_gives_what_it_gives_without_tensor_cores(kernel: str, units: int) -> None:
    """Infinities and NaN among queries, keys and values, and the largest floats; other rows are as they were."""
    case = Case(queries=70, keys=40)
    inputs = given(case)
    usual = attend(case, inputs, frozenset({"mma"}), kernel, units)
    query, key, value = inputs
    query[0, 0, 3, 5], query[0, 0, 9, 7], query[0, 0, 66, 2] = np.nan, np.inf, np.finfo(np.float32).max
    value[0, 1, 7, 3], key[0, 1, 11, 4] = np.inf, -3e38

    result = attend(case, inputs, frozenset({"mma"}), kernel, units)

    np.testing.assert_allclose(result, attend(case, inputs), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.delete(result[0, 0], [3, 9, 66], 0), np.delete(usual[0, 0], [3, 9, 66], 0))


PARTED = [
    Case(queries=1, keys=1000),
    Case(batch=2, queries=1, keys=129, size=64, value_size=48),
    Case(group=5, queries=2, keys=500, causal=True, offset=420),
    Case(queries=3, keys=400, causal=True, offset=300, left=90),
    Case(queries=1, keys=300, softcap=2.0, mask="float32"),
    Case(batch=2, queries=1, keys=300, mask="bool"),
    Case(queries=1, keys=300, dtype="float16", mask="float16"),
]


@pytest.mark.parametrize("features", [frozenset[str](), frozenset({"mma"})], ids=["any device", "tensor cores"])
@pytest.mark.parametrize("case", PARTED, ids=str)
def test_few_rows_share_many_keys_among_groups(
    case: Case, features: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a part of the keys is one that a row does not see at all."""
    monkeypatch.setattr("asyncrt.kernels.attention.attention.single_fits", lambda *given: False)
    inputs = given(case)
    expected = plain(case, *[x.astype(np.float64) if x.dtype != bool else x for x in inputs])
    if features and case.group * case.queries > 8:
        pytest.skip("more rows than that are a tile of tensor cores")

    result = attend(case, inputs, features, "parts of the keys", 132)

    tolerance = {"float32": 2e-6, "float16": 1e-3}[case.dtype]
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * np.abs(expected).max())


SINGLE = [
    Case(queries=1, keys=17, size=64, value_size=64),
    Case(queries=1, keys=1, size=8, value_size=8, dtype="bfloat16"),
    Case(queries=1, keys=1200),
    Case(batch=2, queries=1, keys=129, size=64, value_size=48),
    Case(group=4, queries=2, keys=1100, causal=True, offset=920),
    Case(queries=3, keys=1200, causal=True, offset=1100, left=90),
    Case(queries=1, keys=1100, softcap=2.0, mask="float32"),
    Case(batch=2, queries=1, keys=300, mask="bool"),
    Case(queries=1, keys=300, dtype="float16", mask="float16"),
    Case(queries=1, keys=70, size=128, value_size=256, dtype="float16"),
    Case(queries=1, keys=200, size=20, value_size=12),
    Case(queries=5, keys=1200, size=128, value_size=128, dtype="bfloat16"),
]


@pytest.mark.parametrize("units", [1, 132])
@pytest.mark.parametrize("case", SINGLE, ids=str)
def test_a_row_for_each_group_is_that_of_plain_arithmetic(case: Case, units: int) -> None:
    """Whatever it sees, of heads that fill no power of two, and where groups share many keys of a row."""
    inputs = given(case)
    expected = plain(case, *[x.astype(np.float64) if x.dtype != bool else x for x in inputs])
    parted = case.keys > 1024 and units == 132

    result = attend(case, inputs, kernel="group per row, parts of the keys" if parted else "group per row", units=units)

    tolerance = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 1e-2}[case.dtype]
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("case", [SINGLE[0], SINGLE[8], SINGLE[11]], ids=str)
def test_keys_and_values_may_begin_anywhere(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of parts of others do, which were not moved; no bit depends on it."""
    inputs = given(case)
    usual = attend(case, inputs, kernel="group per row")
    monkeypatch.setattr("tests.ops.run.PAD", 256 + inputs[0].itemsize)

    result = attend(case, inputs, kernel="group per row")

    np.testing.assert_array_equal(result, usual)


@pytest.mark.parametrize("parted", [False, True])
def test_the_kernel_of_a_row_can_be_a_function_of_the_persistent_one(parted: bool) -> None:
    """Its arrays in local memory have a place there."""
    impl = chosen(Case(queries=1, keys=2000 if parted else 20), given(Case(queries=1, keys=20)), frozenset(), 132)

    for launch in impl.launches:
        assert isinstance(launch.kernel, KernelSource)
        assert function_of(launch.kernel) is not None


@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        (Case(queries=8, keys=17), "group per row"),
        (Case(group=3, queries=3, keys=17), "tensor cores, 64 rows"),
        (Case(queries=1, keys=17, size=20), "group per 8 rows"),
    ],
)
def test_rows_get_groups_where_few_share_their_keys(case: Case, kernel: str) -> None:
    """And where heads begin at multiples of 16 bytes."""
    inputs = given(case._replace(dtype="float16"))

    assert chosen(case, inputs, frozenset({"mma"}), 1).name == kernel


def given(case: Case) -> list[Array]:
    random = np.random.default_rng(0)
    heads = case.kv_heads * case.group
    shapes = [
        (case.batch, heads, case.queries, case.size),
        (case.batch, case.kv_heads, case.keys, case.size),
        (case.batch, case.kv_heads, case.keys, case.value_size),
    ]
    dtype = ml_dtypes.bfloat16 if case.dtype == "bfloat16" else case.dtype
    inputs = [random.standard_normal(s).astype(dtype) for s in shapes]
    mask = random.standard_normal((case.batch, case.queries, case.keys))
    if case.mask:
        inputs.append(mask < 1 if case.mask == "bool" else mask.astype(dtype))
    return inputs


def plain(case: Case, query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    key, value = np.repeat(key, case.group, axis=1), np.repeat(value, case.group, axis=1)
    scores = query @ key.swapaxes(2, 3) * 0.25
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    place, keys = np.arange(case.queries)[:, None] + case.offset, np.arange(case.keys)
    seen = (keys <= place if case.causal else True) & (keys >= place - case.left if case.left >= 0 else True)
    if mask is not None:
        seen, scores = (seen & mask[:, None], scores) if mask.dtype == bool else (seen, scores + mask[:, None])
    weights = np.where(seen, np.exp(scores), 0)
    sums = weights.sum(axis=-1, keepdims=True)
    expected: Array = weights / np.where(sums == 0, 1, sums) @ value
    return expected


def attend(
    case: Case, inputs: list[Array], features: frozenset[str] = frozenset(), kernel: str = "64 rows", units: int = 1
) -> Array:
    impl = chosen(case, inputs, features, units)
    assert kernel in impl.name
    assert ("tensor cores" in impl.name) == (bool(features) and kernel in ("64 rows", "16 rows"))
    target = layout_of(inputs[0]).dtype
    shape = (case.batch, case.kv_heads * case.group, case.queries, case.value_size)
    layouts, made = tuple(layout_of(x) for x in inputs), Layout(target, shape)
    call = Call("a", Attributes(), layouts, (None,) * len(inputs), (made,), (target,))
    (result,) = run_impl(impl, call, tuple(inputs))
    return result


def chosen(case: Case, inputs: list[Array], features: frozenset[str], units: int) -> Impl:
    heads = case.kv_heads * case.group
    tensors = [
        AttentionTensor(inp(i), layout_of(x).dtype, x[0].size, x[0, 0].size, x.shape[-1])
        for i, x in enumerate(inputs[:3])
    ]
    rows = case.queries * case.value_size
    target = AttentionTensor(out(0), tensors[0].dtype, heads * rows, rows, case.value_size)
    mask = None
    if case.mask:
        mask = AttentionTensor(inp(3), layout_of(inputs[3]).dtype, case.queries * case.keys, 0, case.keys)
    whole = Attention(
        *tensors, target, batch=case.batch, kv_heads=case.kv_heads, group=case.group, queries=case.queries,
        keys=case.keys, size=case.size, value_size=case.value_size, scale=0.25, softcap=case.softcap,
        causal=case.causal, offset=case.offset, left=case.left, mask=mask, mask_keys=case.keys,
    )  # fmt: skip
    traits = DeviceTraits("gpu", units, features=features, local_memory=48 << 10)
    return attention_impl(whole, (), (), traits)
