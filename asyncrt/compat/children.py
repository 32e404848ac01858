"""How do processes that `multiprocessing` spawns come to import asyncrt's package as well?

Such a process begins with what its parent has prepared for it, before it imports the program. What is added to that
there calls `install()` when it is unpickled.
"""

from __future__ import annotations

import functools
from multiprocessing import spawn
from typing import Any

_prepare = spawn.get_preparation_data


class _Calls:
    """Becomes what a call returns, in the process that it is sent to."""

    def __init__(self, call: functools.partial[Any]) -> None:
        self._call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call.func, self._call.args


def tell(call: functools.partial[Any]) -> None:
    """Let processes that are spawned from now on make a call first; its arguments are sent there."""

    def prepare(name: str) -> dict[str, Any]:
        return {"asyncrt.compat": _Calls(call), **_prepare(name)}

    spawn.get_preparation_data = prepare


def tell_no_more() -> None:
    """Let them begin as Python does."""
    spawn.get_preparation_data = _prepare
