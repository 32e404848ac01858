"""Requests of many callers in one batch: each gets what it would have got alone."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import attrs
import numpy as np
import pytest
import pytest_asyncio

import asyncrt
from asyncrt import (
    Batched,
    BatchingError,
    BatchOptions,
    DeadlineExceeded,
    InputError,
    Model,
    Overloaded,
    Runtime,
    RuntimeClosedError,
    RuntimeOptions,
)
from asyncrt.layout import Array
from asyncrt.runtime.numerics import difference, tolerance

from ... import virtual_loop
from ...builders import i64, model, node
from ...paths import on_path
from ...zoo import FOLDER, ZooModel
from .batched_models import across_rows, batch_in_the_middle, elementwise, floats, masked_mean, picks, unmasked_mean

ROOT = Path(__file__).parents[3]
OPTIONS = RuntimeOptions(warm=False, max_in_flight=1)


@pytest_asyncio.fixture(params=("simulated", "host", None), ids=lambda d: d or "opencl")
async def rt(request: pytest.FixtureRequest, either_path: str) -> AsyncIterator[Runtime]:
    async with Runtime(request.param, streams=1, options=on_path(OPTIONS)) as runtime:
        yield runtime
        assert runtime.statistics().in_flight == 0
    assert runtime.statistics().memory.leases == 0


def of_length(length: int, rows: int = 1) -> dict[str, Array]:
    return {"x": floats(rows, length, 4, seed=length)}


@contextlib.asynccontextmanager
async def held(loaded: Model, batched: Batched) -> AsyncIterator[asyncio.Task[dict[str, Array]]]:
    """While this lasts, nothing gets on the device, and one request keeps its only stream: who comes now waits."""
    dispatcher, number = loaded.network.session.dispatcher, loaded.network.number()
    await dispatcher.admit(number)
    first = asyncio.create_task(batched.infer(of_length(3)))
    await asyncio.sleep(0)
    try:
        yield first
    finally:
        dispatcher.end(number)


async def turns(count: int = 5) -> None:
    """Let others go on."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_requests_of_different_lengths_run_as_few_and_get_their_own(rt: Runtime) -> None:
    """Each answer has its request's shape and numbers; the mask that they leave out is made."""
    loaded = await rt.load(masked_mean())
    lengths = (3, 9, 8, 7, 9, 10, 8, 11, 9)

    async with loaded.batched(max_waste=0.5, max_delay=10.0) as batched:
        got = await asyncio.gather(*(batched.infer(of_length(n)) for n in lengths))
        statistics = batched.statistics()

    for n, outputs in zip(lengths, got, strict=True):
        expected = await loaded.infer({**of_length(n), "attention_mask": np.ones((1, n), np.int64)})
        assert expected["kept"].tobytes() == outputs["kept"].tobytes()
        np.testing.assert_allclose(expected["mean"], outputs["mean"], rtol=1e-5)
        assert outputs["mean"].base is None
    assert statistics.executions < len(lengths) == statistics.members
    assert sum(statistics.reasons.values()) == statistics.executions
    assert statistics.padding > 0


@pytest.mark.asyncio
async def test_requests_bring_several_rows_and_the_batch_may_be_any_axis(rt: Runtime) -> None:
    """Rows are given back in the order in which they were joined."""
    loaded = await rt.load(batch_in_the_middle())
    requests = [floats(5, rows, 4, seed=rows) for rows in (1, 3, 2, 4)]

    async with loaded.batched(batch="batch") as batched:
        got = await asyncio.gather(*(batched.infer({"x": x}) for x in requests))

    for x, outputs in zip(requests, got, strict=True):
        np.testing.assert_allclose(np.tanh(x), outputs["y"], rtol=1e-5)


@pytest.mark.asyncio
async def test_one_request_by_itself_runs_as_it_is(rt: Runtime) -> None:
    """Nothing is padded, no task is made, and its runtime counts one request."""
    loaded = await rt.load(elementwise())

    async with loaded.batched() as batched:
        before = rt.statistics().requests
        outputs = await batched.infer(of_length(7))
        statistics = batched.statistics()

    assert outputs["y"].tobytes() == (-2 * of_length(7)["x"]).tobytes()
    assert (statistics.executions, statistics.padding, statistics.reasons["idle"]) == (1, 0, 1)
    assert rt.statistics().requests == before + 1


