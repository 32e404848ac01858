"""Does a server stand whatever is sent to it? Many cases at once, to one server in a process of its own.

No answer may have a status of 500 and more but 503, and 504 for who asked to be late; nothing may hang, the server may
write no traceback, and between cases a right request has its right answer.

How much memory the server has is measured when nothing is on its way, and what can be given back was: else it goes up
for a minute, after which a server that never rests looks for what cannot be reached, and to the largest peak so far.
What it remembers of requests is of fixed length, and full before it is measured where that is of interest.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs
import grpc
import onnx

from ...serve.running import Running, double, running, running_sum, same
from ...serve.test_embeddings import write as write_words
from ..soak import growth
from .cases import Case, case

AT_ONCE = 32
PATIENCE_S = 20.0
_PAUSE_S = 0.001
_BETWEEN = 500  # cases, after which the server is looked at
_REMEMBERED = 1200  # requests; of each it remembers four happenings, of 4096
_LONG = 100_000  # cases, of which the second half tells whether memory grows; caches fill in the first
_SENDER_S = 0.25
_LIMITS = ("--max-body", "1", "--sender-timeout", str(_SENDER_S))
MEASURED = "import signal; from tests.stress.soak import resident as r; signal.signal(signal.SIGUSR1, lambda *_: r())"
_CALLS = "/inference.GRPCInferenceService/"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.I)
_RIGHT = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1.5,-2]}]}'
_ENDED_WHILE_SENDING = "Internal error from Core"  # says the client of itself, of a stream
_NEVER = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)


@attrs.define
class Report:
    """What came of it.

    Attributes:
        cases: How many were sent.
        answers: How often each status came.
        findings: What should not be.
        grows: Bytes of the server for each case: the estimate, and its upper bound; None of too few cases.
        grows_bare: The same of a bare server of gRPC, which had the same calls; None if there was none.
        resident: Bytes that the server had each time that it was measured, where that is of interest.
    """

    cases: int = 0
    answers: Counter[str] = attrs.Factory(Counter)
    findings: list[str] = attrs.Factory(list)
    seconds: float = 0.0
    grows: tuple[float, float] | None = None
    grows_bare: tuple[float, float] | None = None
    resident: list[int] = attrs.Factory(list)


@contextlib.contextmanager
def a_server(folder: Path, *options: str) -> Iterator[Running]:
    """A server of small models, which takes small bodies, and gives back what it does not use when it is measured."""
    for name, made in {"double": double, "same": same, "sum": running_sum, "spare": double}.items():
        (folder / name / "1").mkdir(parents=True)
        onnx.save(made(), folder / name / "1" / "model.onnx")
    (folder / "double" / "model.toml").write_text("warmup = [{n = 1, m = 2}]\n\n[batching]\nmax_batch = 8\n")
    (folder / "sum" / "model.toml").write_text("[sequences]\nmax_idle_s = 1\nmax_sequences = 4\n")
    (folder / "words" / "1").mkdir(parents=True)
    write_words(folder / "words", pooled=True).rename(folder / "words" / "1" / "model.onnx")
    # Python's own allocator would keep blocks of pages of which a little is in use.
    with running(folder, *_LIMITS, *options, first=MEASURED, PYTHONMALLOC="malloc") as server:
        yield server


def fuzz(
    seeds: Iterable[int], folder: Path, progress: Callable[[int], object] = lambda done: None, again: str = ""
) -> Report:
    """Send the cases of all seeds.

    Args:
        folder: Empty; models go there.
        progress: Told how many cases are done.
        again: How a user sends one again, for the findings.
    """
    with a_server(folder, "--timeout", "5") as server:
        report = asyncio.run(_fuzz(server, list(seeds), progress, again))
        server.end()
        if server.ended() != 0:
            report.findings.append(f"the server ended with {server.process.returncode}")
        report.findings += mistakes_in(server.all_said())
    return report


def mistakes_in(said: list[str]) -> list[str]:
    """Return what a server's log says of mistakes of its own, with the lines around each."""
    wrong = [i for i, line in enumerate(said) if "Traceback" in line or " ERROR " in line or "never awaited" in line]
    return ["the server's log:\n" + "".join(said[max(0, i - 1) : i + 60]) for i in wrong]


async def _fuzz(server: Running, seeds: list[int], progress: Callable[[int], object], again: str) -> Report:
    report, begun, points = Report(), time.monotonic(), list[tuple[int, int]]()
    await fill(server, report, len(seeds))
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        for first in range(0, len(seeds), _BETWEEN):
            batch = iter(seeds[first : first + _BETWEEN])
            await asyncio.gather(*(_worker(server, channel, batch, report, again) for _ in range(AT_ONCE)))
            await look(server, report)
            report.cases = min(len(seeds), first + _BETWEEN)
            points.append((report.cases, await resident(server)))
            progress(report.cases)
    report.seconds = time.monotonic() - begun
    report.grows = grows(points)
    return report


