"""Compiles kernels in processes beside this one, for drivers that hold others up while they compile in a process.

Intel's compiles one program after the other, and NVIDIA's lets no launch in meanwhile, for seconds where a program is
large. What NVIDIA's has compiled for its processor it keeps in a folder of its own, and finds there in a moment when
this process asks for the same.

A process is started when there is much to compile, and ends when there was nothing for some seconds. A compiler that
crashes takes its own process with it; in this one it would take the program.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

from asyncrt.errors import KernelBuildError

from ..drivers import INTEL_CPU, NVIDIA_GPU, preloaded
from ..info import cores
from . import worker

_log = logging.getLogger(__name__)

GAINS = {INTEL_CPU: 8, NVIDIA_GPU: 4}
"""Platforms, and kinds of their devices, whose driver holds others up, with how many processes there are at most: each
takes 100 to 200 MB while it compiles, and of a GPU's memory some hundreds as long as it is there."""

_SCRIPT = Path(worker.__file__)
_MUCH = 48 << 10  # characters of a text that take longer to compile than a process takes to start: about half a second
_START_S = 60.0  # that a process has to start, and may rest meanwhile
# The same where requests go first: compiled in this process it would take the time that they, or NumPy for them, need.
_MUCH_GENTLY = 12 << 10


class _Worker:
    """A process that compiles; one thread at a time may use it."""

    def __init__(self, place: str, libraries: Sequence[str]) -> None:
        said, self._says = os.pipe()
        os.set_blocking(self._says, False)
        command = [sys.executable, "-P", "-S", str(_SCRIPT), str(said), place, *libraries]
        try:
            # A group of its own, so that the terminal's signals are not for it. In a session of its own it would give
            # way to nobody: Linux shares processors out among sessions first (autogroup), and then within each.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0,
                pass_fds=(said,),
            )  # fmt: skip
        except BaseException:
            os.close(self._says)
            raise
        finally:
            os.close(said)
        self._requests = cast("BinaryIO", self._process.stdin)
        self._answers = cast("BinaryIO", self._process.stdout)

    def wait(self) -> None:
        """Return when it is ready. Blocks.

        Raises:
            EOFError: It will not be.
        """
        with selectors.DefaultSelector() as answers:
            answers.register(self._answers, selectors.EVENT_READ)
            ready = answers.select(_START_S)
        if not ready or worker.received(self._answers, worker.ANSWER.size) != worker.ANSWER.pack(worker.READY, 0):
            raise EOFError

    def tell(self, how: bytes) -> None:
        """Let it give way from now on, or hurry."""
        with contextlib.suppress(OSError):  # it has ended
            os.write(self._says, how)

    def compile(self, options: bytes, text: bytes) -> tuple[int, bytes]:
        """Return what came of a text, and its binary. Blocks.

        Raises:
            EOFError: The process ended before.
        """
        try:
            self._requests.write(worker.REQUEST.pack(len(options), len(text)) + options + text)
            self._requests.flush()
        except OSError as error:
            raise EOFError from error
        kind, nbytes = worker.ANSWER.unpack(worker.received(self._answers, worker.ANSWER.size))
        return kind, worker.received(self._answers, nbytes)

    def rest(self, rests: bool) -> None:
        """Stop the process, or let it go on; where the system does not do that, it goes on."""
        if sys.platform != "win32":
            self._process.send_signal(signal.SIGSTOP if rests else signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once; who waits for its answer gets `EOFError`."""
        self._process.kill()

    def ended(self) -> int:
        """Close the pipes and return how the process ended. Blocks until it has."""
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        os.close(self._says)
        return self._process.wait()


def find_compilers(platform: str, kind: str, spec: str, name: str) -> Compilers | None:
    """Return what compiles for a device; None where its driver does so in this process, beside all else."""
    most = GAINS.get((platform, kind))
    return None if most is None else Compilers(spec, name, most)


class Compilers:
    """The processes that compile for one device.

    Args:
        spec: The device's, ``opencl:platform:device``.
        name: For messages.
        most: Processes.
    """

    def __init__(self, spec: str, name: str, most: int) -> None:
        self._most = most
        self._place = spec.removeprefix("opencl:")
        self._what = f"{spec} ({name})"
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        #: Whether those rest.
        self._paused = False
        #: Whether requests go first.
        self.gives_way = False
        self._hurries = False
        self._starts = bool(sys.executable) and not hasattr(sys, "frozen")  # else Python is not what is run
        self._closed = False

    @property
    def at_once(self) -> int:
        """How many may compile at the same time: one on each core."""
        return min(cores(), self._most)

    def hurry(self, hurries: bool) -> None:
        """Let nothing give way, whoever goes first otherwise; or let it again."""
        with self._lock:
            self._hurries = hurries
            for compiler in (*self._busy, *self._idle):
                compiler.tell(self._how())

    def pause(self, paused: bool) -> None:
        """Let what compiles rest, or go on."""
        with self._lock:
            self._paused = paused
            for compiler in self._busy:
                compiler.rest(paused)

    def _how(self) -> bytes:
        return worker.GIVE_WAY if self.gives_way and not self._hurries else worker.HURRY

    def compile(self, options: bytes, text: str) -> bytes | None:
        """Return the binary of a program. Blocks.

        None if it is to be compiled in this process: it is soon compiled, the driver refuses it, or there are no
        processes to be had.

        Raises:
            KernelBuildError: The process ended while it compiled, or this was closed.
        """
        encoded = text.encode()
        least = min(_MUCH, _MUCH_GENTLY) if self.gives_way else _MUCH
        while (found := self._take(len(encoded) >= least)) is not None:
            compiler, fresh = found
            try:
                kind, binary = compiler.compile(options, encoded)
            except EOFError:
                self._lose(compiler)
                status = compiler.ended()
                if self._closed:
                    raise self._was_closed() from None
                if status == 0 and not fresh:
                    continue  # it had ended by itself, before it was asked
                raise KernelBuildError(
                    f"{self._what}: its driver's compiler ended with {status} while it built a kernel",
                    hint="another version of the driver may build it",
                ) from None
            self._give_back(compiler)
            return binary if kind == worker.COMPILED else None
        return None

    def _take(self, much: bool) -> tuple[_Worker, bool] | None:
        """Return a process, and whether it was started for this: if none is idle, and it is *much* to compile."""
        with self._lock:
            if self._idle:
                compiler = self._idle.pop()
                self._use(compiler)
                return compiler, False
            if self._closed or not self._starts or not much:
                return None
        try:
            compiler = _Worker(self._place, preloaded())
        except OSError as error:
            self._starts_none(error)
            return None
        with self._lock:
            self._use(compiler)
            compiler.tell(self._how())
            if self._closed:
                compiler.kill()
        try:
            compiler.wait()
        except BaseException as error:
            compiler.kill()
            self._lose(compiler)
            compiler.ended()
            if not isinstance(error, EOFError):
                raise
            if self._closed:
                raise self._was_closed() from None
            self._starts_none(error)
            return None
        return compiler, True

    def _use(self, compiler: _Worker) -> None:
        self._busy.add(compiler)
        if self._paused:
            compiler.rest(True)

    def _lose(self, compiler: _Worker) -> None:
        with self._lock:
            self._busy.discard(compiler)

    def _starts_none(self, error: Exception) -> None:
        self._starts = False
        _log.info("%s: kernels are built in this process, because no other starts for that: %r", self._what, error)

    def _was_closed(self) -> KernelBuildError:
        return KernelBuildError(f"{self._what} was closed while a kernel was built")

    def _give_back(self, compiler: _Worker) -> None:
        with self._lock:
            self._busy.discard(compiler)
            if self._paused:
                compiler.rest(False)
            if not self._closed:
                self._idle.append(compiler)
                return
        compiler.ended()

    def close(self) -> None:
        """End the processes, whatever they compile. Blocks for a moment."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for compiler in self._busy:
                compiler.kill()
        for compiler in idle:
            compiler.ended()