@pytest.mark.asyncio
async def test_the_story_of_one_request_by_itself_has_all_that_happened(rt: Runtime) -> None:
    """It came, was launched and began in one moment, and was over; so it is with a deadline, or if it fails."""
    loaded = await rt.load(elementwise())

    async with loaded.batched() as batched:
        await batched.infer(of_length(7))
        await batched.infer(of_length(7), deadline=60.0)
        await asyncio.sleep(0)  # a turn of the loop in which nobody has asked yet
        with pytest.raises(TimeoutError):
            await timed_out(batched)
        stories = [[entry.partition("(")[0] for entry in batched.state.story(n)] for n in (1, 2, 3)]
        statistics = batched.statistics()
        await batched.infer(of_length(7))  # the stream is free again

    assert stories[0] == stories[1] == ["Arrived", "LaunchBatch", "Began", "BatchFinished"]
    assert stories[2] == ["Arrived", "LaunchBatch", "Began", "BatchFinished", "Left"]
    assert (statistics.requests, statistics.members, statistics.left) == (3, 3, 0)
    assert (statistics.waiting, statistics.in_flight) == (0, 0)


@pytest.mark.parametrize("wrong", [{"x": np.ones((1, 2, 4))}, {"z": np.ones(1)}, {"x": floats(1, 2, 5)}, {}, None])
@pytest.mark.asyncio
async def test_a_wrong_request_fails_alone_before_it_joins(rt: Runtime, wrong: dict[str, Array] | None) -> None:
    """Its dtype, name or shape is told by the usual error, and others in the queue are not disturbed."""
    loaded = await rt.load(elementwise())

    async with loaded.batched() as batched:
        good = [asyncio.create_task(batched.infer(of_length(n))) for n in (4, 5, 6)]
        with pytest.raises(InputError):
            await batched.infer(wrong)  # type: ignore[arg-type]
        got = await asyncio.gather(*good)
        statistics = batched.statistics()

    assert [g["y"].shape[1] for g in got] == [4, 5, 6]
    assert (statistics.members, statistics.failed) == (3, 0)


@pytest.mark.asyncio
async def test_a_request_whose_contents_fail_fails_alone() -> None:
    """Its batch fails, each member runs alone, and only the guilty one gets the error, with its own positions."""
    async with Runtime("simulated", streams=1, options=OPTIONS) as rt:
        loaded = await rt.load(picks())
        good, bad = np.array([[1, 2, 3]]), np.array([[1, 99, 3]])

        async with loaded.batched() as batched:
            tasks = [asyncio.create_task(batched.infer({"i": i})) for i in (good, bad, good, good)]
            got = await asyncio.gather(*tasks, return_exceptions=True)
            statistics = batched.statistics()

    assert isinstance(got[1], asyncrt.IndexOutOfRange)
    assert (got[1].position, got[1].index) == (1, 99)
    for outputs in (got[0], got[2], got[3]):
        assert not isinstance(outputs, BaseException)
        assert floats(5, 3)[good].tobytes() == outputs["y"].tobytes()
    assert statistics.failed == 1
    assert statistics.reasons["retry"] > 1
    assert sum(statistics.reasons.values()) == statistics.executions


@pytest.mark.asyncio
async def test_who_is_cancelled_before_the_launch_is_no_work(rt: Runtime) -> None:
    """Nothing of it is enqueued, and its neighbours have their answers."""
    loaded = await rt.load(elementwise())

    async with loaded.batched(max_delay=10.0) as batched:
        async with held(loaded, batched) as first:
            waiting = [asyncio.create_task(batched.infer(of_length(n))) for n in (5, 6, 7, 8)]
            await turns()
            waiting[1].cancel()
            waiting[2].cancel()
            await turns()
        got = await asyncio.gather(first, *waiting, return_exceptions=True)
        statistics = batched.statistics()

    assert [isinstance(g, asyncio.CancelledError) for g in got[1:]] == [False, True, True, False]
    assert waiting[1].cancelled()
    assert (statistics.members, statistics.rows, statistics.left) == (3, 3, 2)


