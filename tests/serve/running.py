"""A server in a process of its own, as users start it, and models for it."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import attrs
import numpy as np
import onnx
from onnx import TensorProto, helper

from asyncrt.layout import Array

from ..builders import model, node
from ..environment import interruptible, with_sources

PATIENCE_S = 60.0
DTYPES = {
    "BOOL": "bool", "UINT8": "u8", "INT8": "i8", "INT32": "i32", "INT64": "i64", "FP16": "f16", "FP32": "f32",
    "FP64": "f64", "BF16": "bf16",
}  # fmt: skip


def same() -> onnx.ModelProto:
    """An output for an input of each dtype that a model of `tests/builders.py` may have."""
    names = list(DTYPES.values())
    nodes = [node(f"{n}_out = Identity({n})") for n in names]
    return model(nodes, [f"{n} {n}[n,2]" for n in names], [f"{n}_out" for n in names])


def double() -> onnx.ModelProto:
    """y = x + x"""
    return model([node("y = Add(x, x)")], ["x f32[n,m]"], ["y"])


def triple() -> onnx.ModelProto:
    """y = 3 x"""
    return model([node("y = Mul(x, three)")], ["x f32[n,m]"], ["y"], {"three": np.array(3, np.float32)})


def running_sum() -> onnx.ModelProto:
    """sum_out = sum_in + x, which is state from step to step, and y = sum_out + 0."""
    nodes = [node("sum_out = Add(sum_in, x)"), node("y = Add(sum_out, zero)")]
    return model(nodes, ["x f32[batch,2]", "sum_in f32[batch,2]"], ["sum_out", "y"], {"zero": np.zeros(2, np.float32)})


def patient() -> onnx.ModelProto:
    """y = x after n[0] steps: a request that takes as long as one likes, and ends when its caller goes."""
    body = helper.make_graph(
        [node("go_on = Identity(go)"), node("after = Max(before, x)")], "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, ["m"]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, ["m"]),
        ],
    )  # fmt: skip
    nodes = [node("trips = Reshape(n, none)"), helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    return model(nodes, ["n i64[1]", "x f32[m]"], ["y"], {"none": np.zeros(0, np.int64)})


FOREVER = 1 << 40
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "same": same, "double": double, "sum": running_sum, "patient": patient,
}  # fmt: skip


def write_repository(folder: Path) -> Path:
    """Write `MODELS` into a folder, as `asyncrt serve` takes it."""
    for name, made in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        onnx.save(made(), folder / name / "1" / "model.onnx")
    (folder / "sum" / "model.toml").write_text("[sequences]\nmax_idle_s = 600\nmax_sequences = 4\n")
    (folder / "double" / "model.toml").write_text("warmup = [{n = 1, m = 2}]\n\n[batching]\nmax_batch = 8\n")
    return folder


@attrs.define(eq=False)
class Running:
    """A server.

    Attributes:
        http, grpc: Host and port of each door.
        said: The lines of stderr that were waited for.
    """

    process: subprocess.Popen[str]
    http: str = ""
    grpc: str = ""
    said: list[str] = attrs.Factory(list)
    _lines: queue.Queue[str | None] = attrs.Factory(queue.Queue)

    def wait_for(self, start: str) -> str:
        """Return the line that begins so, when the server has said it."""
        for line in self.said:
            if line.startswith(start):
                return line
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.said.append(line)
            if line.startswith(start):
                return line
        raise AssertionError(f"the server ended without saying {start!r}:\n" + "".join(self.said))

    def read(self, stream: IO[str]) -> None:
        """Hand on what the server says; on a thread, so that it never waits."""
        for line in stream:
            self._lines.put(line)
        self._lines.put(None)

    def all_said(self) -> list[str]:
        """Return all lines, of a server that has ended."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.said.append(line)
        return self.said

    def ended(self) -> int:
        """Return the status with which it ends."""
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Tell it to end as a supervisor does."""
        self.process.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def running(
    source: Path, *options: str, doors: bool = True, grpc: bool = True, device: str | None = "host", first: str = "",
    **environment: str,
) -> Iterator[Running]:  # fmt: skip
    """Serve a model or a repository while this lasts, on ports that are free.

    Args:
        doors: Wait until it is ready.
        grpc: Ask for gRPC, on a port that is free if *options* do not name one.
        device: Where it runs; None is the best.
        first: Statements of Python that the server's process begins with.
    """
    program = f"{first}\nimport sys; sys.argv[0] = 'asyncrt'\nfrom asyncrt.cli import main; main()"
    given = ["serve", str(source), "--port", "0", *([] if device is None else ["-d", device]), *options]
    if grpc and "--grpc-port" not in options:
        given += ["--grpc-port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *given], env=with_sources(NO_COLOR="1", **environment), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=interruptible,
    )  # fmt: skip
    server = Running(process)
    assert process.stderr is not None
    reader = threading.Thread(target=server.read, args=(process.stderr,))
    reader.start()
    try:
        if doors:
            words = server.wait_for("ready: ").split()
            server.http = words[1].partition("://")[2]
            server.grpc = words[2].partition("://")[2] if len(words) > 2 else ""
        yield server
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


def call(
    server: Running, path: str, body: Any = None, *, headers: dict[str, str] | None = None, method: str | None = None
) -> tuple[int, dict[str, str], Any]:
    """Ask over HTTP; returns the status, the headers in lower case, and the answer."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http}{path}", data, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as found:
            status, got, text = found.status, found.headers, found.read()
    except urllib.error.HTTPError as error:
        with error:
            status, got, text = error.code, error.headers, error.read()
    named = {k.lower(): v for k, v in got.items()}
    is_json = named.get("content-type", "").startswith("application/json") and text
    return status, named, json.loads(text) if is_json else text


def tensor(name: str, array: Array, datatype: str = "FP32") -> dict[str, Any]:
    """An input in JSON."""
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.tolist()}


def inside(server: Running) -> int:
    """How many requests the server has let in and not answered."""
    found: int = call(server, "/status")[2]["inside"]
    return found


def wait_until_inside(server: Running, count: int) -> None:
    """Return when the server has let in so many."""
    for _ in range(100_000):
        if inside(server) == count:
            return
    raise AssertionError(f"{inside(server)} requests are inside, not {count}")
