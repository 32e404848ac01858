"""The command line begins here, in `main()`, and ends here: with a line and a status, never with a traceback.

Nothing is imported before that can be interrupted; the commands themselves are in `commands.py`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable

INTERRUPTED = 130
"""The status of a command that Ctrl-C has ended, as shells have it."""


def main() -> None:
    """Run the command line; exits with 0, with 1 after an error, with 2 after a wrong option, with 130 after Ctrl-C."""
    try:
        status = _run()
    except KeyboardInterrupt:
        status = INTERRUPTED
    status = _flush(status)
    if status == INTERRUPTED:
        os._exit(status)  # threads that are in a driver's compiler would be waited for
    sys.exit(status)


def _run() -> int:
    """Run a command and return its status."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # not every terminal has a µ
    app = _commands()
    try:
        app(prog_name="asyncrt")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _commands() -> Callable[..., None]:
    """Import the commands. Ctrl-C is obeyed afterwards: modules in C do not survive an exception midway quietly."""
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        if came:
            os._exit(INTERRUPTED)  # whoever asks twice does not want to wait
        came.append(number)

    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, note)
    gc.disable()
    try:
        from .commands import app
    finally:
        gc.enable()
        gc.freeze()  # modules stay: no collection goes through them, the last two at exit least of all
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
    return app


def _flush(status: int) -> int:
    """Bring out what was printed, and return the status: where that cannot be written, not 0."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        if not isinstance(error, BrokenPipeError) and status == 0:
            with contextlib.suppress(OSError):
                print(f"error: the output cannot be written: {error}", file=sys.stderr)
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes it once more
        return status or 1
    return status
