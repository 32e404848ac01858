"""Several open devices as one: whether the runtime is still open, and where its event loop is.

A device that is lost takes nothing with it: the runtime is open as long as one of them is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from asyncrt.runtime.loop.trio_bridge import Elsewhere

from .session import Session


class Sessions:
    """What the models of several devices share, as `Session` is for one; the runtime opens and closes all at once.

    Args:
        sessions: One for each device.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._each = tuple(sessions)

    @property
    def _there(self) -> Session:
        """One that is not lost, if there is any."""
        return next((s for s in self._each if not s.dispatcher.lost), self._each[0])

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the runtime was opened on."""
        return self._each[0].loop

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Where the runtime runs if its callers are not on asyncio's loops."""
        return self._each[0].elsewhere

    @property
    def left_behind(self) -> bool:
        """Whether this is a copy in a process that was forked."""
        return self._each[0].left_behind

    @property
    def streams(self) -> int:
        """How many chunks the devices work on at once."""
        return sum(s.streams for s in self._each if not s.dispatcher.lost)

    @property
    def devices(self) -> int:
        """How many there are."""
        return sum(not s.dispatcher.lost for s in self._each)

    def check_open(self) -> None:
        """Raise unless the runtime is open.

        Raises:
            RuntimeClosedError: It was closed.
            WrongLoopError: It is a copy that a fork has made.
            DeviceLostError: All of its devices are lost.
        """
        self._there.check_open()

    def check_here(self) -> None:
        """Raise as `check_open()` does, and `WrongLoopError` unless this is the event loop that it was opened on."""
        self._there.check_here()
