"""An event loop whose clock is virtual: it does not wait for a time, it goes there, and each turn takes a while."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
TURN_S = 2e-5


class _Selector(selectors.DefaultSelector):
    """Where the loop would wait for a timer and nothing else is ready, its clock moves on."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.loop.now += TURN_S
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that never waits for time. Threads may wake it as ever."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the loop's own
        """Wait for the threads: the time after which others give them up would be here at once."""
        await super().shutdown_default_executor()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
