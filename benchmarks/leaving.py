"""How soon does a server stop working for a caller who has gone?

MiniLM. A caller sends a request that takes long, over HTTP or gRPC, and goes while it runs: it closes its connection,
or cancels its call. Measured is the time from then until the server's statistics say that the request has ended, with
the time of asking for them. The server is idle but for that caller, or others keep it busy with requests of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import asyncrt
from asyncrt.cli.v2_client import V2Client, request_of

from . import command, models
from . import measure as m
from .serving import Server, running_asyncrt

LONG = (32, 128)  # texts, and tokens of each
OTHERS = 8
WITHIN_MS = 50
PATIENCE_S = 5.0
LEAST_S, MOST_S = 0.02, 0.1  # after which a caller goes

Goes = Callable[[m.Inputs, float], Awaitable[None]]
"""Sends a request and goes so many seconds later."""


async def bench(
    settings: m.Settings, model: Path, long: tuple[int, int] = LONG, count: int | None = None, others: int = OTHERS
) -> m.Report:
    """Let *count* callers go, through each door and in each situation."""
    count = count or (20 if settings.quick else 100)
    rows: list[m.Row] = []
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        _repository(Path(folder), model)
        with running_asyncrt(Path(folder), settings) as server:
            for busy in (0, others):
                async with _keeping_busy(server, busy), _doors(server) as doors:
                    for door, goes in doors.items():
                        ms = await _seen(server, goes, models.tokens(*long), count)
                        longest = max(longest, *ms)
                        rows.append(
                            {
                                "door": door,
                                "others": busy,
                                "gone": len(ms),
                                "until it ended, median ms": float(np.median(ms)),
                                "p99 ms": float(np.percentile(ms, 99)),
                                "longest ms": max(ms),
                            }
                        )
                        m.progress(f"{rows[-1]}")
    async with asyncrt.Runtime(settings.device) as rt:
        info = rt.info
    return m.Report(
        name="leaving", command=f"python -m benchmarks.leaving{settings.flags}", environment=m.environment(info),
        rows=rows, summary={f"longest ms, of at most {WITHIN_MS}": longest},
        notes=[f"A request is {long[0]} texts of {long[1]} tokens; others ask for one of 16, batched."],
    )  # fmt: skip


def _repository(folder: Path, model: Path) -> None:
    """Have the model twice, so that the server's statistics tell the caller's requests from those of others."""
    for name in ("theirs", "ours"):
        (folder / f"{name}.onnx").symlink_to(model.resolve())


async def _seen(server: Server, goes: Goes, inputs: m.Inputs, count: int) -> list[float]:
    """Let callers go one after the other; returns how many milliseconds later the server was done with each."""
    random, found = np.random.default_rng(0), list[float]()
    async with _Statistics.of(server) as statistics:
        for _ in range(count):
            before = await statistics.ended()
            await goes(inputs, float(random.uniform(LEAST_S, MOST_S)))
            begin = time.perf_counter()
            while await statistics.ended() == before:
                if time.perf_counter() - begin > PATIENCE_S:
                    raise m.BenchmarkError(f"the server still works for a caller who went {PATIENCE_S:g} s ago")
            found.append((time.perf_counter() - begin) * 1e3)
    return found


@attrs.frozen
class _Statistics:
    """Asks, over a connection of its own, how many requests of our model have ended."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, server: Server) -> AsyncIterator[_Statistics]:
        """Connect while this lasts."""
        reader, writer = await asyncio.open_connection(*_at(server))
        yield cls(reader, writer)
        writer.close()

    async def ended(self) -> int:
        """Return how many have ended, answered or not."""
        self._writer.write(b"GET /v2/models/ours/stats HTTP/1.1\r\nhost: x\r\n\r\n")
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        (found,) = json.loads(await self._reader.readexactly(length))["model_stats"]
        return int(sum(found["inference_stats"][kind]["count"] for kind in ("success", "fail")))


def _at(server: Server) -> tuple[str, int]:
    parts = urlsplit(server.http)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


@contextlib.asynccontextmanager
async def _doors(server: Server) -> AsyncIterator[dict[str, Goes]]:
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        async def over_http(inputs: m.Inputs, after_s: float) -> None:
            body, length = request_of(inputs, None)
            _, writer = await asyncio.open_connection(*_at(server))
            head = f"POST /v2/models/ours/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
            writer.write(f"{head}inference-header-content-length: {length}\r\n\r\n".encode() + body)
            await writer.drain()
            await asyncio.sleep(after_s)
            writer.close()

        async def over_grpc(inputs: m.Inputs, after_s: float) -> None:
            message = pb.ModelInferRequest(model_name="ours")
            for name, array in inputs.items():
                message.inputs.add(name=name, datatype="INT64", shape=array.shape)
                message.raw_input_contents.append(array.tobytes())
            call = stub.ModelInfer(message)
            await asyncio.sleep(after_s)
            call.cancel()

        yield {"HTTP": over_http, "gRPC": over_grpc}


@contextlib.asynccontextmanager
async def _keeping_busy(server: Server, callers: int) -> AsyncIterator[None]:
    """While this lasts, so many callers ask, each its next request when its last is answered."""
    async with V2Client(server.http, "theirs") as client:

        async def caller() -> None:
            for _ in itertools.count():
                await client.infer(models.tokens(1, 16), deadline=None)

        tasks = [asyncio.create_task(caller()) for _ in range(callers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


if __name__ == "__main__":
    command.run(bench)
