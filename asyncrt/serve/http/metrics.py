"""`/metrics`: what has been served, and what the runtime did for it, as Prometheus reads it.

Everything is read from counts that are kept anyway, when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from asyncrt.serve.served_model import ServedModel
from asyncrt.serve.service import Service
from asyncrt.serve.watch.counts import BOUNDS, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MODEL = ("model", "version")


class Metrics:
    """The metrics of one server."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(service))

    def text(self) -> bytes:
        """Return all of them."""
        return generate_latest(self._registry)


class _Collector(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Any]:
        models = list(self._service.models)
        yield from _requests(models)
        yield from _batches([m for m in models if m.batched is not None])
        yield from _sequences([m for m in models if m.sequences is not None])
        yield from _server(self._service)
        yield from _runtime(self._service)

    def describe(self) -> Iterable[Any]:
        return ()


def _labels(model: ServedModel) -> list[str]:
    return [model.name, str(model.version)]


def _requests(models: list[ServedModel]) -> Iterable[Any]:
    ended = CounterMetricFamily("asyncrt_requests", "Requests that ended, by how.", labels=(*_MODEL, "outcome"))
    took = HistogramMetricFamily(
        "asyncrt_request_seconds",
        "What answered requests took, by stage; run includes waiting, of which queue is that for a batch.",
        labels=(*_MODEL, "stage"),
    )
    rows = CounterMetricFamily("asyncrt_inferences", "Rows of answered requests.", labels=_MODEL)
    runs = CounterMetricFamily(
        "asyncrt_executions", "Inferences that they took; fewer where they were batched.", labels=_MODEL
    )
    for model in models:
        labels = _labels(model)
        for outcome, count in model.counts.outcomes.items():
            ended.add_metric([*labels, outcome], count)
        stages = model.counts.stages if model.batched is None else {**model.counts.stages, "queue": model.counts.queue}
        for stage, histogram in stages.items():
            took.add_metric([*labels, stage], _buckets(histogram), histogram.ns / 1e9)
        rows.add_metric(labels, model.counts.rows)
        runs.add_metric(labels, model.executions)
    return ended, took, rows, runs


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip([*map(str, BOUNDS), "+Inf"], histogram.buckets, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _batches(models: list[ServedModel]) -> Iterable[Any]:
    waiting = GaugeMetricFamily("asyncrt_batch_waiting", "Requests that wait for a batch.", labels=_MODEL)
    nbytes = GaugeMetricFamily("asyncrt_batch_waiting_bytes", "Bytes of their inputs.", labels=_MODEL)
    flight = GaugeMetricFamily("asyncrt_batches_in_flight", "Batches that are on the device.", labels=_MODEL)
    released = CounterMetricFamily("asyncrt_batches", "Batches, by why they went.", labels=(*_MODEL, "reason"))
    members = CounterMetricFamily("asyncrt_batched_requests", "Requests that were in batches.", labels=_MODEL)
    work = CounterMetricFamily("asyncrt_batched_elements", "Elements of batches' inputs.", labels=(*_MODEL, "kind"))
    refused = CounterMetricFamily("asyncrt_batch_refused", "Requests refused, by why.", labels=(*_MODEL, "reason"))
    for model in models:
        assert model.batched is not None
        labels, s = _labels(model), model.batched.statistics()
        waiting.add_metric(labels, s.waiting)
        nbytes.add_metric(labels, s.waiting_nbytes)
        flight.add_metric(labels, s.in_flight)
        members.add_metric(labels, s.members)
        work.add_metric([*labels, "asked for"], s.work - s.padding)
        work.add_metric([*labels, "padding"], s.padding)
        for reason, count in s.reasons.items():
            released.add_metric([*labels, reason], count)
        for refusal, count in s.rejected.items():
            refused.add_metric([*labels, refusal], count)
    return waiting, nbytes, flight, released, members, work, refused


def _sequences(models: list[ServedModel]) -> Iterable[Any]:
    count = GaugeMetricFamily("asyncrt_sequences", "Sequences that are open.", labels=_MODEL)
    nbytes = GaugeMetricFamily("asyncrt_sequence_bytes", "Bytes of the device that their state takes.", labels=_MODEL)
    for model in models:
        assert model.sequences is not None
        count.add_metric(_labels(model), len(model.sequences))
        nbytes.add_metric(_labels(model), model.sequences.nbytes)
    return count, nbytes


def _server(service: Service) -> Iterable[Any]:
    door = service.admission
    yield GaugeMetricFamily("asyncrt_ready", "Whether requests are let in.", int(service.is_ready))
    yield GaugeMetricFamily("asyncrt_requests_inside", "Requests that are in.", door.inside)
    yield GaugeMetricFamily("asyncrt_requests_inside_bytes", "Bytes of their bodies.", door.nbytes)
    yield CounterMetricFamily("asyncrt_requests_refused", "Requests that were not let in.", door.refused)


def _runtime(service: Service) -> Iterable[Any]:
    s = service.runtime.statistics()
    yield GaugeMetricFamily("asyncrt_inferences_in_flight", "Inferences begun and not ended.", s.in_flight)
    plans = CounterMetricFamily("asyncrt_plans", "Plans made, by how.", labels=("how",))
    plans.add_metric(["recipe"], s.by_recipe)
    plans.add_metric(["from the start"], max(s.plans - s.by_recipe, 0))
    yield plans
    yield CounterMetricFamily("asyncrt_plan_replays", "Chunks run by a plan made before.", s.replays)
    yield CounterMetricFamily("asyncrt_launches", "Kernels enqueued.", s.launches)
    yield CounterMetricFamily("asyncrt_nodes_skipped", "Nodes skipped.", s.skipped)
    kernels = CounterMetricFamily("asyncrt_kernels", "Kernels, by where they come from.", labels=("source",))
    kernels.add_metric(["built"], s.kernels_built)
    kernels.add_metric(["disk"], s.kernels_from_disk)
    yield kernels
    memory = GaugeMetricFamily("asyncrt_device_bytes", "Bytes of the device, by what they are for.", labels=("what",))
    memory.add_metric(["weights"], s.weights_nbytes)
    memory.add_metric(["intermediates"], s.memory.active)
    memory.add_metric(["free, held"], max(s.memory.held - s.memory.active, 0))
    yield memory
