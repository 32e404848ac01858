"""What a caller may rely on, whatever else happens: results of its own, memory that comes back, errors that say why."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import numpy as np
import onnx
import pytest
import pytest_asyncio

import asyncrt
from asyncrt import (
    DeviceCommandError,
    InputError,
    OutOfDeviceMemory,
    Runtime,
    RuntimeClosedError,
    RuntimeOptions,
    ShapeError,
)
from asyncrt.devices.faults import Fault, Faults
from asyncrt.devices.simulated import SimulatedDevice

from ..builders import i64, model, node

DEVICES = (None, "host", "simulated")


@pytest_asyncio.fixture(params=DEVICES, ids=lambda d: d or "opencl")
async def rt(request: pytest.FixtureRequest, either_path: str) -> AsyncIterator[Runtime]:
    """A runtime on each device, of which nothing may be left behind."""
    async with Runtime(request.param) as runtime:
        yield runtime
    statistics = runtime.statistics()
    assert statistics.in_flight == 0
    assert (statistics.memory.leases, statistics.memory.active, statistics.memory.held) == (0, 0, 0)


def chain(length: int = 4) -> onnx.ModelProto:
    """x → Exp, Neg, Exp, Neg, ..."""
    names = ["x", *(f"v{i}" for i in range(length))]
    links = enumerate(itertools.pairwise(names))
    nodes = [node(f"{b} = {'Neg' if i % 2 else 'Tanh'}({a})") for i, (a, b) in links]
    return model(nodes, ["x f32[n,m]"], [names[-1]])


@pytest.mark.asyncio
async def test_outputs_are_never_shared(rt: Runtime) -> None:
    """An output is the caller's own, also where it is an input, a constant, or another output."""
    nodes = [
        node("same = Identity(x)"),
        node("shape = Reshape(x, to)"),
        node("fixed = Identity(c)"),
        node("twin = Identity(same)"),
        node("ran = Neg(x)"),
        node("ran_too = Identity(ran)"),
    ]
    constants = {"to": i64(-1), "c": np.arange(3, dtype=np.float32)}
    outputs = ["same", "shape", "fixed", "twin", "ran", "ran_too"]
    loaded = await rt.load(model(nodes, ["x f32[a,b]"], outputs, constants))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    first = await loaded.infer({"x": x})
    for array in first.values():
        array[...] = -7
    second = await loaded.infer({"x": x})

    np.testing.assert_array_equal(np.arange(6, dtype=np.float32).reshape(2, 3), x)
    np.testing.assert_array_equal(x, second["same"])
    np.testing.assert_array_equal(x.reshape(-1), second["shape"])
    np.testing.assert_array_equal(np.arange(3), second["fixed"])
    np.testing.assert_array_equal(-x, second["ran_too"])
    arrays = list(second.values())
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in (*arrays[i + 1 :], x))


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("others", [0, 3], ids=["few", "many"])
async def test_small_results_come_in_one_read(device: str | None, others: int) -> None:
    """However many they are, and whichever are the same, but for a few where a read is no more than a call; each is in
    memory of its own, and a large one comes alone."""
    nodes = [node("a = Tanh(x)"), node("b = ReduceMax(a)"), node("twin = Identity(a)"), node("large = Expand(a, to)")]
    nodes += [node(f"c{i} = Neg({f'c{i - 1}' if i else 'b'})") for i in range(others)]
    wanted = ["a", "b", "twin", "large", *[f"c{i}" for i in range(others)]]
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    async with Runtime(device, options=RuntimeOptions(check_hazards=True, warm=False)) as rt:
        each = rt.info.is_cpu and not others
        loaded = await rt.load(model(nodes, ["x f32[a,b]"], wanted, {"to": i64(2000, 1, 1)}))
        await loaded.infer({"x": x})
        with asyncrt.debug.recording(rt) as log:
            got = await loaded.infer({"x": x})
    reads = sum("a read" in str(getattr(entry, "label", "")) for entry in log)

    assert reads == (len(wanted) if each else 2)
    assert not any(np.shares_memory(got[one], got[other]) for one, other in itertools.combinations(wanted, 2))
    np.testing.assert_allclose(got["twin"], np.tanh(x), rtol=1e-6)
    np.testing.assert_array_equal(got["a"], got["twin"])
    np.testing.assert_array_equal(got["b"].ravel(), got["a"].max())
    np.testing.assert_array_equal(got["large"], np.broadcast_to(got["a"], (2000, 2, 3)))


