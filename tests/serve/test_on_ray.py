"""A model on a real cluster of one machine: two replicas, one of them killed; many models, of which a few are kept."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt.errors import InputError
from asyncrt.layout import Array

from ..environment import ROOT
from .running import FOREVER, PATIENCE_S, double, patient, tensor, triple

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'asyncrt[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

X = np.array([[1.5, -2]], np.float32)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        port: int = made.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """A cluster; gives the ports of HTTP and gRPC."""
    import ray.serve

    from asyncrt.ray.deploy import GRPC_SERVICER

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    found = free_port(), free_port()
    ray.serve.start(
        http_options={"host": "127.0.0.1", "port": found[0]},
        grpc_options={"port": found[1], "grpc_servicer_functions": [GRPC_SERVICER]},
    )
    yield found
    ray.serve.shutdown()
    ray.shutdown()


def deploy(source: Path, **more: Any) -> Any:
    import ray.serve

    import asyncrt.ray

    app = asyncrt.ray.deployment(source, devices="host", num_cpus=0.1, **more)
    return ray.serve.run(app, name="app", route_prefix="/")


def client(handle: Any, **more: Any) -> Any:
    import asyncrt.ray

    return asyncrt.ray.Client(handle, **more)


def call(port: int, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", None if body is None else json.dumps(body).encode(), headers or {}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as found:
            return found.status, json.loads(found.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
            return error.code, json.loads(text) if text.startswith(b"{") else text


def steps(count: int, x: Array) -> dict[str, Array]:
    return {"n": np.array([count], np.int64), "x": x}


def test_a_model_is_asked_over_http_grpc_and_by_python(ports: tuple[int, int], tmp_path: Path) -> None:
    """With the same answers, and with errors that say the same."""
    import tritonclient.grpc as triton_grpc
    from tritonclient.utils import InferenceServerException

    onnx.save(double(), tmp_path / "double.onnx")
    asked = client(deploy(tmp_path / "double.onnx", batched=True))

    status, answer = call(ports[0], "/v2/models/double/infer", {"inputs": [tensor("x", X)]})
    assert (status, answer["outputs"][0]["data"]) == (200, [3, -4])
    status, answer = call(ports[0], "/v2/models/other/infer", {"inputs": [tensor("x", X)]})
    assert (status, answer) == (404, {"error": "there is no model 'other' that is ready"})
    status, answer = call(ports[0], "/v2/repository/models/double/unload", {})
    assert (status, answer["error"].split(".")[0]) == (400, "one replica alone cannot change its models")

    with triton_grpc.InferenceServerClient(f"127.0.0.1:{ports[1]}") as rpc:
        given = triton_grpc.InferInput("x", [1, 2], "FP32")
        given.set_data_from_numpy(X)
        np.testing.assert_array_equal(2 * X, rpc.infer("double", [given]).as_numpy("y"))
        assert rpc.is_model_ready("double")
        with pytest.raises(InferenceServerException) as caught:
            rpc.infer("other", [given])
        assert caught.value.status() == "StatusCode.NOT_FOUND"
        assert caught.value.message() == "there is no model 'other' that is ready"
        streamed: list[Any] = []
        rpc.start_stream(lambda result, error: streamed.append((result, error)))
        for _ in range(3):
            rpc.async_stream_infer("double", [given])
        rpc.stop_stream()
    assert [error for _, error in streamed] == [None] * 3
    np.testing.assert_array_equal(2 * X, streamed[2][0].as_numpy("y"))

    async def by_python() -> None:
        np.testing.assert_array_equal(2 * X, (await asked.infer({"x": X}))["y"])
        with pytest.raises(InputError, match="z"):
            await asked.infer({"z": X})

    asyncio.run(by_python())


async def status_of(port: int, path: str, body: Any) -> int:
    """Ask over HTTP; whoever is cancelled closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        text = json.dumps(body).encode()
        writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


def test_a_killed_replica_loses_only_what_it_had(ports: tuple[int, int], tmp_path: Path) -> None:
    """Its callers are told so by an error of their own; those of the other go on, and new ones have their answers."""
    from asyncrt.ray import ReplicaLost

    onnx.save(patient(), tmp_path / "patient.onnx")
    asked = client(deploy(tmp_path / "patient.onnx", num_replicas=2))
    forever = {"inputs": [tensor("n", np.array([FOREVER], np.int64), "INT64"), tensor("x", X[0])]}

    async def ask(i: int) -> Any:
        x = np.array([i, i + 0.5], np.float32)
        np.testing.assert_array_equal(x, (await asked.infer(steps(3, x)))["y"])

    async def scenario() -> tuple[list[Any], list[Any], list[Any]]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16))
        for i in range(20):
            await ask(i)
        long = [asyncio.create_task(asked.infer(steps(FOREVER, X[0]))) for _ in range(12)]
        path = "/v2/models/patient/infer"
        over_http = [asyncio.create_task(status_of(ports[0], path, forever)) for _ in range(8)]
        busy = 0
        while busy < 20:  # whichever is asked: both have some
            busy = busy + 1 if (await asyncio.to_thread(call, ports[0], "/status"))[1]["inside"] else 0
        names = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if "SERVE_REPLICA" in a["name"]]
        assert len(names) == 2
        ray.kill(ray.get_actor(names[0], namespace="serve"))
        short = await asyncio.gather(*(ask(i) for i in range(100)), return_exceptions=True)
        await asyncio.wait(long, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(over_http, return_when=asyncio.FIRST_COMPLETED)
        for i in range(20):
            await ask(i)
        for task in (*long, *over_http):
            task.cancel()  # those of the other one, which go on
        return short, *[await asyncio.gather(*tasks, return_exceptions=True) for tasks in (long, over_http)]

    short, long, over_http = asyncio.run(scenario())

    assert {type(outcome) for outcome in long} == {ReplicaLost, asyncio.CancelledError}
    # Ray's proxies speak for the dead.
    assert {type(o) if isinstance(o, BaseException) else o for o in over_http} == {500, asyncio.CancelledError}
    # What Ray had sent to the dead one before it knew is lost with it, and told so; nothing else is.
    assert {type(outcome) for outcome in short} <= {type(None), ReplicaLost}
    assert short.count(None) >= 50


def test_a_replica_keeps_a_few_of_many_models(ports: tuple[int, int], tmp_path: Path) -> None:
    """It loads those that are asked for, and lets go of those that nobody has asked for longest."""
    for name, made in (("double", double), ("triple", triple), ("other", double)):
        onnx.save(made(), tmp_path / f"{name}.onnx")
    asked = client(deploy(tmp_path, max_models=2, settings={"triple": {"batching": True}}), multiplexed=True)

    async def ask() -> None:
        for model, factor in (("double", 2), ("triple", 3), ("other", 2), ("triple", 3), ("double", 2)):
            np.testing.assert_array_equal(factor * X, (await asked.infer({"x": X}, model=model))["y"])

    def ready() -> set[str]:
        found = call(ports[0], "/v2/repository/index", {"ready": True})[1]
        return {entry["name"] for entry in found}

    assert ready() == set()
    asyncio.run(ask())
    assert ready() == {"triple", "double"}
    status, answer = call(ports[0], "/v2/models/other/infer", {"inputs": [tensor("x", X)]})
    assert (status, answer["outputs"][0]["data"]) == (200, [3, -4])
    assert ready() == {"double", "other"}
