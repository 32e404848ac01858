"""What does a process of its own find, one that nobody else has warmed up or filled?

``fresh(function, ...)`` calls a coroutine function of this package in a new Python, and returns what it returned.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from .measure import ROOT, BenchmarkError

Result = TypeVar("Result")


def fresh(function: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
    """Return what *function* gives in a process of its own; it and the arguments are what JSON holds, or paths.

    Raises:
        BenchmarkError: The process failed.
    """
    texts = [str(a) if isinstance(a, Path) else a for a in arguments]
    # Run as a command, the function's module has no name that could be imported.
    module = Path(function.__code__.co_filename).stem
    command = [sys.executable, "-m", "benchmarks.process", module, function.__name__, json.dumps(texts)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{module}.{function.__name__}{tuple(texts)} ended with {done.returncode}:\n{done.stderr}")
    found: Result = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    module, function, arguments = sys.argv[1:]
    call = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    print(json.dumps(asyncio.run(call(*json.loads(arguments)))))
