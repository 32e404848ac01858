"""What a request makes on the host is judged by its size before it is made, and large work stops no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import attrs
import numpy as np
import onnx
import onnx.parser
import pytest
import pytest_asyncio
from onnx import helper

from asyncrt import Model, OutOfHostMemory, Runtime, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.layout import STRING, Array
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.execute import transfers as executor
from asyncrt.runtime.plan import host_nodes
from asyncrt.runtime.request import inputs

from ...builders import i64, model, node, value

MIB = 1 << 20
LIMIT = 8 * MIB
HUGE = np.array(1 << 30, np.int64)


def f32(*shape: int) -> Array:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


@pytest_asyncio.fixture
async def rt() -> AsyncIterator[Runtime]:
    """On a device without doubles."""
    device = SimulatedDevice()
    device.info = attrs.evolve(device.info, features=frozenset({"fp16"}))
    options = RuntimeOptions(memory_limit=LIMIT, warm=False, without={"disk_cache"})
    async with Runtime(device, options=options) as runtime:
        yield runtime


@contextlib.contextmanager
def peak_below(nbytes: int) -> Iterator[None]:
    """Fail if Python or NumPy hold more at any time than before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < nbytes


async def refused(loaded: Model, given: dict[str, Any], *words: str) -> OutOfHostMemory:
    """Return what a request gets, which has taken next to nothing."""
    with peak_below(4 * MIB), pytest.raises(OutOfHostMemory) as caught:
        await loaded.infer(given)
    for word in (*words, f"of {LIMIT} "):
        assert word in str(caught.value)
    return caught.value


# Nodes on the host.

MEL = {"b": np.array(1 << 12), "l": HUGE, "r": np.array(16000), "lo": np.float32(0), "hi": np.float32(8000)}
#: Models of a node on the host, a request that is too much, and one that is not.
NODES: dict[str, tuple[onnx.ModelProto, dict[str, Any], dict[str, Any]]] = {
    "MelWeightMatrix": (
        model(
            [node("y = MelWeightMatrix(b, l, r, lo, hi)")],
            ["b i64[]", "l i64[]", "r i64[]", "lo f32[]", "hi f32[]"], ["y"],
        ),
        MEL, {**MEL, "b": np.array(8), "l": np.array(512)},
    ),
    **{
        f"{name}Window": (
            model([node(f"y = {name}Window(n)")], ["n i64[]"], ["y"]), {"n": HUGE}, {"n": np.array(100)}
        )
        for name in ("Hann", "Hamming", "Blackman")
    },
    "DFT": (
        model([node("y = DFT(x, n)")], ["x f32[a,b,1]", "n i64[]"], ["y"], opset=20),
        {"x": f32(1, 4, 1), "n": HUGE}, {"x": f32(1, 4, 1), "n": np.array(8)},
    ),
    "NonZero": (
        model([node("y = NonZero(x)")], ["x u8[a,b,c,d]"], ["y"]),
        {"x": np.ones((1, 1, 512, 512), np.uint8)}, {"x": np.ones((1, 1, 8, 8), np.uint8)},
    ),
    "Unique": (
        model([node("y, f, i, n = Unique(x)")], ["x u8[a]"], ["y"]),
        {"x": np.ones(200_000, np.uint8)}, {"x": np.ones(20, np.uint8)},
    ),
    "MaxUnpool": (
        model([node("y = MaxUnpool(x, i, s)", kernel_shape=[2])], ["x f32[a,b,c]", "i i64[a,b,c]", "s i64[3]"], ["y"]),
        {"x": f32(1, 1, 1), "i": i64(0).reshape(1, 1, 1), "s": i64(1, 1, 1 << 30)},
        {"x": f32(1, 1, 1), "i": i64(0).reshape(1, 1, 1), "s": i64(1, 1, 5)},
    ),
    "NonMaxSuppression": (
        model([node("y = NonMaxSuppression(b, s, m)")], ["b f32[a,n,4]", "s f32[a,c,n]", "m i64[1]"], ["y"]),
        {"b": f32(1, 1000, 4), "s": f32(1, 100, 1000), "m": i64(1000)},
        {"b": f32(1, 3, 4), "s": f32(1, 2, 3), "m": i64(1)},
    ),
    "AffineGrid": (
        model([node("y = AffineGrid(x, s)")], ["x f32[n,2,3]", "s i64[4]"], ["y"], opset=20),
        {"x": f32(1, 2, 3), "s": i64(1, 1, 1 << 15, 1 << 15)}, {"x": f32(1, 2, 3), "s": i64(1, 1, 3, 4)},
    ),
    # Those that have kernels run on the host where the device lacks their dtype.
    "ConstantOfShape": (
        model([node("y = ConstantOfShape(n)", value=np.ones(1))], ["n i64[1]"], ["y"]),
        {"n": HUGE.reshape(1)}, {"n": i64(3)},
    ),
    "Range": (
        model([node("y = Range(n, m, d)")], ["n f64[]", "m f64[]", "d f64[]"], ["y"]),
        {"n": np.array(1.0), "m": np.array(1e9), "d": np.array(1.0)},
        {"n": np.array(1.0), "m": np.array(4.0), "d": np.array(1.0)},
    ),
    "OneHot": (
        model([node("y = OneHot(i, n, v)")], ["n i64[]", "v f64[2]"], ["y"], {"i": np.array(1)}),
        {"n": HUGE, "v": np.ones(2)}, {"n": np.array(3), "v": np.ones(2)},
    ),
    "Expand": (
        model([node("y = Expand(v, n)")], ["n i64[1]", "v f64[1]"], ["y"]),
        {"n": HUGE.reshape(1), "v": np.ones(1)}, {"n": i64(3), "v": np.ones(1)},
    ),
    "Tile": (
        model([node("y = Tile(v, n)")], ["n i64[1]", "v f64[1]"], ["y"]),
        {"n": HUGE.reshape(1), "v": np.ones(1)}, {"n": i64(3), "v": np.ones(1)},
    ),
    "Add": (
        model([node("y = Add(a, b)")], ["a f64[n,1]", "b f64[1,m]"], ["y"]),
        {"a": np.ones((2000, 1)), "b": np.ones((1, 2000))}, {"a": np.ones((2, 1)), "b": np.ones((1, 2))},
    ),
}  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("name", NODES)
async def test_a_node_on_the_host_is_refused_before_it_takes_what_it_may_not(name: str, rt: Runtime) -> None:
    """It is named with what it wants and the limit; the next request is served."""
    source, too_much, fine = NODES[name]
    loaded = await rt.load(source)

    error = await refused(loaded, too_much, f": {name}: ", "bytes wanted on the host")
    out = await loaded.infer(fine)

    assert error.hint
    assert out["y"].size


