"""What streams report on any thread reaches the loop: each once, in order, by whichever way there is to wake it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any

import pytest

from asyncrt.events import Event
from asyncrt.runtime.loop.completion import Completions


class Stream:
    """Hands out what to call when a mark is reached."""

    def __init__(self) -> None:
        self.reached: list[Any] = []

    def when_reached(self, mark: Any, callback: Any) -> None:
        self.reached.append(callback)


class World:
    """Completions of one stream, and what they delivered."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.delivered: list[tuple[Event, BaseException | None]] = []
        self.turned = asyncio.Event()
        self.completions = Completions(asyncio.get_running_loop(), self._deliver)

    def _deliver(self, event: Event, error: BaseException | None) -> None:
        self.delivered.append((event, error))
        self.turned.set()

    def watch(self, count: int) -> None:
        for stamp in range(1, count + 1):
            self.completions.watch(self.stream, None, Event(0, stamp))  # type: ignore[arg-type]

    async def report(self, *errors: BaseException | None) -> None:
        """Report the next marks, one for each error, on a thread; return when the loop has heard of them."""
        self.tell(*errors)
        await self.turned.wait()
        self.turned.clear()

    def tell(self, *errors: BaseException | None) -> None:
        """Report the next marks, one for each error, on a thread that has ended when this returns."""
        callbacks, self.stream.reached = self.stream.reached[: len(errors)], self.stream.reached[len(errors) :]

        def run() -> None:
            for callback, error in zip(callbacks, errors, strict=True):
                callback(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


def no_eventfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system without."""
    monkeypatch.delattr(os, "eventfd", raising=False)


def no_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a loop that listens to no files."""

    def add_reader(*arguments: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", add_reader)


@pytest.mark.asyncio
@pytest.mark.parametrize("without", [None, no_eventfd, no_readers], ids=["eventfd", "no eventfd", "no readers"])
async def test_a_thread_wakes_the_loop(without: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all that it has reported by then; with what failed, and again the next time."""
    if without is not None:
        without(monkeypatch)
    world, error = World(), OSError()
    world.watch(5)

    await world.report(None, error, None)
    first = list(world.delivered)
    await world.report(None, None)
    world.completions.close()

    assert first == [(Event(0, 1), None), (Event(0, 2), error), (Event(0, 3), None)]
    assert world.delivered[3:] == [(Event(0, 4), None), (Event(0, 5), None)]


@pytest.mark.asyncio
async def test_what_is_reported_on_the_loop_itself_comes_in_its_next_turn() -> None:
    """It need not ask the system for what it knows."""
    world = World()
    world.watch(2)

    for callback in world.stream.reached:
        callback(None)
    at_once = list(world.delivered)
    await asyncio.sleep(0)
    world.completions.close()

    assert at_once == []
    assert world.delivered == [(Event(0, 1), None), (Event(0, 2), None)]


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no eventfd on this system")
@pytest.mark.asyncio
async def test_nothing_is_written_to_a_file_that_is_closed() -> None:
    """It may be another one's by then: a device that was lost reports late, and nobody is told."""
    world = World()
    world.watch(1)
    file = world.completions.wake_up.file
    world.completions.close()
    other = os.eventfd(0, os.EFD_NONBLOCK)

    world.tell(None)
    await asyncio.sleep(0)  # a turn of the loop, in which it would be heard of

    assert world.delivered == []
    assert other == file
    with pytest.raises(BlockingIOError):
        os.eventfd_read(other)
    os.close(other)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no eventfd on this system")
def test_a_file_goes_with_a_loop_that_is_closed_alone() -> None:
    """Who closes no runtime must not run out of files."""

    async def forget() -> int:
        file = World().completions.wake_up.file
        assert file is not None
        return file

    file = asyncio.run(forget())
    gc.collect()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
