"""The page at `/`, and what it shows: what goes on now, and a trace of the next second.

While somebody watches, the streams are looked at fifty times a second; otherwise nothing is done for it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from asyncrt.errors import AsyncrtError
from asyncrt.serve.errors import NotFound, Unavailable, tell
from asyncrt.serve.served_model import ServedModel
from asyncrt.serve.service import Service
from asyncrt.serve.settings import Limits
from asyncrt.serve.watch.counts import BOUNDS

from .io import JSON, Disconnected, answer, answer_json, check_small, read_body, refuse, send_events, while_there
from .metrics import CONTENT_TYPE, Metrics
from .openapi import document

_LOOKS, _LOOK_S = 12, 0.02
_TRACE_S = 1.0
_HTML = "text/html; charset=utf-8"
_ONLY_OURS = {"content-security-policy": "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"}


@functools.cache
def page() -> bytes:
    """Return the page."""
    return files("asyncrt.serve.http").joinpath("page.html").read_bytes()


def snapshot(service: Service) -> dict[str, Any]:
    """Return what goes on now."""
    runtime, statistics = service.runtime, service.runtime.statistics()
    return {
        **service.status(),
        "device": ", ".join(info.name for info in runtime.infos),
        "bounds": list(BOUNDS),
        "in_flight": statistics.in_flight,
        "launches": statistics.launches,
        "skipped": statistics.skipped,
        "plans": statistics.plans,
        "replays": statistics.replays,
        "memory": {"weights": statistics.weights_nbytes, "intermediates": statistics.memory.held},
        "models": [_model(served) for served in service.models],
    }


def _model(served: ServedModel) -> dict[str, Any]:
    counts = served.counts
    found = {
        "name": served.name,
        "version": served.version,
        "outcomes": counts.outcomes,
        "rows": counts.rows,
        "executions": served.executions,
        "buckets": counts.stages["total"].buckets,
        "mean_ms": {stage: h.ns / h.count / 1e6 if h.count else None for stage, h in counts.stages.items()},
        "sequences": None if served.sequences is None else len(served.sequences),
        "batching": None,
    }
    if served.batched is not None:
        s = served.batched.statistics()
        found["batching"] = {
            "waiting": s.waiting, "in_flight": s.in_flight, "mean": s.mean_batch, "padding": s.padding_share,
            "reasons": s.reasons,
        }  # fmt: skip
    return found


async def _looks(service: Service) -> AsyncIterator[dict[str, Any]]:
    while not service.draining.is_set():
        lanes = []
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_S)
            lanes.append(service.runtime.depths)
        yield {**snapshot(service), "lanes": lanes}


async def take_trace(service: Service, seconds: float = _TRACE_S) -> bytes:
    """Return a trace of the next second, in the format that Perfetto reads.

    Raises:
        Unavailable: Another one is being taken.
    """
    try:
        async with service.runtime.traced() as trace:
            await asyncio.sleep(seconds)
    except AsyncrtError as error:
        raise Unavailable("a trace is being taken") from error
    return (await asyncio.to_thread(lambda: trace().to_json())).encode()


class Page:
    """The paths beside the protocol's: the page and what it asks for, metrics, and the description of all paths."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._metrics = Metrics(service)

    def routes(self) -> list[BaseRoute]:
        """Return them."""
        each = {
            "/": self._page, "/live": self._live, "/trace": self._trace, "/metrics": self._give_metrics,
            "/openapi.json": self._openapi, "/graph/{model}": self._graph,
        }  # fmt: skip
        return [Route(path, _Plain(handler, self._service.limits), methods=["GET"]) for path, handler in each.items()]

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [page()], _HTML, _ONLY_OURS)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_there(receive, send_events(send, _looks(self._service)))

    async def _trace(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = await while_there(receive, take_trace(self._service))
        await answer(send, 200, [made], JSON, {"content-disposition": 'attachment; filename="trace.json"'})

    async def _give_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [self._metrics.text()], CONTENT_TYPE)

    async def _openapi(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer_json(send, document())

    async def _graph(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._service.models.use(scope["path_params"]["model"]) as served:
            try:
                explanation = served.model.explain()
            except AsyncrtError as error:
                raise NotFound("no inference of this model has ended yet") from error
            html = await asyncio.to_thread(explanation.to_html)
        await answer(send, 200, [html.encode()], _HTML)


class _Plain:
    """A handler as an endpoint; what a request of it brings is not looked at, but has to end in time."""

    def __init__(self, handler: Any, limits: Limits) -> None:
        self._handler, self._limits = handler, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body_read = False
        try:
            await read_body(receive, check_small, self._limits)
            body_read = True
            await self._handler(scope, receive, send)
        except Disconnected:
            return
        except AsyncrtError as error:
            await refuse(send, tell(error), body_read=body_read)
