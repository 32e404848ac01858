"""Models come, go and are exchanged while requests run; state is kept between requests."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from asyncrt.scheduler.batching import BatchOptions

from ..stress.wire.swaps import swaps
from .running import (
    FOREVER,
    PATIENCE_S,
    Running,
    call,
    double,
    inside,
    patient,
    running,
    tensor,
    triple,
    wait_until_inside,
    write_repository,
)

X = np.array([[1.5, -2]], np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_repository(tmp_path)


@pytest.fixture
def server(folder: Path) -> Iterator[Running]:
    with running(folder) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of which the models stay; each test ends its sequences."""
    with running(write_repository(tmp_path_factory.mktemp("models"))) as found:
        yield found


def infer(server: Running, model: str = "double", x: Any = X, **parameters: Any) -> tuple[int, Any]:
    """Ask for y; returns the status, and y or the error."""
    body = {"inputs": [tensor("x", x)], "parameters": parameters}
    status, _, answer = call(server, f"/v2/models/{model}/infer", body)
    return status, answer["outputs"][-1]["data"] if status == 200 else answer["error"]


def test_a_new_version_takes_the_old_ones_place_while_requests_run(server: Running, folder: Path) -> None:
    """Twenty times; each request has an answer, of one version or the other, and none fails."""
    over = threading.Event()
    wrong: list[Any] = []
    counts = [0, 0]

    def ask(door: int) -> None:
        kind, at = ((triton_http, server.http), (triton_grpc, server.grpc))[door]
        with kind.InferenceServerClient(at) as client:
            given = kind.InferInput("x", [1, 2], "FP32")
            given.set_data_from_numpy(X)
            while not over.is_set():
                try:
                    found = client.infer("double", [given])
                    response = found.get_response()
                    version = int(response["model_version"] if door == 0 else response.model_version)
                    if not np.array_equal((3 if version % 2 == 0 else 2) * X, found.as_numpy("y")):
                        wrong.append((version, found.as_numpy("y")))
                    counts[door] += 1
                except InferenceServerException as error:
                    wrong.append(error)

    callers = [threading.Thread(target=ask, args=(door,)) for door in (0, 1, 0, 1)]
    for caller in callers:
        caller.start()
    with triton_http.InferenceServerClient(server.http) as client:
        for version in range(2, 22):
            new = folder / "double" / str(version) / "model.onnx"
            new.parent.mkdir()
            onnx.save(triple() if version % 2 == 0 else double(), new)
            client.load_model("double")
            assert client.is_model_ready("double", str(version))
            assert not client.is_model_ready("double", str(version - 1))
    over.set()
    for caller in callers:
        caller.join()

    assert wrong == []
    assert min(counts) > 0


def test_a_request_stays_with_the_version_that_it_began_on(server: Running, folder: Path) -> None:
    """New ones have the new version, and the old one goes behind its last request."""
    body = json.dumps({"inputs": [tensor("n", np.array([FOREVER]), "INT64"), tensor("x", X[0])]})
    old = http.client.HTTPConnection(server.http, timeout=PATIENCE_S)
    old.request("POST", "/v2/models/patient/infer", body)
    wait_until_inside(server, 1)
    (folder / "patient" / "2").mkdir()
    onnx.save(patient(), folder / "patient" / "2" / "model.onnx")

    assert call(server, "/v2/repository/models/patient/load", {})[0] == 200
    once = {"inputs": [tensor("n", np.array([1]), "INT64"), tensor("x", X[0])]}
    status, _, answer = call(server, "/v2/models/patient/infer", once)

    assert (status, answer["model_version"], answer["outputs"][0]["data"]) == (200, "2", [1.5, -2])
    assert inside(server) == 1
    old.close()
    wait_until_inside(server, 0)
    server.end()  # which waits for what goes
    assert server.ended() == 0


