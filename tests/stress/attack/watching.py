"""What a case is watched for inside its process: time, memory, files that are opened, bytes that are not its own.

Kernels are built by the driver's compiler, for as long as that takes; the time in which any is built is not the case's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from asyncrt.devices.base import Allocation, Device, Stream
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.runtime.runtime import Runtime
from asyncrt.runtime.watch.watched import WatchedStream

LONG_S = 2.0
"""Seconds of processors after which a case has taken too long, kernels' building not counted."""

MORE_BYTES = 200 << 20
"""What a case may take beyond its limit of memory."""

PASSWORDS = "/etc/passwd"
"""Stands for whatever is the machine's own, and no model's business."""


class Finding(AssertionError):
    """Something that must not be, of a kind that the summary counts by."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Clock:
    """Seconds of processors that this process has used since it was begun, kernels' building not counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._building = 0
        self._seconds = 0.0
        self._since = time.process_time()

    def begin(self) -> None:
        with self._lock:
            self._seconds, self._since = 0.0, time.process_time()

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._seconds + (0.0 if self._building else time.process_time() - self._since)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """While this lasts, on whatever thread, nothing is counted."""
        with self._lock:
            if not self._building:
                self._seconds += time.process_time() - self._since
            self._building += 1
        try:
            yield
        finally:
            with self._lock:
                self._building -= 1
                if not self._building:
                    self._since = time.process_time()

    def watch(self, device: Device) -> Device:
        """Let *device* stop the clock while it builds; returns it."""
        build = device.build

        def stopping(sources: Sequence[Any], binary: bytes | None) -> tuple[Mapping[Any, Any], bytes | None]:
            with self.stopped():
                return build(sources, binary)

        device.build = stopping  # type: ignore[method-assign]
        return device


class Peak:
    """The most memory that this process has had since it was begun, in bytes, above what it had then."""

    def begin(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._first = self._status("VmRSS:")

    @property
    def bytes(self) -> int:
        return self._status("VmHWM:") - self._first

    def _status(self, word: str) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(word):
                return int(line.split()[1]) << 10
        return 0


class Doors:
    """Which files are opened while it watches; Python calls it for each, for as long as the process lives."""

    def __init__(self, folder: Path) -> None:
        self.on = False
        self.wrong: list[str] = []
        self._folder = os.path.realpath(folder)
        sys.addaudithook(self._seen)

    def _seen(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.on or event != "open" or not isinstance(given[0], str | bytes | os.PathLike):
            return
        path = os.fsdecode(given[0])
        if PASSWORDS in (path, os.path.realpath(path)) or self._is_outside(path):
            self.wrong.append(path)

    def _is_outside(self, path: str) -> bool:
        """Whether it lies in the case's folder but not in the model's, or is what only a model would name."""
        real = os.path.realpath(path)
        inside = real.startswith(self._folder + os.sep) and not real.startswith(os.path.join(self._folder, "model"))
        return inside or real in ("/dev/zero", "/proc/self/mem", f"/proc/{os.getpid()}/mem")


class Poisoned(WatchedStream):
    """Fills the arena of each chunk with a pattern before anything of it is enqueued."""

    def __init__(self, stream: Stream, poison: Poison) -> None:
        super().__init__(stream)
        self._poison = poison

    def begin(self, plan: ChunkPlan, arenas: Sequence[Allocation]) -> None:
        if arenas[plan.chunk] is not None:
            self.stream.fill(arenas[plan.chunk], 0, plan.arena_nbytes, self._poison.byte)


@attrs.define
class Poison:
    """With what arenas are filled; results must not depend on it."""

    byte: int = 0xA5

    def put(self, rt: Runtime) -> None:
        """Let it be on the streams of *rt*, below whoever checks or times their commands."""
        streams = rt.session.dispatcher.streams
        for index, stream in enumerate(streams):
            if isinstance(stream, WatchedStream):
                stream.stream = Poisoned(stream.stream, self)
            else:
                streams[index] = Poisoned(stream, self)
