"""Requests whose tensors have more elements than kernels index: a typed error, and nothing else happens."""

from __future__ import annotations

import asyncio

import numpy as np
import onnx
import pytest

import asyncrt
from asyncrt import Runtime, RuntimeOptions, SizeLimitError
from asyncrt.kernels.reach import MOST
from asyncrt.layout import Array

from ..builders import i64, model, node

_ROWS, _COLUMNS = 50_000, 46_000  # each fits 32 bits, and the product does not

# What is asked of u8[rows,1] + u8[1,columns]; and the same in NumPy.
_AFTER_A_SUM = {
    "the largest of each row": ([node("y = ReduceMax(s, ones)", keepdims=0)], {"ones": i64(1)}),
    "one column": ([node("y = Gather(s, last)", axis=1)], {"last": i64(-1)}),
    "the mean of each row, as halves": (
        [node("h = Cast(s)", to=10), node("y = ReduceMean(h, ones)", keepdims=0)], {"ones": i64(1)},
    ),
    "a border": ([node("y = Pad(s, border)")], {"border": i64(0, 1, 0, 1)}),
    "the other way round": ([node("y = Transpose(s)")], {}),
    "beside itself": ([node("y = Concat(s, s)", axis=0)], {}),
    "every second column": ([node("y = Slice(s, from, to, ones, two)")],
                            {"from": i64(0), "to": i64(1 << 40), "ones": i64(1), "two": i64(2)}),
}  # fmt: skip


def after_a_sum(name: str) -> onnx.ModelProto:
    nodes, constants = _AFTER_A_SUM[name]
    return model([node("s = Add(a, b)"), *nodes], ["a u8[rows,1]", "b u8[1,columns]"], ["y"], constants)


def product() -> onnx.ModelProto:
    return model([node("y = MatMul(a, b)")], ["a f16[rows,2]", "b f16[2,columns]"], ["y"])


def of_a_sum(rows: int, columns: int, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        "a": random.integers(0, 100, (rows, 1), np.uint8), "b": random.integers(0, 100, (1, columns), np.uint8)
    }  # fmt: skip


def of_a_product(rows: int, columns: int) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {
        "a": random.integers(0, 9, (rows, 2)).astype(np.float16), "b": random.integers(0, 9, (2, columns)).astype(np.float16)
    }  # fmt: skip


OPTIONS = {
    "by default": RuntimeOptions(check_hazards=False),
    "checked": RuntimeOptions(check_hazards=True),
    "without views, recipes and fusion": RuntimeOptions(check_hazards=False, views=False, recipes=False, fuse=False),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("case", [*_AFTER_A_SUM, "a product"])
async def test_what_kernels_cannot_index_is_refused_and_the_next_request_is_exact(
    case: str, options: RuntimeOptions
) -> None:
    """A request beyond 32 bits is told which tensor is too large, before anything of it runs; others never notice."""
    inputs = of_a_product if case == "a product" else of_a_sum
    async with Runtime(options=options) as rt, Runtime("host") as host:
        source = product() if case == "a product" else after_a_sum(case)
        loaded, slow = await rt.load(source), await host.load(source)
        shapes = ((3, 5), (3, 5), (3, 5), (7, 33), (40, 20), (41, 21))  # seen before, often, by recipe
        expected = [(await slow.infer(inputs(*shape)))["y"] for shape in shapes]

        for _ in range(2):
            for shape, wanted in zip(shapes, expected, strict=True):
                np.testing.assert_array_equal(wanted, (await loaded.infer(inputs(*shape)))["y"])
            before = rt.statistics()
            with pytest.raises(SizeLimitError, match=r"has 2,300,000,000 elements") as refused:
                await loaded.infer(inputs(_ROWS, _COLUMNS))
            assert f"[{_ROWS},{_COLUMNS}]" in refused.value.message
            assert "split" in refused.value.hint
            assert before.launches == rt.statistics().launches
            assert before.memory.active == rt.statistics().memory.active
