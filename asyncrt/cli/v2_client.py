"""A caller of any server of the Open Inference Protocol, for load: raw tensors over HTTP, over as many connections as
there are requests at the same time."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import httptools

from asyncrt.errors import AsyncrtError, DeadlineExceeded, Overloaded
from asyncrt.layout import Array, layout_of
from asyncrt.serve.protocol.datatypes import name_of, to_raw

_BUSY, _LATE = (429, 503), 504


class _Connection(asyncio.Protocol):
    """A connection, on which one request at a time has its answer.

    Attributes:
        may_go_on: Whether another request may follow.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.may_go_on = True

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; returns its answer's status and body."""
        self._parts = []
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close it."""
        self.may_go_on = False
        self._transport.close()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"what it says is not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        self.may_go_on = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # What the parser calls.

    def on_headers_complete(self) -> None:
        self.may_go_on = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._parts)))


class V2Client:
    """Sends requests to one model of a server. Use it as ``async with``.

    Args:
        url: Of the server, as http://host:port.
        model: Its name there.

    Attributes:
        headers: Of each request, beside those that say how long it is.
    """

    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, url: str, model: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise AsyncrtError(f"expected a URL as http://127.0.0.1:8000, got '{url}'")
        self._host, self._port = parts.hostname, parts.port or 80
        self._path = f"{parts.path.rstrip('/')}/v2/models/{quote(model, safe='')}/infer"
        self._free: list[_Connection] = []

    async def __aenter__(self) -> V2Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for connection in self._free:
            connection.close()

    async def infer(self, inputs: Mapping[str, Array], *, deadline: float | None) -> int:
        """Send a request and wait for its answer; returns the answer's bytes.

        Raises:
            Overloaded: The server refused it.
            DeadlineExceeded: There was no answer within *deadline* seconds.
            AsyncrtError: The server says that it failed, or cannot be reached.
        """
        return await self.send(*request_of(inputs, deadline), deadline)

    async def send(self, body: bytes, length: int, deadline: float | None) -> int:
        """Send a body, of which *length* bytes are JSON, as `infer()` does."""
        try:
            async with asyncio.timeout(deadline):
                status, body = await self._post(body, length)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {deadline:.6g} s") from error
        except OSError as error:
            raise AsyncrtError(f"{self._host}:{self._port} does not answer: {error}") from error
        if status in _BUSY:
            raise Overloaded("the server refused a request", retry_after_s=1.0)
        if status == _LATE:
            raise DeadlineExceeded("the server had no answer in time")
        if status != 200:
            raise AsyncrtError(f"the server answered with {status}", detail=body[:1000].decode(errors="replace"))
        return len(body)

    async def _post(self, body: bytes, length: int) -> tuple[int, bytes]:
        connection = await self._connection()
        try:
            lengths = f"content-length: {len(body)}\r\ninference-header-content-length: {length}\r\n\r\n"
            answer = await connection.ask(self._head + lengths.encode() + body)
        except BaseException:
            connection.close()  # what comes on it now would be taken for another request's answer
            raise
        if connection.may_go_on:
            self._free.append(connection)
        else:
            connection.close()
        return answer

    @property
    def idle(self) -> int:
        """How many connections are open, and have no request; the server may close them."""
        self._free = [free for free in self._free if free.may_go_on]
        return len(self._free)

    async def _connection(self) -> _Connection:
        while self._free:
            free = self._free.pop()
            if free.may_go_on:
                return free
        return (await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port))[1]

    @functools.cached_property
    def _head(self) -> bytes:
        headers = {"host": self._host, **self.headers}
        lines = [f"POST {self._path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), ""]
        return "\r\n".join(lines).encode("latin-1")


def request_of(inputs: Mapping[str, Array], deadline: float | None) -> tuple[bytes, int]:
    """Return a body, and how many bytes of it are JSON."""
    raws = [to_raw(array) for array in inputs.values()]
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": name_of(layout_of(array).dtype),
            "parameters": {"binary_data_size": len(raw)},
        }
        for (name, array), raw in zip(inputs.items(), raws, strict=True)
    ]
    asked: dict[str, Any] = {"binary_data_output": True}
    if deadline is not None:
        asked["timeout"] = max(1, round(deadline * 1e6))
    text = json.dumps({"inputs": tensors, "parameters": asked}).encode()
    return b"".join([text, *raws]), len(text)
