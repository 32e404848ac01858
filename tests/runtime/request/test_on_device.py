"""Results that stay on the device: inputs of other models, read when asked for, given back when nobody holds them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import asyncrt
from asyncrt.devices.faults import Fault
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.layout import Array

from ...builders import i64, model, node

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
WEIGHTS = np.arange(16, dtype=np.float32).reshape(4, 4)
PRODUCT = model([node("y = MatMul(x, w)")], ["x f32[n,4]"], ["y"], {"w": WEIGHTS})
RELU = model([node("y = Relu(x)")], ["x f32[n,4]"], ["y"])
SUM = model([node("y = Add(a, b)")], ["a f32[n,4]", "b f32[n,4]"], ["y"])
SHAPED = model([node("y = Relu(x)"), node("s = Shape(x)")], ["x f32[n,4]"], ["y", "s"])


async def settled() -> None:
    """Let the loop do what was left for its next turns."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", "host", None])
async def test_a_chain_of_models_is_the_models_one_after_the_other(device: str | None) -> None:
    """For shapes seen and new, by plans made and by recipe; the memory comes back when the tensors go."""
    async with asyncrt.Runtime(device) as rt:
        product, relu = await rt.load(PRODUCT), await rt.load(RELU)
        for rows in (3, 3, 1, 7, 2, 5, 3, 8, 8, 4):
            x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
            first = (await product.infer({"x": x}))["y"]

            left = (await product.infer_on_device({"x": x}))["y"]
            second = await relu.infer_on_device({"x": left})
            third = await product.infer({"x": second["y"]})

            assert (left.shape, left.dtype, left.nbytes) == ((rows, 4), np.float32, rows * 16)
            np.testing.assert_array_equal(first, await left.numpy())
            np.testing.assert_array_equal(np.maximum(first, 0), await second["y"].numpy())
            again = await product.infer({"x": np.maximum(first, 0)})
            np.testing.assert_array_equal(again["y"], third["y"])
        assert rt.statistics().by_recipe > 0 or not rt.info.takes_source
        assert rt.statistics().memory.leases == 2

        del left, second
        await settled()
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_a_chain_does_not_cross_the_bus() -> None:
    """Its first inputs go up, and its last results come down; nothing between them does."""
    device = SimulatedDevice()
    async with asyncrt.Runtime(device) as rt:
        relu = await rt.load(RELU)
        left = await relu.infer_on_device({"x": X})
        calls = dict(device.faults.calls)

        for _ in range(4):
            left = await relu.infer_on_device({"x": left["y"]})

        assert [device.faults.calls[c] - calls.get(c, 0) for c in ("read", "write")] == [0, 0]
        np.testing.assert_array_equal(np.maximum(X, 0), await left["y"].numpy())
        assert device.faults.calls["read"] - calls.get("read", 0) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("device", [SimulatedDevice(seed=5), None])
async def test_many_read_one_tensor_at_once(device: Any) -> None:
    """It may be two inputs of one request and go while requests run; those that are cancelled leave nothing behind."""
    async with asyncrt.Runtime(device) as rt:
        product, total = await rt.load(PRODUCT), await rt.load(SUM)
        left = (await product.infer_on_device({"x": X}))["y"]
        expected = X @ WEIGHTS

        tasks = [asyncio.create_task(total.infer({"a": left, "b": left})) for _ in range(8)]
        chained = [asyncio.create_task(total.infer_on_device({"a": left, "b": X + i})) for i in range(8)]
        await asyncio.sleep(0)
        for task in (tasks[0], chained[0]):
            task.cancel()
        left.close()
        answers = await asyncio.gather(*tasks[1:])
        sums = await asyncio.gather(*chained[1:])

        for outputs in answers:
            np.testing.assert_array_equal(2 * expected, outputs["y"])
        for i, outputs_there in enumerate(sums, 1):
            np.testing.assert_array_equal(expected + X + i, await outputs_there["y"].numpy())
        with pytest.raises(asyncrt.RuntimeClosedError, match="tensor was closed"):
            await total.infer({"a": left, "b": left})
        with pytest.raises(asyncrt.RuntimeClosedError, match="tensor was closed"):
            await left.numpy()
        for outputs_there in sums:
            outputs_there["y"].close()
        await asyncio.gather(*tasks, *chained, return_exceptions=True)
        await settled()
        assert rt.statistics().memory.leases == 0


