"""`/v1/embeddings` and `/v1/models`, as the OpenAI API has them: vectors of texts.

Each text is a request of its own to the model, at its own length; where the model is batched they run together.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from asyncrt.arguments import shown
from asyncrt.layout import Array
from asyncrt.serve.errors import BadRequest, NotFound
from asyncrt.serve.protocol.messages import InferRequest
from asyncrt.serve.served_model import ServedModel
from asyncrt.serve.service import Service
from asyncrt.serve.texts import Texts
from asyncrt.serve.watch.counts import Clock

from .codec import parse_json
from .io import Disconnected, announced, answer_json, headers_of, note_failure, read_body, while_there

_MOST_TEXTS = 2048
_HALF = re.compile("[\ud800-\udfff]")  # JSON may have them, and no encoding
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Embeddings:
    """The paths."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._began = int(time.time())

    def routes(self) -> list[BaseRoute]:
        """Return them."""
        return [
            Route("/v1/embeddings", _Endpoint(self.embed), methods=["POST"]),
            Route("/v1/models", _Endpoint(self.models), methods=["GET"]),
        ]

    async def models(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """Return the names of all models."""
        names = sorted({served.name for served in self._service.models})
        found = [{"id": n, "object": "model", "created": self._began, "owned_by": "asyncrt"} for n in names]
        return {"object": "list", "data": found}

    async def embed(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """Return the vectors of texts."""
        headers = headers_of(scope)
        with self._service.admission.enter(announced(headers)) as place:
            body = await read_body(receive, place.take, self._service.limits)
            return await while_there(receive, self._embedded(parse_json(body), headers))

    async def _embedded(self, asked: Mapping[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        service, clock = self._service, Clock()
        as_base64 = _format(asked)
        name = asked.get("model")
        if not isinstance(name, str):
            raise BadRequest(f"model must be a name, got {shown(name)}")
        with service.using(name, "", "http embeddings", clock, headers) as served:
            if served.texts is None:
                raise NotFound(f"model '{name}' has no tokeniser beside it, so it takes no texts")
            with clock.stage("decode"):
                tokens = await _tokens(served.texts, asked.get("input"))
            clock.batch = len(tokens)
            with clock.stage("run"):
                vectors = await _run(served, served.texts, tokens, service.limits.request_timeout_s)
            with clock.stage("encode"):
                count = sum(map(len, tokens))
                data = [
                    {"object": "embedding", "index": i, "embedding": _shown(vector, as_base64)}
                    for i, vector in enumerate(vectors)
                ]
                usage = {"prompt_tokens": count, "total_tokens": count}
                return {"object": "list", "data": data, "model": name, "usage": usage}


def _format(asked: Mapping[str, Any]) -> bool:
    """Return whether vectors are wanted as base64."""
    wanted = asked.get("encoding_format") or "float"
    if wanted not in ("float", "base64"):
        raise BadRequest(f"encoding_format must be float or base64, got {shown(wanted)}")
    if asked.get("dimensions") is not None:
        raise BadRequest("vectors have as many dimensions as the model gives; leave out dimensions")
    return bool(wanted == "base64")


async def _tokens(texts: Texts, given: Any) -> list[list[int]]:
    """Return the tokens of each text that is asked for: one or several, as texts or as tokens."""
    several: Any = [given] if isinstance(given, str) else given
    if isinstance(several, list) and several and all(type(t) is int for t in several):
        several = [several]
    if not isinstance(several, list) or not 0 < len(several) <= _MOST_TEXTS:
        raise BadRequest(f"input must be a text, or up to {_MOST_TEXTS} of them, got {shown(given)}")
    if all(isinstance(text, str) for text in several):
        if any(_HALF.search(text) for text in several):
            raise BadRequest("a text of input has half of a character (a surrogate alone)")
        return await asyncio.to_thread(texts.encode, several)
    if all(isinstance(ids, list) and all(type(i) is int and 0 <= i < 1 << 31 for i in ids) for ids in several):
        return [list(ids) for ids in several]
    raise BadRequest("input must be texts, or lists of tokens")


async def _run(served: ServedModel, texts: Texts, tokens: list[list[int]], limit_s: float) -> list[Array]:
    async def one(ids: list[int]) -> Array:
        return texts.vector_of(await served.infer(InferRequest(texts.inputs_of(ids)), limit_s))

    tasks = [asyncio.create_task(one(ids)) for ids in tokens]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _shown(vector: Array, as_base64: bool) -> Any:
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return np.asarray(vector, np.float32).tolist()


class _Endpoint:
    """A path whose errors are those of the OpenAI API."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await answer_json(send, await self._handler(scope, receive))
        except Disconnected:
            return
        except Exception as error:
            told = note_failure(error)
            kind = _TYPES.get(told.situation.http, "server_error")
            said = {"message": told.message, "type": kind, "param": None, "code": told.situation.name.lower()}
            await answer_json(send, {"error": said}, told.situation.http, {**told.headers, "connection": "close"})
