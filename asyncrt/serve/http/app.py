"""The door of HTTP: the paths of the Open Inference Protocol, as an ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import attrs
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from asyncrt.serve.errors import BadRequest, NoKey, NotFound, tell
from asyncrt.serve.keys import key_fits
from asyncrt.serve.protocol.loading import settings_given
from asyncrt.serve.protocol.messages import InferRequest
from asyncrt.serve.service import Service
from asyncrt.serve.watch.counts import Clock

from .codec import JSON_LENGTH, answer_of, decompressed, format_infer, parse_infer, parse_json, request_of
from .io import (
    BYTES,
    JSON,
    Disconnected,
    announced,
    answer,
    answer_json,
    check_small,
    headers_of,
    is_short,
    note_failure,
    read_body,
    refuse,
    send_events,
    while_there,
)

#: A handler takes the path's parameters, the headers and the body, and returns what is answered as JSON.
Handler = Callable[[Mapping[str, str], dict[str, str], bytes], Awaitable[Any]]


class Endpoint:
    """A path of which the work is small: its answer is JSON, or empty."""

    def __init__(self, service: Service, handler: Handler) -> None:
        self._service, self._handler = service, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = headers_of(scope)
            check_small(announced(headers))
            body = await read_body(receive, check_small, self._service.limits)
            answered = await self._handler(scope["path_params"], headers, body)
        except Disconnected:
            return
        except Exception as error:
            await _say(send, error, body_read=scope["method"] == "GET")
            return
        if answered is None:
            await answer(send, 200, [], JSON)
        else:
            await answer_json(send, answered)


async def _say(send: Send, error: Exception, *, body_read: bool = True) -> None:
    await refuse(send, note_failure(error), body_read=body_read)


class Infer:
    """The path that runs a model once."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, clock = self._service, Clock()
        headers = headers_of(scope)
        body_read = is_short(headers)
        try:
            with service.admission.enter(announced(headers)) as place:
                service.models.find(*_model(scope["path_params"]))
                body_read = False
                body = await read_body(receive, place.take, service.limits)
                body_read = True
                parts, length = await while_there(receive, self._run(scope["path_params"], headers, body, clock))
                more = {} if length is None else {JSON_LENGTH: str(length)}
                await answer(send, 200, parts, JSON if length is None else BYTES, more)
        except Disconnected:
            return
        except Exception as error:
            await _say(send, error, body_read=body_read)

    async def _run(
        self, path: Mapping[str, str], headers: dict[str, str], body: bytes, clock: Clock
    ) -> tuple[list[bytes | memoryview], int | None]:
        service = self._service
        with service.using(*_model(path), "http", clock, headers) as served:
            encoding, length = headers.get("content-encoding", ""), headers.get(JSON_LENGTH)

            def parse() -> InferRequest:
                return parse_infer(decompressed(body, encoding, service.limits.body_bytes), length)

            request: InferRequest = await service.timed(clock, "decode", len(body), parse)
            response = await service.infer(served, request, clock)
            nbytes = sum(a.nbytes for a in response.outputs.values())
            formatted: tuple[list[bytes | memoryview], int | None] = await service.timed(
                clock, "encode", nbytes, lambda: format_infer(response, request)
            )
            return formatted