@pytest.mark.asyncio
async def test_when_all_members_leave_nothing_is_launched(rt: Runtime) -> None:
    """A batch of which nobody is left does not run; if it has begun, it is given up."""
    loaded = await rt.load(elementwise())

    async with loaded.batched(max_batch=2, max_delay=10.0) as batched:
        async with held(loaded, batched) as first:
            behind = [asyncio.create_task(batched.infer(of_length(n))) for n in (5, 6)]
            await turns()  # a full batch, put together and about to be enqueued
            waiting = [asyncio.create_task(batched.infer(of_length(n))) for n in (5, 6)]
            await asyncio.sleep(0)
            for task in (*behind, *waiting):
                task.cancel()
            await turns()
            in_flight = batched.statistics().in_flight
        got = await asyncio.gather(first, *behind, *waiting, return_exceptions=True)
        statistics = batched.statistics()

    assert [isinstance(g, asyncio.CancelledError) for g in got] == [False, True, True, True, True]
    assert in_flight == 1
    assert (statistics.members, statistics.executions, statistics.left) == (3, 2, 2)
    assert rt.statistics().cancelled == 1


async def on_the_device(loaded: Model, first: asyncio.Task[dict[str, Array]]) -> None:
    """Return when *first* has its answer, and what waited for its stream has been enqueued and is not passed."""
    await first
    async with asyncio.timeout(60):
        while not loaded.network.session.dispatcher.busy:
            await turns(1)


@pytest.mark.asyncio
async def test_callers_leave_batches_that_wait_and_batches_that_run(rt: Runtime) -> None:
    """Each is told at once; who stays has its own answer, and nobody waits for ever.

    Each round has a batching of its own, which has seen one run when it forms its batch: who is in it depends on sizes
    alone, and not on what it has learned of how long things take here.
    """
    loaded = await rt.load(masked_mean())
    lengths = (5, 6, 7, 8, 6, 7, 5, 8)
    stay, ended, counts = (0, 3, 5, 7), [], []

    for _ in range(5):
        async with loaded.batched(max_waste=0.5, max_delay=10.0) as batched:
            async with held(loaded, batched) as first:
                tasks = [asyncio.create_task(batched.infer(of_length(n))) for n in lengths]
                await turns()
                await left(tasks[1], tasks[4])  # while it waits
            await on_the_device(loaded, first)
            await left(tasks[2], tasks[6])  # while it runs
            async with asyncio.timeout(60):
                ended.append(await asyncio.gather(*(tasks[n] for n in stay)))
            counts.append(batched.statistics())

    for answers in ended:
        for n, outputs in zip(stay, answers, strict=True):
            mask = np.ones((1, lengths[n]), np.int64)
            expected = await loaded.infer({**of_length(lengths[n]), "attention_mask": mask})
            assert expected["kept"].tobytes() == outputs["kept"].tobytes()
            np.testing.assert_allclose(expected["mean"], outputs["mean"], rtol=1e-5)
    for each in counts:
        assert (each.executions, each.members, each.left) == (2, 7, 2)
        assert each.in_flight == each.waiting == 0


@pytest.mark.asyncio
async def test_a_batch_that_runs_for_nobody_is_given_up(rt: Runtime) -> None:
    """Its callers are told at once, its memory comes back, and the next has its answer."""
    loaded = await rt.load(elementwise())

    async with loaded.batched(max_delay=10.0) as batched:
        async with held(loaded, batched) as first:
            tasks = [asyncio.create_task(batched.infer(of_length(n))) for n in (5, 6, 5)]
            await turns()
        await on_the_device(loaded, first)
        await left(*tasks)
        async with asyncio.timeout(60):
            after = await batched.infer(of_length(7))
        statistics = batched.statistics()

    assert after["y"].tobytes() == (-2 * of_length(7)["x"]).tobytes()
    assert (statistics.executions, statistics.members, statistics.left) == (3, 5, 0)
    assert rt.statistics().cancelled == 1


