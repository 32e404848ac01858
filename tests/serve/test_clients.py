"""Clients that know nothing of asyncrt are served as by any other server of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from tritonclient.utils import InferenceServerException

from asyncrt.layout import Array

from .running import DTYPES, Running, call, running, tensor, write_repository

NUMPY = {
    "BOOL": np.bool_, "UINT8": np.uint8, "INT8": np.int8, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16,
    "FP32": np.float32, "FP64": np.float64, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip
JSON_DTYPES = [d for d in DTYPES if d not in ("FP16", "BF16")]
X = np.array([[1.5, -2], [3, 0.25]], np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(write_repository(tmp_path_factory.mktemp("models"))) as found:
        yield found


def values(datatype: str) -> Array:
    """Two rows that show a wrong byte order, sign or width."""
    if datatype == "BOOL":
        return np.array([[True, False], [False, True]])
    dtype = np.dtype(NUMPY[datatype])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([[limits.min, limits.max], [1, 0]], dtype)
    return np.array([[1.5, -2], [0.25, 96]], dtype)


def inputs(kind: Any, binary: bool | None) -> list[Any]:
    """The inputs of the model with all dtypes, for a client."""
    found = []
    for datatype, name in DTYPES.items():
        given = kind.InferInput(name, [2, 2], datatype)
        if binary is None:
            given.set_data_from_numpy(values(datatype))
        else:
            given.set_data_from_numpy(values(datatype), binary_data=binary or datatype not in JSON_DTYPES)
        found.append(given)
    return found


def assert_same(result: Any) -> None:
    for datatype, name in DTYPES.items():
        np.testing.assert_array_equal(values(datatype), result.as_numpy(f"{name}_out"), err_msg=datatype)


# The same tensors through every client.


@pytest.mark.parametrize("binary", [True, False])
def test_every_dtype_comes_and_goes_over_http(server: Running, binary: bool) -> None:
    """As raw tensors, or as JSON where the protocol has that."""
    with triton_http.InferenceServerClient(server.http) as client:
        wanted = None
        if not binary:
            wanted = [
                triton_http.InferRequestedOutput(f"{name}_out", binary_data=datatype not in JSON_DTYPES)
                for datatype, name in DTYPES.items()
            ]
        assert_same(client.infer("same", inputs(triton_http, binary), outputs=wanted, request_id="one"))


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_every_dtype_comes_and_goes_over_asynchronous_http(server: Running, compression: str | None) -> None:
    """Also where the body is compressed."""

    async def ask() -> Any:
        async with triton_http_aio.InferenceServerClient(server.http) as client:
            return await client.infer("same", inputs(triton_http_aio, True), request_compression_algorithm=compression)

    assert_same(asyncio.run(ask()))


def test_every_dtype_comes_and_goes_over_grpc(server: Running) -> None:
    """As raw bytes."""
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        result = client.infer("same", inputs(triton_grpc, None), request_id="one")

        assert_same(result)
        assert result.get_response().id == "one"


def test_every_dtype_comes_and_goes_over_asynchronous_grpc(server: Running) -> None:
    """Also compressed."""

    async def ask() -> Any:
        async with triton_grpc_aio.InferenceServerClient(server.grpc) as client:
            return await client.infer("same", inputs(triton_grpc_aio, None), compression_algorithm="gzip")

    assert_same(asyncio.run(ask()))


def test_typed_contents_of_grpc_are_what_raw_ones_are(server: Running) -> None:
    """A client may write numbers rather than bytes."""
    request = triton_grpc.service_pb2.ModelInferRequest(model_name="double")
    given = request.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    given.contents.fp32_contents.extend(X.reshape(-1).tolist())
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        answered = client._client_stub.ModelInfer(request)  # noqa: SLF001  # the client has no other way to say it

    np.testing.assert_array_equal(2 * X, np.frombuffer(answered.raw_output_contents[0], np.float32).reshape(2, 2))


def test_the_same_request_has_the_same_bytes_through_each_door(server: Running) -> None:
    """JSON, raw tensors and gRPC differ in form alone."""
    x = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    over_json = call(server, "/v2/models/double/infer", {"inputs": [tensor("x", x)]})[2]["outputs"][0]["data"]
    answers = [np.array(over_json, np.float32).reshape(7, 5)]
    for kind, at in ((triton_http, server.http), (triton_grpc, server.grpc)):
        with kind.InferenceServerClient(at) as client:
            given = kind.InferInput("x", [7, 5], "FP32")
            given.set_data_from_numpy(x)
            answers.append(client.infer("double", [given]).as_numpy("y"))

    for answer in answers:
        np.testing.assert_array_equal(2 * x, answer)


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_a_tensor_of_64_megabytes_comes_and_goes(server: Running, door: str) -> None:
    """Its body is neither refused nor changed."""
    kind = triton_http if door == "http" else triton_grpc
    x = np.arange(16 << 20, dtype=np.float32).reshape(1024, -1)
    with kind.InferenceServerClient(getattr(server, door)) as client:
        given = kind.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        answer = client.infer("double", [given]).as_numpy("y")

    np.testing.assert_array_equal(2 * x, answer)


# What the protocol tells.


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_the_server_tells_what_it_is_and_has(server: Running, door: str) -> None:
    """Health, metadata, configuration, and the repository's index."""
    kind, more = (triton_http, {}) if door == "http" else (triton_grpc, {"as_json": True})
    with kind.InferenceServerClient(getattr(server, door)) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("double")
        assert client.is_model_ready("double", "1")
        assert not client.is_model_ready("double", "2")
        assert not client.is_model_ready("nothing")
        assert client.get_server_metadata(**more)["name"] == "asyncrt"
        assert "binary_tensor_data" in client.get_server_metadata(**more)["extensions"]
        metadata = client.get_model_metadata("double", **more)
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": shape_of(door, [-1, -1])}]
        assert metadata["versions"] == ["1"]
        config = client.get_model_config("double", **more)
        assert config.get("config", config)["max_batch_size"] == 8
        index = client.get_model_repository_index(**more)
        index = index["models"] if door == "grpc" else index
        assert [(m["name"], m["state"]) for m in index] == [
            (name, "READY") for name in ("double", "patient", "same", "sum")
        ]