class InferStream:
    """The path that runs several requests one after the other, such as steps of a sequence, and sends each answer."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        headers = headers_of(scope)
        body_read = is_short(headers)
        try:
            with service.admission.enter(announced(headers)) as place:
                body_read = False
                body = await read_body(receive, place.take, service.limits)
                body_read = True
                steps = parse_json(body).get("requests")
                if not isinstance(steps, list) or not all(isinstance(s, dict) for s in steps):
                    raise BadRequest("requests must be a list of objects, each as for infer")
                service.models.find(*_model(scope["path_params"]))
                await while_there(receive, send_events(send, self._answers(scope["path_params"], headers, steps)))
        except Disconnected:
            return
        except Exception as error:
            await _say(send, error, body_read=body_read)

    async def _answers(
        self, path: Mapping[str, str], headers: dict[str, str], steps: list[dict[str, Any]]
    ) -> AsyncIterator[dict[str, Any]]:
        service = self._service
        for step in steps:
            clock = Clock()
            try:
                with service.using(*_model(path), "http stream", clock, headers) as served:
                    with clock.stage("decode"):
                        request = request_of(step)
                    response = await service.infer(served, request, clock)
                    with clock.stage("encode"):
                        answered = answer_of(response)
            except Exception as error:
                yield {"error": tell(error).message}
                return
            yield answered


def _model(path: Mapping[str, str]) -> tuple[str, str]:
    return path["model"], path.get("version", "")


# What the protocol tells beside inference.


def _handlers(service: Service) -> dict[tuple[str, str], Handler]:
    models = service.models

    async def live(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        return None

    async def ready(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        service.check_ready()

    async def model_ready(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        service.check_ready()
        models.find(*_model(path))

    async def server(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        return service.server_metadata()

    async def metadata(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        return service.model_metadata(*_model(path))

    async def config(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        return service.model_config(*_model(path))

    async def statistics(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        return {"model_stats": service.statistics(path.get("model", ""), path.get("version", ""))}

    async def status(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        return service.status()

    async def index(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        only_ready = bool(parse_json(body or b"{}").get("ready", False))
        return [attrs.asdict(entry) for entry in models.index(only_ready=only_ready)]

    async def load(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        await models.load(path["model"], settings_given(parse_json(body or b"{}").get("parameters")))

    async def unload(path: Mapping[str, str], headers: dict[str, str], body: bytes) -> Any:
        await models.unload(path["model"])

    of_models = {"": metadata, "/ready": model_ready, "/config": config, "/stats": statistics}
    each = {
        ("GET", f"/v2/models/{{model}}{version}{rest}"): handler
        for version in ("", "/versions/{version}")
        for rest, handler in of_models.items()
    }
    return {
        ("GET", "/v2"): server,
        ("GET", "/v2/health/live"): live,
        ("GET", "/v2/health/ready"): ready,
        ("GET", "/v2/models/stats"): statistics,
        ("GET", "/status"): status,
        **each,
        ("POST", "/v2/repository/index"): index,
        ("POST", "/v2/repository/models/{model}/load"): load,
        ("POST", "/v2/repository/models/{model}/unload"): unload,
    }


# The app.


class KeyCheck:
    """Lets those in that carry the key; health, and the page before it asks for anything, are told to everybody."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path != "/" and not path.startswith("/v2/health/"):
            headers = headers_of(scope)
            if not key_fits(headers.get("authorization", ""), self._key):
                error = NoKey("the server asks for its key", hint="authorization: Bearer KEY")
                await refuse(send, tell(error), body_read=False)
                return
        await self._app(scope, receive, send)


def make_app(service: Service, key: str | None = None, more: list[BaseRoute] | None = None) -> ASGIApp:
    """Return the app.

    Args:
        key: What callers have to carry; None asks for nothing.
        more: Routes beside the protocol's.
    """
    routes: list[BaseRoute] = [
        Route(f"/v2/models/{{model}}{version}/{name}", endpoint(service), methods=["POST"])
        for version in ("", "/versions/{version}")
        for name, endpoint in (("infer", Infer), ("infer_stream", InferStream))
    ]
    routes += [
        Route(path, Endpoint(service, handler), methods=[method])
        for (method, path), handler in _handlers(service).items()
    ]
    app: ASGIApp = _App([*routes, *(more or [])])
    return app if key is None else KeyCheck(app, key)


class _App:
    """Finds who answers. Starlette's own app would put two handlers of errors around each, which has its own."""

    def __init__(self, routes: list[BaseRoute]) -> None:
        self._router = Router(routes, redirect_slashes=False, default=_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that the router raises what a wrong method is
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            told = {name.lower(): value for name, value in (error.headers or {}).items()}
            await answer_json(send, {"error": error.detail}, error.status_code, {**told, "connection": "close"})


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    error = NotFound("there is nothing at this path", hint="GET /openapi.json says which paths there are")
    await refuse(send, tell(error), body_read=False)