async def left(*tasks: asyncio.Task[dict[str, Array]]) -> None:
    """Cancel callers, and let those who are told have a few turns of the loop, in which no device is waited for."""
    for task in tasks:
        assert not task.done()
        task.cancel()
    await turns(2)
    assert all(task.cancelled() for task in tasks)


@pytest.mark.asyncio
async def test_time_outs_and_groups_behave(rt: Runtime) -> None:
    """`asyncio.timeout`, `anyio.fail_after`, `anyio.move_on_after` and a TaskGroup are not lied to."""
    loaded = await rt.load(elementwise())
    others: list[asyncio.Task[dict[str, Array]]] = []

    async with loaded.batched() as batched:
        with pytest.raises(TimeoutError):
            await timed_out(batched)
        with pytest.raises(TimeoutError), anyio.fail_after(0):
            await batched.infer(of_length(3))
        with anyio.move_on_after(0) as scope:
            await batched.infer(of_length(3))
        with pytest.raises(ExceptionGroup):
            await in_a_group(batched, others)

    assert scope.cancelled_caught
    assert others[0].cancelled()
    assert batched.state.idle


async def timed_out(batched: Batched) -> None:
    async with asyncio.timeout(0):
        await batched.infer(of_length(3))


async def in_a_group(batched: Batched, others: list[asyncio.Task[dict[str, Array]]]) -> None:
    async with asyncio.TaskGroup() as group:
        others.append(group.create_task(batched.infer(of_length(3))))
        group.create_task(batched.infer({}))


@pytest.mark.asyncio
async def test_a_deadline_holds_without_any_other_setting(rt: Runtime) -> None:
    """It is the request's own; who has none waits as long as it takes."""
    loaded = await rt.load(elementwise())

    async with loaded.batched(max_delay=10.0) as batched:
        async with held(loaded, batched) as first:
            with pytest.raises(DeadlineExceeded, match=r"within 0.001 s|after the deadline") as caught:
                await batched.infer(of_length(4), deadline=0.001)
        patient = await batched.infer(of_length(4), deadline=60.0)
        await first

    assert isinstance(caught.value, TimeoutError)
    assert patient["y"].shape == (1, 4, 4)


@pytest.mark.asyncio
async def test_a_full_queue_refuses_at_once(rt: Runtime) -> None:
    """The error says when to come again; those that wait are served."""
    loaded = await rt.load(elementwise())

    async with loaded.batched(max_queue=2, max_delay=10.0) as batched:
        async with held(loaded, batched) as first:
            waiting = [asyncio.create_task(batched.infer(of_length(n))) for n in (5, 5)]
            await turns()
            with pytest.raises(Overloaded, match="max_queue") as caught:
                await batched.infer(of_length(5))
        await asyncio.gather(first, *waiting)
        statistics = batched.statistics()

    assert caught.value.retry_after_s > 0
    assert statistics.rejected["count"] == 1


@pytest.mark.asyncio
async def test_large_inputs_fill_the_queue_by_their_bytes(rt: Runtime) -> None:
    """One that does not fit is refused, a smaller one waits."""
    loaded = await rt.load(elementwise())

    async with loaded.batched(max_queue_bytes=1000, max_delay=10.0) as batched:
        async with held(loaded, batched) as first:
            with pytest.raises(Overloaded, match="max_queue_bytes"):
                await batched.infer(of_length(100))
            task = asyncio.create_task(batched.infer(of_length(5)))
            await turns()
        small = await task
        await first

    assert small["y"].shape == (1, 5, 4)


@pytest.mark.asyncio
async def test_closing_answers_those_who_wait(rt: Runtime) -> None:
    """Who comes later is refused, and told what to do."""
    loaded = await rt.load(elementwise())
    batched = loaded.batched(max_delay=10.0)

    async with batched:
        tasks = [asyncio.create_task(batched.infer(of_length(n))) for n in (3, 4, 5, 6)]
        await asyncio.sleep(0)

    assert [t.result()["y"].shape[1] for t in tasks] == [3, 4, 5, 6]
    with pytest.raises(BatchingError, match="closed"):
        await batched.infer(of_length(3))
    assert "closed" in repr(batched)


