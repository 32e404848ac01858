"""State that stays on the device between the steps of a sequence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import asyncrt
from asyncrt import InputError, Model, Runtime, RuntimeOptions
from asyncrt.kernels.impl import Launch
from asyncrt.kernels.patterns.copy import copied_as_made, copy_two_launch
from asyncrt.layout import Array
from asyncrt.runtime.plan import kv_append
from asyncrt.runtime.plan.kv_append import grown

from ...builders import i64, model, node


@pytest_asyncio.fixture(params=("simulated", "host", None), ids=lambda d: d or "opencl")
async def rt(request: pytest.FixtureRequest, either_path: str) -> AsyncIterator[Runtime]:
    async with Runtime(request.param, streams=2, options=RuntimeOptions(warm=False)) as runtime:
        yield runtime
        assert runtime.statistics().memory.leases == 0
    assert runtime.statistics().memory.leases == 0


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attention(opset: int = 17) -> object:
    """One head layer: keys and values are appended to the past, and the step attends to all of them."""
    nodes = [
        node("k3 = MatMul(x, wk)"), node("k4 = Reshape(k3, heads)"), node("k = Transpose(k4)", perm=[0, 2, 1, 3]),
        node("v3 = MatMul(x, wv)"), node("v4 = Reshape(v3, heads)"), node("v = Transpose(v4)", perm=[0, 2, 1, 3]),
        node("present.key = Concat(past_key_values.key, k)", axis=-2),
        node("present.value = Concat(past_key_values.value, v)", axis=2),
        node("kt = Transpose(present.key)", perm=[0, 1, 3, 2]),
        node("s = MatMul(k, kt)"), node("p = Softmax(s)"), node("y = MatMul(p, present.value)"),
    ]  # fmt: skip
    past = ["past_key_values.key f32[batch,2,past,4]", "past_key_values.value f32[batch,2,past,4]"]
    constants = {"wk": floats(6, 8, seed=1), "wv": floats(6, 8, seed=2), "heads": i64(0, 0, 2, 4)}
    return model(nodes, ["x f32[batch,seq,6]", *past], ["y", "present.key", "present.value"], constants, opset=opset)


async def fed_back(loaded: Model, steps: list[Array]) -> list[Array]:
    """The same steps, with the state through the host."""
    batch = steps[0].shape[0]
    state = {f"past_key_values.{n}": np.zeros((batch, 2, 0, 4), np.float32) for n in ("key", "value")}
    found = []
    for x in steps:
        out = await loaded.infer({"x": x, **state})
        found.append(out.pop("y"))
        state = {name.replace("present", "past_key_values"): array for name, array in out.items()}
    return found


@pytest.mark.asyncio
async def test_a_decoder_with_its_cache_on_the_device_gives_what_feeding_it_back_gives(rt: Runtime) -> None:
    """A prompt, then token by token past the room that was kept ahead; bit for bit."""
    loaded = await rt.load(attention())
    steps = [floats(2, 120, 6), *(floats(2, 1, 6, seed=i) for i in range(12)), floats(2, 5, 6, seed=99)]

    async with loaded.sequence() as sequence:
        got = [(await sequence.infer({"x": x}))["y"] for x in steps]
        state = sequence.state

    for expected, y in zip(await fed_back(loaded, steps), got, strict=True):
        assert expected.tobytes() == y.tobytes()
    assert {n: str(layout) for n, layout in state.items()} == {
        "past_key_values.key": "float32[2,2,137,4]", "past_key_values.value": "float32[2,2,137,4]",
    }  # fmt: skip


@pytest.mark.asyncio
async def test_a_step_writes_the_new_rows_only(rt: Runtime) -> None:
    """There is room behind the past; when there is none, all of it is copied once."""
    loaded = await rt.load(attention())

    how = []
    async with loaded.sequence() as sequence:
        for length in (125, 1, 1, 1):
            await sequence.infer({"x": floats(1, length, 6)})
            how.append([n.implementation for n in loaded.explain() if n.operator == "Concat"])

    assert how == [
        ["appended, 125 of 125 written"] * 2,
        ["appended, 1 of 126 written"] * 2,
        ["appended, 1 of 127 written"] * 2,
        ["appended, 128 of 128 written"] * 2,
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("chained", [False, True])
async def test_keys_and_values_are_written_together_where_neither_needs_the_other(
    chained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch for both, bit for bit; where the values are rows of the keys just written, each has its own."""
    together: list[bool] = []

    def noted(*given: Any) -> Launch | None:
        launch = copy_two_launch(*given)
        together.append(launch is not None)
        return launch

    monkeypatch.setattr(kv_append, "copy_two_launch", noted)
    nodes = [
        node("k3 = MatMul(x, wk)"), node("k4 = Reshape(k3, heads)"), node("k = Transpose(k4)", perm=[0, 2, 1, 3]),
        node("v3 = Mul(k, two)"), node("present.key = Concat(past_key_values.key, k)", axis=2),
        node("last = Slice(present.key, minus, far, axis)"),
        node(f"present.value = Concat(past_key_values.value, {'last' if chained else 'v3'})", axis=2),
        node("y = Add(present.key, present.value)"),
    ]  # fmt: skip
    past = ["past_key_values.key f32[batch,2,past,4]", "past_key_values.value f32[batch,2,past,4]"]
    constants = {
        "wk": floats(6, 8, seed=1), "heads": i64(0, 0, 2, 4), "two": np.full(1, 2, np.float32), "minus": i64(-1),
        "far": i64(1 << 40), "axis": i64(2),
    }  # fmt: skip
    source = model(nodes, ["x f32[batch,1,6]", *past], ["y", "present.key", "present.value"], constants, opset=17)
    steps = [floats(2, 1, 6, seed=i) for i in range(20)]
    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(source)
        async with loaded.sequence() as sequence:
            got = [(await sequence.infer({"x": x}))["y"] for x in steps]
        expected = await fed_back(loaded, steps)

    assert [y.tobytes() for y in got] == [y.tobytes() for y in expected]
    assert any(together) != chained


