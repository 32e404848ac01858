"""Models without asyncio: `load_sync`, and ONNX's backend interface on top of it."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import helper

import asyncrt
import asyncrt.onnx_backend as backend
from asyncrt.errors import AsyncrtError, InputError, NoDeviceError, RuntimeClosedError, UnsupportedOperatorError
from asyncrt.sync import SyncRuntime

from ..builders import model, node, value
from ..onnx_suite import OPENCL, node_cases, run_case
from ..tiny_models import double, make


@pytest.mark.parametrize("device", ["host", "simulated", None])
def test_a_script_runs_a_model_without_an_event_loop(device: str | None) -> None:
    """Outputs come by name; inputs and outputs of the model and what became of its nodes can be asked."""
    with asyncrt.load_sync(double(), device) as model:
        outputs = model.infer_sync({"x": np.array([1, 2, 3], np.float32)})

        np.testing.assert_array_equal(outputs["y"], [2, 4, 6])
        assert str(model.inputs["x"]) == "float32[n]"
        assert str(model.outputs["y"]) == "float32[n]"
        assert model.explain().counts == {"ran": 1, "fused": 0, "skipped": 0, "view": 0, "empty": 0, "host": 0}


def test_many_threads_infer_at_once() -> None:
    """Every thread gets the answer to its own request."""
    with asyncrt.load_sync(double(), "host") as model, ThreadPoolExecutor(8) as threads:
        requests = [np.full(n % 5, n, np.float32) for n in range(64)]
        answers = list(threads.map(lambda x: model.infer_sync({"x": x})["y"], requests))

    for request, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer, 2 * request)


def test_errors_reach_the_caller_and_the_model_stays_usable() -> None:
    """What `infer()` raises, `infer_sync()` raises; the next request is not harmed."""
    with asyncrt.load_sync(double(), "host") as model:
        with pytest.raises(InputError, match="expected float32, got int64"):
            model.infer_sync({"x": np.array([1])})

        np.testing.assert_array_equal(model.infer_sync({"x": np.ones(2, np.float32)})["y"], [2, 2])


class _Stop(BaseException):
    """What no library catches."""


@pytest.mark.parametrize("error", [_Stop, SystemExit, KeyboardInterrupt])
def test_an_input_that_raises_what_ends_programs_ends_no_neighbour(error: type[BaseException]) -> None:
    """The caller whose input it is gets it; a request in flight, the next one and closing know nothing of it."""

    class Raises:
        def __array__(self, *args: object, **options: object) -> np.ndarray:
            raise error

    with asyncrt.load_sync(double(), "host") as model, ThreadPoolExecutor(4) as threads:
        large = np.ones(1 << 20, np.float32)
        beside = [threads.submit(model.infer_sync, {"x": large}) for _ in range(4)]
        with pytest.raises(error):
            model.infer_sync({"x": Raises()})

        assert [float(answer.result()["y"].sum()) for answer in beside] == [2.0 * large.size] * 4
        np.testing.assert_array_equal(model.infer_sync({"x": np.ones(2, np.float32)})["y"], [2, 2])
    assert repr(model) == "<SyncModel closed>"


def test_a_closed_model_says_so() -> None:
    """Closing twice is harmless; inferring after it is a clear error."""
    model = asyncrt.load_sync(double(), "host")
    model.close()
    model.close()

    with pytest.raises(RuntimeClosedError, match=r"the model was closed\n  hint  load it again"):
        model.infer_sync({"x": np.ones(1, np.float32)})
    assert repr(model) == "<SyncModel closed>"


def test_closing_waits_for_inferences_in_flight() -> None:
    """Requests that were begun before `close()` are answered."""
    model = asyncrt.load_sync(double(), "host")
    with ThreadPoolExecutor(4) as threads:
        begun = threading.Barrier(5)

        def client(n: int) -> float | None:
            begun.wait()
            try:
                return float(model.infer_sync({"x": np.full(1 << 18, n, np.float32)})["y"][-1])
            except RuntimeClosedError:
                return None  # `close()` was first

        answers = [threads.submit(client, n) for n in range(4)]
        begun.wait()
        model.close()

        for n, answer in enumerate(answers):
            assert answer.result() in (2.0 * n, None)


def test_models_share_a_runtime_and_leave_it_alone() -> None:
    """One that is closed, or that nobody has any more, gives its constants back; the others go on."""
    product = model([node("y = MatMul(x, w)")], ["x f32[n,4]"], ["y"], {"w": np.eye(4, dtype=np.float32)})
    x = np.ones((2, 4), np.float32)
    with SyncRuntime("host") as runtime:
        first, second, third = (runtime.load(product) for _ in range(3))
        for each in (first, second, third):
            np.testing.assert_array_equal(x, each.infer_sync({"x": x})["y"])
        held = runtime.statistics().weights_nbytes

        first.close()
        del second
        for thread in [t for t in threading.enumerate() if t.name == "asyncrt-close"]:
            thread.join()

        assert runtime.statistics().weights_nbytes == held // 3
        with pytest.raises(RuntimeClosedError, match="was unloaded"):
            first.infer_sync({"x": x})
        np.testing.assert_array_equal(x, third.infer_sync({"x": x})["y"])
    first.close()
    third.close()
    with pytest.raises(RuntimeClosedError, match="was closed"):
        runtime.load(product)


def test_a_runtime_that_failed_to_load_a_model_loads_the_next() -> None:
    """Unlike `load_sync()`, whose runtime is that of one model."""
    with SyncRuntime("host") as runtime:
        with pytest.raises(asyncrt.ModelFormatError):
            runtime.load(b"no model")

        np.testing.assert_array_equal(runtime.load(double()).infer_sync({"x": np.ones(1, np.float32)})["y"], [2])


def test_an_inference_that_is_submitted_is_a_future() -> None:
    """It has the outputs, or the error; many are under way at once."""
    with asyncrt.load_sync(double(), "host") as loaded:
        futures = [loaded.submit({"x": np.full(3, n, np.float32)}) for n in range(16)]
        wrong = loaded.submit({"x": np.ones(3)})

        assert [f.result()["y"].tolist() for f in futures] == [[2 * n] * 3 for n in range(16)]
        assert isinstance(wrong.exception(), InputError)
    with pytest.raises(RuntimeClosedError, match="was closed"):
        loaded.submit({"x": np.ones(3, np.float32)})


def test_a_future_that_is_cancelled_ends_its_inference() -> None:
    """Be it an endless loop; the runtime closes then, and others get their answers."""
    step = helper.make_graph(
        [node("go = Identity(more)"), node("t = Max(s, x)")],
        "step",
        [value("k i64[]"), value("more bool[]"), value("s f32[n]")],
        [value("go bool[]"), value("t f32[n]")],
    )
    endless = model([helper.make_node("Loop", ["", "on", "x"], ["y"], body=step)], ["on bool[]", "x f32[n]"], ["y"])
    with asyncrt.load_sync(endless, "host") as loaded:
        x = np.ones(2, np.float32)
        future = loaded.submit({"on": np.array(True), "x": x})

        assert future.cancel()

        assert future.cancelled()
        np.testing.assert_array_equal(x, loaded.infer_sync({"on": np.array(False), "x": x})["y"])
    assert not [t for t in threading.enumerate() if t.name == "asyncrt-sync"]


@pytest.mark.parametrize(
    ("source", "device", "error"), [(b"no model", "host", asyncrt.ModelFormatError), (double(), "warp", NoDeviceError)]
)
def test_what_does_not_load_leaves_no_thread_behind(
    source: bytes | onnx.ModelProto, device: str, error: type[AsyncrtError]
) -> None:
    """The error is that of `Runtime`, and the background thread ends."""
    with pytest.raises(error):
        asyncrt.load_sync(source, device)

    assert [t.name for t in threading.enumerate() if t.name == "asyncrt-sync"] == []


def test_a_forgotten_model_is_closed_when_it_is_collected() -> None:
    """Running a notebook cell again does not pile up runtimes."""
    model = asyncrt.load_sync(double(), "host")
    (thread,) = (t for t in threading.enumerate() if t.name == "asyncrt-sync")

    del model
    gc.collect()
    thread.join(60)

    assert not thread.is_alive()


@pytest.mark.parametrize("device", ["host", None])
def test_models_close_themselves_when_the_interpreter_exits(device: str | None) -> None:
    """A script that closes nothing ends quietly, and its models were closed when it did."""
    script = (
        "import atexit, sys, numpy as np, onnx, asyncrt\n"
        "source = sys.stdin.buffer.read()\n"
        f"model = asyncrt.load_sync(source, {device!r})\n"
        "atexit.register(lambda: print(model))\n"
        "print(model.infer_sync({'x': np.ones(2, np.float32)})['y'])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], input=double().SerializeToString(), capture_output=True, timeout=120
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"[2. 2.]\n<SyncModel closed>\n", b"")


# ONNX's backend interface.


def test_outputs_of_the_backend_are_a_tuple_in_the_models_order() -> None:
    """They are found by position and by name, names that are no Python names included."""
    nodes = [helper.make_node("Sub", ["a", "b"], ["1"]), helper.make_node("Mul", ["a", "b"], ["product"])]
    model = make(nodes, {"a": "float n", "b": "float n"}, ["product", "1"])
    a, b = np.array([5], np.float32), np.array([2], np.float32)

    prepared = backend.prepare(model, device="host")
    outputs = prepared.run([a, b])
    by_name = prepared.run({"b": b, "a": a})
    prepared.close()

    assert (outputs[0].tolist(), outputs[1].tolist()) == ([10.0], [3.0])
    assert (outputs["product"].tolist(), outputs["1"].tolist()) == ([10.0], [3.0])  # type: ignore[call-overload]
    assert [o.tolist() for o in outputs] == [o.tolist() for o in by_name]


def test_the_backend_says_how_many_inputs_it_wants() -> None:
    """A list of another length, or something else than a list, is refused with the names."""
    prepared = backend.prepare(double(), device="host")

    with pytest.raises(InputError, match=r"expected a list of 1 arrays \(x\), got 2"):
        prepared.run([np.ones(1, np.float32)] * 2)
    with pytest.raises(InputError, match="got a ndarray"):
        prepared.run(np.ones(1, np.float32))  # type: ignore[arg-type]
    prepared.close()


def test_the_backend_runs_a_single_node() -> None:
    """Inputs that a node leaves out are not counted."""
    node = helper.make_node("Gemm", ["a", "b", ""], ["y"])
    product = backend.run_node(node, [np.array([[1, 2]], np.float32), np.array([[3], [4]], np.float32)], device="host")
    total = backend.run_node(
        helper.make_node("ReduceSum", ["x"], ["y"], axes=[0]), [np.ones((2, 3), np.float32)], "host", opset_version=11
    )

    assert product[0].tolist() == [[11]]
    assert total[0].tolist() == [[2, 2, 2]]
    with pytest.raises(UnsupportedOperatorError, match="no operator Nonsense"):
        backend.run_node(helper.make_node("Nonsense", ["x"], ["y"]), [np.ones(1, np.float32)], "host")


def test_the_backend_knows_onnxs_names_of_devices() -> None:
    """ONNX's CPU and CUDA are OpenCL's CPU and GPU; asyncrt's names are taken too; one that is missing is not there."""
    assert backend.supports_device(OPENCL)
    assert backend.supports_device("host")
    assert not backend.supports_device("CUDA:63")
    assert not backend.supports_device("TPU")