def shape_of(door: str, shape: list[int]) -> list[Any]:
    return [str(s) for s in shape] if door == "grpc" else shape  # as JSON writes 64 bits


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_statistics_count_what_was_asked(server: Running, door: str) -> None:
    """Each answered request once, with its rows; each refused one as failed."""
    kind, more = (triton_http, {}) if door == "http" else (triton_grpc, {"as_json": True})
    with kind.InferenceServerClient(getattr(server, door)) as client:

        def counted() -> list[int]:
            (found,) = client.get_inference_statistics("double", **more)["model_stats"]
            s = found["inference_stats"]
            counts = found.get("inference_count", 0), s["success"].get("count", 0), s["fail"].get("count", 0)
            return [int(n) for n in counts]  # JSON of gRPC leaves zeros out

        before = counted()
        given = kind.InferInput("x", [2, 2], "FP32")
        given.set_data_from_numpy(X)
        client.infer("double", [given])
        with pytest.raises(InferenceServerException, match="missing: x"):
            client.infer("double", [])

        assert counted() == [before[0] + 2, before[1] + 1, before[2] + 1]


# Errors.


def test_errors_have_their_status_through_each_door(server: Running) -> None:
    """What was wrong is said, and nothing about the host."""
    with triton_http.InferenceServerClient(server.http) as http, triton_grpc.InferenceServerClient(server.grpc) as rpc:
        for ask, statuses in (
            (lambda c, k: c.infer("nothing", [kind_input(k)]), ("404", "StatusCode.NOT_FOUND")),
            (lambda c, k: c.infer("double", [kind_input(k)], model_version="7"), ("404", "StatusCode.NOT_FOUND")),
            (lambda c, k: c.infer("double", [kind_input(k, "z")]), ("400", "StatusCode.INVALID_ARGUMENT")),
            (lambda c, k: c.infer("double", [kind_input(k)], outputs=[k.InferRequestedOutput("z")]),
             ("400", "StatusCode.INVALID_ARGUMENT")),
            (lambda c, k: c.infer("double", [kind_input(k)], sequence_id=5), ("400", "StatusCode.INVALID_ARGUMENT")),
        ):  # fmt: skip
            for client, kind, status in ((http, triton_http, statuses[0]), (rpc, triton_grpc, statuses[1])):
                with pytest.raises(InferenceServerException) as caught:
                    ask(client, kind)
                assert caught.value.status() == status
                assert str(Path.cwd()) not in str(caught.value)
                assert "Traceback" not in str(caught.value)


def kind_input(kind: Any, name: str = "x") -> Any:
    given = kind.InferInput(name, [2, 2], "FP32")
    given.set_data_from_numpy(X)
    return given


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"no json", "not JSON"),
        (b"[1]", "must be an object"),
        (b"[" * 100_000, "nested too deeply"),
        ({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1]}]}, "its shape says [2]"),
        ({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[1, "2"]]}]}, "must be FP32"),
        ({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "INT8", "data": [1, 200]}]}, "beyond the range"),
        ({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [1, 2.5]}]}, "not all of it"),
        ({"inputs": [{"name": "x", "shape": [-1], "datatype": "FP32", "data": []}]}, "the shape of"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}, "no tensors of texts"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}]}, "left"),
        ({"inputs": [], "parameters": {"timeout": -1}}, "parameter timeout"),
        ({"inputs": [], "parameters": {"sequence_start": True}}, "need a sequence_id"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused_and_said_why(server: Running, body: Any, said: str) -> None:
    """With 400 and a message of the protocol's form."""
    status, _, answer = call(server, "/v2/models/double/infer", body)

    assert status == 400
    assert said in answer["error"]


def test_wrong_paths_and_methods_are_errors_of_the_protocol(server: Running) -> None:
    """Every answer that is no result has an `error`."""
    for path, method, status in (("/v3", "GET", 404), ("/v2/models/double/infer", "GET", 405), ("/v2", "PUT", 405)):
        found, _, answer = call(server, path, method=method)

        assert found == status
        assert answer["error"]