def odd_outputs() -> onnx.ModelProto:
    """Outputs of all sorts: an input, a constant, a shape, no elements, a view, one that has two names."""
    nodes = [
        node("same = Identity(x)"), node("shape = Shape(x)"), node("none = Slice(x, zero, zero)"),
        node("flat = Reshape(x, all)"), node("y = Neg(x)"), node("z = Identity(y)"), node("c = Identity(one)"),
    ]  # fmt: skip
    constants: dict[str, Array] = {"zero": i64(0), "all": i64(-1), "one": np.ones(2, np.float32)}
    return model(nodes, ["x f32[n,4]"], ["same", "shape", "none", "flat", "y", "z", "c"], constants)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", None])
async def test_outputs_of_all_sorts_are_used_alike(device: str | None) -> None:
    """What only the host has is on the host; an output that is a view of an input has memory of its own."""
    async with asyncrt.Runtime(device) as rt:
        odd, relu = await rt.load(odd_outputs()), await rt.load(RELU)
        expected = await odd.infer({"x": X})
        given = (await relu.infer_on_device({"x": X}))["y"]
        np.testing.assert_array_equal(np.maximum(X, 0), await given.numpy())

        for x in (X, (await (await rt.load(PRODUCT)).infer_on_device({"x": X}))["y"]):
            wanted = expected if x is X else await odd.infer({"x": X @ WEIGHTS})
            found = await odd.infer_on_device({"x": x})
            assert list(found) == list(wanted)
            for name, tensor in found.items():
                array = await tensor.numpy()
                assert array.dtype == wanted[name].dtype == tensor.dtype
                np.testing.assert_array_equal(wanted[name], array)
            assert found["shape"].device == "host"
            assert found["y"].device == rt.info.spec


@pytest.mark.asyncio
async def test_what_the_host_needs_is_read() -> None:
    """An input that decides a shape, and one that a subgraph takes; the results are the same."""
    reshape = model([node("y = Reshape(x, s)")], ["x f32[n,4]", "s i64[k]"], ["y"])
    one = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "then", [], [one])
    otherwise = helper.make_graph([helper.make_node("Abs", ["x"], ["r"])], "else", [], [one])
    branch = model(
        [node("m = ReduceMax(x)", keepdims=0), node("c = Greater(m, zero)"),
         helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)],
        ["x f32[n,4]"], ["y"], {"zero": np.zeros((), np.float32)},
    )  # fmt: skip
    async with asyncrt.Runtime("simulated") as rt:
        relu, shaped = await rt.load(RELU), await rt.load(SHAPED)
        reshaped, branched = await rt.load(reshape), await rt.load(branch)
        left = await shaped.infer_on_device({"x": X})
        flat = await reshaped.infer_on_device({"x": left["y"], "s": i64(2, 6)})

        np.testing.assert_array_equal(np.maximum(X, 0).reshape(2, 6), await flat["y"].numpy())
        found = await branched.infer_on_device({"x": left["y"]})
        np.testing.assert_array_equal(-np.maximum(X, 0), await found["y"].numpy())
        again = await relu.infer({"x": found["y"]})
        np.testing.assert_array_equal(np.zeros_like(X), np.abs(again["y"]))


@pytest.mark.asyncio
async def test_what_does_not_fit_is_refused() -> None:
    """As arrays are, before anything is enqueued; so is a tensor of another runtime."""
    async with asyncrt.Runtime("simulated") as rt, asyncrt.Runtime("simulated") as elsewhere:
        total, shaped = await rt.load(SUM), await rt.load(SHAPED)
        left = await shaped.infer_on_device({"x": X})
        other = await (await elsewhere.load(RELU)).infer_on_device({"x": X})
        ints = await (await rt.load(model([node("y = Add(x, x)")], ["x i64[n,4]"], ["y"]))).infer_on_device(
            {"x": X.astype(np.int64)}
        )
        before = rt.statistics().launches

        for wrong, says in (
            ({"a": left["y"], "b": X[:2]}, "'n', which is"),
            ({"a": left["y"]}, "missing: b"),
            ({"a": left["y"], "b": X, "c": left["y"]}, "unknown: c"),
            ({"a": ints["y"], "b": X}, "expected float32"),
            ({"a": left["s"], "b": X}, "expected float32"),
            ({"a": other["y"], "b": X}, "another runtime"),
        ):
            with pytest.raises(asyncrt.InputError, match=says):
                await total.infer(wrong)
        async with total.batched() as batched:
            with pytest.raises(asyncrt.InputError, match="is not an array"):
                await batched.infer({"a": left["y"], "b": X})
        assert rt.statistics().failed == 0
        assert before <= rt.statistics().launches