@pytest.mark.asyncio
@pytest.mark.parametrize("words", [1, 2])
async def test_the_product_that_makes_keys_and_values_writes_them_where_they_are_kept(
    words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one word on a GPU, bit for bit; of more words a launch behind the product does."""
    written: list[bool] = []

    def noted(*given: Any) -> Launch | None:
        launch = copied_as_made(*given)
        written.append(launch is not None)
        return launch

    monkeypatch.setattr(kv_append, "copied_as_made", noted)
    nodes = [
        node("p = MatMul(x, w)"), node("qkv = Add(p, b)"), node("q, k1, v1 = Split(qkv)", axis=2, num_outputs=3),
        node("k2 = Reshape(k1, heads)"), node("k = Transpose(k2)", perm=[0, 2, 1, 3]),
        node("v2 = Reshape(v1, heads)"), node("v = Transpose(v2)", perm=[0, 2, 1, 3]),
        node("present.key = Concat(past_key_values.key, k)", axis=2),
        node("present.value = Concat(past_key_values.value, v)", axis=2),
        node("both = Add(present.key, present.value)"), node("summed = ReduceSum(both, axis)", keepdims=0),
        node("least = ReduceMin(q)", keepdims=0), node("y = Add(summed, least)"),
    ]  # fmt: skip
    past = ["past_key_values.key f32[batch,2,past,4]", "past_key_values.value f32[batch,2,past,4]"]
    constants = {"w": floats(40, 24, seed=1), "b": floats(24, seed=2), "heads": i64(0, 0, 2, 4), "axis": i64(2)}
    source = model(nodes, ["x f32[batch,n,40]", *past], ["y", "present.key", "present.value"], constants, opset=18)
    steps = [floats(1, words, 40, seed=i) for i in range(20)]
    async with Runtime(options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(source)
        async with loaded.sequence() as sequence:
            got = [(await sequence.infer({"x": x}))["y"] for x in steps]
        expected = await fed_back(loaded, steps)
        on_gpu = not rt.info.is_cpu and rt.info.takes_source

    assert [y.tobytes() for y in got] == [y.tobytes() for y in expected]
    assert any(written) == (on_gpu and words == 1)


def test_there_is_more_room_the_longer_it_is() -> None:
    """So that all is copied, and plans are made anew, a few times; it is half of what there is at most, and depends on
    the length alone."""
    room = [grown((2, length, 6), 1)[1] for length in range(5000)]

    assert list(dict.fromkeys(room)) == [128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144]
    assert all(length < capacity <= max(length + 128, length * 1.5) for length, capacity in enumerate(room))


@pytest.mark.asyncio
async def test_sequences_that_come_and_go_are_each_as_if_alone(rt: Runtime) -> None:
    """Eight of them, of random lengths, and inferences without state beside them; nothing is left when they end."""
    loaded = await rt.load(attention())
    rng = random.Random(3)
    work = [[floats(1 + n % 2, rng.choice((1, 1, 3)), 6, seed=rng.randrange(999)) for _ in range(9)] for n in range(8)]

    async def one(steps: list[Array]) -> list[Array]:
        async with loaded.sequence() as sequence:
            return [(await sequence.infer({"x": x}))["y"] for x in steps]

    together = await asyncio.gather(*(one(steps) for steps in work), *(fed_back(loaded, steps) for steps in work[:2]))

    for steps, got in zip(work, together, strict=False):
        for expected, y in zip(await fed_back(loaded, steps), got, strict=True):
            assert expected.tobytes() == y.tobytes()


@pytest.mark.asyncio
async def test_a_recurrent_state_is_kept_too(rt: Runtime) -> None:
    """It begins as zeros, or as what the first step is given; states that change places do not overwrite each other."""
    nodes = [node("next_a = Add(b, x)"), node("next_b = Identity(a)"), node("y = Mul(a, b)")]
    source = model(nodes, ["x f32[n]", "a f32[n]", "b f32[n]"], ["y", "next_a", "next_b"])
    loaded = await rt.load(source)
    xs = [floats(5, seed=i) for i in range(6)]

    async with loaded.sequence() as zeros, loaded.sequence() as ones:
        got = [[(await s.infer({"x": x, **extra}))["y"] for s, extra in ((zeros, {}), (ones, first))]
               for x, first in zip(xs, [{"a": np.ones(5, np.float32)}] + [{}] * 5, strict=True)]  # fmt: skip

    for which, a in enumerate((np.zeros(5, np.float32), np.ones(5, np.float32))):
        b = np.zeros(5, np.float32)
        for x, outs in zip(xs, got, strict=True):
            np.testing.assert_array_equal(a * b, outs[which])
            a, b = b + x, a


@pytest.mark.asyncio
async def test_a_cancelled_step_leaves_the_state_as_it_was(rt: Runtime) -> None:
    """Whenever it is cancelled; the step may be tried again, and the end is the same."""
    loaded = await rt.load(attention())
    steps = [floats(1, 2, 6, seed=i) for i in range(4)]
    expected = await fed_back(loaded, steps)

    for turns in range(12):
        async with loaded.sequence() as sequence:
            got = []
            for x in steps:
                task = asyncio.ensure_future(sequence.infer({"x": x}))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if not task.done():
                    task.cancel()
                done = await asyncio.gather(task, return_exceptions=True)
                if isinstance(done[0], BaseException):
                    got.append((await sequence.infer({"x": x}))["y"])
                else:
                    got.append(done[0]["y"])
        assert [e.tobytes() for e in expected] == [g.tobytes() for g in got]


@pytest.mark.asyncio
async def test_what_does_not_fit_is_said_and_changes_nothing(rt: Runtime) -> None:
    """Dims of the state, state that comes again, names that are not there, and use after the end."""
    loaded = await rt.load(attention())
    plain = await rt.load(model([node("y = Neg(x)")], ["x f32[n]"], ["y"]))

    async with loaded.sequence() as sequence:
        await sequence.infer({"x": floats(2, 3, 6)})
        with pytest.raises(InputError, match="'batch', which is 1 by"):
            await sequence.infer({"x": floats(1, 3, 6)})
        with pytest.raises(InputError, match=r"'past_key_values\.key' is kept on the device"):
            await sequence.infer({"x": floats(2, 1, 6), "past_key_values.key": floats(2, 2, 3, 4)})
        assert sequence.state["past_key_values.key"].shape == (2, 2, 3, 4)
    with pytest.raises(asyncrt.SequenceError, match="closed"):
        await sequence.infer({"x": floats(2, 1, 6)})
    with pytest.raises(asyncrt.SequenceError, match="no state that could be told"):
        plain.sequence()
    with pytest.raises(asyncrt.SequenceError, match="no 'z'"):
        plain.sequence({"z": "y"})


@pytest.mark.asyncio
async def test_memory_that_does_not_suffice_leaves_the_state_as_it_was() -> None:
    """The limit holds for what is kept, too; the sequence goes on when there is room again."""
    options = RuntimeOptions(warm=False, memory_limit=1 << 19, without={"preallocate"}, idle_release_s=0)
    async with Runtime("simulated", options=options) as rt:
        loaded = await rt.load(attention())
        async with loaded.sequence() as sequence:
            first = await sequence.infer({"x": floats(1, 100, 6)})
            with pytest.raises(asyncrt.OutOfDeviceMemory):
                await sequence.infer({"x": floats(1, 2000, 6)})
            second = await sequence.infer({"x": floats(1, 1, 6, seed=5)})

    expected = await _alone([floats(1, 100, 6), floats(1, 1, 6, seed=5)])
    assert [e.tobytes() for e in expected] == [first["y"].tobytes(), second["y"].tobytes()]


async def _alone(steps: list[Array]) -> list[Array]:
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        return await fed_back(await rt.load(attention()), steps)