def grows(points: list[tuple[int, int]]) -> tuple[float, float] | None:
    """Return the bytes for each case by which memory grows, and the upper bound; None of cases that are too few."""
    return growth(points[len(points) // 2 :]) if points[-1][0] >= _LONG else None


async def _worker(server: Running, channel: grpc.aio.Channel, seeds: Iterator[int], report: Report, again: str) -> None:
    for seed in seeds:
        drawn = case(seed)
        try:
            async with asyncio.timeout(PATIENCE_S):
                answers = await (_call(channel, drawn) if drawn.to == "grpc" else _send(server, drawn))
        except TimeoutError:
            report.findings.append(f"{again.format(seed)}: no answer, and the connection is open: {drawn}")
            continue
        for answer in answers:
            report.answers[answer] += 1
            if answer.startswith(("5", "!")) and answer not in ("503", "504"):
                report.findings.append(f"{again.format(seed)}: {answer}: {drawn}")


async def _send(server: Running, drawn: Case) -> list[str]:
    """Send bytes; returns the status of each answer."""
    host, port = (server.http if drawn.to == "http" else server.grpc).split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    found = b""
    try:
        for i, part in enumerate(drawn.parts):
            if i:
                await asyncio.sleep(_PAUSE_S)
            writer.write(part)
        if drawn.then == "go":
            return []
        await writer.drain()
        if drawn.then == "half":
            writer.write_eof()
        while more := await reader.read(1 << 16):  # until the server closes the connection, or has answered once
            found += more
            if _is_whole(found, b"".join(drawn.parts).startswith(b"HEAD")):
                break
    except OSError:  # the server has closed it
        return []
    finally:
        writer.transport.abort()
    return _statuses(found) if drawn.to == "http" else []


def _is_whole(found: bytes, of_head: bool) -> bool:
    if found.startswith(b"HTTP/1.1 100"):
        found = found.partition(b"\r\n\r\n")[2]
    head, _, rest = found.partition(b"\r\n\r\n")
    length = _LENGTH.search(head + b"\r\n")
    if length is None:
        return b"\r\ntransfer-encoding: chunked" in head and rest.endswith(b"0\r\n\r\n")
    return of_head or len(rest) >= int(length[1])


def _statuses(found: bytes) -> list[str]:
    statuses = []
    while match := _STATUS.match(found):
        statuses.append(match[1].decode())
        head, _, rest = found.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if length is None and statuses[-1] != "100":
            break
        found = rest if length is None else rest[int(length[1]) :]
    return statuses


async def _call(channel: grpc.aio.Channel, drawn: Case) -> list[str]:
    """Call a method with bytes; returns its status."""
    if drawn.method == "ModelStreamInfer":
        stream = channel.stream_stream(_CALLS + drawn.method)(iter(drawn.parts))
        if drawn.then == "go":
            await asyncio.sleep(_PAUSE_S)
            stream.cancel()
            return []
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in stream:
                pass
        code, details = await stream.code(), await stream.details()
    else:
        call = channel.unary_unary(_CALLS + drawn.method)(drawn.parts[0])
        if drawn.then == "go":
            await asyncio.sleep(_PAUSE_S)
            call.cancel()
            return []
        code, details = await call.code(), await call.details()
    wrong = code in _NEVER and details != _ENDED_WHILE_SENDING
    return [f"!{code.name} {details}" if wrong else code.name]


async def fill(server: Running, report: Report, cases: int) -> None:
    """Before many *cases*, let the server have so many requests that all that it remembers of any is full."""
    for _ in range(_REMEMBERED if cases >= _LONG else 0):
        await _ask_right(server, report)


async def look(server: Running, report: Report) -> None:
    """See that the server is well: a right request has its answer, and nobody is inside any more."""
    host, port = server.http.split(":")
    async with asyncio.timeout(PATIENCE_S):
        await _ask_right(server, report)
        while b'"inside":0' not in await _status(host, int(port)):
            pass


async def _ask_right(server: Running, report: Report) -> None:
    host, port = server.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(_RIGHT)}"
    writer.write(head.encode() + b"\r\n\r\n" + _RIGHT)
    answered = await reader.read(-1)
    writer.close()
    if not answered.startswith(b"HTTP/1.1 200") or b'"data":[3.0,-4.0]' not in answered:
        report.findings.append(f"a right request was answered {answered!r}")


async def _status(host: str, port: str | int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    found = await reader.read(-1)
    writer.close()
    return found


async def resident(server: Running) -> int:
    """Return the bytes that the server has in memory, after what can be given back was."""
    await asyncio.sleep(_SENDER_S)  # until nobody is waited for any more who has sent a half and gone
    server.process.send_signal(signal.SIGUSR1)
    await _status(*server.http.split(":"))  # which it answers after that
    return resident_of(server.process.pid)


def resident_of(process: int) -> int:
    """Return the bytes that a process has in memory."""
    # Not pages of files, which come and go with what code runs and what else the machine does.
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
