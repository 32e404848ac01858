"""How does another thread tell an event loop something, and what may a loop and a thread wait for from each other?

A loop that is closed is told nothing: nobody waits there any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import selectors
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, TypeVar

from .errors import RuntimeClosedError

_T = TypeVar("_T")


def tell_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> None:
    """Call something on the loop, from any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call, *arguments)


def settle_later(future: asyncio.Future[_T], error: BaseException | None, result: _T) -> None:
    """Give a future its error or else its result, from any thread. One that is done or cancelled by then stays."""
    tell_loop(future.get_loop(), _settle, future, error, result)


def on_own_thread(name: str, work: Callable[[], _T]) -> asyncio.Future[_T]:
    """Begin blocking work on a thread of its own; return a future of its outcome.

    The interpreter does not wait for the thread when it exits, because nothing ends one inside a driver. So this is not
    `asyncio.to_thread()`, whose threads it joins, and of which there are few: what waits for others there, as for a
    request to end, may wait for those that need a thread. Where none can be started, the work is done before this
    returns.
    """
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    left = [work]  # by nobody else, so that what it belongs to is gone when its outcome is there

    def run() -> None:
        error: BaseException | None = None
        result: _T | None = None
        try:
            result = left.pop()()
        except BaseException as failure:
            error = failure
        settle_later(ended, error, result)

    del work
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        run()
    return ended