@pytest.mark.asyncio
async def test_a_chain_of_skips_keeps_its_source_alive(rt: Runtime) -> None:
    """A reader at the end of a chain of skipped nodes finds the bytes that the first of them was given.

    Between the producer and the reader other nodes want memory of the same size.
    """
    nodes = [
        node("a = Exp(x)"),
        node("b = Transpose(a)", perm=[0, 2, 1, 3]),
        node("c = Reshape(b, to)"),
        node("d = Identity(c)"),
        *(node(f"w{i} = Neg({'x' if i == 0 else f'w{i - 1}'})") for i in range(6)),
        node("y = ReduceMax(d)", keepdims=0),
        node("z = Sum(w0, w1, w2, w3, w4, w5)"),
    ]
    loaded = await rt.load(model(nodes, ["x f32[a,b,c,d]"], ["y", "z"], {"to": i64(0, -1)}))
    x = np.random.default_rng(0).standard_normal((8, 1, 4, 4)).astype(np.float32)

    out = await loaded.infer({"x": x})

    np.testing.assert_allclose(out["y"], np.exp(x).max(), rtol=1e-5)
    np.testing.assert_array_equal(out["z"], np.zeros_like(x))
    assert loaded.explain().counts["skipped"] == 3


@pytest.mark.asyncio
async def test_a_node_may_be_skipped_in_one_request_and_run_in_the_next(rt: Runtime) -> None:
    """Run, skip, run, skip, all at once: a result never depends on what other requests did."""
    nodes = [node("a = Neg(x)"), node("b = Transpose(a)", perm=[0, 2, 1]), node("y = Exp(b)")]
    loaded = await rt.load(model(nodes, ["x f32[p,q,r]"], ["y"]))
    shapes = [(2, 3, 4), (2, 1, 4), (2, 1, 4), (5, 3, 1), (2, 3, 4), (1, 1, 1), (2, 3, 4), (2, 4, 3)] * 3
    given = [np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)]

    alone = [(await loaded.infer({"x": x}))["y"] for x in given]
    together = await asyncio.gather(*(loaded.infer({"x": x}) for x in given))

    for x, a, t in zip(given, alone, together, strict=True):
        np.testing.assert_allclose(a, np.exp(-x.transpose(0, 2, 1)), rtol=1e-5)
        assert a.tobytes() == t["y"].tobytes()


@pytest.mark.asyncio
async def test_a_shape_computed_on_the_device_is_awaited(rt: Runtime) -> None:
    """A shape that needs a value from the device cuts the program; the value is read, and requests go on."""
    nodes = [
        node("m = ReduceMax(x)", keepdims=0),
        node("n = Cast(m)", to=onnx.TensorProto.INT64),
        node("r = Range(zero, n, one)"),
        node("y = Add(r, r)"),
        node("kept = Neg(x)"),
    ]
    constants = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    loaded = await rt.load(model(nodes, ["x f32[a]"], ["y", "kept"], constants))
    given = [np.array([i, 1.0, 0.5 * i], np.float32) for i in (3, 7, 1, 7, 12)]

    results = await asyncio.gather(*(loaded.infer({"x": x}) for x in given))

    for x, out in zip(given, results, strict=True):
        np.testing.assert_array_equal(2 * np.arange(int(x.max())), out["y"])
        np.testing.assert_array_equal(-x, out["kept"])


@pytest.mark.asyncio
async def test_an_operator_without_a_kernel_runs_on_the_host_between_kernels(rt: Runtime) -> None:
    """NonZero has no kernel: its input is read, it runs in NumPy, and what follows is on the device again."""
    nodes = [node("a = Relu(x)"), node("i = NonZero(a)"), node("t = Transpose(i)"), node("y = GatherND(a, t)")]
    loaded = await rt.load(model(nodes, ["x f32[p,q]"], ["y", "i"]))

    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((3, 2 + seed)).astype(np.float32)
        out = await loaded.infer({"x": x})
        np.testing.assert_array_equal(x[x > 0], out["y"])
        np.testing.assert_array_equal(np.stack(np.nonzero(x > 0)), out["i"])


@pytest.mark.asyncio
async def test_an_alias_of_an_input_reaches_a_later_chunk(rt: Runtime) -> None:
    """A chunk that launches nothing still uploads what a skipped node of it stands for, if a later one reads that."""
    nodes = [
        node("a = Reshape(x, flat)"), node("i = NonZero(x)"), node("n = Shape(i)"), node("j = Gather(n, last)"),
        node("y = Tile(a, j)"), node("z = Neg(y)"),
    ]  # fmt: skip
    loaded = await rt.load(model(nodes, ["x f32[p,q]"], ["z"], {"flat": i64(-1), "last": i64(1)}))
    x = np.array([[0, 1], [2, 0]], np.float32)

    out = await loaded.infer({"x": x})

    np.testing.assert_array_equal(-np.tile(x.reshape(-1), 2), out["z"])


