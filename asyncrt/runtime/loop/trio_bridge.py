"""On which loop does a runtime run whose callers are not on asyncio's? On one of asyncio's, on a thread of its own.

A runtime that is opened on trio gets such a thread. Each of its public coroutines then runs there as a task, and the
caller waits for its end; who is cancelled cancels the task, and goes on when that has ended. On asyncio nothing is
between: a coroutine is the method's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from asyncrt.errors import RuntimeClosedError

_T = TypeVar("_T")
_P = ParamSpec("_P")


class _PendingCall:
    """A call, and its caller, who waits for its end on another loop."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        trio: Any = sys.modules["trio"]  # a caller without asyncio's loop is on trio's, which has imported it
        self._shield: Callable[[], Any] = lambda: trio.CancelScope(shield=True)
        self._back = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        self._call = call
        self._task: asyncio.Task[Any] | None = None

    # On asyncio's thread.

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._call())
        self._task.add_done_callback(self._tell)

    def cancel(self) -> None:
        # After its first step: a coroutine that is awaited by somebody who is cancelled gets as far as its first await.
        if self._task is not None:
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def _tell(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # if the caller was cancelled, nobody asks for it
        with contextlib.suppress(RuntimeError):  # the caller's loop is over: nobody waits any more
            self._back.run_sync_soon(self._ended.set)

    # On the caller's.

    async def result(self, loop: asyncio.AbstractEventLoop) -> Any:
        try:
            await self._ended.wait()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
                loop.call_soon_threadsafe(self.cancel)
            with self._shield():
                await self._ended.wait()
            raise
        task = self._task
        assert task is not None
        if task.cancelled():
            raise RuntimeClosedError("the runtime was closed meanwhile")
        return task.result()


class Elsewhere:
    """One of asyncio's loops, on a thread of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="asyncrt-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        await self._stop.wait()

    @property
    def here(self) -> bool:
        """Whether this is its thread, or it is over: then a coroutine runs where it is awaited."""
        return threading.current_thread() is self._thread or not self._thread.is_alive()

    async def call(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return what comes of a coroutine that runs there."""
        waiting = _PendingCall(call)
        context = contextvars.copy_context()
        # What the caller's library is called is part of its context; there it is another one.
        context.run(sys.modules["sniffio"].current_async_library_cvar.set, None)
        try:
            self._loop.call_soon_threadsafe(waiting.begin, context=context)
        except RuntimeError:
            raise RuntimeClosedError("the runtime is closed") from None
        result: _T = await waiting.result(self._loop)
        return result

    async def close(self) -> None:
        """End the loop and its thread, even if the caller is cancelled."""
        trio: Any = sys.modules["trio"]
        with contextlib.suppress(RuntimeError):  # somebody else has
            self._loop.call_soon_threadsafe(self._stop.set)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)


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
