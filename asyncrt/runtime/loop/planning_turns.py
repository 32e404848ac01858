"""Which of several threads that plan for likely sizes goes on? One at a time, those first for whom somebody waits.

They share the interpreter with the event loop, which would wait for a turn of each of them whenever it has work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class PlanningTurns:
    """The turn to plan, which one thread has."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._urgent = 0

    @property
    def wanted_urgently(self) -> bool:
        """Whether a thread waits for its turn for which somebody waits."""
        return self._urgent > 0

    def take(self, urgent: Callable[[], bool], ended: Callable[[], bool]) -> bool:
        """Return when it is the caller's turn, and true, or when it has ended. Blocks.

        Args:
            urgent: Whether somebody waits for what is planned.
            ended: Whether nobody wants that any more.
        """
        counted = False
        with self._changed:
            try:
                while not ended():
                    if not counted and urgent():
                        counted, self._urgent = True, self._urgent + 1
                    if not self._taken and (counted or not self._urgent):
                        self._taken = True
                        return True
                    self._changed.wait()
                return False
            finally:
                self._urgent -= counted
                self._changed.notify_all()  # others may be the next, now that it is not

    def give_back(self) -> None:
        """Let another thread go on."""
        with self._changed:
            self._taken = False
            self._changed.notify_all()

    def look_again(self) -> None:
        """Let those who wait ask again whether it is urgent, or has ended."""
        with self._changed:
            self._changed.notify_all()
