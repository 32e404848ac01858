"""Who else runs the same models on the same cores, and how is each set up?

Each is set up as its own documentation advises for one request at a time on so many cores, in float32. A peer that is
not installed, or cannot load a model, is left out, and the report says so: no benchmark needs all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import attrs
import numpy as np

from asyncrt.devices.base import Device
from asyncrt.devices.opencl import drivers

from . import measure as m

Run: TypeAlias = Callable[[m.Inputs], list[m.Array]]
"""A model in a peer: from inputs to outputs, in the order of the model's. One thread at a time, unless it says so."""

OURS = "asyncrt"
"""What asyncrt is called among `Samples` of peers."""


# --- the peers --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Peer:
    """A runtime that asyncrt is compared with.

    Attributes:
        name: What tables call it.
        package: What Python and pip call it.
        load: Brings a model, a file or its bytes, to so many cores.
    """

    name: str
    package: str
    load: Callable[[Path | bytes, int], Run]

    @property
    def installed(self) -> bool:
        """Whether Python finds it."""
        return installed(self.package)


def load_onnx_runtime(model: Path | bytes, threads: int) -> Run:
    """Return a model in ONNX Runtime on the CPU; any number of threads may call it."""
    session = onnx_runtime_session(model, threads)
    return lambda inputs: list(session.run(None, inputs))