@pytest.mark.asyncio
async def test_what_nodes_on_the_host_make_counts_together(rt: Runtime) -> None:
    """Each of three windows fits by itself; the third does not beside the others."""
    size = np.array(120_000)  # 0.5 MB, and 5.8 MB while it is calculated
    names = [f"w{i}" for i in range(8)]
    few = await rt.load(model([node(f"{n} = HannWindow(n)") for n in names[:2]], ["n i64[]"], names[:2]))
    many = await rt.load(model([node(f"{n} = HannWindow(n)") for n in names], ["n i64[]"], names))

    out = await few.infer({"n": size})

    assert out["w1"].shape == (120_000,)
    with pytest.raises(OutOfHostMemory, match=r"'HannWindow_\d'"):
        await many.infer({"n": size})


@pytest.mark.asyncio
async def test_a_reference_that_is_a_kernel_is_judged_as_well() -> None:
    """Where operators run as references, what they lay out on the way counts: here each window's elements."""
    source = model([node("y = MaxPool(x)", kernel_shape=[256, 256])], ["x f32[n,1,h,w]"], ["y"])
    async with Runtime("host", options=RuntimeOptions(memory_limit=LIMIT, warm=False)) as rt:
        loaded = await rt.load(source)

        await refused(loaded, {"x": f32(1, 1, 300, 300)}, ": MaxPool: ")
        out = await loaded.infer({"x": f32(1, 1, 256, 256)})

    assert out["y"].shape == (1, 1, 1, 1)


