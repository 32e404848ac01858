"""What is no message: cut, flipped, doubled, of the wrong kind, too slow. A short form of `make stress --only wire`."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc

from asyncrt.serve.errors import BadRequest
from asyncrt.serve.grpc.codec import parse_infer
from asyncrt.serve.protocol.datatypes import check_shape

from ..stress.wire.callers import callers
from ..stress.wire.fuzz import fuzz
from .running import PATIENCE_S, Running, call, double, running, tensor
from .test_embeddings import write

X = np.array([[1.5, -2]], np.float32)
CALLS = "/inference.GRPCInferenceService/"


def test_whatever_comes_is_answered_or_refused(tmp_path: Path) -> None:
    """No status of 500 and more but 503 and 504, no traceback, nothing hangs, and right requests are answered."""
    report = fuzz(range(600), tmp_path, again="python -m tests.stress --wire-case {}")

    assert report.findings == []
    assert report.cases == 600
    assert {"200", "400", "404", "408", "OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= report.answers.keys()


def test_each_caller_has_its_own_answer_whoever_goes_meanwhile(tmp_path: Path) -> None:
    """Through both doors; nobody stays inside, and there is nothing in an answer but what is the caller's."""
    report = callers(600, tmp_path)

    assert report.findings == []
    assert report.answers["answered"] + report.answers["gone"] == report.cases == 600
    assert report.answers["gone"] > 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    path = tmp_path / "double.onnx"
    onnx.save(double(), path)
    with running(path, "--sender-timeout", "0.2") as found:
        yield found


def test_a_message_that_cannot_be_read_is_the_callers_mistake(server: Running) -> None:
    """INVALID_ARGUMENT, of a call and of a stream; those before it on the stream have their answers."""
    message = triton_grpc.service_pb2.ModelInferRequest(model_name="double", raw_input_contents=[X.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    right, wrong = message.SerializeToString(), b"\n\xff"
    with grpc.insecure_channel(server.grpc) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(CALLS + "ModelInfer")(wrong)
        answers = channel.stream_stream(CALLS + "ModelStreamInfer")(iter([right, right, wrong]))
        found = [next(answers), next(answers)]
        with pytest.raises(grpc.RpcError) as ended:
            next(answers)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith("the message cannot be read")
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for each in found:
        assert (2 * X).tobytes() in each


def test_contents_that_are_not_as_many_as_the_shape_says_are_refused() -> None:
    """None, too few and too many."""
    for count in (0, 1, 3):
        message = triton_grpc.service_pb2.ModelInferRequest(model_name="double")
        message.inputs.add(name="x", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([0.5] * count)

        with pytest.raises(BadRequest, match=rf"has {count} fp32_contents; FP32\[1, 2\] has 2"):
            parse_infer(message)


@pytest.mark.parametrize("shape", [[10**30, 0], [2**40, 2**40, 0], [0, 2**62], [2**63]])
def test_a_shape_beyond_all_arrays_is_refused(shape: list[int]) -> None:
    """Also where one of its axes has no elements."""
    with pytest.raises(BadRequest, match="the shape of x must be"):
        check_shape(shape, "x")


def test_half_a_character_is_no_text(tmp_path: Path) -> None:
    """JSON may have one, and a tokeniser not."""
    with running(write(tmp_path, pooled=True), "--grpc-port", "-1") as words:
        status, _, answer = call(words, "/v1/embeddings", b'{"model": "words", "input": "red \\ud800"}')

    assert status == 400
    assert "half of a character" in answer["error"]["message"]


def test_a_body_that_does_not_come_keeps_no_path_busy(server: Running) -> None:
    """Whatever the path, also one that wants none."""
    for path in ("/", "/metrics", "/graph/double", "/v2"):
        with socket.create_connection(server.http.split(":"), timeout=PATIENCE_S) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx".encode())
            assert connection.makefile("rb").readline() == b"HTTP/1.1 408 Request Timeout\r\n"

    assert call(server, "/v2/models/double/infer", {"inputs": [tensor("x", X)]})[0] == 200


def test_answers_are_what_the_description_says(server: Running, tmp_path: Path) -> None:
    """Of requests that schemathesis makes of /openapi.json, right and wrong; where it is installed."""
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or shutil.which("schemathesis")
    if program is None:
        pytest.skip("there is no schemathesis here: pip install schemathesis")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    command = [program, "run", f"http://{server.http}/openapi.json", "--checks", checks, "--phases", "coverage"]

    found = subprocess.run(
        [*command, "--seed", "1", "--no-color"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )  # fmt: skip

    assert found.returncode == 0, found.stdout
