"""How do scripts and notebooks run a model without an event loop of their own?

    with asyncrt.load_sync("model.onnx") as model:
        outputs = model.infer_sync({"x": x})

A thread in the background runs an event loop that owns a `Runtime` with this one model. Any number of threads may infer
at once; they share that loop, so that their requests overlap as those of an asyncio program do.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # for its hook at exit, which must come before ours: see below
import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from asyncrt.devices.base import Device, DeviceInfo
from asyncrt.errors import RuntimeClosedError
from asyncrt.graph.reading import ModelSource
from asyncrt.layout import Array, PartialLayout
from asyncrt.loops import LoopThread, waited
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.model import Model
from asyncrt.runtime.runtime import Runtime

from .runtime.explain.explain import Explanation


def load_sync(
    source: ModelSource,
    device: str | Device | None = None,
    *,
    streams: int | None = None,
    options: RuntimeOptions | None = None,
) -> SyncModel:
    """Load a model for use without asyncio. Blocks until it is on the device.

    Args:
        source: A path, the bytes of a file, or an `onnx.ModelProto`.
        device: As `Runtime` takes it.
        streams: Likewise.
        options: Likewise.

    Raises:
        NoDeviceError: There is no such device, or none that works.
        ModelError: One of its children, naming the node.
    """
    runtime = Runtime(device, streams=streams, options=options)
    return SyncModel(_Background(runtime, source))


class SyncModel:
    """A model with a runtime of its own, for any thread. Made by `load_sync()`.

    Close it, or use it in a `with` statement. One that is forgotten is closed when it is collected, and all are closed
    when the interpreter exits.
    """

    def __init__(self, background: _Background) -> None:
        self._background = background
        # Collection may happen on any thread, the loop's too, and closing waits for that one: it gets a thread.
        self._forgotten = weakref.finalize(self, _close_elsewhere, background)
        self._forgotten.atexit = False

    def __repr__(self) -> str:
        return "<SyncModel closed>" if self._background.closed else f"<SyncModel {self._background.model!r}>"

    def __enter__(self) -> SyncModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def inputs(self) -> dict[str, PartialLayout]:
        """What it takes: dtype and shape by name; dynamic dims by their names."""
        return self._background.model.inputs

    @property
    def outputs(self) -> dict[str, PartialLayout]:
        """What it gives: dtype and shape by name, as far as loading can tell."""
        return self._background.model.outputs

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
        return self._background.infer(inputs, priority, deadline)

    def explain(self) -> Explanation:
        """Return what became of every node of the inference that finished last, and why.

        Raises:
            AsyncrtError: None has finished yet.
        """
        return self._background.model.explain()

    def close(self) -> None:
        """Wait for inferences in flight and give everything back. Inferences begun after this are refused."""
        self._forgotten.detach()
        self._background.close()


class _Background:
    """The thread, the loop on it, and what lives there. Knows nothing of its `SyncModel`, which may be collected."""

    def __init__(self, runtime: Runtime, source: ModelSource) -> None:
        self.runtime = runtime
        self.closed = False
        self._lock = threading.Lock()
        #: Set when an inference has ended.
        self._running: set[threading.Event] = set()
        with ExitStack() as stack:
            self._thread = stack.enter_context(LoopThread("asyncrt-sync"))
            stack.callback(self._thread.call, runtime.close)
            self._thread.call(runtime.open)
            self.model: Model = self._thread.call(partial(runtime.load, source))
            self._stack = stack.pop_all()
        _close_at_exit(self)

    def infer(self, inputs: Mapping[str, Any], priority: int, deadline: float | None) -> dict[str, Array]:
        if self.runtime.left_behind:  # the thread is not there, and the lock may be held for ever
            self.runtime.check_open()
        with self._lock:
            if self.closed:
                raise RuntimeClosedError("the model was closed", hint="load it again with asyncrt.load_sync()")
            call = partial(self.model.infer, inputs, priority=priority, deadline=deadline)
            ended = threading.Event()
            pending = self._thread.begin(call, ended.set)
            self._running.add(ended)
        try:
            return waited(pending, ended)
        finally:
            with self._lock:
                self._running.discard(ended)

    def close(self) -> None:
        if self.runtime.left_behind:
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
            running = tuple(self._running)
        for ended in running:
            ended.wait()
        self._stack.close()
        _open.discard(self)


def _close_elsewhere(background: _Background) -> None:
    threading.Thread(target=background.close, name="asyncrt-close", daemon=True).start()


_open: set[_Background] = set()


def _close_all() -> None:
    for background in tuple(_open):
        background.close()


def _close_at_exit(background: _Background) -> None:
    _open.add(background)


# Closing a runtime needs worker threads, and those are refused once the interpreter has begun to join threads, which is
# before `atexit` functions run. So this uses the hook by which concurrent.futures stops its own threads; hooks run
# last in, first out, and concurrent.futures.thread, imported above, is already in.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