@pytest.mark.asyncio
async def test_what_is_not_open_says_so() -> None:
    """Neither an inference nor counts before it was opened, and it is opened once."""
    async with Runtime("host", options=OPTIONS) as rt:
        loaded = await rt.load(elementwise())
        batched = loaded.batched()

        with pytest.raises(BatchingError, match="async with"):
            await batched.infer(of_length(3))
        with pytest.raises(BatchingError, match="async with"):
            batched.statistics()
        async with batched:
            with pytest.raises(BatchingError, match="open already"):
                await batched.open()


@pytest.mark.asyncio
async def test_a_closed_runtime_is_told_of() -> None:
    """Not by a caller who waits for ever."""
    rt = Runtime("host", options=OPTIONS)
    await rt.open()
    loaded = await rt.load(elementwise())
    batched = loaded.batched()
    await batched.open()
    await rt.close()

    with pytest.raises(RuntimeClosedError):
        await batched.infer(of_length(3))


@pytest.mark.parametrize("mode", ["cost", "exact", "buckets"])
@pytest.mark.asyncio
async def test_the_modes_give_the_same(rt: Runtime, mode: str) -> None:
    """And pad as they say: nothing, to the longest, to powers of two."""
    loaded = await rt.load(elementwise())
    lengths = (5, 5, 6, 7, 5, 6)

    async with loaded.batched(mode=mode, max_delay=10.0) as batched:  # type: ignore[arg-type]
        got = await asyncio.gather(*(batched.infer(of_length(n)) for n in lengths))
        statistics = batched.statistics()

    for n, outputs in zip(lengths, got, strict=True):
        assert (-2 * of_length(n)["x"]).tobytes() == outputs["y"].tobytes()
    assert (statistics.padding == 0) == (mode == "exact")
    if mode == "buckets":
        assert statistics.work == 8 * 4 * 6


@pytest.mark.asyncio
async def test_a_scope_around_the_call_says_when_it_is_due() -> None:
    """Who has less time left goes first, without saying so to `infer()`."""
    async with Runtime("simulated", streams=1, options=OPTIONS) as rt:
        loaded = await rt.load(elementwise())
        order: list[int] = []

        async with loaded.batched(max_batch=1) as batched:

            async def ask(number: int, seconds: float) -> None:
                with anyio.move_on_after(seconds):
                    await batched.infer(of_length(3))
                    order.append(number)

            async with asyncio.TaskGroup() as group, held(loaded, batched):
                group.create_task(ask(0, 60.0))  # goes behind the one that is held
                await turns()
                group.create_task(ask(1, 60.0))
                group.create_task(ask(2, 0.4))
                await turns()

    assert order == [0, 2, 1]


@pytest.mark.asyncio
async def test_a_batch_that_memory_is_too_small_for_is_not_made_again(rt: Runtime) -> None:
    """Its members run alone, and from then on batches are half as large."""
    loaded = await rt.load(elementwise())
    loaded.network.direct = None  # nobody is answered before the others have come
    too_large: list[int] = []

    async with loaded.batched(max_delay=10.0) as batched:
        infer = loaded.network.infer

        async def refuse_large(arrays: dict[int, Array], *args: object, **known: object) -> object:
            (array,) = arrays.values()
            if array.shape[0] > 4:
                too_large.append(array.shape[0])
                raise asyncrt.OutOfDeviceMemory("no more than four rows fit")
            return await infer(arrays, *args, **known)  # type: ignore[arg-type]

        loaded.network.infer = refuse_large  # type: ignore[assignment, method-assign]
        for _ in range(3):
            got = await asyncio.gather(*(batched.infer(of_length(5)) for _ in range(9)))
        statistics = batched.statistics()

    assert [g["y"].shape for g in got] == [(1, 5, 4)] * 9
    assert too_large == [8]
    assert statistics.failed == 1