_CASES = [
    "test_add", "test_add_bcast", "test_sub", "test_mul", "test_mul_bcast", "test_div", "test_pow_bcast_scalar",
    "test_max_example", "test_exp", "test_sqrt", "test_tanh", "test_sigmoid", "test_relu", "test_erf", "test_neg",
    "test_transpose_default", "test_transpose_all_permutations_3", "test_reshape_reordered_all_dims",
    "test_reshape_zero_dim", "test_reshape_negative_dim", "test_squeeze", "test_unsqueeze_two_axes",
    "test_flatten_axis1", "test_identity", "test_matmul_2d", "test_matmul_3d", "test_matmul_4d",
    "test_gemm_all_attributes", "test_gemm_default_no_bias", "test_softmax_axis_1", "test_softmax_large_number",
    "test_logsoftmax_axis_0", "test_reduce_sum_keepdims_example",
    "test_reduce_mean_negative_axes_keepdims_example", "test_reduce_max_do_not_keepdims_random", "test_gather_0",
    "test_gather_negative_indices", "test_concat_2d_axis_1", "test_concat_3d_axis_negative_1",
    "test_cast_FLOAT_to_FLOAT16", "test_shape_start_1_end_2", "test_basic_conv_with_padding",
    "test_conv_with_strides_no_padding",
]  # fmt: skip


@functools.cache
def _suite() -> dict[str, onnx.backend.test.case.test_case.TestCase]:
    return {case.name: case for case in node_cases()}


@pytest.mark.slow
@pytest.mark.parametrize("name", _CASES)
def test_a_case_of_onnxs_own_suite_passes(name: str) -> None:
    """`python -m tests.onnx_suite` runs all of them; these are operators that everything needs."""
    outcome = run_case(_suite()[name], OPENCL)

    assert (outcome.result, outcome.why) == ("passed", "")
