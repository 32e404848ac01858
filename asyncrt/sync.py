"""How do scripts and notebooks run a model without an event loop of their own?

    with asyncrt.load_sync("model.onnx") as model:
        outputs = model.infer_sync({"x": x})

A thread in the background runs an event loop that owns a `Runtime`, with this one model or, by `SyncRuntime`, with any
number of them. Any number of threads may infer at once; they share that loop, so that their requests overlap as those
of an asyncio program do.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # for its hook at exit, which must come before ours: see below
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from asyncrt.devices.base import DeviceInfo
from asyncrt.errors import RuntimeClosedError
from asyncrt.layout import Array, PartialLayout
from asyncrt.loops import LoopThread, PendingCall, waited
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.runtime import Runtime, Wanted
from asyncrt.runtime.statistics import RuntimeStatistics

if TYPE_CHECKING:
    from asyncrt.graph.reading.source import ModelSource
    from asyncrt.runtime.explain.explain import Explanation
    from asyncrt.runtime.model import Model
    from asyncrt.runtime.request.warming import Progress

_T = TypeVar("_T")


def load_sync(
    source: ModelSource,
    device: Wanted = None,
    *,
    streams: int | None = None,
    options: RuntimeOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> SyncModel:
    """Load a model for use without asyncio. Blocks until it is on the device.

    Args:
        source: A path, the bytes of a file, or an `onnx.ModelProto`.
        device: As `Runtime` takes it.
        streams: Likewise.
        options: Likewise.
        progress: As `Runtime.load()` takes it; called on the thread of the model.

    Raises:
        NoDeviceError: There is no such device, or none that works.
        ModelError: One of its children, naming the node.
    """
    background = _Background(Runtime(device, streams=streams, options=options), "asyncrt-sync")
    try:
        return SyncModel(background, background.load(source, progress), background.close)
    except BaseException:
        background.close()
        raise


class SyncRuntime:
    """A device for any number of models and threads, without asyncio. Opened at once; blocks until it is.

    Close it, or use it in a `with` statement. All that are open are closed when the interpreter exits.

    Args:
        device: As `Runtime` takes it.
        streams: Likewise.
        options: Likewise.
    """

    def __init__(
        self, device: Wanted = None, *, streams: int | None = None, options: RuntimeOptions | None = None
    ) -> None:
        self._background = _Background(Runtime(device, streams=streams, options=options), "asyncrt-shared")

    def __enter__(self) -> SyncRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def info(self) -> DeviceInfo:
        """What is known of the device."""
        return self._background.runtime.info

    @property
    def left_behind(self) -> bool:
        """Whether this is a copy in a process that was forked: there is nothing to run or to close here."""
        return self._background.runtime.left_behind

    def load(self, source: ModelSource) -> SyncModel:
        """Load a model, as `Runtime.load()` does; closing the model unloads it. Blocks until it is on the device."""
        model = self._background.load(source)
        return SyncModel(self._background, model, partial(self._background.unload, model))

    def statistics(self) -> RuntimeStatistics:
        """Return counts of what was done and what is held."""
        return self._background.statistics()

    @contextmanager
    def trace(self, path: str | Path) -> Iterator[None]:
        """Write what the device and the host do while this lasts, as `Runtime.trace()` does."""
        with self._background.trace(path):
            yield

    def close(self) -> None:
        """Wait for inferences in flight and give everything back. Inferences begun after this are refused."""
        self._background.close()


class SyncModel:
    """A model for any thread, with a runtime of its own. Made by `load_sync()`, or one of several by `SyncRuntime`.

    Close it, or use it in a `with` statement. One that is forgotten is closed when it is collected, and all are closed
    when the interpreter exits.
    """

    def __init__(self, background: _Background, model: Model, give_back: Callable[[], None]) -> None:
        self._background, self._model, self._give_back = background, model, give_back
        # Collection may happen on any thread, the loop's too, and closing waits for that one: it gets a thread.
        self._forgotten = weakref.finalize(self, _close_elsewhere, background, give_back)
        self._forgotten.atexit = False

    def __repr__(self) -> str:
        closed = self._background.closed or not self._forgotten.alive
        return "<SyncModel closed>" if closed else f"<SyncModel {self._model!r}>"

    def __enter__(self) -> SyncModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def inputs(self) -> dict[str, PartialLayout]:
        """What it takes: dtype and shape by name; dynamic dims by their names."""
        return self._model.inputs

    @property
    def outputs(self) -> dict[str, PartialLayout]:
        """What it gives: dtype and shape by name, as far as loading can tell."""
        return self._model.outputs

    @property
    def info(self) -> DeviceInfo:
        """What is known of the device."""
        return self._background.runtime.info

    def infer_sync(
        self, inputs: Mapping[str, Any], *, priority: int = 0, deadline: float | None = None
    ) -> dict[str, Array]:
        """Run the model once and wait for it; what it takes, returns and raises is as for `Model.infer()`.

        An exception in the waiting thread, such as Ctrl-C, cancels the inference.
        """
        return self._background.infer(self._model, inputs, priority, deadline)

    def submit(
        self, inputs: Mapping[str, Any], *, priority: int = 0, deadline: float | None = None
    ) -> Future[dict[str, Array]]:
        """Begin an inference and return its future, which has what `Model.infer()` returns or raises.

        Cancelling the future cancels the inference. Its callbacks run on the thread of the loop: they must not block.
        """
        return self._background.submit(self._model, inputs, priority, deadline)

    def ready(
        self,
        shapes: Iterable[Mapping[str, Any]] | None = None,
        *,
        progress: Callable[[Progress], object] | None = None,
    ) -> None:
        """Block until every kernel is there; what it takes and raises is as for `Model.ready()`.

        *progress* is called on the thread of the model.
        """
        self._background.ready(self._model, shapes, progress)

    def explain(self) -> Explanation:
        """Return what became of every node of the inference that finished last, and why.

        Raises:
            AsyncrtError: None has finished yet.
        """
        return self._model.explain()

    def close(self) -> None:
        """Wait for inferences in flight and give everything back. Inferences begun after this are refused."""
        if self._forgotten.detach() is not None:
            self._give_back()


class _Background:
    """The thread, the loop on it, and what lives there. Knows nothing of a `SyncModel`, which may be collected."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime = runtime
        self.closed = False
        self._lock = threading.Lock()
        #: Set when what was begun has ended.
        self._running: set[threading.Event] = set()
        with ExitStack() as stack:
            self._thread = stack.enter_context(LoopThread(name))
            stack.callback(self._thread.call, runtime.close)
            self._thread.call(runtime.open)
            self._stack = stack.pop_all()
        _close_at_exit(self)

    def load(self, source: ModelSource, progress: Callable[[Progress], object] | None = None) -> Model:
        return self._call(partial(self.runtime.load, source, progress=progress))

    def ready(
        self,
        model: Model,
        shapes: Iterable[Mapping[str, Any]] | None,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        self._call(partial(model.ready, shapes, progress=progress))

    def unload(self, model: Model) -> None:
        if self.runtime.left_behind or self.closed:
            return
        with suppress(RuntimeClosedError):  # meanwhile, and with it the model
            self._call(partial(self.runtime.unload, model))

    def statistics(self) -> RuntimeStatistics:
        async def there() -> RuntimeStatistics:
            return self.runtime.statistics()

        return self._call(there)

    @contextmanager
    def trace(self, path: str | Path) -> Iterator[None]:
        tracing = self.runtime.trace(path)
        self._call(tracing.__aenter__)
        try:
            yield
        finally:
            self._call(partial(tracing.__aexit__, None, None, None))

    def infer(
        self, model: Model, inputs: Mapping[str, Any], priority: int, deadline: float | None
    ) -> dict[str, Array]:
        outcome = self._here(model, inputs, priority, deadline)
        if outcome is not None:
            return outcome
        return self._call(partial(model.infer, inputs, priority=priority, deadline=deadline))

    def _here(
        self, model: Model, inputs: Mapping[str, Any], priority: int, deadline: float | None
    ) -> dict[str, Array] | None:
        """Run the model on this thread, if it goes that way; None otherwise."""
        if self.runtime.left_behind:
            return None
        with self._lock:  # what closes waits for it
            if self.closed:
                return None
            with self._thread.turn() as has:
                return model.infer_here(inputs, priority=priority, deadline=deadline) if has else None

    def submit(
        self, model: Model, inputs: Mapping[str, Any], priority: int, deadline: float | None
    ) -> Future[dict[str, Array]]:
        future: Future[dict[str, Array]] = Future()

        async def there() -> None:
            try:
                outputs = await model.infer(inputs, priority=priority, deadline=deadline)
            except BaseException as error:
                _settle(future, error)
                raise
            _settle(future, None, outputs)

        def ended() -> None:
            self._ended(event)
            _settle(future, RuntimeClosedError("the runtime was closed meanwhile"))  # before it had begun

        event = threading.Event()
        pending = self._begin(there, event, ended)
        future.add_done_callback(lambda done: pending.cancel() if done.cancelled() else None)
        return future

    def _call(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a coroutine there and wait for it."""
        event = threading.Event()
        pending = self._begin(call, event, event.set)
        try:
            return waited(pending, event)
        finally:
            self._ended(event)

    def _begin(
        self, call: Callable[[], Coroutine[Any, Any, _T]], event: threading.Event, ended: Callable[[], object]
    ) -> PendingCall[_T]:
        if self.runtime.left_behind:  # the thread is not there, and the lock may be held for ever
            self.runtime.check_open()
        with self._lock:
            if self.closed:
                raise RuntimeClosedError("the model was closed", hint="load it again with asyncrt.load_sync()")
            pending = self._thread.begin(call, ended)
            self._running.add(event)
        return pending

    def _ended(self, event: threading.Event) -> None:
        event.set()
        with self._lock:
            self._running.discard(event)

    def exits(self) -> None:
        """Note that the interpreter exits."""
        self._thread.exits()

    def close(self) -> None:
        if self.runtime.left_behind:
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
            running = tuple(self._running)
        for event in running:
            event.wait()
        self._stack.close()
        _open.discard(self)


def _settle(
    future: Future[dict[str, Array]], error: BaseException | None, outputs: dict[str, Array] | None = None
) -> None:
    with suppress(InvalidStateError):  # it was cancelled, or has its outcome
        if error is None:
            assert outputs is not None
            future.set_result(outputs)
        else:
            future.set_exception(error)


def _close_elsewhere(background: _Background, give_back: Callable[[], None]) -> None:
    if not background.closed:
        threading.Thread(target=give_back, name="asyncrt-close", daemon=True).start()


_open: set[_Background] = set()


def _close_all() -> None:
    for background in tuple(_open):
        background.exits()
        background.close()


def _close_at_exit(background: _Background) -> None:
    _open.add(background)


# Requests in flight may need worker threads. Those are refused once the interpreter has begun to join threads, which
# is before `atexit` functions run; from Python 3.12 on no new one is started even then. So this uses the hook by which
# concurrent.futures stops its own threads; hooks run last in, first out, and concurrent.futures.thread, imported above,
# is already in.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
