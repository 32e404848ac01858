"""What one can see of a server: metrics, the page and what it shows, a trace, the log, spans, a description of all."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace
from prometheus_client.parser import text_string_to_metric_families

import asyncrt
from asyncrt.errors import InputError
from asyncrt.serve.http.live import page
from asyncrt.serve.watch.access_log import AccessLog
from asyncrt.serve.watch.batches import BatchWatch
from asyncrt.serve.watch.counts import Clock, Counts
from asyncrt.serve.watch.spans import request_span

from .running import PATIENCE_S, Running, call, double, running, tensor, write_repository

X = np.ones((3, 2), np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(write_repository(tmp_path_factory.mktemp("models")), "--grpc-port", "-1") as found:
        yield found


def ask(server: Running, model: str = "double", name: str = "x") -> int:
    return call(server, f"/v2/models/{model}/infer", {"inputs": [tensor(name, X)]})[0]


def metrics(server: Running) -> dict[str, float]:
    """Each sample by its name and labels."""
    text = call(server, "/metrics")[2].decode()
    return {
        f"{s.name}{sorted(s.labels.items())}": s.value for f in text_string_to_metric_families(text) for s in f.samples
    }


def test_metrics_count_each_request_once(server: Running) -> None:
    """By how it ended; the histogram of its stages has as many, and so have executions of a caller alone."""
    before = metrics(server)
    statuses = [ask(server) for _ in range(5)] + [ask(server, name="z")]
    after = metrics(server)

    def grown(name: str, **labels: str) -> float:
        key = f"{name}{sorted({'model': 'double', 'version': '1', **labels}.items())}"
        return after[key] - before.get(key, 0)

    assert statuses == [200] * 5 + [400]
    assert grown("asyncrt_requests_total", outcome="OK") == 5
    assert grown("asyncrt_requests_total", outcome="WRONG") == 1
    assert grown("asyncrt_request_seconds_count", stage="total") == 5
    assert grown("asyncrt_request_seconds_bucket", stage="total", le="+Inf") == 5
    assert grown("asyncrt_inferences_total") == 15
    assert grown("asyncrt_executions_total") == 5
    assert grown("asyncrt_batches_total", reason="idle") == 5
    assert after["asyncrt_ready[]"] == 1
    assert after["asyncrt_requests_inside[]"] == 0


def test_the_page_asks_nobody_else() -> None:
    """It is one file, and names no other host."""
    text = page().decode()

    assert re.findall(r"(?:https?:)?//[a-z]", text) == []
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=", text) == []


def test_the_page_and_what_it_shows_are_there(server: Running) -> None:
    """The page; events with the streams, the models and their latencies; the graph of a model's last inference."""
    assert ask(server) == 200
    status, headers, text = call(server, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert text == page()
    connection = http.client.HTTPConnection(server.http, timeout=PATIENCE_S)
    connection.request("GET", "/live")
    event = json.loads(connection.getresponse().readline().removeprefix(b"data: "))
    connection.close()
    (double,) = [m for m in event["models"] if m["name"] == "double"]

    assert all(len(look) == len(event["lanes"][0]) >= 1 for look in event["lanes"])
    assert sum(double["buckets"]) == double["outcomes"]["OK"] >= 1
    assert len(double["buckets"]) == len(event["bounds"]) + 1
    assert b"</html>" in call(server, "/graph/double")[2]
    assert call(server, "/graph/patient")[0] == 404


def test_a_trace_of_the_next_second_is_what_perfetto_reads(server: Running) -> None:
    """With the requests that came meanwhile."""
    taken: list[tuple[int, dict[str, str], Any]] = []
    first = threading.Thread(target=lambda: taken.append(call(server, "/trace")))
    first.start()
    statuses = []
    while first.is_alive():
        statuses.append(ask(server))
    first.join()
    status, _, answer = taken[0]
    events = answer["traceEvents"]

    assert {status, *statuses} == {200}
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} >= {"stream 0", "requests"}
    assert any(e["ph"] == "X" and e["cat"] == "kernel" for e in events)


def test_every_path_that_is_described_is_there(server: Running) -> None:
    """And gives an error of the protocol, or what it says, rather than that there is no such path."""
    described = call(server, "/openapi.json")[2]
    schemas = described["components"]["schemas"]
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described))
    for path, operations in described["paths"].items():
        at = path.replace("{model}", "nothing").replace("{version}", "1")
        for method in operations:
            status, _, answer = call(server, at, {} if method == "post" else None, method=method.upper())
            assert status in (200, 400, 404), at
            if status != 200:
                assert "path" not in answer["error"], at

    assert set(names) == set(schemas)
    assert described["openapi"].startswith("3.")


