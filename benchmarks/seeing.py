"""What does it cost that a server counts, times and traces its requests?

Four servers take turns: one that notes nothing at all, which nobody has; `asyncrt serve` as it is; with a provider of
OpenTelemetry's spans of which none is sampled; and with all of them kept. Counted is the time of processors that a
server's process takes for a request, on all of its threads. A small model is the worst case; MiniLM with one short text
is about the least that anybody would serve.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import asyncrt
from asyncrt.cli.v2_client import V2Client

from . import command, models
from . import measure as m
from .serving import Server, running_asyncrt

NOTHING, AS_IT_IS, NONE_SAMPLED, ALL_KEPT = "nothing is noted", "as it is", "spans, none sampled", "spans, all kept"

_NOTES_NOTHING = """
import contextlib
from asyncrt.serve import service, served_model
from asyncrt.serve.watch import access_log, counts, spans
nothing = contextlib.nullcontext(spans._NONE)
counts.Clock.stage = lambda self, name: nothing
counts.Clock.answered = lambda self, to: 0
access_log.AccessLog.request = lambda *given: None
service.request_span = lambda *given: nothing
served_model.BatchWatch = lambda *given: None
"""
_HAS_SPANS = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
class Nowhere(SpanExporter):
    def export(self, spans):
        return SpanExportResult.SUCCESS
provider = TracerProvider(sampler=sampling.{sampler})
provider.add_span_processor(BatchSpanProcessor(Nowhere()))
trace.set_tracer_provider(provider)
"""


async def bench(
    settings: m.Settings, model: Path, small: Path = models.SMALL, seconds: float | None = None
) -> m.Report:
    """Let each server have turns of *seconds*."""
    seconds = seconds or (0.5 if settings.quick else 2.0)
    servers = {NOTHING: _NOTES_NOTHING, AS_IT_IS: ""}
    notes = ["One caller over HTTP, with the next request when the last is answered."]
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        notes.append("Spans are left out: pip install opentelemetry-sdk")
    else:
        servers[NONE_SAMPLED] = _HAS_SPANS.format(sampler="ALWAYS_OFF")
        servers[ALL_KEPT] = _HAS_SPANS.format(sampler="ALWAYS_ON")
    rows: list[m.Row] = []
    summary: m.Row = {}
    for name, file, inputs in (
        ("a small BERT", small, models.tokens(1, 4)),
        ("MiniLM, 16 tokens", model, models.tokens(1, 16)),
    ):
        taken = await _taken(file, inputs, servers, seconds, settings)
        for server, samples in taken.items():
            ratio = m.Ratio.of(samples, taken[NOTHING])
            added = statistics.median(samples) - statistics.median(taken[NOTHING])
            rows.append(
                {
                    "model": name,
                    "server": server,
                    "µs of processors each": statistics.median(samples) * 1e6,
                    "added µs": added * 1e6,
                    "of nothing noted": f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
                }
            )
            if server != NOTHING:
                summary[f"{name}, {server}, added"] = f"{100 * (ratio.ratio - 1):.1f} %"
    async with asyncrt.Runtime(settings.device) as rt:
        info = rt.info
    return m.Report(
        name="seeing", command=f"python -m benchmarks.seeing{settings.flags}", environment=m.environment(info),
        rows=rows, summary=summary, notes=notes,
    )  # fmt: skip


async def _taken(
    model: Path, inputs: m.Inputs, servers: Mapping[str, str], seconds: float, settings: m.Settings
) -> dict[str, list[float]]:
    """Return the seconds of processors that each server takes for a request, turn by turn."""
    async with contextlib.AsyncExitStack() as up:
        turns: dict[str, m.Block] = {}
        for name, first in servers.items():
            server = up.enter_context(running_asyncrt(model, settings, first=first))
            client = await up.enter_async_context(V2Client(server.http, "minilm"))
            turns[name] = _turn(server, client, inputs, seconds)
        return await m.interleave(turns, settings)


def _turn(server: Server, client: V2Client, inputs: m.Inputs, seconds: float) -> m.Block:
    async def block() -> float:
        end, answers, used = time.perf_counter() + seconds, 0, _used(server.process)

        while time.perf_counter() < end:
            await client.infer(inputs, deadline=None)
            answers += 1
        return (_used(server.process) - used) / answers

    return block


def _used(process: int) -> float:
    """Return the seconds of processors that a process has had, by Linux's account of its threads."""
    files = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


if __name__ == "__main__":
    command.run(bench)
