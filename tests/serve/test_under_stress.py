"""What the server does when there is too much, too late or too slow, when callers go, and when it is to end."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from .running import FOREVER, PATIENCE_S, Running, call, inside, patient, running, tensor, wait_until_inside

X = np.array([1, 2], np.float32)
INFER = "/v2/models/patient/infer"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "patient.onnx"
    onnx.save(patient(), path)
    return path


@pytest.fixture(scope="module")
def narrow(source: Path) -> Iterator[Running]:
    """A server that takes two requests at a time, of a MiB each."""
    with running(source, "--max-requests", "2", "--max-body", "1") as server:
        yield server


def steps(count: int, **parameters: Any) -> dict[str, Any]:
    """A request of so many steps."""
    n = np.array([count], np.int64)
    return {"inputs": [tensor("n", n, "INT64"), tensor("x", X)], "parameters": parameters}


def begin(server: Running, count: int = FOREVER, **parameters: Any) -> http.client.HTTPConnection:
    """Send a request and do not wait for its answer."""
    connection = http.client.HTTPConnection(server.http, timeout=PATIENCE_S)
    connection.request("POST", INFER, json.dumps(steps(count, **parameters)))
    return connection


def grpc_inputs(count: int) -> list[Any]:
    n, x = triton_grpc.InferInput("n", [1], "INT64"), triton_grpc.InferInput("x", [2], "FP32")
    n.set_data_from_numpy(np.array([count], np.int64))
    x.set_data_from_numpy(X)
    return [n, x]


# Too many, and too late.


def test_one_request_too_many_is_told_to_come_later(narrow: Running) -> None:
    """429, RESOURCE_EXHAUSTED and when to try again, before any work; those that are in are not disturbed."""
    waiting = [begin(narrow), begin(narrow)]
    wait_until_inside(narrow, 2)

    status, headers, answer = call(narrow, INFER, steps(1))
    with triton_grpc.InferenceServerClient(narrow.grpc) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("patient", grpc_inputs(1))

    assert status == 429
    assert int(headers["retry-after"]) >= 1
    assert "as many requests" in answer["error"]
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    for connection in waiting:
        connection.close()
    wait_until_inside(narrow, 0)
    assert call(narrow, INFER, steps(3))[0] == 200


def test_who_is_refused_may_ask_again_on_the_same_connection(narrow: Running) -> None:
    """To connect anew for each refusal would cost both sides more than the short body that was not looked at."""
    waiting = [begin(narrow), begin(narrow)]
    wait_until_inside(narrow, 2)
    connection = http.client.HTTPConnection(narrow.http, timeout=PATIENCE_S)
    statuses, headers = [], []

    def ask() -> None:
        connection.request("POST", INFER, json.dumps(steps(1)))
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
        headers.append(answer.headers["connection"])

    ask()
    at = connection.sock
    ask()
    for each in waiting:
        each.close()
    wait_until_inside(narrow, 0)
    ask()

    assert statuses == [429, 429, 200]
    assert headers == [None, None, None]
    assert connection.sock is at
    connection.close()


def test_a_request_that_is_late_is_told_so(narrow: Running) -> None:
    """Its own timeout, in microseconds, needs no setting of the model's; nothing of it goes on.

    Whether it is late while it is launched or while it is awaited is a matter of luck.
    """
    status, _, answer = call(narrow, INFER, steps(FOREVER, timeout=20_000))
    with triton_grpc.InferenceServerClient(narrow.grpc) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("patient", grpc_inputs(FOREVER), timeout=20_000)

    assert status == 504
    assert re.match("no answer within 0.02 s|the request's deadline passed", answer["error"])
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    wait_until_inside(narrow, 0)


def test_the_deadline_of_a_call_of_grpc_is_the_requests(narrow: Running) -> None:
    """Whoever waits no longer is not worked for."""
    with triton_grpc.InferenceServerClient(narrow.grpc) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("patient", grpc_inputs(FOREVER), client_timeout=0.05)

    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    wait_until_inside(narrow, 0)


def test_the_server_has_a_limit_of_its_own(source: Path) -> None:
    """A request that names no timeout does not stay for ever."""
    with running(source, "--timeout", "0.05", "--grpc-port", "-1") as server:
        status, _, answer = call(server, INFER, steps(FOREVER))

    assert status == 504
    assert re.match("no answer within 0.05 s|the request's deadline passed", answer["error"])


SAYS_PRIORITIES = """
import sys
from asyncrt.runtime.model import Model
infer = Model.infer
def noted(self, inputs, *, priority=0, **more):
    print("priority:", priority, file=sys.stderr, flush=True)
    return infer(self, inputs, priority=priority, **more)