@pytest.mark.asyncio
async def test_a_request_that_fails_leaves_its_inputs_as_they_were() -> None:
    """And nothing else."""
    device = SimulatedDevice(faults=[Fault("launch", 3)])
    async with asyncrt.Runtime(device, options=asyncrt.RuntimeOptions(without={"prepared_launches"})) as rt:
        relu = await rt.load(RELU)
        left = (await relu.infer_on_device({"x": X}))["y"]

        with pytest.raises(asyncrt.DeviceCommandError):
            await relu.infer_on_device({"x": left})

        await settled()
        assert rt.statistics().memory.leases == 1
        np.testing.assert_array_equal(np.maximum(X, 0), (await relu.infer({"x": left}))["y"])


@pytest.mark.asyncio
async def test_a_tensor_outlives_its_model_and_not_its_runtime() -> None:
    """Its memory is the runtime's; who still holds it then is told."""
    async with asyncrt.Runtime() as rt:
        relu, product = await rt.load(RELU), await rt.load(PRODUCT)
        left = (await relu.infer_on_device({"x": X}))["y"]
        await rt.unload(relu)
        np.testing.assert_array_equal(np.maximum(X, 0), await left.numpy())
        outputs = await product.infer({"x": left})
        np.testing.assert_array_equal(np.maximum(X, 0) @ WEIGHTS, outputs["y"])

    with pytest.raises(asyncrt.RuntimeClosedError):
        await left.numpy()
    with pytest.raises(asyncrt.RuntimeClosedError):
        np.from_dlpack(left)
    del left
    await settled()


@pytest.mark.asyncio
async def test_on_several_devices_a_request_goes_where_its_inputs_are() -> None:
    """An input that is on another device is read."""
    async with asyncrt.Runtime("simulated,simulated:2") as rt:
        relu, total = await rt.load(RELU), await rt.load(SUM)
        tensors = [t["y"] for t in await asyncio.gather(*(relu.infer_on_device({"x": X + i}) for i in range(6)))]
        assert {t.device for t in tensors} == {"simulated", "simulated:2"}

        for i, tensor in enumerate(tensors):
            result = (await relu.infer_on_device({"x": tensor}))["y"]
            assert result.device == tensor.device
            both = await total.infer({"a": result, "b": tensors[i - 1]})
            np.testing.assert_array_equal(np.maximum(X + i, 0) + np.maximum(X + (i - 1) % 6, 0), both["y"])


class Plain:
    """Somebody who asks as libraries did before DLPack 1.0."""

    def __init__(self, tensor: asyncrt.DeviceTensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, **given: object) -> Any:
        return self._tensor.__dlpack__()


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["host", None])
async def test_other_libraries_see_memory_of_the_host_without_a_copy(device: str | None) -> None:
    """Whoever sees it holds it; what is left of it then is given back."""
    async with asyncrt.Runtime(device) as rt:
        if not rt.info.shares_memory:
            pytest.skip("its memory is its own")
        relu = await rt.load(RELU)
        left = (await relu.infer_on_device({"x": X}))["y"]
        seen, twice, older = np.from_dlpack(left), np.from_dlpack(left), np.from_dlpack(Plain(left))

        assert left.__dlpack_device__() == (1, 0)
        assert seen.ctypes.data == twice.ctypes.data == older.ctypes.data
        assert not seen.flags.writeable
        del left, twice, older
        await relu.infer({"x": X + 1})
        await settled()
        assert rt.statistics().memory.leases == 1
        np.testing.assert_array_equal(np.maximum(X, 0), seen)
        del seen
        await settled()
        assert rt.statistics().memory.leases == 0


@pytest.mark.asyncio
async def test_memory_of_a_devices_own_is_read_and_not_seen() -> None:
    """The error says how; neither is a tensor an array by mistake."""
    async with asyncrt.Runtime("simulated") as rt:
        left = (await (await rt.load(SHAPED)).infer_on_device({"x": X}))

        for use in (np.from_dlpack, np.asarray, lambda t: t.__dlpack__()):
            with pytest.raises(asyncrt.NotOnHostError, match=r"await tensor\.numpy"):
                use(left["y"])
        np.testing.assert_array_equal([3, 4], np.from_dlpack(left["s"]))


@pytest.mark.asyncio
async def test_a_tensor_on_a_lost_device_says_so() -> None:
    """Reading it, and running on it."""
    device = SimulatedDevice()
    async with asyncrt.Runtime(device) as rt:
        relu = await rt.load(RELU)
        left = (await relu.infer_on_device({"x": X}))["y"]
        device.faults.lose(Fault("device"))

        with pytest.raises(asyncrt.DeviceError):
            await left.numpy()
        with pytest.raises(asyncrt.DeviceError):
            await relu.infer({"x": left})
        with pytest.raises(asyncrt.DeviceLostError):
            await left.numpy()
