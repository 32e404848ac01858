"""`asyncrt bench --url` drives a server, and tells what became of its requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from asyncrt.cli.commands import app
from asyncrt.cli.v2_client import V2Client
from asyncrt.errors import AsyncrtError

from .running import call, double, running

LOAD = ("-s", "n=1", "--lengths", "m=uniform:2:8", "--rate", "200", "--seconds", "0.2")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(double(), tmp_path / "double.onnx")
    return tmp_path / "double.onnx"


def test_requests_go_to_the_server_and_all_are_accounted_for(model: Path, tmp_path: Path) -> None:
    """Those that it answered are those that it has counted, after a warm-up of a second."""
    report = tmp_path / "report.json"
    with running(model, "--grpc-port", "-1", "--name", "twice") as server:
        url = ("--url", f"http://{server.http}", "--served-as", "twice", "--json", str(report))
        done = CliRunner().invoke(app, ["bench", str(model), *LOAD, *url])
        (counted,) = call(server, "/v2/models/stats")[2]["model_stats"]
        missing = CliRunner().invoke(app, ["bench", str(model), *LOAD, "--url", f"http://{server.http}"])
    (point,) = json.loads(report.read_text())["points"]

    assert done.exit_code == 0, done.output
    assert point["requests"] == point["answered"] > 0
    assert counted["inference_stats"]["success"]["count"] > point["answered"]
    assert point["p50_ms"] > 0
    assert missing.exit_code == 1
    assert "answered with 404" in missing.output


def test_a_server_that_is_not_there_is_one_clear_line(model: Path) -> None:
    """And so is a rate that nobody gave."""
    gone = CliRunner().invoke(app, ["bench", str(model), *LOAD, "--url", "http://127.0.0.1:1"])
    no_rate = CliRunner().invoke(app, ["bench", str(model), "-s", "n=1", "-s", "m=2", "--url", "http://127.0.0.1:1"])

    assert (gone.exit_code, no_rate.exit_code) == (1, 2)
    assert "127.0.0.1:1 does not answer" in gone.output
    assert "expected --rate" in no_rate.output


async def answering(answer: bytes) -> tuple[asyncio.Server, str]:
    """A server that answers each connection's first request so, and closes it without having said that it would."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.asyncio
async def test_a_connection_that_the_server_has_closed_is_not_asked_again() -> None:
    """Each request has its answer, on a connection of its own."""
    server, url = await answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    async with server, V2Client(url, "any") as client:
        sizes = []
        for _ in range(2):
            sizes.append(await client.infer({}, deadline=None))
            while client.idle:  # noqa: ASYNC110  # a turn of the loop
                await asyncio.sleep(0)  # until the end of the connection has come

    assert sizes == [2, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "said"), [(b"220 mail\r\n", "what it says is not HTTP"), (b"HTTP/1.1 200 OK\r\n", "was closed")]
)
async def test_what_is_no_answer_is_one_clear_error(answer: bytes, said: str) -> None:
    """Whether it is another protocol, or ends in the midst."""
    server, url = await answering(answer)
    async with server, V2Client(url, "any") as client:
        with pytest.raises(AsyncrtError, match=said):
            await client.infer({}, deadline=None)