@pytest.mark.asyncio
async def test_what_is_another_bit_in_a_batch_is_not_batched(rt: Runtime) -> None:
    """With `batch_invariant`, a batch of a new shape is compared with runs alone; callers get what those give."""
    loaded = await rt.load(elementwise())
    loaded.network.direct = None  # nobody is answered before the others have come
    wrong: list[int] = []

    async with loaded.batched(max_delay=10.0, batch_invariant=True) as batched:
        infer = loaded.network.infer

        async def off_by_a_bit(arrays: dict[int, Array], *args: object, **known: object) -> object:
            outputs, records = await infer(arrays, *args, **known)  # type: ignore[arg-type]
            (id,) = outputs
            if outputs[id].shape[0] == 3:
                wrong.append(3)
                outputs[id] = np.nextafter(outputs[id], np.float32(9))
            return outputs, records

        loaded.network.infer = off_by_a_bit  # type: ignore[assignment, method-assign]
        for count in (4, 4, 5, 5):
            got = await asyncio.gather(*(batched.infer(of_length(n)) for n in (5, 6, 5, 5, 6)[:count]))
            for n, outputs in zip((5, 6, 5, 5, 6), got, strict=False):
                assert (-2 * of_length(n)["x"]).tobytes() == outputs["y"].tobytes()
        statistics = batched.statistics()

    assert wrong == [3]
    assert statistics.failed == 2
    assert statistics.executions < statistics.members


@pytest.mark.parametrize("name", ["bert_ts13", "distilbert_raw_dynamo18", "vit_ts17", "lstm_tagger_ts14"])
@pytest.mark.asyncio
@pytest.mark.usefixtures("shared_programs")
async def test_real_models_are_batched_without_another_bit(name: str) -> None:
    """Whatever may be padded or not for it: each answer is, byte for byte, that of the request alone.

    Where kernels change with the number of rows, as on GPUs, that takes requests one by one.
    """
    zoo = ZooModel(name, json.loads((FOLDER / f"{name}.json").read_text()))
    requests = [zoo.inputs(case, salt) for case in range(zoo.cases) for salt in range(3)]

    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(zoo.path)
        expected = [await loaded.infer(r) for r in requests]
        async with loaded.batched(max_delay=10.0, batch_invariant=True) as batched:
            got = await asyncio.gather(*(batched.infer(r) for r in requests))
            statistics = batched.statistics()

    for one, other in zip(expected, got, strict=True):
        assert {k: v.tobytes() for k, v in one.items()} == {k: v.tobytes() for k, v in other.items()}
    together = statistics.executions < statistics.members + statistics.failed
    assert together or not rt.info.is_cpu


@pytest.mark.parametrize(
    "name",
    ["bert_ts13", "bert_dynamo18", "distilbert_raw_dynamo18", "deberta_ts17", "resnet_bn_ts13", "lstm_tagger_ts14",
     "gru_tagger_ts17", "whisper_encoder_ts18", "whisper_decoder_ts17", "seq2seq_nn_ts14", "unet_nearest_dynamo18"],
)  # fmt: skip
@pytest.mark.asyncio
@pytest.mark.usefixtures("shared_programs")
async def test_real_models_give_in_a_batch_what_they_give_alone(name: str) -> None:
    """Within the tolerance of the check on opening; requests of all the shapes of their cases, at once."""
    zoo = ZooModel(name, json.loads((FOLDER / f"{name}.json").read_text()))
    requests = [zoo.inputs(case, salt) for case in range(zoo.cases) for salt in range(3)]

    async with Runtime(options=OPTIONS) as rt:
        loaded = await rt.load(zoo.path)
        expected = [await loaded.infer(r) for r in requests]
        async with loaded.batched(max_delay=10.0, max_waste=0.7) as batched:
            got = await asyncio.gather(*(batched.infer(r) for r in requests))
            statistics = batched.statistics()

    for one, other in zip(expected, got, strict=True):
        for key, array in one.items():
            if array.dtype.kind == "f":
                assert difference(array, other[key]) <= tolerance(array.dtype), key
            else:
                assert array.shape == other[key].shape
    assert statistics.executions < statistics.members


# What may be batched, and what may be padded.