@pytest.mark.asyncio
async def test_a_cancelled_request_leaves_nothing_and_disturbs_nobody(rt: Runtime) -> None:
    """Cancelled at whatever point, a request's memory comes back and its neighbours' results are exact."""
    loaded = await rt.load(chain(12))
    given = [np.random.default_rng(i).standard_normal((4 + i % 5, 64)).astype(np.float32) for i in range(40)]
    expected = [await loaded.infer({"x": x}) for x in given]

    for steps in range(12):
        tasks = [asyncio.ensure_future(loaded.infer({"x": x})) for x in given]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        for i, (e, r) in enumerate(zip(expected, results, strict=True)):
            if isinstance(r, asyncio.CancelledError):
                assert i % 3 == 0
            else:
                assert isinstance(r, dict), r
                assert {k: v.tobytes() for k, v in e.items()} == {k: v.tobytes() for k, v in r.items()}
    async with asyncio.timeout(60):
        while rt.statistics().in_flight:  # noqa: ASYNC110  # until the device has passed what the cancelled had begun
            await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ("missing: x", "float32[batch,3]")),
        ({"x": np.zeros((2, 3), np.float32), "y": 1}, ("unknown: y",)),
        ({"x": np.zeros((2, 3))}, ("expected float32", "float64[2,3]", ".astype()")),
        ({"x": np.zeros(3, np.float32)}, ("rank 2", "[3]")),
        ({"x": np.zeros((2, 4), np.float32)}, ("axis 1 is 3", "[2,4]")),
        ({"x": [[1, 2], [3]]}, ("not an array",)),
    ],
)
async def test_inputs_that_do_not_fit_are_refused_with_words(given: dict[str, object], words: tuple[str, ...]) -> None:
    """Before anything is enqueued, an error says which input, what was expected and what came."""
    async with Runtime("simulated") as rt:
        loaded = await rt.load(model([node("y = Neg(x)")], ["x f32[batch,3]"], ["y"]))

        with pytest.raises(InputError) as caught:
            await loaded.infer(given)

        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert rt.statistics().launches == 0


@pytest.mark.asyncio
async def test_equal_names_must_be_equal_dims() -> None:
    """Two axes of the same name are one dim."""
    async with Runtime("simulated") as rt:
        loaded = await rt.load(model([node("y = Add(a, b)")], ["a f32[n]", "b f32[n]"], ["y"]))

        with pytest.raises(InputError, match=r"axis 0 is 'n', which is 3 by axis 0 of 'a', got 1"):
            await loaded.infer({"a": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)})


@pytest.mark.asyncio
async def test_shapes_that_do_not_fit_name_the_node(rt: Runtime) -> None:
    """A request whose shapes do not fit fails alone, naming the node; the next one succeeds."""
    nodes = [node("s = Add(a, b)"), node("y = Neg(s)")]
    loaded = await rt.load(model(nodes, ["a f32[n]", "b f32[m]"], ["y"]))
    ones = np.ones(3, np.float32)

    with pytest.raises(ShapeError, match="Add_0"):
        await loaded.infer({"a": ones, "b": np.ones(2, np.float32)})
    out = await loaded.infer({"a": ones, "b": ones})

    np.testing.assert_array_equal(out["y"], [-2, -2, -2])


@pytest.mark.asyncio
async def test_the_memory_limit_is_never_exceeded() -> None:
    """A request that does not fit fails with the numbers; others of the same model succeed, and the limit holds."""
    device = SimulatedDevice(3, memory=1 << 24)
    async with Runtime(device, options=RuntimeOptions(memory_limit=200_000)) as rt:
        loaded = await rt.load(chain())

        with pytest.raises(OutOfDeviceMemory, match="within the limit of 200000"):
            await loaded.infer({"x": np.zeros((1000, 100), np.float32)})
        out = await loaded.infer({"x": np.ones((10, 100), np.float32)})

        assert out["v3"].shape == (10, 100)
        assert rt.statistics().memory.active == 0
        assert device.allocated <= 200_000


@pytest.mark.asyncio
async def test_more_requests_than_may_be_in_flight_wait_their_turn() -> None:
    """`max_in_flight` bounds how many requests hold memory, and all are served."""
    async with Runtime("simulated", options=RuntimeOptions(max_in_flight=2)) as rt:
        loaded = await rt.load(chain())
        given = [np.full((2, 2), i, np.float32) for i in range(20)]

        results = await asyncio.gather(*(loaded.infer({"x": x}) for x in given))

        assert len(results) == 20
        assert rt.statistics().memory.allocated <= 2


@pytest.mark.asyncio
async def test_requests_of_a_closed_runtime_are_refused() -> None:
    """After `close()`, and before `open()`, a runtime says so."""
    rt = Runtime("simulated")
    with pytest.raises(RuntimeClosedError, match="not open yet"):
        await rt.load(chain())
    async with rt:
        loaded = await rt.load(chain())

    with pytest.raises(RuntimeClosedError, match="closed"):
        await loaded.infer({"x": np.zeros((2, 2), np.float32)})
    await rt.close()


