"""On which loop does a runtime run whose callers are not on asyncio's? On one of asyncio's, on a thread of its own.

A runtime that is opened on trio gets such a thread. Each of its public coroutines then runs there as a task, and the
caller waits for its end; who is cancelled cancels the task, and goes on when that has ended, with its result if it came
too late. On asyncio nothing is between: a coroutine is the method's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from asyncrt.loops import LoopThread

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Elsewhere:
    """One of asyncio's loops, on a thread of its own, for callers on trio's."""

    def __init__(self) -> None:
        self._thread = LoopThread("asyncrt-loop")

    @property
    def here(self) -> bool:
        """Whether this is its thread, or it is over: then a coroutine runs where it is awaited."""
        return self._thread.here

    async def call(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return what comes of a coroutine that runs there."""
        trio: Any = sys.modules["trio"]  # a caller without asyncio's loop is on trio's, which has imported it
        back, ended = trio.lowlevel.current_trio_token(), trio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop is over: nobody waits any more
                back.run_sync_soon(ended.set)

        pending = self._thread.begin(call, tell)
        try:
            await ended.wait()
        except BaseException as error:
            pending.cancel()
            with trio.CancelScope(shield=True):
                await ended.wait()
            if not (isinstance(error, trio.Cancelled) and pending.succeeded):
                raise  # else it was done before it could be cancelled: the caller's next checkpoint raises
        return pending.result()

    async def close(self) -> None:
        """End the loop and its thread, even if the caller is cancelled."""
        trio: Any = sys.modules["trio"]
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.close)


def find_elsewhere() -> Elsewhere | None:
    """Return a loop for callers that are not on asyncio's; None if they are."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return Elsewhere()
    return None


class _HasElsewhere(Protocol):
    @property
    def elsewhere(self) -> Elsewhere | None: ...


_S = TypeVar("_S", bound=_HasElsewhere)


def anywhere(
    method: Callable[Concatenate[_S, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_S, _P], Coroutine[Any, Any, _T]]:
    """Let a method be awaited on any loop; it runs on that of the runtime."""

    def call(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> Coroutine[Any, Any, _T]:
        elsewhere = self.elsewhere
        if elsewhere is None or elsewhere.here:
            return method(self, *args, **kwargs)
        return elsewhere.call(functools.partial(method, self, *args, **kwargs))

    return functools.update_wrapper(call, method)


@contextlib.asynccontextmanager
async def entered(elsewhere: Elsewhere | None, manager: AbstractAsyncContextManager[_T]) -> AsyncIterator[_T]:
    """Enter and leave a context on the loop of the runtime, wherever it is used."""
    if elsewhere is None or elsewhere.here:
        async with manager as value:
            yield value
        return

    async def leave(error: BaseException | None) -> bool | None:
        return await manager.__aexit__(None if error is None else type(error), error, None)

    async def enter() -> _T:
        return await manager.__aenter__()

    value = await elsewhere.call(enter)
    try:
        yield value
    except BaseException as error:
        if not await elsewhere.call(functools.partial(leave, error)):
            raise
    else:
        await elsewhere.call(functools.partial(leave, None))
