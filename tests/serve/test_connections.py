"""Connections of HTTP: encrypted where there is a certificate, and no more than there may be."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import shlex
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.types import Receive, Scope, Send

from asyncrt.serve.first_request import curl_for
from asyncrt.serve.http.io import answer_json
from asyncrt.serve.http.joined import JoinedWrites
from asyncrt.serve.http.server import HttpServer
from asyncrt.serve.options import Address
from asyncrt.serve.protocol.messages import TensorInfo
from asyncrt.serve.settings import Limits

from .running import PATIENCE_S, call, double, running, tensor

X = np.array([[1.5, -2]], np.float32)


def certify(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False).sign(key, hashes.SHA256())
    )  # fmt: skip
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


def test_both_doors_are_encrypted_where_there_is_a_certificate(tmp_path: Path) -> None:
    """Clients that trust it are answered."""
    onnx.save(double(), tmp_path / "double.onnx")
    certificate, key = certify(tmp_path)
    with running(tmp_path / "double.onnx", "--tls-cert", str(certificate), "--tls-key", str(key)) as server:
        trust = ssl.create_default_context(cafile=str(certificate))
        body = json.dumps({"inputs": [tensor("x", X)]}).encode()
        with urllib.request.urlopen(
            f"https://{server.http}/v2/models/double/infer", body, timeout=PATIENCE_S, context=trust
        ) as answer:
            over_http = json.load(answer)["outputs"][0]["data"]
        with triton_grpc.InferenceServerClient(server.grpc, ssl=True, root_certificates=str(certificate)) as client:
            given = triton_grpc.InferInput("x", [1, 2], "FP32")
            given.set_data_from_numpy(X)
            over_grpc = client.infer("double", [given]).as_numpy("y")

    assert over_http == [3, -4]
    np.testing.assert_array_equal(2 * X, over_grpc)


@pytest.mark.asyncio
async def test_one_connection_too_many_is_closed_at_once() -> None:
    """Those that are open are served on, and when one of them goes another may come."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer_json(send, {})

    server = HttpServer(app, Address("127.0.0.1", 0), None, Limits(connections=1))
    sockets = server.listen()
    serving = asyncio.create_task(server.serve(sockets))

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return await reader.readline()

    async def connect() -> Any:
        return await asyncio.open_connection(server.bound.host, server.bound.port)

    async def is_closed(reader: asyncio.StreamReader) -> bool:
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True

    first = await connect()
    assert await ask(*first) == b"HTTP/1.1 200 OK\r\n"
    second = await connect()
    assert await is_closed(second[0])
    assert len(server.server_state.connections) == 1
    first[1].close()
    while server.server_state.connections:  # noqa: ASYNC110
        await asyncio.sleep(0)  # a turn of the loop
    third = await connect()
    assert await ask(*third) == b"HTTP/1.1 200 OK\r\n"

    server.should_exit = True
    for _, writer in (second, third):
        writer.close()
    await serving


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.said: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.said.append(bytes(data))

    def close(self) -> None:
        self.said.append("closed")

    def abort(self) -> None:
        self.said.append("aborted")

    def is_closing(self) -> bool:
        return self.said[-1:] == ["closed"]


@pytest.mark.asyncio
async def test_the_head_of_an_answer_and_its_body_are_one_write() -> None:
    """Everything is written, in order: two short ones as one, what nothing follows soon, and what is long at once."""
    at = Written()
    joined = JoinedWrites(at)  # type: ignore[arg-type]  # as far as it is used
    long = b"l" * (1 << 17)

    joined.write(b"head")
    joined.write(memoryview(b" body"))
    joined.write(b"alone")
    assert at.said == [b"head body"]
    await asyncio.sleep(0)
    joined.write(b"head")
    joined.write(long)
    joined.write(b"last")
    joined.close()
    await asyncio.sleep(0)

    assert at.said == [b"head body", b"alone", b"head", long, b"last", "closed"]
    assert joined.is_closing()


@pytest.mark.asyncio
async def test_nothing_is_written_to_a_connection_that_was_cut() -> None:
    """What was held back goes with it."""
    at = Written()
    joined = JoinedWrites(at)  # type: ignore[arg-type]  # as far as it is used

    joined.write(b"head")
    joined.abort()
    await asyncio.sleep(0)

    assert at.said == ["aborted"]


WITHOUT_GRPC = "import sys; sys.modules['grpc'] = None"


def test_without_the_packages_of_grpc_there_is_http(tmp_path: Path) -> None:
    """Who installs the extra `serve` alone has a server, and is told what is missing."""
    onnx.save(double(), tmp_path / "double.onnx")

    with running(tmp_path / "double.onnx", grpc=False, first=WITHOUT_GRPC) as server:
        status, _, answer = call(server, "/v2/models/double/infer", {"inputs": [tensor("x", X)]})

    assert (status, answer["outputs"][0]["data"]) == (200, [3, -4])
    assert server.grpc == ""
    assert "asyncrt[grpc]" in server.wait_for("HTTP alone")


@pytest.mark.parametrize(("door", "option"), [("HTTP", "--port"), ("gRPC", "--grpc-port")])
def test_a_port_that_somebody_has_is_said_to_be_taken(tmp_path: Path, door: str, option: str) -> None:
    """And how to have another one."""
    onnx.save(double(), tmp_path / "double.onnx")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(tmp_path / "double.onnx", option, str(port), doors=False) as server:
            assert server.ended() == 1
            said = "".join(server.all_said())

    assert f"cannot serve {door} on 127.0.0.1:{port}: " in said
    assert f"choose another port by {option}" in said
    assert "Errno" not in said


def test_a_ready_server_says_what_to_send_it(tmp_path: Path) -> None:
    """The line that it tells is answered, as it is."""
    onnx.save(double(), tmp_path / "double.onnx")

    with running(tmp_path / "double.onnx") as server:
        program, url, option, body = shlex.split(server.wait_for("try it: "))[2:]
        with urllib.request.urlopen(url, body.encode(), timeout=PATIENCE_S) as answer:
            found = json.load(answer)["outputs"][0]["data"]

    assert (program, option) == ("curl", "-d")
    assert found == [2]


def test_no_line_is_told_for_a_large_input() -> None:
    """Nobody would read it."""
    served = Mock(spec=["name", "inputs"])
    served.name, served.inputs = "picture", [TensorInfo("x", "FP32", [1, 3, 224, 224])]
    assert curl_for(served, "http://127.0.0.1:8000") is None


def test_grpc_that_was_asked_for_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Nobody waits for a port that is never opened."""
    onnx.save(double(), tmp_path / "double.onnx")

    with running(tmp_path / "double.onnx", doors=False, first=WITHOUT_GRPC) as server:
        assert server.ended() == 1

    assert any("pip install 'asyncrt[grpc]'" in line for line in server.all_said())