Model.infer = noted
"""


def test_a_request_goes_by_its_priority(source: Path) -> None:
    """Through each door; without one it is the model's own."""
    source.with_suffix(".toml").write_text("priority = 9\n")
    try:
        with running(source, first=SAYS_PRIORITIES) as server:
            n, x = triton_http.InferInput("n", [1], "INT64"), triton_http.InferInput("x", [2], "FP32")
            x.set_data_from_numpy(X)
            n.set_data_from_numpy(np.array([1], np.int64))
            with triton_http.InferenceServerClient(server.http) as client:
                client.infer("patient", [n, x], priority=4)
            with triton_grpc.InferenceServerClient(server.grpc) as client:
                client.infer("patient", grpc_inputs(1), priority=7)
                client.infer("patient", grpc_inputs(1))
            server.end()
            said = [line for line in server.all_said() if line.startswith("priority: ")]
    finally:
        source.with_suffix(".toml").unlink()

    assert said == ["priority: 4\n", "priority: 7\n", "priority: 9\n"]


# Callers who go.


def test_a_caller_of_http_who_goes_is_not_worked_for(narrow: Running) -> None:
    """The request ends when its connection does."""
    connection = begin(narrow)
    wait_until_inside(narrow, 1)

    connection.close()

    wait_until_inside(narrow, 0)


def test_a_caller_who_goes_leaves_none_of_several_requests(narrow: Running) -> None:
    """Those that were sent one behind the other on a connection end with it, the first as well."""
    body = json.dumps(steps(FOREVER)).encode()
    whole = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection(narrow.http.split(":"), timeout=PATIENCE_S) as connection:
        connection.sendall(3 * whole)
        wait_until_inside(narrow, 1)

    wait_until_inside(narrow, 0)


def test_a_caller_of_grpc_who_goes_is_not_worked_for(narrow: Running) -> None:
    """A cancelled call, and a stream that is closed."""
    with grpc.insecure_channel(narrow.grpc) as channel:
        stub = triton_grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = triton_grpc.service_pb2.ModelInferRequest(model_name="patient")
        message.inputs.add(name="n", datatype="INT64", shape=[1]).contents.int64_contents.append(FOREVER)
        message.inputs.add(name="x", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1, 2])
        under_way = stub.ModelInfer.future(message)
        wait_until_inside(narrow, 1)
        under_way.cancel()
        wait_until_inside(narrow, 0)

        answers = stub.ModelStreamInfer(iter([message]))
        wait_until_inside(narrow, 1)
        answers.cancel()
        wait_until_inside(narrow, 0)


# Too large, and too slow.


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_refused(narrow: Running, announced: bool) -> None:
    """Before it is sent if its length is announced, and else as soon as it is too long."""
    with socket.create_connection(narrow.http.split(":"), timeout=PATIENCE_S) as connection:
        if announced:
            connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {3 << 20}\r\n\r\n".encode())
        else:
            connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            connection.sendall(b"".join(b"10000\r\n" + b" " * 65536 + b"\r\n" for _ in range(17)))
        answer = connection.makefile("rb").readline()

    assert answer == b"HTTP/1.1 413 Request Entity Too Large\r\n"
    assert inside(narrow) == 0


def test_a_body_that_is_larger_when_it_is_decoded_is_refused(narrow: Running) -> None:
    """No more than the limit is decoded."""
    import zlib

    body = zlib.compress(b" " * (64 << 20))
    status, _, answer = call(narrow, INFER, body, headers={"content-encoding": "deflate"})

    assert status == 413
    assert "when it is decoded" in answer["error"]


def test_a_message_of_grpc_that_is_too_large_is_refused(narrow: Running) -> None:
    """RESOURCE_EXHAUSTED, and the next one is answered."""
    with triton_grpc.InferenceServerClient(narrow.grpc) as client:
        given = triton_grpc.InferInput("x", [1 << 19], "FP32")
        given.set_data_from_numpy(np.zeros(1 << 19, np.float32))
        with pytest.raises(InferenceServerException) as caught:
            client.infer("patient", [given])

        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        np.testing.assert_array_equal(X, client.infer("patient", grpc_inputs(2)).as_numpy("y"))


def test_slow_senders_are_not_waited_for(source: Path) -> None:
    """Neither for the rest of a header nor for that of a body; others are served meanwhile."""
    with running(source, "--sender-timeout", "0.2", "--grpc-port", "-1") as server:
        at = server.http.split(":")
        with (
            socket.create_connection(at, timeout=PATIENCE_S) as header,
            socket.create_connection(at, timeout=PATIENCE_S) as body,
        ):
            header.sendall(b"POST /v2 HTTP/1.1\r\nHost:")
            body.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
            served = call(server, INFER, steps(1))[0]

            assert served == 200
            assert header.recv(1000) == b""
            assert body.makefile("rb").read().startswith(b"HTTP/1.1 408 Request Timeout\r\n")  # and then it is closed


