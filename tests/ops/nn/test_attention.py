"""Attention against onnxruntime, and its kernels against its reference on many sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrt.errors import ShapeError
from asyncrt.kernels.operator import Example
from asyncrt.kernels.ops.nn.attention import OPERATOR
from asyncrt.kernels.traits import DeviceTraits

from ..onnxruntime_truth import check_with_onnxruntime
from ..run import arrays, assert_close, make_call, reference, run_impl


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (("f32[2,3,5,16]", "f32[2,3,6,16]", "f32[2,3,6,16]"), {}),
        (("f32[2,3,5,16]", "f32[2,3,5,16]", "f32[2,3,5,16]"), {"is_causal": 1}),
        (("f32[2,4,5,8]", "f32[2,2,5,8]", "f32[2,2,5,8]", "f32[5,5]"), {"softcap": 2.0}),
        (("f32[2,5,32]", "f32[2,6,16]", "f32[2,6,16]", "bool[5,6]"), {"q_num_heads": 4, "kv_num_heads": 2}),
    ],
)
def test_attention_gives_what_onnxruntime_gives(inputs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    check_with_onnxruntime("Attention", Example(inputs, attributes, opset=23))


@pytest.mark.parametrize("mode", [-1, 4, 1 << 40])
def test_scores_of_a_kind_that_there_is_not_are_refused(mode: int) -> None:
    """No kernel wrote them, so that the caller got what others had left in that memory."""
    example = Example(("f32[1,2,4,8]", "f32[1,2,7,8]", "f32[1,2,7,5]"), {"qk_matmul_output_mode": mode}, 4, 23)
    inputs = arrays(example)

    with pytest.raises(ShapeError, match=f"qk_matmul_output_mode {mode} is not known"):
        make_call(OPERATOR, example, inputs, [np.zeros(1, np.float32)] * 4, constant=False)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("seed", range(8))
def test_kernels_of_both_device_classes_on_random_sizes(seed: int, kind: str) -> None:
    """Whatever the sizes, heads, masks and cache, the kernels give what the reference gives."""
    random = np.random.default_rng(seed)
    batch, kv_heads, group, queries, new, past = (int(random.integers(1, n)) for n in (4, 4, 4, 20, 50, 9))
    size, value_size = int(random.integers(1, 70)), int(random.integers(1, 100))
    dtype = [np.float32, np.float32, np.float16][seed % 3]

    def filled(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(dtype)

    inputs: list[Any] = [
        filled(batch, kv_heads * group, queries, size),
        filled(batch, kv_heads, new, size),
        filled(batch, kv_heads, new, value_size),
        *(None,) * 4,
    ]
    keys = new
    if seed % 2:
        inputs[4], inputs[5] = filled(batch, kv_heads, past, size), filled(batch, kv_heads, past, value_size)
        keys += past
    elif seed % 4 == 0:
        inputs[6] = random.integers(0, keys + 1, batch).astype(np.int64)
    mask = [(keys,), (queries, keys), (batch, 1, queries, keys), (1, kv_heads * group, 1, max(1, keys - 2))][seed // 2]
    inputs[3] = random.random(mask) < 0.6 if seed % 3 else filled(*mask)
    window = -1 if seed % 5 else 2
    attributes = {"is_causal": seed // 2 % 2, "softcap": 3.0 * (seed % 4 == 1), "left_window_size": window}
    example = Example(tuple(inputs), attributes, opset=25)
    expected = reference(OPERATOR, example, arrays(example))
    call = make_call(OPERATOR, example, inputs, expected, constant=False)
    assert OPERATOR.implement is not None
    impl = OPERATOR.implement(call, DeviceTraits(kind, 2))

    (got,) = run_impl(impl, call, inputs)

    assert_close(expected[0], got, impl.name)


@pytest.mark.parametrize(
    ("shape", "attributes", "mask"),
    [
        ((1, 2, 2, 70, 300, 40, 45), {}, None),
        ((2, 1, 1, 130, 129, 64, 64), {"is_causal": 1}, None),
        ((1, 1, 2, 33, 257, 16, 8), {"left_window_size": 40, "right_window_size": 150}, "queries"),
        ((2, 3, 1, 8, 128, 33, 32), {"softcap": 4.0}, "keys"),
        ((1, 2, 1, 65, 400, 8, 100), {"scale": 0.7}, "hidden"),
    ],
    ids=str,
)
def test_blocks_of_rows_and_keys_give_the_exact_sums(shape: tuple[int, ...], attributes: Any, mask: str | None) -> None:
    """More rows and keys than a block has, and rows that see no key of some blocks: as exact as float32 can be."""
    batch, kv_heads, group, queries, keys, size, value_size = shape
    random = np.random.default_rng(queries)

    def filled(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    inputs: list[Any] = [
        filled(batch, kv_heads * group, queries, size),
        filled(batch, kv_heads, keys, size) * 2,
        filled(batch, kv_heads, keys, value_size),
    ]
    if mask == "queries":
        inputs.append(filled(1, 1, queries, keys))
    elif mask == "keys":
        inputs.append(np.where(random.random((batch, 1, 1, keys)) < 0.7, 0, -np.inf).astype(np.float32))
    elif mask == "hidden":  # the first 200 keys are hidden from every row, all of them from the last row
        hidden = np.arange(keys) < np.where(np.arange(queries) == queries - 1, keys, 200)[:, None]
        inputs.append(~hidden)
    example = Example(tuple(inputs), attributes, opset=25)
    (expected,) = reference(OPERATOR, example, inputs)
    call = make_call(OPERATOR, example, inputs, [expected], constant=False)
    assert OPERATOR.implement is not None
    impl = OPERATOR.implement(call, DeviceTraits("cpu", 2))

    (got,) = run_impl(impl, call, inputs)

    assert impl.name == "blocks"
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