async def end(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and return when none is left."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def to_its_end(work: asyncio.Future[_T], when_cancelled: Callable[[], object] = lambda: None) -> _T:
    """Return the outcome of work, or raise what it raised; who is cancelled meanwhile is so when it has ended.

    It is the very cancellation that is raised then: a scope of anyio knows its own by its message.

    Args:
        when_cancelled: Called each time that somebody cancels who waits.
    """
    cancelled: asyncio.CancelledError | None = None
    try:
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError as error:
                cancelled = error
                when_cancelled()
        if cancelled is not None:
            raise cancelled
        return work.result()
    finally:
        del cancelled  # which has this frame


def retrieved(future: asyncio.Future[Any]) -> None:
    """Fetch a future's outcome, so that asyncio does not report a failure as lost that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


class PendingCall(Generic[_T]):
    """A coroutine that runs on a `LoopThread`, for a caller that is not there.

    Args:
        call: Makes the coroutine.
        ended: Called on the loop's thread, once, when it has ended, be it that it was cancelled.
    """

    __slots__ = ("_call", "_ended", "_error", "_result", "_task", "_thread")

    def __init__(
        self, thread: LoopThread, call: Callable[[], Coroutine[Any, Any, _T]], ended: Callable[[], object]
    ) -> None:
        self._thread, self._call, self._ended = thread, call, ended
        self._task: asyncio.Task[None] | None = None
        self._result: _T | None = None
        self._error: BaseException | None = None

    def result(self) -> _T:
        """Return what the coroutine returned, or raise what it raised; it has ended.

        Raises:
            RuntimeClosedError: The loop ended before it.
        """
        error = self._error
        try:
            if error is not None:
                raise error
            return self._result  # type: ignore[return-value]  # there is one, be it None
        finally:
            del error  # which has this frame

    @property
    def succeeded(self) -> bool:
        """Whether the coroutine, which has ended, returned something."""
        return self._error is None

    def cancel(self) -> None:
        """Cancel the coroutine, once, from any thread; it has ended when `ended` says so."""
        tell_loop(self._thread.loop, self._cancel)

    # On the loop.

    def begin(self) -> None:
        """Begin it."""
        self._task = self._thread.loop.create_task(self._run())
        self._task.add_done_callback(self.end)

    def _cancel(self) -> None:
        # After its first step: a coroutine that is awaited by somebody who is cancelled gets as far as its first await.
        if self._task is not None:
            self._thread.loop.call_soon(self._task.cancel)

    async def _run(self) -> None:
        try:
            self._result = await self._call()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # some of them would end the loop, and with it all others' calls
            self._error = error

    def end(self, task: asyncio.Task[None] | None = None) -> None:
        """Tell the caller that it has ended, or that the loop has."""
        if task is None or task.cancelled():
            self._error = RuntimeClosedError("the runtime was closed meanwhile")
        self._thread.calls.discard(self)
        self._ended()


class _Turns(selectors.DefaultSelector):
    """Lets other threads have an event loop's turn while it has nothing to do but to wait for the system.

    Attributes:
        turn: Held by whoever may touch what belongs to the loop: its thread, or another one while that waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turn = threading.Lock()
        #: Whether the loop's thread wants it back: who has it comes and goes faster than a thread wakes up.
        self.wanted = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self.turn.release()
        try:
            return super().select(timeout)
        finally:
            self.wanted = True
            self.turn.acquire()
            self.wanted = False


class _Workers(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread()`.

    An interpreter that exits starts none, from Python 3.12 on: from `exits` on all is done by who asks for it.
    """

    exits = False

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        if not self.exits:
            return super().submit(fn, *args, **kwargs)
        done: Future[_T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that joins its threads itself, where asyncio's would start one more for that."""

    def __init__(self, selector: selectors.BaseSelector, workers: _Workers) -> None:
        super().__init__(selector)
        self._workers = workers
        self.set_default_executor(workers)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as asyncio's
        self._workers.shutdown()


class LoopThread:
    """An event loop of asyncio's on a thread of its own, for callers that are on none of asyncio's.

    Args:
        name: Of the thread.

    Attributes:
        calls: Those that have not ended.
    """

    def __init__(self, name: str) -> None:
        selector, workers = _Turns(), _Workers(thread_name_prefix="asyncrt-work")
        self._turns, self._turn, self._workers = selector, selector.turn, workers
        # On Windows asyncio's loops can start no processes with a selector; nothing here does.
        self._runner = asyncio.Runner(loop_factory=lambda: _Loop(selector, workers))
        self.loop = self._runner.get_loop()
        self._stop = asyncio.Event()
        self.calls: set[PendingCall[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        with self._turn, self._runner:
            self._runner.run(self._until_stopped())
        for call in tuple(self.calls):  # begun so late that the loop did not come to it
            call.end()

    async def _until_stopped(self) -> None:
        await self._stop.wait()

    @property
    def here(self) -> bool:
        """Whether this is its thread, or it is over: then a coroutine runs where it is awaited."""
        return threading.current_thread() is self._thread or not self._thread.is_alive()

    def begin(
        self, call: Callable[[], Coroutine[Any, Any, _T]], ended: Callable[[], object]
    ) -> PendingCall[_T]:
        """Run a coroutine there; *ended* is called on that thread when it has ended.

        Raises:
            RuntimeClosedError: The loop has ended.
        """
        pending = PendingCall(self, call, ended)
        context = contextvars.copy_context()
        if "sniffio" in sys.modules:  # what the caller's library is called is part of its context; there it is asyncio
            context.run(sys.modules["sniffio"].current_async_library_cvar.set, None)
        self.calls.add(pending)
        try:
            self.loop.call_soon_threadsafe(pending.begin, context=context)
        except RuntimeError:
            self.calls.discard(pending)
            raise RuntimeClosedError("the runtime is closed") from None
        return pending

    def call(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a coroutine there and wait for it; an exception in the waiting thread, such as Ctrl-C, cancels it."""
        ended = threading.Event()
        return waited(self.begin(call, ended.set), ended)

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Say whether the caller has the loop's turn while this lasts: whether it waits, and lets the caller's thread
        do what its own thread may do. Nothing there may be awaited, and the loop knows nothing of what is called."""
        has = not self._turns.wanted and self._turn.acquire(blocking=False)
        try:
            yield has
        finally:
            if has:
                self._turn.release()

    def exits(self) -> None:
        """Note that the interpreter exits: what is still to be done must not need a new thread."""
        self._workers.exits = True

    def close(self) -> None:
        """End the loop, with what still runs there, and the thread. Blocks."""
        tell_loop(self.loop, self._stop.set)
        self._thread.join()


def waited(pending: PendingCall[_T], ended: threading.Event) -> _T:
    """Block until a call has ended; return or raise what it did. An exception in the waiting thread cancels it."""
    try:
        ended.wait()
    except BaseException:
        pending.cancel()
        raise
    return pending.result()


def _settle(future: asyncio.Future[Any], error: BaseException | None, result: Any) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
