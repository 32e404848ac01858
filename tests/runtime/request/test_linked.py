"""Iterations of a loop that follow one another at once give what each gives alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import IndexOutOfRange, IterationLimitError, Runtime, RuntimeOptions
from asyncrt.devices.base import Again, Allocation, Prepared, PreparedLaunch, Transfer
from asyncrt.devices.simulated import SimulatedDevice, SimulatedPrepared
from asyncrt.layout import Array

OFTEN = 6
"""Requests until launches are prepared, and it is known how long they take."""
COUNTS = """<ir_version: 8, opset_import: ["" : 18]>
looped (int64 n, float[w] x, float[k] table) => (float[w] y, float[t, w] all, int64 count) {
    none = Constant <value = int64 {0}> ()
    count, y, all = Loop (n, , none, x) <body = b (int64 i, bool go, int64 c, float[w] v)
        => (bool on, int64 d, float[w] u, float[w] s) {
        one = Constant <value = int64 {1}> ()
        d = Add (c, one)
        element = Gather (table, i)
        u = Sub (element, v)
        s = Mul (u, v)
        on = Identity (go)
    }>
}"""
ENDS = """<ir_version: 8, opset_import: ["" : 18]>
looped (int64 n, float[w] x, float[k] table) => (float[w] y, float[t, w] all) {
    y, all = Loop (, , x) <body = b (int64 i, bool go, float[w] v) => (bool on, float[w] u, float[w] s) {
        one = Constant <value = float {1}> ()
        u = Add (v, one)
        s = Neg (v)
        most = ReduceMax <keepdims = 0> (u)
        f = Cast <to = 1> (n)
        on = Less (most, f)
    }>
}"""
GROWS = """<ir_version: 8, opset_import: ["" : 18]>
looped (int64 n, float[w] x, float[k] table) => (float[w] y) {
    y = Loop (n, , x) <body = b (int64 i, bool go, float[w] v) => (bool on, float[w] u) {
        m = Neg (v)
        u = Concat <axis = 0> (m, table)
        on = Identity (go)
    }>
}"""


class Repeating(SimulatedDevice):
    """A device that lends its work to who waits, and counts what it is asked to repeat."""

    def __init__(self) -> None:
        super().__init__(joins=True)
        self.repeats = self.times = 0

    def duration(self) -> float:
        return 1e-6

    def prepare(
        self, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation], native: bool = True
    ) -> Prepared | None:
        return _Repeated(self, launches, memory)


class _Repeated(SimulatedPrepared):
    def __init__(self, device: Repeating, launches: Sequence[PreparedLaunch], memory: Sequence[Allocation]) -> None:
        super().__init__(launches, memory, runs=True)
        self._device = device

    def repeat(
        self, stream: Any, writes: Sequence[Transfer], reads: Sequence[Transfer], again: Again, *, single: bool = False
    ) -> int:
        times = super().repeat(stream, writes, reads, again, single=single)
        self._device.repeats += 1
        self._device.times += times
        return times


def feeds(n: int = 40, width: int = 5) -> dict[str, Array]:
    random = np.random.default_rng(n)
    x, table = random.standard_normal(width) - 3, random.standard_normal(64)
    return {"n": np.array(n), "x": x.astype(np.float32), "table": table.astype(np.float32)}


async def results(device: Any, text: str, requests: Sequence[dict[str, Array]], **options: Any) -> list[bytes]:
    """The bytes of all results, each request often enough."""
    async with Runtime(device, options=RuntimeOptions(check_hazards=False, warm=False, **options)) as rt:
        loaded = await rt.load(onnx.parser.parse_model(text))
        made = [await loaded.infer(r) for r in requests for _ in range(OFTEN)]
        assert rt.statistics().memory.leases == 0
    return [b"".join(a.tobytes() for a in m.values()) for m in made]


@pytest.mark.asyncio
@pytest.mark.parametrize("text", [COUNTS, ENDS, GROWS], ids=["counts", "ends", "grows"])
@pytest.mark.parametrize("width", [5, 5000])
async def test_results_are_those_of_one_iteration_after_the_other(text: str, width: int, users_path: None) -> None:
    """Bit for bit, on a real device, whatever is carried: little and much, and what grows."""
    most = 10 if text is GROWS else 60
    requests = [feeds(n, width) for n in (40, 1, 0, 40, most)]

    wanted = await results(None, text, requests, without={"direct"})

    assert await results(None, text, requests) == wanted
    assert await results(Repeating(), text, requests) == await results("simulated", text, requests)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "n", "repeats"),
    [(COUNTS, 40, True), (ENDS, 40, True), (GROWS, 10, False)],
    ids=["counts", "ends", "grows"],
)
async def test_many_iterations_are_few_calls(text: str, n: int, repeats: bool, users_path: None) -> None:
    """Where what is carried keeps its shape; launches and iterations are counted one by one, as before."""
    counted: list[tuple[int, str]] = []
    device = Repeating()
    for which, without in ((device, frozenset[str]()), ("simulated", frozenset({"direct"}))):
        options = RuntimeOptions(check_hazards=False, warm=False, without=without)
        async with Runtime(which, options=options) as rt:
            loaded = await rt.load(onnx.parser.parse_model(text))
            for _ in range(OFTEN):
                await loaded.infer(feeds(n))
            device.repeats = device.times = 0
            before = rt.statistics().launches
            await loaded.infer(feeds(n))
            (loop,) = (node for node in loaded.explain() if node.operator == "Loop")
            counted.append((rt.statistics().launches - before, loop.why))
            if which is device:
                assert (device.repeats > 0) is repeats
                assert device.times >= 10 * device.repeats

    assert counted[0] == counted[1]


@pytest.mark.asyncio
async def test_a_wrong_index_in_the_middle_ends_it(users_path: None) -> None:
    """With the error that one iteration after the other gives; the next request is none the worse."""
    async with Runtime(options=RuntimeOptions(check_hazards=False, warm=False)) as rt:
        loaded = await rt.load(onnx.parser.parse_model(COUNTS))
        for _ in range(OFTEN):
            await loaded.infer(feeds())

        with pytest.raises(IndexOutOfRange, match="64"):
            await loaded.infer(feeds(70))

        assert (await loaded.infer(feeds()))["count"] == 40


@pytest.mark.asyncio
async def test_no_more_iterations_than_there_may_be(users_path: None) -> None:
    """One that is too many is refused, and none after it was begun."""
    device = Repeating()
    async with Runtime(device, options=RuntimeOptions(check_hazards=False, warm=False, max_iterations=50)) as rt:
        loaded = await rt.load(onnx.parser.parse_model(COUNTS))
        for _ in range(OFTEN):
            await loaded.infer(feeds(50))

        with pytest.raises(IterationLimitError, match="went round 51 times"):
            await loaded.infer(feeds(60))
