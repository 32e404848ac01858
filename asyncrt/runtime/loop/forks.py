"""What becomes of a runtime in a child that `os.fork()` makes? Nothing: it is the parent's, and the child is told so.

Neither the threads nor the event loop of the parent run there, and its driver takes no calls, so that whoever asked for
anything would wait for ever. Nothing is looked at in requests: the child's copies are told when they come to be.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class LeftBehind(Protocol):
    """What belongs to the process that opened it."""

    def leave_behind(self) -> None:
        """This is a child's copy."""
        ...


_OPEN: weakref.WeakSet[LeftBehind] = weakref.WeakSet()
#: Copies in a child are never collected: to give what they hold back would be calls of the driver.
_COPIES: list[LeftBehind] = []


def tell_children(one: LeftBehind) -> None:
    """Tell each copy of *one* that a fork makes that it is one."""
    _OPEN.add(one)


def _in_child() -> None:
    _COPIES.extend(_OPEN)
    for one in _COPIES:
        one.leave_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