def test_a_model_that_was_exchanged_leaves_nothing_behind(tmp_path: Path) -> None:
    """Each answer is of the version that it names, and the server has no more memory than before."""
    report = swaps(2, tmp_path, device="host", width=100)

    assert report.findings == []
    assert report.cases == 2


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(server: Running, folder: Path) -> None:
    """The error says why, and not where the file is."""
    (folder / "double" / "2").mkdir()
    (folder / "double" / "2" / "model.onnx").write_bytes(b"no model")

    status, _, answer = call(server, "/v2/repository/models/double/load", {})

    assert status == 400
    assert str(folder) not in answer["error"]
    assert infer(server) == (200, [3, -4])


def test_a_model_is_loaded_and_unloaded_when_asked_to(server: Running, folder: Path) -> None:
    """By each door; the index says what there is, and why it is not ready."""
    shutil.copytree(folder / "double", folder / "again")
    with triton_http.InferenceServerClient(server.http) as http, triton_grpc.InferenceServerClient(server.grpc) as rpc:
        assert infer(server, "again")[0] == 404
        rpc.load_model("again")
        assert infer(server, "again") == (200, [3, -4])
        http.unload_model("again")
        assert infer(server, "again")[0] == 404
        (entry,) = [m for m in http.get_model_repository_index() if m["name"] == "again"]
        assert entry == {"name": "again", "version": "", "state": "UNAVAILABLE", "reason": "it was unloaded"}
        http.load_model("again", config=json.dumps({"batching": False}))
        assert http.get_model_config("again")["max_batch_size"] == 0
        for client, name in ((http, "nothing"), (rpc, "nothing"), (rpc, "../double")):
            with pytest.raises(InferenceServerException, match="there is no model"):
                client.load_model(name)
            with pytest.raises(InferenceServerException, match="no setting 'speed'"):
                client.load_model("again", config='{"speed": 1}')


def test_versions_that_the_settings_name_are_served_side_by_side(folder: Path) -> None:
    """A request that names none gets the newest."""
    (folder / "double" / "2").mkdir()
    onnx.save(triple(), folder / "double" / "2" / "model.onnx")
    (folder / "double" / "model.toml").write_text('versions = "all"\n')
    with running(folder, "--grpc-port", "-1") as server:
        body = {"inputs": [tensor("x", X)]}
        answers = [
            call(server, f"/v2/models/double{version}/infer", body)[2]["outputs"][0]["data"]
            for version in ("", "/versions/1", "/versions/2")
        ]

        assert answers == [[4.5, -6], [3, -4], [4.5, -6]]
        assert call(server, "/v2/models/double")[2]["versions"] == ["1", "2"]


def test_what_tune_writes_is_what_the_server_reads(folder: Path, tmp_path: Path) -> None:
    """For models whose settings say nothing of batching; others keep their own."""
    written = tmp_path / "batching.json"
    BatchOptions(max_batch=3).write(written)
    with running(folder, "--config", str(written), "--grpc-port", "-1") as server:
        sizes = [call(server, f"/v2/models/{name}/config")[2]["max_batch_size"] for name in ("same", "double")]

    assert sizes == [3, 8]


def test_wrong_settings_end_the_server_with_one_clear_line(folder: Path) -> None:
    """Before it is ever ready."""
    (folder / "double" / "model.toml").write_text("[batching]\nmax_batch = 0")
    with running(folder, "--grpc-port", "-1", doors=False) as server:
        line = server.wait_for("error:")

        assert server.ended() == 1
    assert "model.toml, [batching]: max_batch must be an integer of at least 1, got 0" in line
    assert "Traceback" not in "".join(server.said)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"versions": [3]}, "has no version [3]; there are 1"),
        ({"warmup": [{"k": 3}]}, "warmup has a size of 'k', no dynamic dim; there are m, n"),
        ({"sequences": {}}, "has no state that could be told from its names"),
        ({"batching": {"max_batch": 0}}, "config, [batching]: max_batch must be an integer of at least 1, got 0"),
    ],
)
def test_settings_that_a_model_cannot_have_leave_it_as_it_is(shared: Running, settings: Any, said: str) -> None:
    """They are checked before the old one goes."""
    body = {"parameters": {"config": json.dumps(settings)}}
    status, _, answer = call(shared, "/v2/repository/models/double/load", body)

    assert status == 400
    assert said in answer["error"]
    assert infer(shared) == (200, [3, -4])


