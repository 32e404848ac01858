"""The environment for a process that a test starts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def with_sources(**more: str) -> dict[str, str]:
    """Return this process's environment in which the sources come first, and what else was asked for."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def interruptible() -> None:
    """What a new process does first that Ctrl-C is to end: the shell of a job in the background has it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
