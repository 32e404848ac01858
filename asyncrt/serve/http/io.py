"""Bodies in and answers out over ASGI: in time, within limits, and no longer than somebody is there."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from asyncrt.serve.errors import BadRequest, Situation, SlowSender, Told, TooLarge, tell
from asyncrt.serve.settings import Limits

_log = logging.getLogger("asyncrt.serve")
T = TypeVar("T")
JSON = "application/json"
_TOGETHER = 1 << 16  # bytes that are copied rather than sent by another call
BYTES = "application/octet-stream"
_FORGOTTEN = 1 << 16  # bytes of a body that are read for nothing, so that its connection may go on
_SMALL = 1 << 20  # bytes of a body that says what to do rather than brings tensors


class Disconnected(Exception):
    """The caller has gone; nobody waits for an answer."""


def headers_of(scope: Scope) -> dict[str, str]:
    """Return a request's headers; names are in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def announced(headers: Mapping[str, str]) -> int:
    """Return how many bytes a request says that its body has; 0 if it does not say."""
    given = headers.get("content-length", "0")
    if not (given.isascii() and given.isdigit() and len(given) < 20):
        raise BadRequest("content-length must be a number")
    return int(given)


async def read_body(receive: Receive, take: Callable[[int], None], limits: Limits) -> bytes:
    """Return a request's body.

    Args:
        take: Told how many bytes have come, whenever some have; raises if those are too many.

    Raises:
        SlowSender: It does not arrive in time.
        Disconnected: Its sender has gone.
    """
    parts: list[bytes] = []
    nbytes, more = 0, True
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message.get("body", b"")
                nbytes, more = nbytes + len(part), message.get("more_body", False)
                take(nbytes)
                parts.append(part)
    except TimeoutError as error:
        raise SlowSender(f"the body did not arrive within {limits.body_timeout_s:g} s") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check_small(nbytes: int) -> None:
    """Raise unless a body that brings no tensors may have so many bytes."""
    if nbytes > _SMALL:
        raise TooLarge(f"the body of this path may have {_SMALL} bytes")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Leaving:
    """Cancels the task in which it is made when the caller goes, until it is over.

    It begins to look with the loop's next turn: what is done by then, as a refusal is, costs nothing here.
    """

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._receive = task, receive
        self._cancelled_before = task.cancelling()
        self._looking: asyncio.Task[None] | None = None
        self._begins = asyncio.get_running_loop().call_soon(self._look)
        self._left = self._over = False

    def _look(self) -> None:
        self._looking = asyncio.create_task(_gone(self._receive))
        self._looking.add_done_callback(self._saw)

    def _saw(self, looking: asyncio.Task[None]) -> None:
        if not self._over and not looking.cancelled():
            looking.exception()  # whoever cannot be heard has gone, too
            self._left = True
            self._task.cancel()

    def is_why(self) -> bool:
        """Whether the task was cancelled for this alone; that is undone."""
        return self._left and self._task.uncancel() <= self._cancelled_before

    def over(self) -> None:
        """Look no more."""
        self._over = True
        self._begins.cancel()
        if self._looking is not None:
            self._looking.cancel()


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what *work* does; it is cancelled when the caller goes.

    Raises:
        Disconnected: The caller has gone.
    """
    leaving = _Leaving(receive)
    try:
        return await work
    except asyncio.CancelledError:
        if leaving.is_why():
            raise Disconnected from None
        raise
    finally:
        leaving.over()


async def answer(
    send: Send, status: int, parts: Iterable[bytes | memoryview], kind: str, headers: Mapping[str, str] | None = None
) -> None:
    """Send an answer, its parts as one body."""
    bodies = list(parts)
    pairs = {"content-type": kind, "content-length": str(sum(map(len, bodies))), **(headers or {})}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in pairs.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    if sum(map(len, bodies)) <= _TOGETHER:
        bodies = [b"".join(bodies)]
    for i, body in enumerate(bodies):
        await send({"type": "http.response.body", "body": bytes(body), "more_body": i + 1 < len(bodies)})


async def answer_json(send: Send, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
    """Send a value as JSON."""
    await answer(send, status, [json.dumps(value, separators=(",", ":")).encode()], JSON, headers)


def note_failure(error: BaseException) -> Told:
    """Return what a caller is told of an error; what is no fault of the caller's is logged."""
    told = tell(error)
    if told.situation is Situation.FAILED:
        _log.error("a request failed", exc_info=error)
    return told


def is_short(headers: Mapping[str, str]) -> bool:
    """Whether a request says that its body is so short that who is refused may keep the connection.

    Callers who have to connect anew cost more than the few bytes that are read and forgotten.
    """
    length = headers.get("content-length", "")
    return length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= _FORGOTTEN


async def refuse(send: Send, told: Told, *, body_read: bool = True) -> None:
    """Send an error, as the protocol has it.

    Args:
        body_read: Whether the connection may go on, because nothing is left of the body, or little; who sends much is
            not listened to any more.
    """
    headers = told.headers if body_read else {**told.headers, "connection": "close"}
    await answer_json(send, {"error": told.message}, told.situation.http, headers)


async def send_events(send: Send, events: AsyncIterator[Any]) -> None:
    """Send values as server-sent events, each when it comes."""
    raw = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": raw})
    async for event in events:
        text = f"data: {json.dumps(event, separators=(',', ':'))}\n\n"
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})
