"""Who else runs the same models on the same cores, and how is each set up?

Each is set up as its own documentation advises for one request at a time on so many cores, in float32. A peer that is
not installed, or cannot load a model, is left out, and the report says so: no benchmark needs all of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np

from asyncrt.devices import drivers

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
        return importlib.util.find_spec(self.package) is not None


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

    def check(self, what: str, inputs: m.Inputs, ours: Sequence[m.Array]) -> float:
        """Return the largest difference of asyncrt's outputs from the peers'.

        Raises:
            BenchmarkError: One is too large.
        """
        differences = [m.check_equal(f"{what}, {name}", ours, run(inputs)) for name, run in self.runs.items()]
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


# --- tables of asyncrt beside peers -----------------------------------------------------------------------------------


def milliseconds(samples: Mapping[str, m.Samples]) -> m.Row:
    """Return cells for samples of seconds: each one's median, then how many times faster asyncrt is."""
    row: m.Row = {f"{name} ms": float(np.median(seconds)) * 1e3 for name, seconds in samples.items()}
    ours = samples[OURS]
    row |= {f"over {name}": m.Ratio.of(seconds, ours) for name, seconds in samples.items() if name != OURS}
    return row


def means(cases: Sequence[Mapping[str, m.Samples]]) -> m.Row:
    """Return the geometric means of how many times faster asyncrt is, over cases with the same peers."""
    names = [name for name in cases[0] if name != OURS]
    return {
        f"geometric mean over {name}": m.Ratio.geometric_mean([(case[name], case[OURS]) for case in cases])
        for name in names
    }
