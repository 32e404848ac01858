"""How does another thread tell an event loop something, and how does a loop wait for such a thread?

A loop that is closed is told nothing: nobody waits there any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


def tell_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    """Call something on the loop, from any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call, *arguments)


def settle_later(future: asyncio.Future[_T], error: BaseException | None, result: _T) -> None:
    """Give a future its error or else its result, from any thread. One that is done or cancelled by then stays."""
    tell_loop(future.get_loop(), _settle, future, error, result)


def on_own_thread(name: str, work: Callable[[], None]) -> asyncio.Future[None]:
    """Begin blocking work on a thread of its own; return a future that is done when the work is.

    The interpreter does not wait for the thread when it exits, because nothing ends one inside a driver. So this is not
    `asyncio.to_thread()`, whose threads it joins.
    """
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as failure:
            error = failure
        settle_later(ended, error, None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended


def retrieved(future: asyncio.Future[Any]) -> None:
    """Fetch a future's outcome, so that asyncio does not report a failure as lost that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


def _settle(future: asyncio.Future[Any], error: BaseException | None, result: Any) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