# Sequences.


def test_a_sequence_keeps_its_state_between_requests(shared: Running) -> None:
    """Steps of two sequences take turns, by number and by name; the end of one is not the other's."""
    assert infer(shared, "sum", sequence_id=7, sequence_start=True) == (200, [1.5, -2])
    assert infer(shared, "sum", sequence_id="a", sequence_start=True) == (200, [1.5, -2])
    assert infer(shared, "sum", sequence_id=7) == (200, [3, -4])
    assert infer(shared, "sum", sequence_id=7, sequence_end=True) == (200, [4.5, -6])
    assert infer(shared, "sum", sequence_id="a") == (200, [3, -4])
    status, said = infer(shared, "sum", sequence_id=7)
    assert status == 404
    assert "there is no sequence 7" in said
    assert infer(shared, "sum", sequence_id="a", sequence_start=True) == (200, [1.5, -2])


def test_a_step_that_fails_leaves_its_sequence_as_it_was(shared: Running) -> None:
    """And may be tried again."""
    infer(shared, "sum", sequence_id=1, sequence_start=True)
    status, _ = infer(shared, "sum", np.zeros((1, 3), np.float32), sequence_id=1)

    assert status == 400
    assert infer(shared, "sum", sequence_id=1) == (200, [3, -4])


def test_there_are_no_more_sequences_than_may_be(server: Running) -> None:
    """One too many is told to come later, until another ends."""
    for id in range(1, 5):
        infer(server, "sum", sequence_id=id, sequence_start=True)

    assert infer(server, "sum", sequence_id=5, sequence_start=True)[0] == 429
    infer(server, "sum", sequence_id=2, sequence_end=True)
    assert infer(server, "sum", sequence_id=5, sequence_start=True) == (200, [1.5, -2])


def test_steps_stream_over_grpc(shared: Running) -> None:
    """Each answer comes before the next step is asked for; an error ends only its step."""
    answers: list[tuple[Any, Any]] = []
    came = threading.Semaphore(0)

    def take(result: Any, error: Any) -> None:
        answers.append((None if result is None else result.as_numpy("y").tolist(), error))
        came.release()

    with triton_grpc.InferenceServerClient(shared.grpc) as client:
        client.start_stream(take)
        for step, width in enumerate((2, 2, 3, 2)):
            given = triton_grpc.InferInput("x", [1, width], "FP32")
            given.set_data_from_numpy(np.ones((1, width), np.float32))
            client.async_stream_infer("sum", [given], sequence_id=9, sequence_start=not step, sequence_end=step == 3)
            came.acquire()
        client.stop_stream()

    assert [y for y, _ in answers] == [[[1, 1]], [[2, 2]], None, [[3, 3]]]
    assert "x" in str(answers[2][1])


def test_steps_stream_over_http_as_events(shared: Running) -> None:
    """Each answer is an event; an error is the last one."""
    steps = [
        {"inputs": [tensor("x", X)], "parameters": {"sequence_id": 3, "sequence_start": i == 0}, "id": str(i)}
        for i in range(3)
    ]
    steps.append({"inputs": [], "parameters": {"sequence_id": 3}})
    _, headers, text = call(shared, "/v2/models/sum/infer_stream", {"requests": steps})
    events = [json.loads(line.removeprefix(b"data: ")) for line in text.split(b"\n\n") if line]

    assert headers["content-type"] == "text/event-stream"
    assert [e["outputs"][0]["data"] for e in events[:3]] == [[1.5, -2], [3, -4], [4.5, -6]]
    assert [e["id"] for e in events[:3]] == ["0", "1", "2"]
    assert "missing: x" in events[3]["error"]
