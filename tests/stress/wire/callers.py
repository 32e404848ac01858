"""Does each caller get its own answer, and nothing stay of those who go? Unique patterns, cancels and disconnects.

Callers come through both doors, some go in the midst of sending or waiting, and each answer is compared with what its
caller alone can have: the pattern has the caller's number in every element. When nothing is on its way, nobody may be
inside, no sequence open, and the memory of the server is measured.

What comes over gRPC comes to a bare server of the library as well, because that loses memory when callers cancel.
"""

from __future__ import annotations

import asyncio
import random
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from ...serve.running import Running
from .bare import a_bare_server
from .fuzz import AT_ONCE, PATIENCE_S, Report, a_server, fill, grows, look, resident, resident_of

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_BETWEEN = 1000
_LENGTH = b"\r\ninference-header-content-length: "


def callers(count: int, folder: Path, progress: Callable[[int], object] = lambda done: None, seed: int = 0) -> Report:
    """Let so many callers ask.

    Args:
        folder: Empty; models go there.
    """
    with a_server(folder, "--sender-timeout", str(PATIENCE_S)) as server, a_bare_server() as (process, at):
        return asyncio.run(_callers(server, process, at, count, progress, seed))


async def _callers(
    server: Running, process: subprocess.Popen[str], at: str, count: int, progress: Callable[[int], object], seed: int
) -> Report:
    report, begun = Report(), time.monotonic()
    points, points_bare = list[tuple[int, int]](), list[tuple[int, int]]()
    await fill(server, report, count)
    async with grpc.aio.insecure_channel(server.grpc) as channel, grpc.aio.insecure_channel(at) as channel_bare:
        calls = _call_of(channel), _call_of(channel_bare)
        for first in range(0, count, _BETWEEN):
            numbers = iter(range(first, min(count, first + _BETWEEN)))
            await asyncio.gather(*(_worker(server, calls, numbers, report, seed) for _ in range(AT_ONCE)))
            await look(server, report)
            report.cases = min(count, first + _BETWEEN)
            points.append((report.cases, await resident(server)))
            process.send_signal(signal.SIGUSR1)
            await _over_grpc(calls[1], pattern(0, 1, 1), goes_after=None)  # which it answers after that
            points_bare.append((report.cases, resident_of(process.pid)))
            progress(report.cases)
    report.seconds = time.monotonic() - begun
    report.grows, report.grows_bare = grows(points), grows(points_bare)
    return report


def _call_of(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(
        _INFER, request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )  # fmt: skip


def pattern(number: int, rows: int, columns: int) -> Any:
    """Return an array of which every element has the caller's number, exactly."""
    return (np.arange(rows * columns, dtype=np.float32) % 64 / 64 + number).reshape(rows, columns)


async def _worker(server: Running, calls: tuple[Any, Any], numbers: Any, report: Report, seed: int) -> None:
    connection = _Connection(server.http)
    for number in numbers:
        rng = random.Random(seed * 10**9 + number)
        x = pattern(number, rng.randrange(1, 9), rng.choice([1, 2, 16, 100]))
        goes = rng.random() < 0.1
        try:
            async with asyncio.timeout(PATIENCE_S):
                if rng.random() < 0.4:
                    goes_after = rng.choice([0, 1e-4, 1e-3]) if goes else None
                    found, _ = [await _over_grpc(call, x, goes_after) for call in calls]
                else:
                    found = await connection.ask(x, rng, goes)
        except TimeoutError:
            report.findings.append(f"caller {number}: no answer")
            continue
        except (grpc.aio.AioRpcError, OSError, EOFError) as error:
            connection.close()
            report.findings.append(f"caller {number}: {error!r}")
            continue
        report.answers["gone" if found is None else "answered"] += 1
        if found is not None and found != (x + x).tobytes():
            report.findings.append(f"caller {number}, {x.shape}: another's bytes, or wrong ones: {found[:64]!r}")
    connection.close()


async def _over_grpc(infer: Any, x: Any, goes_after: float | None) -> bytes | None:
    message = pb.ModelInferRequest(model_name="double", raw_input_contents=[x.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=x.shape)
    call = infer(message)
    if goes_after is not None:
        await asyncio.sleep(goes_after)
        call.cancel()
        return None
    found: bytes = (await call).raw_output_contents[0]
    return found


class _Connection:
    """A connection of HTTP that is kept, as long as its caller stays to the end."""

    def __init__(self, at: str) -> None:
        self._at = at.split(":")
        self._pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, x: Any, rng: random.Random, goes: bool) -> bytes | None:
        if self._pair is None:
            self._pair = await asyncio.open_connection(self._at[0], int(self._at[1]))
        reader, writer = self._pair
        whole = _request(x)
        if goes:
            writer.write(whole[: rng.choice([len(whole), rng.randrange(len(whole))])])
            await asyncio.sleep(rng.choice([0, 1e-4, 1e-3]))
            self.close()
            return None
        writer.write(whole)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(_number(head, b"\r\ncontent-length: "))
        return body[_number(head, _LENGTH) :] if head.startswith(b"HTTP/1.1 200") else head + body

    def close(self) -> None:
        if self._pair is not None:
            self._pair[1].transport.abort()
            self._pair = None


def _request(x: Any) -> bytes:
    rows, columns = x.shape
    text = (
        f'{{"inputs":[{{"name":"x","shape":[{rows},{columns}],"datatype":"FP32","parameters":'
        f'{{"binary_data_size":{x.nbytes}}}}}],"parameters":{{"binary_data_output":true}}}}'
    ).encode()
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text) + x.nbytes}".encode()
    return head + _LENGTH + str(len(text)).encode() + b"\r\n\r\n" + text + struct.pack(f"<{x.size}f", *x.flat)


def _number(head: bytes, name: bytes) -> int:
    return int(head.partition(name)[2].partition(b"\r\n")[0])