# The log and the spans, without a server.


def test_the_log_has_a_line_of_json_for_each_request() -> None:
    """With the model, how it ended, and how long each stage took."""
    to = io.StringIO()
    log = AccessLog(to)
    clock = Clock()
    with clock.stage("run"):
        pass
    log.request("text", 3, "http", clock, 2_500_000, None)
    log.request("text", 3, "grpc", Clock(), 0, InputError("wrong"))
    log.close()
    first, second = map(json.loads, to.getvalue().splitlines())

    assert (first["model"], first["version"], first["status"], first["ms"]) == ("text", 3, "OK", 2.5)
    assert first["run_ms"] >= 0
    assert (second["door"], second["status"]) == ("grpc", "WRONG")


class Spans(trace.TracerProvider):
    """Keeps what is begun, with the parent that it was given."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, Mapping[str, Any]]] = []
        self.ended: list[str] = []

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        return self

    @contextmanager
    def start_as_current_span(
        self, name: str, *, context: Any, attributes: Mapping[str, Any], **more: Any
    ) -> Iterator[Any]:
        self.begun.append((name, trace.get_current_span(context).get_span_context().trace_id, attributes))
        yield self

    def set_status(self, status: Any) -> None:
        self.ended.append(status.description)


def test_a_request_has_a_span_within_its_callers_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """If anybody keeps spans; a failed one says with what."""
    with request_span("text", 1, {}) as nothing:
        nothing.failed(InputError("wrong"))  # nobody keeps it
    spans = Spans()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans)
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with request_span("text", 1, parent) as span:
        span.failed(InputError("wrong"))

    expected = 0x0AF7651916CD43DD8448EB211C80319C
    assert spans.begun == [("infer", expected, {"asyncrt.model": "text", "asyncrt.version": 1})]
    assert spans.ended == ["WRONG"]


def sampled(number: int, flags: int = trace.TraceFlags.SAMPLED) -> trace.SpanContext:
    return trace.SpanContext(number, number, is_remote=True, trace_flags=trace.TraceFlags(flags))


def test_requests_that_are_not_sampled_make_no_span_of_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would keep it; how long they waited is counted all the same. One that is sampled makes one."""
    spans, counts = Spans(), Counts()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans)
    watch = BatchWatch("text", 1, counts)

    def came(flags: int) -> tuple[int, Any]:
        with trace.use_span(trace.NonRecordingSpan(sampled(1, flags))):
            return watch.came()

    with watch.running([came(0), came(0)], (2, 16)):
        pass
    assert (spans.begun, counts.queue.count) == ([], 2)
    with watch.running([came(0), came(trace.TraceFlags.SAMPLED)], (2, 16)):
        pass
    assert ([name for name, *_ in spans.begun], counts.queue.count) == (["batch"], 4)


@pytest.mark.asyncio
async def test_a_batch_has_a_span_with_links_to_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests that wait and run together, whichever traces they are part of."""
    begun: list[tuple[str, set[int], Mapping[str, Any]]] = []

    class Provider(trace.TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            return self

        @contextmanager
        def start_as_current_span(
            self, name: str, *, context: Any, links: list[trace.Link], attributes: Mapping[str, Any]
        ) -> Iterator[None]:
            assert not trace.get_current_span(context).get_span_context().is_valid
            begun.append((name, {link.context.trace_id for link in links}, attributes))
            yield

    provider = Provider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    async def ask(batched: Any, number: int) -> None:
        with trace.use_span(trace.NonRecordingSpan(sampled(number))):
            found = await batched.infer({"x": np.full((1, 2), number, np.float32)})
        np.testing.assert_array_equal(np.full((1, 2), 2 * number, np.float32), found["y"])

    counts = Counts()
    async with asyncrt.Runtime("simulated") as runtime:
        loaded = await runtime.load(double())
        async with loaded.batched(max_batch=8) as batched:
            batched.watch = BatchWatch("double", 1, counts)
            await asyncio.gather(*(ask(batched, number) for number in range(1, 7)))
            executions = batched.statistics().executions

    linked = [number for _, numbers, _ in begun for number in numbers]
    assert executions < 6  # some ran together
    assert {name for name, _, _ in begun} == {"batch"}
    assert max(len(numbers) for _, numbers, _ in begun) > 1
    assert len(linked) == len(set(linked))
    assert counts.queue.count == len(linked)  # others ran at once, by themselves
    assert [a["asyncrt.requests"] for _, _, a in begun] == [len(numbers) for _, numbers, _ in begun]
    assert begun[0][2]["asyncrt.sizes"][0] == len(begun[0][1])