@pytest.mark.asyncio
async def test_what_numpy_is_refused_is_told_as_such(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `MemoryError` of the system's names the node, and is no bare one."""

    def fails(*given: Any) -> Any:
        raise MemoryError("Unable to allocate 8.00 GiB")

    source, _, fine = NODES["HannWindow"]
    loaded = await rt.load(source)
    with monkeypatch.context() as patched:
        patched.setattr(host_nodes, "evaluate", fails)
        with pytest.raises(OutOfHostMemory, match="'HannWindow_0': HannWindow: the system gives no memory") as caught:
            await loaded.infer(fine)
    out = await loaded.infer(fine)

    assert caught.value.detail == "Unable to allocate 8.00 GiB"
    assert out["y"].shape == (100,)


# Inputs.


@pytest.mark.asyncio
async def test_a_broadcast_input_is_not_copied_before_its_size_is_known(rt: Runtime) -> None:
    """A view of four bytes may have any number of elements."""
    loaded = await rt.load(model([node("y = Relu(x)")], ["x f32[n,m]"], ["y"]))
    huge = {"x": np.broadcast_to(np.float32(1), (1 << 15, 1 << 15))}

    error = await refused(loaded, huge, "input 'x'", str(4 << 30))
    async with loaded.batched() as batched:
        with peak_below(4 * MIB), pytest.raises(OutOfHostMemory, match="input 'x'"):
            await batched.infer(huge)
    with peak_below(4 * MIB), pytest.raises(OutOfHostMemory, match="input 'x'"):
        await loaded.profile(huge)
    small = await loaded.infer({"x": np.broadcast_to(np.float32(1), (3, 5))})

    assert isinstance(error, MemoryError)
    assert small["y"].tobytes() == np.ones((3, 5), np.float32).tobytes()


@pytest.mark.skipif(STRING.numpy.kind != "T", reason="NumPy has no arrays of texts")
@pytest.mark.asyncio
async def test_texts_are_not_converted_before_their_size_is_known(rt: Runtime) -> None:
    """Neither a view of many, nor one of a long text, nor one within a sequence; views that fit are taken."""
    loaded = await rt.load(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 21]>
        texts (string[n, m] x, seq(string[n, m]) s) => (string[n, m] y) { y = Identity(x) }"""))
    ones = [np.array("a", dtype) for dtype in (object, np.str_, STRING.numpy)]
    long = [np.array("a" * 1000, dtype) for dtype in (object, np.str_, STRING.numpy)]
    views = [np.broadcast_to(one, (1 << 15, 1 << 16)) for one in ones] + [np.broadcast_to(t, (9, 1000)) for t in long]

    for view in views:
        await refused(loaded, {"x": view, "s": []}, "input 'x'")
        await refused(loaded, {"x": [["a"]], "s": [view]}, "input 's'[0]")
    small = [np.broadcast_to(one, (3, 5)) for one in ones]
    answers = [await loaded.infer({"x": view, "s": [view]}) for view in small]

    assert [answer["y"].tolist() for answer in answers] == [[["a"] * 5] * 3] * 3


@pytest.mark.asyncio
async def test_views_of_all_inputs_count_together(rt: Runtime) -> None:
    """Each copy fits by itself."""
    names = [f"x{i}" for i in range(3)]
    concat = node(f"y = Concat({', '.join(names)})", axis=0)
    loaded = await rt.load(model([concat], [f"{n} f32[k]" for n in names], ["y"]))
    views = {n: np.broadcast_to(np.float32(1), LIMIT // 8) for n in names}

    await refused(loaded, views, "input 'x2'")


# What iterations collect.


def body(nodes: list[onnx.NodeProto], inputs: list[str], outputs: str) -> onnx.GraphProto:
    """A Loop's body; conditions `c` of outputs are what goes in."""
    results = [onnx.ValueInfoProto(name=name) for name in outputs.split()]
    given = [value(text) for text in ("i i64[]", "b bool[]", *inputs)]
    return helper.make_graph([node("c = Identity(b)"), *nodes], "body", given, results)


def collecting() -> onnx.ModelProto:
    """A Loop that collects a vector in each iteration."""
    inside = body([node("o = Add(x, x)")], [], "c o")
    return model([node("y = Loop(n,)", body=inside)], ["x f32[k]", "n i64[]"], ["y"])


@pytest.mark.asyncio
async def test_a_loop_collects_no_more_than_it_may(rt: Runtime) -> None:
    """It ends in the iteration that would exceed the limit, however many there were to be; the next has all it may."""
    loaded = await rt.load(collecting())
    x = f32(50_000)  # 0.2 MB

    with peak_below(LIMIT + MIB), pytest.raises(OutOfHostMemory, match=r"'Loop_0': what 21 iterations made") as caught:
        await loaded.infer({"x": x, "n": np.array(1 << 60)})
    out = await loaded.infer({"x": x, "n": np.array(20)})

    assert f"of {LIMIT} " in str(caught.value)
    assert out["y"].tobytes() == np.stack([x + x] * 20).tobytes()


@pytest.mark.asyncio
async def test_iterations_that_collect_next_to_nothing_count_as_well(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty tensor is an object all the same."""
    loaded = await rt.load(collecting())

    monkeypatch.setattr("asyncrt.runtime.request.control_flow._PIECE", LIMIT // 10)
    with pytest.raises(OutOfHostMemory, match="what 11 iterations made"):
        await loaded.infer({"x": f32(0), "n": np.array(1 << 60)})


@pytest.mark.asyncio
async def test_loops_in_loops_count_what_is_there_at_a_time(rt: Runtime) -> None:
    """What an inner Loop collects is gone when it is over, but for what it gives."""
    inner = body([node("o = Add(x, x)")], [], "c o")
    nodes = [node("all = Loop(n,)", body=inner), node("s = ReduceSum(all, axes)", keepdims=0)]
    outer = body(nodes, [], "c s")
    source = model([node("y = Loop(m,)", body=outer)], ["x f32[k]", "n i64[]", "m i64[]"], ["y"], {"axes": i64(0)})
    loaded = await rt.load(source)
    x = f32(50_000)

    out = await loaded.infer({"x": x, "n": np.array(5), "m": np.array(8)})  # 2 MB in each of 8, which leave 0.4 MB
    with pytest.raises(OutOfHostMemory, match="'Loop_0/body/Loop_1': what 15 iterations"):
        await loaded.infer({"x": x, "n": np.array(15), "m": np.array(30)})

    np.testing.assert_allclose(out["y"], np.stack([10 * x] * 8), rtol=1e-6)


# Results, batches, sequences.


@pytest.mark.asyncio
async def test_results_that_are_one_tensor_count_each(rt: Runtime) -> None:
    """Forty outputs of a megabyte that is in memory once; also where their plan is there already."""
    names = [f"y{i}" for i in range(40)]
    nodes = [node(f"{n} = Unsqueeze(x, axes)") for n in names]
    loaded = await rt.load(model(nodes, ["x f32[k]"], names, {"axes": i64(0)}))

    small = await loaded.infer({"x": f32(8)})
    for _ in range(2):
        await refused(loaded, {"x": f32(MIB // 4)}, "'test': its results")

    assert len(small) == 40


@pytest.mark.asyncio
async def test_a_batch_that_would_be_too_large_runs_one_by_one(rt: Runtime) -> None:
    """Each has its answer."""
    loaded = await rt.load(model([node("y = Relu(x)")], ["x f32[batch,k]"], ["y"]))
    given = [f32(1, 400_000) - i for i in range(6)]

    async with loaded.batched(max_batch=6, max_delay=5.0, max_work=1 << 40) as batched:
        answers = await asyncio.gather(*(batched.infer({"x": x}) for x in given))

    for x, answer in zip(given, answers, strict=True):
        assert answer["y"].tobytes() == np.maximum(x, 0).tobytes()


@pytest.mark.asyncio
async def test_a_mask_that_is_left_out_is_judged_before_it_is_made(rt: Runtime) -> None:
    """Its size is that of another input, which is a view of four bytes."""
    nodes = [node("m = Cast(attention_mask)", to=1), node("y = Mul(x, m)")]
    loaded = await rt.load(model(nodes, ["x f32[batch,k]", "attention_mask i64[batch,k]"], ["y"]))

    async with loaded.batched() as batched:
        with peak_below(4 * MIB), pytest.raises(OutOfHostMemory, match="'attention_mask'"):
            await batched.infer({"x": np.broadcast_to(np.float32(1), (1, 1 << 30))})


@pytest.mark.asyncio
async def test_the_first_state_of_a_sequence_is_judged_before_it_is_made(rt: Runtime) -> None:
    """Zeros of as many elements as the model says."""
    source = model([node("t = Add(s, x)"), node("y = ReduceMax(t)")], ["s f32[1073741824]", "x f32[1]"], ["y", "t"])
    loaded = await rt.load(source)

    async with loaded.sequence({"s": "t"}) as sequence:
        with peak_below(4 * MIB), pytest.raises(OutOfHostMemory, match="'s'"):
            await sequence.infer({"x": f32(1)})


# Off the event loop.


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[str]]:
    """Notes on which threads a function of a module is called."""

    def watch(module: Any, name: str) -> list[str]:
        called, function = [], getattr(module, name)

        def watched(*given: Any, **named: Any) -> Any:
            called.append("loop" if threading.current_thread() is threading.main_thread() else "thread")
            return function(*given, **named)

        monkeypatch.setattr(module, name, watched)
        return called

    return watch


@pytest.fixture
def open_limit() -> RuntimeOptions:
    return RuntimeOptions(warm=False, without={"disk_cache"})


@pytest.mark.asyncio
async def test_large_nodes_on_the_host_run_on_a_thread(threads: Any, open_limit: RuntimeOptions) -> None:
    """Small ones are done before a thread would be told."""
    async with Runtime("simulated", options=open_limit) as rt:
        loaded = await rt.load(NODES["NonZero"][0])
        called = threads(host_nodes, "evaluate")

        small = await loaded.infer({"x": np.ones((1, 1, 8, 8), np.uint8)})
        large = await loaded.infer({"x": np.ones((1, 1, 512, 512), np.uint8)})

    assert called == ["loop", "thread"]
    assert (small["y"].shape, large["y"].shape) == ((4, 64), (4, 512 * 512))


@pytest.mark.asyncio
async def test_large_results_of_the_host_are_copied_on_a_thread(threads: Any, open_limit: RuntimeOptions) -> None:
    """They are the caller's own, so that the plan's stay as they are."""
    async with Runtime("simulated", options=open_limit) as rt:
        loaded = await rt.load(NODES["HannWindow"][0])
        called = threads(executor, "host_copy")

        small = await loaded.infer({"n": np.array(8)})
        large = [await loaded.infer({"n": np.array(1 << 20)}) for _ in range(2)]
        large[0]["y"][...] = 0
        again = await loaded.infer({"n": np.array(1 << 20)})

    assert called == ["loop", "thread", "thread", "thread"]
    assert small["y"].shape == (8,)
    assert again["y"].tobytes() == large[1]["y"].tobytes()


@pytest.mark.asyncio
async def test_large_collected_outputs_are_put_together_on_a_thread(threads: Any, open_limit: RuntimeOptions) -> None:
    """Along any axis; small ones at once."""
    async with Runtime("simulated", options=open_limit) as rt:
        loaded = await rt.load(collecting())
        called = threads(np, "concatenate")

        for count, k in ((3, 5), (4, 1 << 17)):
            out = await loaded.infer({"x": f32(k), "n": np.array(count)})
            assert out["y"].shape == (count, k)

    assert called == ["loop", "thread"]


@pytest.mark.asyncio
async def test_large_copies_of_inputs_are_made_on_a_thread(threads: Any, open_limit: RuntimeOptions) -> None:
    """Of views that are not contiguous; what is contiguous is not copied at all."""
    async with Runtime("simulated", options=open_limit) as rt:
        loaded = await rt.load(model([node("y = Relu(x)")], ["x f32[n,m]"], ["y"]))
        called = threads(inputs, "_contiguous")
        given = [f32(4, 6), f32(6, 4).T, f32(1024, 512).T]

        got = [await loaded.infer({"x": x}) for x in given]

    assert called == ["loop", "thread"]
    assert [g["y"].tobytes() for g in got] == [np.ascontiguousarray(x).tobytes() for x in given]


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", "host"])
async def test_large_values_of_the_host_go_to_the_device_as_they_are(device: str, open_limit: RuntimeOptions) -> None:
    """Without a copy of their bytes in the plan; with the same result as small ones, time and again."""
    nodes = [node("w = HannWindow(n)"), node("y = Mul(w, x)")]
    async with Runtime(device, options=open_limit) as rt:
        loaded = await rt.load(model(nodes, ["n i64[]", "x f32[1]"], ["y"]))
        window = await rt.load(NODES["HannWindow"][0])
        for n in (16, 1 << 19):
            expected = (await window.infer({"n": np.array(n)}))["y"] * np.float32(3)
            for _ in range(5):
                out = await loaded.infer({"n": np.array(n), "x": np.array([3], np.float32)})
                assert out["y"].tobytes() == expected.tobytes()
        staged = [len(plan.staging) for plan in loaded.network.plans]

    assert max(staged) < MIB


# The budget.


def test_a_budget_counts_what_is_taken_and_leaves_the_rest() -> None:
    """What is checked is given back; a part of a request begins with what there is, and leaves nothing."""
    budget = HostBudget(100)

    budget.take(60, "a")
    budget.check(40, "b")
    inner = budget.inner()
    inner.take(30, "c")

    assert (budget.used, inner.used) == (60, 90)
    assert not inner.fits(11)
    with pytest.raises(OutOfHostMemory, match="d: 41 bytes wanted on the host; 40 free within the limit of 100"):
        budget.take(41, "d")
    assert budget.used == 60
