"""How many embeddings a second does a server give in time, beside other servers, and what does it add to an answer?

MiniLM over HTTP; texts of log-normal lengths come at random times, whether or not those before have been answered, and
an answer counts if it comes within 200 ms. First each server's own capacity is sought: the highest rate at which the
slowest hundredth of its answers is still in time. Then three and ten times asyncrt's capacity is sent to each. LitServe
and BentoML put requests together as their documentation has it, padded, and run them by ONNX Runtime; each is in an
environment of its own, which pip makes. Last, one request after the other: what HTTP and gRPC add to `Model.infer()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import asyncrt
from asyncrt import AsyncrtError, DeadlineExceeded, Overloaded
from asyncrt.cli.arrivals import times
from asyncrt.cli.open_loop import Inputs, Point, measure
from asyncrt.cli.v2_client import V2Client

from . import command, models
from . import measure as m
from .models import LONGEST, MEDIAN, SIGMA
from .venvs import environment

OURS = "asyncrt"
DEADLINE_S = 0.2
STEP = 1.25  # from one rate to the next
OVERLOADS = (3, 10)
PATIENCE_S = 120.0
_APPS = Path(__file__).parent / "peer_servers"
_TEXT = models.tokens(1, 16)  # of the one caller

Client = Callable[[str], Any]
"""Makes a client of the server at a URL: it has `infer(inputs, deadline=...)`, and is entered with ``async with``."""


async def bench(settings: m.Settings, model: Path, seconds: float | None = None) -> m.Report:
    """Measure each rate for *seconds*."""
    seconds = seconds or (3.0 if settings.quick else 20.0)
    notes = [
        f"Each rate for {seconds:g} s; answers within {DEADLINE_S * 1e3:g} ms count, from when a request was due.",
        "The callers are on the same cores, and take what is said of them from the server.",
    ]
    rows: list[m.Row] = []
    summary: m.Row = {}
    best: dict[str, Point] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, serving in {OURS: _ours, "LitServe": _litserve, "BentoML": _bentoml}.items():
            try:
                with serving(model, Path(folder), settings) as (url, client):
                    async with client(url) as caller:
                        best[name] = await _capacity(name, caller.infer, seconds, rows)
                        for times_over in OVERLOADS:
                            rate = best[OURS].rate * times_over
                            point = await _measured(name, caller.infer, rate, seconds, rows)
                            kept = f"{point.goodput / best[name].goodput:.2f}" if best[name].goodput else "-"
                            summary[f"{name}, of its own goodput at {times_over} times {OURS}'s rate"] = kept
            except m.BenchmarkError as error:
                notes.append(f"{name} is left out: {error}")
        added = await _added(model, Path(folder), settings, 200 if settings.quick else 2000)
        rows += added
    for name, point in best.items():
        if name != OURS and point.goodput:
            summary[f"goodput over {name}"] = f"{best[OURS].goodput / point.goodput:.2f}"
    async with asyncrt.Runtime(settings.device) as rt:
        info = rt.info
    return m.Report(
        name="serving", command=f"python -m benchmarks.serving{settings.flags}", environment=m.environment(info),
        rows=[_filled(row) for row in rows], summary=summary, notes=notes,
    )  # fmt: skip


def _filled(row: m.Row) -> m.Row:
    what = ("p50 ms", "p99 ms", "refused %", "late %", "callers' cores", "added ms")
    headings = ("server", "sent /s", "in time /s", *what)
    return {heading: row.get(heading, "") for heading in headings}


# Load.


def _requests(rate: float, seconds: float, seed: int) -> list[tuple[float, Inputs]]:
    random = np.random.default_rng(seed)
    at = times("poisson", rate, seconds, random)
    lengths = np.clip(np.exp(random.normal(np.log(MEDIAN), SIGMA, len(at))).astype(int), 1, LONGEST)
    return [(t, models.tokens(1, int(length))) for t, length in zip(at, lengths, strict=True)]


async def _measured(name: str, infer: Any, rate: float, seconds: float, rows: list[m.Row]) -> Point:
    requests, begun, used = _requests(rate, seconds, len(rows)), time.perf_counter(), time.process_time()
    point = await measure(name, infer, rate, requests, DEADLINE_S)
    cores = (time.process_time() - used) / (time.perf_counter() - begun)
    rows.append(
        {
            "server": name,
            "sent /s": round(rate),
            "in time /s": round(point.goodput, 1),
            "p50 ms": _shown(point.p50_ms),
            "p99 ms": _shown(point.p99_ms),
            "refused %": round(100 * point.refused / point.requests, 1),
            "late %": round(100 * point.late / point.requests, 1),
            "callers' cores": f"{cores:.2f}",
        }
    )
    m.progress(f"{name}: {rows[-1]}")
    await asyncio.sleep(DEADLINE_S)
    return point


def _shown(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.1f}"


async def _capacity(name: str, infer: Any, seconds: float, rows: list[m.Row]) -> Point:
    """Return what came of the highest rate at which 99 of 100 are in time."""
    await measure(name, infer, 20, _requests(20, seconds, 0), None)  # shapes, kernels, estimates
    best: Point | None = None
    rate, missed = 20.0, 0
    while missed < 2:  # once may be something else on the machine
        point = await _measured(name, infer, rate, seconds, rows)
        if point.answered >= 0.99 * point.requests:
            best, missed = point, 0
        else:
            missed += 1
        rate *= STEP
    return best or point


# Servers.


@contextlib.contextmanager
def _ours(model: Path, folder: Path, settings: m.Settings) -> Iterator[tuple[str, Client]]:
    with running_asyncrt(model, settings) as server:
        yield server.http, lambda url: V2Client(url, "minilm")


class Server(NamedTuple):
    """Where `asyncrt serve` is: the URL of HTTP, host and port of gRPC, and the number of its process."""

    http: str
    grpc: str
    process: int


@contextlib.contextmanager
def running_asyncrt(
    model: Path, settings: m.Settings, *, batched: bool = True, first: str = "", **more: str
) -> Iterator[Server]:
    """Serve a model, as "minilm", or a repository, by `asyncrt serve`.

    Args:
        first: Statements of Python that the server's process begins with.
        more: Of its environment.
    """
    http, grpc = free_port(), free_port()
    program = [sys.executable, "-c", f"{first}\nfrom asyncrt.cli import main; main()", "serve", str(model)]
    program += ["--port", str(http), "--grpc-port", str(grpc), *(["--batched"] if batched else [])]
    program += ["--name", "minilm"] if model.is_file() else []
    program += [] if settings.device is None else ["--device", settings.device]
    with _running(program, http, "/v2/health/ready", more) as process:
        yield Server(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}", process)


@contextlib.contextmanager
def _litserve(model: Path, folder: Path, settings: m.Settings) -> Iterator[tuple[str, Client]]:
    programs, port = environment("litserve", ["litserve", "onnxruntime"]), free_port()
    program = [str(programs / "python"), str(_APPS / "litserve_app.py"), str(model), str(port)]
    with _running(program, port, "/health", {}):
        yield f"http://127.0.0.1:{port}", lambda url: JsonClient(url, "/predict", lambda ids: {"ids": ids})


@contextlib.contextmanager
def _bentoml(model: Path, folder: Path, settings: m.Settings) -> Iterator[tuple[str, Client]]:
    programs, port = environment("bentoml", ["bentoml", "onnxruntime"]), free_port()
    program = [str(programs / "bentoml"), "serve", "bentoml_app:Embeddings", "--host", "127.0.0.1", "--port", str(port)]
    more = {"MINILM": str(model), "BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": str(folder)}
    with _running(program, port, "/readyz", more):
        yield f"http://127.0.0.1:{port}", lambda url: JsonClient(url, "/predict", lambda ids: {"ids": [ids]})


@contextlib.contextmanager
def _running(program: Sequence[str], port: int, ready: str, more: Mapping[str, str]) -> Iterator[int]:
    """Run a server while this lasts, from when it is ready; gives the number of its process."""
    # The environment of this process would bring its packages along.
    ours = str(program[0]) == sys.executable
    kept = {name: value for name, value in os.environ.items() if ours or name != "PYTHONPATH"}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            program, cwd=None if ours else _APPS, env={**kept, **more}, stdout=said, stderr=said, start_new_session=True
        ) as server,
    ):
        try:
            until = time.monotonic() + PATIENCE_S
            while not _answers(f"http://127.0.0.1:{port}{ready}"):
                if server.poll() is not None or time.monotonic() > until:
                    said.seek(0)
                    lines = said.read().decode(errors="replace").strip().splitlines()
                    raise m.BenchmarkError(f"the server did not start: {lines[-1] if lines else 'it says nothing'}")
                time.sleep(0.2)
            yield server.pid
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            with contextlib.suppress(ProcessLookupError):  # some leave their workers behind
                os.killpg(server.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        port: int = made.getsockname()[1]
        return port


class JsonClient(V2Client):
    """Asks a server that takes tokens as JSON.

    Args:
        wanted: Makes the body of the tokens.
    """

    headers = MappingProxyType({"content-type": "application/json"})

    def __init__(self, url: str, path: str, wanted: Callable[[list[int]], Any]) -> None:
        super().__init__(url, "none")
        self._path, self._wanted = path, wanted

    async def infer(self, inputs: Inputs, *, deadline: float | None) -> int:
        """Send a request and wait for its answer; returns the answer's bytes."""
        body = json.dumps(self._wanted(inputs["input_ids"][0].tolist())).encode()
        try:
            return await self.send(body, len(body), deadline)
        except (Overloaded, DeadlineExceeded):
            raise
        except AsyncrtError as error:  # under load some answer 500, or close the connection
            raise Overloaded(str(error), retry_after_s=1.0) from error


