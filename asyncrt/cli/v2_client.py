"""A caller of any server of the Open Inference Protocol, for load: raw tensors over HTTP, over as many connections as
there are requests at the same time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import attrs
import h11

from asyncrt.errors import AsyncrtError, DeadlineExceeded, Overloaded
from asyncrt.layout import Array, layout_of
from asyncrt.serve.protocol.datatypes import name_of, to_raw

_READ = 1 << 16
_BUSY, _LATE = (429, 503), 504


@attrs.define(eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    state: h11.Connection


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
            connection.writer.close()

    async def infer(self, inputs: Mapping[str, Array], *, deadline: float | None) -> int:
        """Send a request and wait for its answer; returns the answer's bytes.

        Raises:
            Overloaded: The server refused it.
            DeadlineExceeded: There was no answer within *deadline* seconds.
            AsyncrtError: The server says that it failed, or cannot be reached.
        """
        return await self.send(*_request(inputs, deadline), deadline)

    async def send(self, body: bytes, length: int, deadline: float | None) -> int:
        """Send a body, of which *length* bytes are JSON, as `infer()` does."""
        try:
            async with asyncio.timeout(deadline):
                status, body = await self._post(body, length)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {deadline:.6g} s") from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise AsyncrtError(f"{self._host}:{self._port} does not answer: {error}") from error
        if status in _BUSY:
            raise Overloaded("the server refused a request", retry_after_s=1.0)
        if status == _LATE:
            raise DeadlineExceeded("the server had no answer in time")
        if status != 200:
            raise AsyncrtError(f"the server answered with {status}", detail=body[:1000].decode(errors="replace"))
        return len(body)

    async def _post(self, body: bytes, length: int) -> tuple[int, bytes]:
        connection = self._free.pop() if self._free else await self._connect()
        try:
            lengths = {"content-length": str(len(body)), "inference-header-content-length": str(length)}
            headers = {"host": self._host, **lengths, **self.headers}
            request = h11.Request(method="POST", target=self._path, headers=list(headers.items()))
            state = connection.state
            sent = [state.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage())]
            connection.writer.write(b"".join(part for part in sent if part))
            answer = await _answer(connection)
            if state.our_state is state.their_state is h11.DONE:
                state.start_next_cycle()
                self._free.append(connection)
            else:
                connection.writer.close()
            return answer
        except BaseException:
            connection.writer.close()  # what comes on it now would be taken for another request's answer
            raise

    async def _connect(self) -> _Connection:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        return _Connection(reader, writer, h11.Connection(h11.CLIENT))


async def _answer(connection: _Connection) -> tuple[int, bytes]:
    status, parts = 0, list[bytes]()
    while True:
        event: Any = connection.state.next_event()
        if event is h11.NEED_DATA:
            connection.state.receive_data(await connection.reader.read(_READ))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            parts.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            return status, b"".join(parts)
        elif isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError("the connection was closed")


def _request(inputs: Mapping[str, Array], deadline: float | None) -> tuple[bytes, int]:
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
