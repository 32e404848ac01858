"""Which runtime do sessions run on? One for the whole process, opened when the first session needs it.

It is closed when the interpreter exits, as every `SyncRuntime` is. A process that was forked opens one of its own.
Threads for runs that nobody waits for are there once as well.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import attrs

from asyncrt.public import RuntimeOptions
from asyncrt.sync import SyncRuntime

_MOST_AT_ONCE = 32
"""Runs that nobody waits for; more wait for their turn."""


@attrs.define(eq=False)
class _Shared:
    device: str | None = None
    options: RuntimeOptions | None = None
    runtime: SyncRuntime | None = None
    threads: ThreadPoolExecutor | None = None
    lock: threading.Lock = attrs.field(factory=threading.Lock)


_shared = _Shared()


def configure(device: str | None, options: RuntimeOptions | None) -> None:
    """Say what the runtime of sessions that are made from now on is like; those that there are keep theirs."""
    with _shared.lock:
        if (device, options) != (_shared.device, _shared.options):
            _shared.device, _shared.options, _shared.runtime = device, options, None
            if _shared.threads is not None:
                _shared.threads.shutdown(wait=False)  # when what they run has ended
                _shared.threads = None


def configuration() -> tuple[str | None, RuntimeOptions | None]:
    """Return what `configure()` was given last."""
    return _shared.device, _shared.options


def shared_runtime() -> SyncRuntime:
    """Return the runtime; it is opened if it has not been in this process."""
    with _shared.lock:
        if _shared.runtime is None or _shared.runtime.left_behind:
            _shared.runtime = SyncRuntime(_shared.device, options=_shared.options)
        return _shared.runtime


def shared_threads() -> ThreadPoolExecutor:
    """Return threads for runs that nobody waits for."""
    with _shared.lock:
        if _shared.threads is None:
            _shared.threads = ThreadPoolExecutor(_MOST_AT_ONCE, "asyncrt-run-async")
        return _shared.threads


def _in_child() -> None:
    _shared.lock = threading.Lock()  # another thread of the parent may have held it
    _shared.threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