# One caller.


async def _added(model: Path, folder: Path, settings: m.Settings, pairs: int) -> list[m.Row]:
    """Return what HTTP and gRPC add to an answer: medians of turns, one after the other."""
    with running_asyncrt(model, settings, batched=False) as server:
        async with (
            asyncrt.Runtime(settings.device) as rt,
            V2Client(server.http, "minilm") as client,
            _grpc(server.grpc) as over_grpc,
        ):
            loaded = await rt.load(model)
            ways: dict[str, Callable[[], Awaitable[Any]]] = {
                "Model.infer()": partial(loaded.infer, _TEXT),
                "HTTP, raw bytes": partial(client.infer, _TEXT, deadline=None),
                "gRPC": over_grpc,
            }
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for i in range(pairs + 50):
                for name, ask in ways.items():
                    begin = time.perf_counter()
                    await ask()
                    if i >= 50:
                        taken[name].append((time.perf_counter() - begin) * 1e3)
    medians = {name: float(np.median(ms)) for name, ms in taken.items()}
    alone = medians["Model.infer()"]
    return [
        {"server": f"one caller: {name}", "p50 ms": f"{ms:.3f}", "p99 ms": f"{np.percentile(taken[name], 99):.3f}",
         "added ms": f"{ms - alone:.3f}"}
        for name, ms in medians.items()
    ]  # fmt: skip


@contextlib.asynccontextmanager
async def _grpc(at: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    from tritonclient.grpc.aio import InferenceServerClient, InferInput

    inputs = []
    for name, array in _TEXT.items():
        inputs.append(InferInput(name, list(array.shape), "INT64"))
        inputs[-1].set_data_from_numpy(array)
    async with InferenceServerClient(at) as client:
        yield partial(client.infer, "minilm", inputs)


if __name__ == "__main__":
    command.run(bench)