def onnx_runtime_session(model: Path | bytes, threads: int) -> Any:
    """Return a session of ONNX Runtime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def load_openvino(model: Path | bytes, threads: int) -> Run:
    """Return a model in OpenVINO on the CPU, for the shortest latency."""
    compiled = openvino_model(model, threads, throughput=False)
    request = compiled.create_infer_request()
    outputs = compiled.outputs

    def run(inputs: m.Inputs) -> list[m.Array]:
        results = request.infer(inputs, share_inputs=True)  # the inputs are not copied
        return [results[output] for output in outputs]

    return run


def find_opencl_drivers() -> None:
    """Load every OpenCL driver there is.

    OpenVINO brings a ``libtbb.so.12`` of its own. Intel's OpenCL runtime needs newer symbols than that one has, and so
    does not load after it; OpenVINO works with the newer one.
    """
    drivers.prepare()
    import pyopencl

    with contextlib.suppress(pyopencl.Error):  # there is none
        pyopencl.get_platforms()


def openvino_model(model: Path | bytes, threads: int, throughput: bool) -> Any:
    """Return a model that OpenVINO compiled for the CPU, in float32 even where it has faster types."""
    find_opencl_drivers()
    import openvino
    import openvino.properties as properties
    import openvino.properties.hint as hint

    core = openvino.Core()
    mode = hint.PerformanceMode.THROUGHPUT if throughput else hint.PerformanceMode.LATENCY
    config = {
        hint.performance_mode: mode,
        hint.inference_precision: openvino.Type.f32,  # its default is bfloat16 where the processor has it
        properties.inference_num_threads: threads,
    }
    return core.compile_model(core.read_model(model if isinstance(model, bytes) else str(model)), "CPU", config)


class OpenVinoQueue:
    """A model in OpenVINO, for the highest throughput of so many requests at once."""

    def __init__(self, model: Path | bytes, threads: int, jobs: int) -> None:
        import openvino

        self._queue = openvino.AsyncInferQueue(openvino_model(model, threads, throughput=True), jobs)
        self._queue.set_callback(self._finish)
        self._results: dict[int, list[m.Array]] = {}

    def _finish(self, request: Any, index: int) -> None:
        # The request's own arrays are written again by the next one that it takes.
        self._results[index] = [np.array(tensor.data) for tensor in request.output_tensors]

    def run(self, requests: Sequence[m.Inputs]) -> list[list[m.Array]]:
        """Return the outputs of the requests; the queue runs as many at once as it likes."""
        self._results.clear()
        for index, inputs in enumerate(requests):
            self._queue.start_async(inputs, index)
        self._queue.wait_all()
        return [self._results[index] for index in range(len(requests))]


ONNX_RUNTIME = Peer("ONNX Runtime", "onnxruntime", load_onnx_runtime)
OPENVINO = Peer("OpenVINO", "openvino", load_openvino)


def installed(package: str) -> bool:
    """Whether Python finds a package."""
    return importlib.util.find_spec(package) is not None


# --- a model in all of them -------------------------------------------------------------------------------------------


@attrs.frozen
class Loaded:
    """A model in the peers that are there.

    Attributes:
        runs: By the peer's name.
        notes: Which peers are left out, and why: sentences.
    """

    runs: Mapping[str, Run]
    notes: Sequence[str] = ()

    def check(self, what: str, inputs: m.Inputs, ours: Sequence[m.Array], near: float = m.NEAR) -> float:
        """Return the largest difference of asyncrt's outputs from the peers'.

        Args:
            near: How large it may be, as a part of the largest output.

        Raises:
            BenchmarkError: One is too large.
        """
        differences = [m.check_equal(f"{what}, {name}", ours, run(inputs), near) for name, run in self.runs.items()]
        return max(differences, default=0.0)

    def blocks(self, inputs: m.Inputs, seconds: float) -> dict[str, m.Block]:
        """Return turns of *seconds* for each peer, by name."""
        return {name: m.called(partial(run, inputs), seconds) for name, run in self.runs.items()}


def load(model: Path | bytes, peers: Sequence[Peer] = (ONNX_RUNTIME, OPENVINO), threads: int | None = None) -> Loaded:
    """Return a model in those of *peers* that are installed and take it."""
    runs: dict[str, Run] = {}
    there, notes = present(peers)
    for peer in there:
        try:
            runs[peer.name] = peer.load(model, threads or m.cores())
        except Exception as error:  # a peer that refuses a model raises what it likes
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            notes.append(f"{peer.name} is left out: it does not take the model ({reason}).")
    return Loaded(runs, notes)


def present(peers: Sequence[Peer]) -> tuple[list[Peer], list[str]]:
    """Return the peers that are installed, and a sentence for each that is not."""
    missing = [peer for peer in peers if not peer.installed]
    notes = [f"{peer.name} is left out: it is not installed (`pip install {peer.package}`)." for peer in missing]
    return [peer for peer in peers if peer.installed], notes


# --- compiled for each shape ------------------------------------------------------------------------------------------


class Tinygrad:
    """A model in tinygrad, on the very OpenCL device that asyncrt has, compiled for the first shape that it gets.

    Its ONNX frontend fixes every dim by the first request, and its JIT replays one shape: another one needs another of
    these. The first call compiles the kernels, the second one records them, the third is the first to replay.
    """

    def __init__(self, model: Path, device: Device) -> None:
        opencl = cast(Any, device)  # an OpenCLDevice, whose handle tinygrad takes instead of the first that it finds
        os.environ.update(
            DEV="CL",
            CACHELEVEL="0",  # compile, even what an earlier run compiled
            OPENCL_PATH=_opencl_loader(),  # the loader that pyopencl uses: handles are its own
        )
        import tinygrad
        from tinygrad.nn.onnx import OnnxRunner
        from tinygrad.runtime import ops_cl

        handle = ctypes.cast(opencl.cl_device.int_ptr, ops_cl.cl.cl_device_id)
        ops_cl.CLDevice.device_ids = (ops_cl.cl.cl_device_id * 1)(handle)
        self._tensor = tinygrad.Tensor
        runner = OnnxRunner(str(model))
        self._names = list(runner.graph_inputs)
        self._run = tinygrad.TinyJit(
            lambda *tensors: [
                result.realize() for result in runner(dict(zip(self._names, tensors, strict=True))).values()
            ]
        )

    def __call__(self, inputs: m.Inputs) -> list[m.Array]:
        tensors = [self._tensor(inputs[name]).realize() for name in self._names]
        return [result.numpy() for result in self._run(*tensors)]


def _opencl_loader() -> str:
    """Return the file of the OpenCL loader that this process uses, or "" if the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ""
    return next((path for line in lines if "/libOpenCL" in (path := line.split()[-1])), "")