@pytest.mark.asyncio
async def test_a_model_of_no_elements_gives_outputs_of_no_elements(rt: Runtime) -> None:
    """Requests with a dim of zero run nothing and return empty arrays; reductions of nothing still run."""
    nodes = [node("a = Neg(x)"), node("b = Transpose(a)"), node("s = ReduceSum(x, zero)", keepdims=0)]
    loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["b", "s"], {"zero": i64(0)}))

    out = await loaded.infer({"x": np.zeros((0, 3), np.float32)})

    assert out["b"].shape == (3, 0)
    np.testing.assert_array_equal(np.zeros(3), out["s"])


@pytest.mark.asyncio
async def test_explain_says_what_became_of_each_node() -> None:
    """Ran with which kernel, skipped as the alias of what and why, empty, or on the host."""
    nodes = [
        node("t = Transpose(x)", perm=[1, 0]),
        node("shape = Shape(x)"),
        node("y = Reshape(t, shape)"),
        node("z = Neg(y)"),
    ]
    async with Runtime() as rt:
        loaded = await rt.load(model(nodes, ["x f32[n,m]"], ["z"]))
        with pytest.raises(asyncrt.AsyncrtError, match="nothing to explain"):
            loaded.explain()
        await loaded.infer({"x": np.zeros((1, 5), np.float32)})
        explanation = loaded.explain()

    by_operator = {n.operator: n for n in explanation}
    assert explanation.counts == {"ran": 1, "fused": 0, "skipped": 2, "view": 0, "empty": 0, "host": 1}
    assert (
        by_operator["Transpose"].alias_of, by_operator["Transpose"].why, by_operator["Transpose"].skip_mode,
    ) == ("x", "only unit axes move", "at runtime")  # fmt: skip
    assert by_operator["Reshape"].skip_mode == "always"
    assert by_operator["Neg"].implementation == "Neg"
    assert "only unit axes move" in str(explanation)


@pytest.mark.asyncio
async def test_requests_wait_for_memory_that_others_have_in_flight() -> None:
    """Where the limit holds one arena, twenty requests at once are served one after the other; none fails."""
    device = SimulatedDevice(5)
    async with Runtime(device, options=RuntimeOptions(memory_limit=20_000)) as rt:
        loaded = await rt.load(chain())
        given = [np.full((20, 100), i, np.float32) for i in range(20)]

        results = await asyncio.gather(*(loaded.infer({"x": x}) for x in given))

        for x, out in zip(given, results, strict=True):
            np.testing.assert_allclose(out["v3"], -np.tanh(-np.tanh(x)), rtol=1e-6)
        assert device.allocated <= 20_000


@pytest.mark.asyncio
async def test_closing_waits_for_requests_in_flight(rt: Runtime) -> None:
    """What was begun before `close()` is finished; its result is right."""
    loaded = await rt.load(chain(8))
    x = np.ones((64, 64), np.float32)
    expected = await loaded.infer({"x": x})

    task = asyncio.ensure_future(loaded.infer({"x": x}))
    await asyncio.sleep(0)
    await rt.close()

    np.testing.assert_array_equal(expected["v7"], (await task)["v7"])


@pytest.mark.asyncio
@pytest.mark.parametrize("refused", ["read", "launch"])
async def test_memory_of_a_request_that_is_refused_half_way_stays_its_own_until_the_device_has_passed_it(
    refused: str,
) -> None:
    """What was enqueued still runs: another stream that takes the memory comes after that."""
    device = SimulatedDevice()
    rt = Runtime(device, streams=2, options=RuntimeOptions(warm=False, check_hazards=True, without={"fuse"}))
    async with rt:
        loaded = await rt.load(model([node("s = Softmax(x)"), node("y = Neg(s)")], ["x f32[a,4]"], ["y"]))
        inputs = [{"x": np.full((3, 4), n, np.float32)} for n in range(4)]
        await loaded.infer(inputs[0])
        calls = device.faults.calls
        device.faults = Faults([Fault(refused, 2 if refused == "launch" else 1)])
        first = asyncio.ensure_future(loaded.infer(inputs[1]))
        with pytest.raises(DeviceCommandError, match=f"injected: {refused}"):
            await first
        busy = [buffer.busy_until for buffer in rt.session.pool.free]
        others = await asyncio.gather(*map(loaded.infer, inputs[2:]))

    assert calls["launch"] == 2
    assert any(busy)
    for other in others:
        np.testing.assert_allclose(other["y"], -0.25, rtol=1e-6)
