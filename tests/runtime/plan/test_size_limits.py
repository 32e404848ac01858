"""Requests whose tensors have more elements than kernels index: a typed error, and nothing else happens."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import AsyncrtError, Runtime, RuntimeOptions, SizeLimitError
from asyncrt.kernels.reach import MOST
from asyncrt.layout import Array

from ...builders import i64, model, node

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
    return {"a": random.integers(0, 100, (rows, 1), np.uint8), "b": random.integers(0, 100, (1, columns), np.uint8)}


def of_a_product(rows: int, columns: int) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {
        "a": random.integers(0, 9, (rows, 2)).astype(np.float16),
        "b": random.integers(0, 9, (2, columns)).astype(np.float16),
    }


OPTIONS = {
    "by default": RuntimeOptions(check_hazards=False),
    "checked": RuntimeOptions(check_hazards=True),
    "without views, recipes and fusion": RuntimeOptions(check_hazards=False, without={"views", "recipes", "fuse"}),
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


@pytest.mark.asyncio
@pytest.mark.parametrize("case", _AFTER_A_SUM)
async def test_nobody_gets_bytes_of_an_earlier_caller(case: str) -> None:
    """What is too large is refused rather than left unwritten in memory that others have used: of a caller whose bytes
    are all 255, which no result of the next one can have, nothing is found."""
    async with Runtime(options=RuntimeOptions(check_hazards=False)) as rt:
        loaded = await rt.load(after_a_sum(case))
        secret = {"a": np.full((700, 1), 255, np.uint8), "b": np.zeros((1, 900), np.uint8)}
        for _ in range(3):
            await loaded.infer(secret)

        refused = await asyncio.gather(
            *(loaded.infer(of_a_sum(_ROWS + i, _COLUMNS)) for i in range(3)), return_exceptions=True
        )
        after = (await loaded.infer(of_a_sum(700, 900)))["y"]

        assert [SizeLimitError] * 3 == [type(e) for e in refused]
        assert 255 not in after.astype(np.int64)


def rows_of_a_batch() -> onnx.ModelProto:
    nodes = [node("s = Add(a, b)"), node("y = ReduceMax(s, last)", keepdims=0)]
    return model(nodes, ["a u8[batch,rows,1]", "b u8[batch,1,columns]"], ["y"], {"last": i64(2)})


def request(rows: int, columns: int, value: int) -> dict[str, Array]:
    return {"a": np.full((1, rows, 1), value, np.uint8), "b": np.ones((1, 1, columns), np.uint8)}


@pytest.mark.asyncio
@pytest.mark.parametrize("hazards", [False, True], ids=["by default", "checked"])
async def test_callers_who_share_batches_with_one_that_is_too_large_get_their_own_results(hazards: bool) -> None:
    """Of the callers who come together only the one that is too large is told so."""
    async with Runtime(options=RuntimeOptions(check_hazards=hazards)) as rt:
        loaded = await rt.load(rows_of_a_batch())
        async with loaded.batched(max_batch=8, max_delay=0.01) as batched:
            answers = await asyncio.gather(
                *(batched.infer(request(3, 5, value)) for value in range(6)),
                batched.infer(request(_ROWS, _COLUMNS, 6)),
                *(batched.infer(request(3, 5, value)) for value in range(7, 13)),
                return_exceptions=True,
            )

        assert isinstance(answers[6], SizeLimitError)
        for value in (*range(6), *range(7, 13)):
            answer = answers[value]
            assert isinstance(answer, dict), answer
            np.testing.assert_array_equal(np.full((1, 3), value + 1), answer["y"])


@pytest.mark.asyncio
@pytest.mark.slow
async def test_callers_who_are_too_large_together_run_alone() -> None:
    """Each of 17 fits, six of them as one batch do not: each has its answer all the same.

    One begins at once; of the 16 others six share a batch even if it takes three batches to run them.
    """
    rows = columns = 20_000
    assert rows * columns <= MOST < 6 * rows * columns
    async with Runtime(options=RuntimeOptions(check_hazards=False)) as rt:
        loaded = await rt.load(rows_of_a_batch())
        async with loaded.batched(max_batch=17, max_in_flight=1, mode="exact") as batched:
            answers = await asyncio.gather(*(batched.infer(request(rows, columns, value)) for value in range(17)))
            failed = batched.statistics().failed

        assert failed
        for value, answer in enumerate(answers):
            np.testing.assert_array_equal(np.full((1, rows), value + 1), answer["y"])


@pytest.mark.asyncio
async def test_a_step_whose_state_would_be_too_large_leaves_the_state_as_it_was() -> None:
    """What is new fits, and so does what there is; both together do not."""
    nodes = [
        node("new = Add(a, b)"),
        node("present = Concat(past, new)", axis=1),
        node("y = ReduceMax(present, ones)", keepdims=0),
    ]
    inputs = ["past u8[batch,past,columns]", "a u8[batch,steps,1]", "b u8[batch,1,columns]"]
    source = model(nodes, inputs, ["present", "y"], {"ones": i64(1)})
    rows = MOST // _COLUMNS

    def step(rows: int, value: int) -> dict[str, Array]:
        return {"a": np.full((1, rows, 1), value, np.uint8), "b": np.ones((1, 1, _COLUMNS), np.uint8)}

    async with Runtime(options=RuntimeOptions(check_hazards=False)) as rt:
        loaded = await rt.load(source)
        async with loaded.sequence({"past": "present"}) as sequence:
            for value in (1, 2, 3):
                before = (await sequence.infer(step(2, value)))["y"]
            with pytest.raises(SizeLimitError):
                await sequence.infer(step(rows, 200))
            after = (await sequence.infer(step(1, 0)))["y"]

        np.testing.assert_array_equal(np.full((1, _COLUMNS), 4), before)
        np.testing.assert_array_equal(np.full((1, _COLUMNS), 4), after)


@pytest.mark.asyncio
async def test_what_no_kernel_touches_may_be_as_large_as_it_likes() -> None:
    """A view of 2^40 elements costs nothing until somebody reads it; who reads a part of it by a kernel is refused."""
    nodes = [node("wide = Expand(x, to)"), node("shape = Shape(wide)"), node("y = Add(wide, one)")]
    constants = {"to": i64(1 << 20, 1 << 20), "one": np.float32(1)}
    async with Runtime(options=RuntimeOptions(check_hazards=False)) as rt:
        seen = await rt.load(model(nodes[:2], ["x f32[1,1]"], ["shape"], constants))
        read = await rt.load(model(nodes, ["x f32[1,1]"], ["y"], constants))
        x = np.ones((1, 1), np.float32)

        np.testing.assert_array_equal([1 << 20, 1 << 20], (await seen.infer({"x": x}))["shape"])
        with pytest.raises(SizeLimitError, match="1,099,511,627,776 elements"):
            await read.infer({"x": x})


_STEP: dict[str, Any] = {"kernel_shape": [1, 2], "strides": [1 << 40, 1], "pads": [0, 1, 0, 1], "count_include_pad": 1}
HOSTILE = {
    "cells that lie far apart": (
        [node("y = LpPool(x)", kernel_shape=[3, 1], dilations=[1 << 30, 1], pads=[1 << 30, 0] * 2)], {},
    ),
    "a step between windows": ([node("y = AveragePool(x)", **_STEP)], {}),
    "a border": ([node("y = Pad(x, pads)", mode="edge")], {"pads": i64(0, 0, 0, 0, 0, 0, 0, 1 << 33)}),
    "zeros between elements": (
        [node("y = ConvTranspose(x, w)", strides=[(1 << 31) - 1, 1], pads=[5, 0, 5, 0])],
        {"w": np.ones((1, 1, 11, 1), np.float32)},
    ),
    "repeats": ([node("y = Tile(x, times)")], {"times": i64(1 << 20, 1 << 20, 1, 1)}),
    "a shape": ([node("s = Expand(x, to)"), node("y = Neg(s)")], {"to": i64(1 << 31, 1 << 31, 1 << 31, 1)}),
    "an interpolation": ([node("y = Resize(x, , , to)", mode="linear")], {"to": i64(1, 1, 1 << 20, 1 << 20)}),
    "a depth": ([node("c = Cast(x)", to=7), node("y = OneHot(c, depth, values)")],
                {"depth": i64(1 << 40), "values": np.array([0, 1], np.float32)}),
}  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("case", HOSTILE)
async def test_small_inputs_that_hostile_attributes_make_large_are_refused(case: str) -> None:
    """Sizes that come from attributes and constants are held to the same rule as those of tensors."""
    nodes, constants = HOSTILE[case]
    async with Runtime(options=RuntimeOptions(check_hazards=False, max_rank=8)) as rt:
        loaded = await rt.load(model(nodes, ["x f32[a,b,h,w]"], ["y"], constants))

        with pytest.raises(SizeLimitError):
            await loaded.infer({"x": np.ones((1, 1, 1, 1), np.float32)})


@pytest.mark.asyncio
@pytest.mark.parametrize("device", [None, "host"])
async def test_a_window_over_channels_that_is_wider_than_32_bits_sees_all_channels(device: str | None) -> None:
    """Where a window ends beyond the tensor makes no difference, however far beyond."""
    size = (1 << 32) - 2
    source = model([node("y = LRN(x)", size=size, alpha=float(size), beta=0.5)], ["x f32[n,c]"], ["y"])
    async with Runtime(device, options=RuntimeOptions(check_hazards=False)) as rt:
        x = np.arange(1, 11, dtype=np.float32).reshape(2, 5)

        got = (await (await rt.load(source)).infer({"x": x}))["y"]

        np.testing.assert_allclose(x / np.sqrt(1 + np.square(x).sum(axis=1, keepdims=True)), got, rtol=1e-5)


_B, _LAST, _FIRST = 1 << 62, (1 << 63) - 1, -(1 << 63)
#: Nodes that take sizes from v, and values of it. Each gives a result, or an error that says what is wrong.
VALUES: dict[str, tuple[list[onnx.NodeProto], list[Array]]] = {
    "Expand": ([node("y = Expand(x, v)")], [i64(_B, _B, 1, 1), i64(_LAST), i64(-5), i64(_FIRST)]),
    "Tile": ([node("y = Tile(x, v)")], [i64(_B, _B, 1, 1), i64(*[_LAST] * 4), i64(_FIRST, 1, 1, 1)]),
    "ConstantOfShape": (
        [node("y = ConstantOfShape(v)")], [i64(_B, _B), i64(_LAST), i64(-1), i64(0, _LAST), i64(_LAST, 0, _B)],
    ),
    "Reshape": ([node("y = Reshape(x, v)")], [i64(_B, 4), i64(_B, _B, -1), i64(_FIRST, -1), i64(_B, 4, -1)]),
    "Pad": (
        [node("y = Pad(x, v)")],
        [i64(first, 0, 0, 0, last, 0, 0, 0) for first, last in ((_LAST, _LAST), (_FIRST, _LAST), (_LAST, -_LAST))],
    ),
    "Resize to": ([node("y = Resize(x, , , v)")], [i64(_B, _B, 1, 1), i64(-1, 1, 1, 1), i64(_LAST, 0, 1, 1)]),
    "Resize by": (
        [node("y = Resize(x, , v)")],
        [np.array([1, 1, s, s], np.float32) for s in (1e30, np.inf, np.nan, 1e-38, -1, 3e38)],
    ),
    "OneHot": ([node("c = Cast(x)", to=7), node("y = OneHot(c, v, ends)")], [i64(_LAST), i64(_FIRST)]),
    "TopK": ([node("y, i = TopK(x, v)")], [i64(_LAST), i64(-1)]),
    "Range": ([node("y = Range(low, high, v)")], [np.array(d, np.int64) for d in (1, 0, _FIRST, _LAST)]),
    "Slice": ([node("y = Slice(x, v, v)")], [i64(_FIRST, _LAST, _FIRST, _LAST), i64(*[_LAST] * 4)]),
    "Split": ([node("y, z = Split(x, v)")], [i64(_LAST, 1 - _LAST), i64(_B, _B), i64(_FIRST, _LAST)]),
    "CenterCropPad": ([node("y = CenterCropPad(x, v)")], [i64(*[_LAST] * 4), i64(-1, 1, 1, 1)]),
    "Unsqueeze": ([node("y = Unsqueeze(x, v)")], [i64(_LAST), i64(_FIRST)]),
    "a product of sizes": (
        [node("s = Shape(x)"), node("m = Mul(s, v)"), node("y = ConstantOfShape(m)")],
        [i64(_B, _B, 4, 4), i64(*[_LAST] * 4), i64(*[_FIRST] * 4)],
    ),
    "a product of sizes as a result": (
        [node("s = Shape(x)"), node("m = Mul(s, v)"), node("y = Mul(m, v)")], [i64(_B, _B, 4, 4), i64(*[_LAST] * 4)],
    ),
    "a sum of sizes": ([node("s = Shape(x)"), node("m = Add(s, v)"), node("y = Expand(x, m)")], [i64(*[_LAST] * 4)]),
    "Size": ([node("wide = Expand(x, v)"), node("y = Size(wide)")], [i64(_B, _B, 1, 1), i64(*[_LAST] * 4)]),
    "Col2Im": ([node("r = Reshape(x, three)"), node("y = Col2Im(r, v, v)")], [i64(1 << 40, 1 << 40), i64(_B, _B)]),
}  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("device", [None, "host"], ids=["opencl", "host"])
@pytest.mark.parametrize("operator", VALUES)
async def test_the_largest_and_smallest_numbers_as_sizes_give_a_result_or_a_typed_error(
    operator: str, device: str | None
) -> None:
    """Sizes near 2^63 and below 0, as constants and as inputs: no product of them overflows into one that seems to fit,
    no allocation is tried, and nothing but errors of this package is raised; a plain request is exact afterwards."""
    nodes, hostile = VALUES[operator]
    others = {
        "ends": np.array([0, 1], np.float32), "low": np.array(0, np.int64), "high": np.array(_LAST, np.int64),
        "three": i64(1, 1, 1),
    }  # fmt: skip
    used = {name for n in nodes for name in n.input}
    constants = {name: value for name, value in others.items() if name in used}
    x = np.ones((1, 1, 1, 1), np.float32)
    options = RuntimeOptions(check_hazards=False, memory_limit=64 << 20)
    async with Runtime(device, options=options) as rt:
        for v in hostile:
            kind = "f32" if v.dtype == np.float32 else "i64"
            dims = ",".join(map(str, v.shape))
            for inputs, more, feed in (
                ([f"v {kind}[{dims}]"], {}, {"v": v}),
                ([], {"v": v}, {}),
            ):  # fmt: skip
                with contextlib.suppress(AsyncrtError):
                    loaded = await rt.load(model(nodes, ["x f32[a,b,h,w]", *inputs], ["y"], constants | more))
                    for _ in range(2):
                        given = {"x": x, **feed}
                        await loaded.infer({name: given[name] for name in loaded.inputs})
        plain = await rt.load(model([node("y = Add(x, x)")], ["x f32[a,b,h,w]"], ["y"]))

        np.testing.assert_array_equal(x + x, (await plain.infer({"x": x}))["y"])