# The beginning, and the end.


WARMS_UNTIL_TOLD = """
import asyncio, signal, sys
from asyncrt.runtime.model import Model
ready = Model.ready
async def told(self):
    go_on = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, go_on.set)
    print("warming", file=sys.stderr, flush=True)
    await go_on.wait()
    await ready(self)
Model.ready = told
"""


def test_a_server_is_ready_when_its_models_are_warm(source: Path) -> None:
    """Before that it lives, says that it is not ready, and refuses requests with when to come again."""
    with running(source, doors=False, first=WARMS_UNTIL_TOLD) as server:
        server.http, server.grpc = (at.partition("://")[2] for at in server.wait_for("live: ").split()[1:])
        server.wait_for("warming")
        early = [call(server, "/v2/health/live")[0], call(server, "/v2/health/ready")[0]]
        refused, headers, _ = call(server, INFER, steps(1))
        with triton_grpc.InferenceServerClient(server.grpc) as client:
            assert client.is_server_live()
            assert not client.is_server_ready()

            server.process.send_signal(signal.SIGUSR1)
            server.wait_for("ready: ")

            assert client.is_server_ready()
        late = [call(server, "/v2/health/ready")[0], call(server, INFER, steps(1))[0]]

    assert (early, refused, "retry-after" in headers) == ([200, 503], 503, True)
    assert late == [200, 200]


def test_who_was_let_in_before_the_end_is_answered(source: Path) -> None:
    """Also those of whom a half has come by then: none is lost, and the server ends with 0 behind the last."""
    body = json.dumps(steps(2)).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with running(source) as server, contextlib.ExitStack() as up:
        callers = [
            up.enter_context(socket.create_connection(server.http.split(":"), timeout=PATIENCE_S)) for _ in range(5)
        ]
        for caller in callers:
            caller.sendall(head + body[:10])
        wait_until_inside(server, 5)

        server.end()
        server.wait_for("ending: ")
        for caller in callers:
            caller.sendall(body[10:])
        answers = [caller.makefile("rb").readline() for caller in callers]

        assert answers == [b"HTTP/1.1 200 OK\r\n"] * 5
        assert server.ended() == 0


def test_a_server_that_is_told_to_end_lets_its_requests_finish(source: Path) -> None:
    """New ones are refused with 503 and UNAVAILABLE, it is not ready any more, and it ends with 0 when all is done."""
    with running(source) as server:
        long = begin(server, FOREVER, timeout=400_000)
        answers: list[int] = []
        waiting = threading.Thread(target=lambda: answers.append(long.getresponse().status))
        waiting.start()
        wait_until_inside(server, 1)
        kept = triton_http.InferenceServerClient(server.http)
        rpc = triton_grpc.InferenceServerClient(server.grpc)
        assert kept.is_server_ready()

        server.end()
        server.wait_for("ending: ")

        assert not kept.is_server_ready()
        assert kept.is_server_live()
        with pytest.raises(InferenceServerException) as caught:
            rpc.infer("patient", grpc_inputs(1))
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        status, headers, _ = call(server, INFER, steps(1))
        assert (status, "retry-after" in headers) == (503, True)
        waiting.join()
        assert answers == [504]  # its own limit, which it came to without being cut off
        kept.close()
        rpc.close()
        long.close()
        assert server.ended() == 0


def test_a_second_signal_does_not_wait(source: Path) -> None:
    """Whoever asks twice is in a hurry: what runs is cut off."""
    with running(source, "--grpc-port", "-1") as server:
        long = begin(server)
        wait_until_inside(server, 1)

        server.end()
        server.wait_for("ending: ")
        server.process.send_signal(signal.SIGINT)

        assert server.ended() == 0
        long.close()


def test_who_has_no_key_is_refused(source: Path) -> None:
    """Through each door, but for health, which supervisors ask."""
    with running(source, ASYNCRT_SERVE_KEY="sesame") as server:
        refused = call(server, INFER, steps(1))
        wrong = call(server, INFER, steps(1), headers={"authorization": "Bearer open"})
        let_in = call(server, INFER, steps(1), headers={"authorization": "Bearer sesame"})
        with triton_grpc.InferenceServerClient(server.grpc) as client:
            with pytest.raises(InferenceServerException) as caught:
                client.infer("patient", grpc_inputs(1))
            right = client.infer("patient", grpc_inputs(1), headers={"authorization": "Bearer sesame"})
            assert client.is_server_ready()

    assert [refused[0], wrong[0], let_in[0]] == [401, 401, 200]
    assert refused[1]["www-authenticate"] == "Bearer"
    assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
    np.testing.assert_array_equal(X, right.as_numpy("y"))
