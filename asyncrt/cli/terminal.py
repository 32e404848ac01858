"""How commands speak: results to stdout, notes and errors to stderr, and an exit status for each way to end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from asyncrt.errors import AsyncrtError

from . import INTERRUPTED

if TYPE_CHECKING:
    from rich.progress import Progress

P = ParamSpec("P")
T = TypeVar("T")

_PIPED_WIDTH = 160  # tables in a pipe or a file are not folded to the 80 columns that no terminal asked for


def stdout() -> Console:
    """Return the console that results go to."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return the console that notes, progress and errors go to."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


def progress_bar() -> Progress:
    """Return what shows on a terminal how far a command is."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawing takes the interpreter from the requests that are measured: seldom is often enough.
    return Progress(*columns, console=console, transient=True, refresh_per_second=2, disable=not console.is_terminal)


def note(text: str) -> None:
    """Tell the user something that is neither a result nor an error."""
    stderr().print(f"[dim]{escape(text)}", soft_wrap=True)


def wrong(option: str, message: str) -> typer.BadParameter:
    """Return the error of a wrong option, which exits with 2; *message* says what was expected."""
    return typer.BadParameter(message, param_hint=f"'{option}'")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as a command does: after Ctrl-C it ends as when it is cancelled, but threads are not waited for.

    They may be in a driver's compiler, or reading a model, for long after nobody wants it any more.
    """
    runner, interrupted = asyncio.Runner(), False
    try:
        with _woken_by_signals(runner.get_loop()):
            return runner.run(work)
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if not interrupted:
            runner.close()


@contextlib.contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """While this lasts, a signal wakes the loop, also one that comes just before it waits: nobody else would see it.

    On Windows loops do so themselves.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, signals = socket.socketpair()
    with ours, signals:
        ours.setblocking(False)
        signals.setblocking(False)
        loop.add_reader(ours, ours.recv, 4096)
        before = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(ours)


def reporting(command: Callable[P, None]) -> Callable[P, None]:
    """Let a command end as a command does: an expected error is its message and 1, Ctrl-C is silence and 130."""

    @functools.wraps(command)
    def reported(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:
            raise  # the reader of our output has gone: typer ends quietly
        except (AsyncrtError, OSError, MemoryError) as error:
            full = isinstance(error, MemoryError) and not isinstance(error, AsyncrtError)
            said = f"there is not enough memory. {error}".strip() if full else str(error)
            stderr().print(f"[bold red]error:[/] {escape(said)}", soft_wrap=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(INTERRUPTED) from interrupt

    return reported