@pytest.mark.asyncio
async def test_what_padding_would_change_is_batched_by_equal_shapes(
    rt: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so, and so does `pad_safety`; the results are right."""
    loaded = await rt.load(unmasked_mean())

    with caplog.at_level(logging.WARNING, "asyncrt.batching"):
        async with loaded.batched() as batched:
            got = await asyncio.gather(*(batched.infer(of_length(n)) for n in (5, 6, 5, 6, 5, 6)))
            statistics, safety = batched.statistics(), batched.pad_safety

    for n, outputs in zip((5, 6, 5, 6, 5, 6), got, strict=True):
        np.testing.assert_allclose(of_length(n)["x"].mean(1), outputs["y"], rtol=1e-4, atol=1e-6)
    assert (safety.rows, safety.padded) == (True, ())
    assert "output 'y' is another in a batch" in safety.refused["seq"]
    assert "'seq' must be equal" in caplog.text
    assert statistics.padding == 0
    assert statistics.executions < 6


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
@pytest.mark.asyncio
async def test_zeros_are_not_taken_for_nothing(operator: str, dtype: str) -> None:
    """Only a sum is none the worse for them, however the drawn numbers lie."""
    reduced = model([node(f"y = {operator}(x, one)", keepdims=0)], [f"x {dtype}[batch,seq]"], ["y"], {"one": i64(1)})
    async with Runtime("host", options=OPTIONS) as rt:
        loaded = await rt.load(reduced)

        async with loaded.batched() as batched:
            padded = batched.pad_safety.padded

    assert bool(padded) == (operator == "ReduceSum")


@pytest.mark.asyncio
async def test_what_is_padded_with_decides_whether_it_is_safe(rt: Runtime) -> None:
    """The largest of what there is: zeros may be larger than that, but nothing is less than minus infinity."""
    largest = model([node("y = ReduceMax(x, one)", keepdims=0)], ["x f32[batch,seq,4]"], ["y"], {"one": i64(1)})
    loaded = await rt.load(largest)
    lengths = (3, 9, 8, 7, 9)

    async with loaded.batched() as batched:
        with_zeros = batched.pad_safety.padded
    async with loaded.batched(pad_values={"x": -np.inf}, max_waste=0.9, max_delay=10.0) as batched:
        with_infinity = batched.pad_safety.padded
        got = await asyncio.gather(*(batched.infer({"x": -1 - abs(of_length(n)["x"])}) for n in lengths))
        statistics = batched.statistics()

    assert (with_zeros, with_infinity) == ((), ("seq",))
    assert statistics.padding > 0
    for n, outputs in zip(lengths, got, strict=True):
        assert (-1 - abs(of_length(n)["x"])).max(1).tobytes() == outputs["y"].tobytes()


@pytest.mark.asyncio
async def test_dims_that_are_safe_one_by_one_are_tried_together(rt: Runtime) -> None:
    """How many pairs are masked on both sides: padding of one side adds none, padding of both does."""
    nodes = [
        node("a = Sub(one, a_mask)"), node("b = Sub(one, b_mask)"),
        node("tall = Unsqueeze(a, two)"), node("wide = Unsqueeze(b, first)"), node("both = Mul(tall, wide)"),
        node("y = ReduceSum(both, last_two)", keepdims=0),
    ]  # fmt: skip
    constants = {"one": np.float32(1), "two": i64(2), "first": i64(1), "last_two": i64(1, 2)}
    loaded = await rt.load(model(nodes, ["a_mask f32[batch,n]", "b_mask f32[batch,m]"], ["y"], constants))

    async with loaded.batched() as batched:
        safety = batched.pad_safety

    assert safety.padded == ("n",)
    assert "together with 'n'" in safety.refused["m"]
    assert safety.holes


@pytest.mark.asyncio
async def test_rows_that_see_each_other_run_alone(rt: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    """No two requests share a batch, whatever their shapes."""
    loaded = await rt.load(across_rows())

    with caplog.at_level(logging.WARNING, "asyncrt.batching"):
        async with loaded.batched() as batched:
            await asyncio.gather(*(batched.infer(of_length(5)) for _ in range(6)))
            statistics, safety = batched.statistics(), batched.pad_safety

    assert not safety.rows
    assert "run alone" in caplog.text
    assert (statistics.executions, statistics.members) == (6, 6)


@pytest.mark.asyncio
async def test_what_has_no_batch_dim_is_refused() -> None:
    """And so are names that are none of the model's."""
    async with Runtime("host", options=OPTIONS) as rt:
        fixed = await rt.load(model([node("y = Neg(x)")], ["x f32[3,4]"], ["y"]))
        loaded = await rt.load(masked_mean())

        with pytest.raises(BatchingError, match="has no batch dim"):
            fixed.batched()
        with pytest.raises(BatchingError, match="has no batch dim 'rows'"):
            loaded.batched(batch="rows")
        with pytest.raises(BatchingError, match="'x' cannot be a mask"):
            loaded.batched(mask="x")
        with pytest.raises(BatchingError, match="there is no such input"):
            loaded.batched(pad_values={"z": 0})
        with pytest.raises(BatchingError, match="it is float32"):
            loaded.batched(pad_values={"x": "word"})
        with pytest.raises(ValueError, match="max_batch"):
            loaded.batched(max_batch=0)


@pytest.mark.parametrize(
    ("name", "padded"),
    [
        ("bert_ts13", ("seq",)),
        ("deberta_ts17", ("seq",)),
        ("distilbert_raw_dynamo18", ("seq",)),
        ("attention_block_dynamo23", ("seq",)),
        ("resnet_bn_ts13", ()),
        ("unet_nearest_dynamo18", ()),
        ("lstm_tagger_ts14", ()),
        ("gru_tagger_ts17", ()),
        ("whisper_encoder_ts18", ()),
        ("vit_ts17", ()),
        ("seq2seq_nn_ts14", ("src_len", "tgt_len")),
    ],
)
@pytest.mark.asyncio
async def test_real_models_are_judged(name: str, padded: tuple[str, ...]) -> None:
    """Text with a mask is padded; pictures, and recurrent models that read to the end, are not."""
    async with Runtime("host", options=OPTIONS) as rt:
        loaded = await rt.load(ZooModel(name, {}).path)

        async with loaded.batched() as batched:
            safety = batched.pad_safety

    assert (True, padded) == (safety.rows, safety.padded)
    assert bool(safety.holes) == (name == "deberta_ts17")


@pytest.mark.asyncio
async def test_a_model_whose_outputs_have_no_batch_runs_alone() -> None:
    """A detector gives as many boxes as it finds, of all pictures together."""
    async with Runtime("host", options=OPTIONS) as rt:
        loaded = await rt.load(ZooModel("detector_nms_ts13", {}).path)

        async with loaded.batched() as batched:
            safety = batched.pad_safety

    assert not safety.rows
    assert "has no axis 'batch'" in safety.refused["batch"]


# Options, the page and the example.


def test_every_option_is_on_the_page() -> None:
    """With its default: each field of `BatchOptions` is one row of the last table of docs/batching.md."""
    page = (ROOT / "docs" / "batching.md").read_text(encoding="utf-8").split("## Options")[1]
    shown = dict(re.findall(r"^\| (\w+) \| ([^|]+) \|", page, re.M))
    fields = {name: field.default for name, field in attrs.fields_dict(BatchOptions).items()}

    told = {name: f'"{d}"' if isinstance(d, str) else str(d) for name, d in fields.items()}
    told["max_queue_bytes"] = f"{fields['max_queue_bytes'] >> 20} MiB"
    assert told == {name: default for name, default in shown.items() if name != "field"}


def test_the_example_runs() -> None:
    """On the simulated device, in no time."""
    spec = importlib.util.spec_from_file_location("batching_example", ROOT / "examples" / "batching.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    virtual_loop.run(example.serve(40, "simulated"))


def test_options_are_written_and_read(tmp_path: Path) -> None:
    """A file of some of them fills the rest with defaults; a name that is none is refused."""
    path = tmp_path / "batching.json"
    options = BatchOptions(max_batch=8, mode="buckets", buckets=[64, 16])  # type: ignore[arg-type]

    options.write(path)

    assert options == BatchOptions.read(path)
    path.write_text('{"max_batch": 4}')
    assert BatchOptions(max_batch=4) == BatchOptions.read(path)
    path.write_text('{"batch": 4}')
    with pytest.raises(ValueError, match="no option 'batch'"):
        BatchOptions.read(path)
