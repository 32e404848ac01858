"""A thread in C begins and ends what is posted, in order, and Python is told, as a driver sees it that takes notes."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncrt.devices.base import Transfer
from asyncrt.devices.opencl import launcher as opencl_launcher
from asyncrt.devices.opencl.arguments import handle_of
from asyncrt.devices.opencl.launcher import PATIENCE_NS, OpenCLLauncher, native_launcher
from asyncrt.devices.opencl.prepared import OpenCLPrepared
from asyncrt.devices.opencl.submit import native_submitter
from asyncrt.errors import DeviceCommandError

from .test_submit import Copier, Memory

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="there is no eventfd on this system")
ARENA = Memory(handle_of(0xA0))
WHOLE = ["write", "launch", "launch"]  # what is begun


class Driver(Copier):
    """One that lets nothing begin before it is allowed to, and notes the queue of each command."""

    def __init__(self, refused: int = -1) -> None:
        super().__init__(refused)
        self.allowed, self.waiting = threading.Event(), list[int]()
        #: What was asked for, and on which queue.
        self.story: list[tuple[str, int]] = []

    def _write(self, queue: int, *rest: Any) -> int:
        self.waiting.append(queue)
        self.allowed.wait()
        self.story.append(("write", queue))
        return super()._write(queue, *rest)

    def _enqueue(self, queue: int, *rest: Any) -> int:
        self.story.append(("launch", queue))
        return super()._enqueue(queue, *rest)

    def _read(self, queue: int, *rest: Any) -> int:
        self.story.append(("read", queue))
        return super()._read(queue, *rest)

    def _finish(self, queue: int) -> int:
        self.story.append(("finish", queue))
        return super()._finish(queue)


class Stream:
    """A stream whose queue has an address."""

    def __init__(self, queue: int) -> None:
        self.queue, self.native = queue, 0

    def queue_address(self) -> int:
        return self.queue


class Prepared(OpenCLPrepared):
    """Two launches of a driver's."""

    def __init__(self, driver: Driver, submit: ModuleType) -> None:
        self._calls, self._launches = driver.calls(submit), [(None, (), b"", (1,), None, ())] * 2  # type: ignore[list-item]

    def _what(self, place: int) -> str:
        return f"launch {place}"


class World:
    """A launcher, and what is posted to it."""

    def __init__(
        self,
        launcher: ModuleType,
        submit: ModuleType,
        refused: int = -1,
        queues: tuple[int, ...] = (),
        patience_ns: int = PATIENCE_NS,
    ) -> None:
        self.file = os.eventfd(0, os.EFD_NONBLOCK)
        self.driver = Driver(refused)
        self.prepared = Prepared(self.driver, submit)
        self.launcher = OpenCLLauncher(launcher, self.file, queues, patience_ns)

    def post(self, queue: int | None, stop: bytearray | None = None) -> tuple[Callable[[], None], Any]:
        """Post what writes, launches twice, and reads; returns what checks it, and what is read into."""
        result = np.zeros(3, np.uint8)
        writes, reads = (Transfer(ARENA, 64, np.array(7)),), (Transfer(ARENA, 8, result),)  # type: ignore[arg-type]
        stream = None if queue is None else Stream(queue)
        return self.launcher.post(self.prepared, stream, writes, reads, stop).check, result  # type: ignore[arg-type]

    def run(self) -> None:
        """Let the driver begin, and return when all has ended."""
        self.driver.allowed.set()
        self.launcher.wait()


@pytest.fixture
def world(launcher: ModuleType, submit: ModuleType) -> Iterator[World]:
    world = World(launcher, submit)
    yield world
    world.driver.allowed.set()
    world.launcher.close()
    os.close(world.file)


def test_each_queue_has_one_at_a_time_and_the_first_ends_first(world: World) -> None:
    """The next of a queue begins when the one before it was read; those of other queues are at work meanwhile."""
    posted = [world.post(queue) for queue in (1, 2, 1, 2)]

    world.run()

    begun = {queue: [(what, queue) for what in WHOLE] for queue in (1, 2)}
    assert world.driver.story == [
        *begun[1], *begun[2], ("read", 1), *begun[1], ("read", 2), *begun[2], ("read", 1), ("read", 2)
    ]  # fmt: skip
    assert len(world.launcher.collect()) == 4
    for check, result in posted:
        check()
        assert result.any()


def test_when_one_has_ended_the_next_is_waited_for_before_the_device(launcher: ModuleType, submit: ModuleType) -> None:
    """While the thread waits for the device it can begin nothing, so callers who ask at once would take turns."""
    world = World(launcher, submit, patience_ns=10**12)
    world.post(1), world.post(2)
    world.driver.allowed.set()
    while not world.launcher.collect():
        os.sched_yield()
    at_work = world.driver.story[:]
    world.post(1)
    world.launcher.wait()

    assert at_work == [(what, 1) for what in WHOLE] + [(what, 2) for what in WHOLE] + [("read", 1)]
    assert world.driver.story[7:] == [*((what, 1) for what in WHOLE), ("read", 2), ("read", 1)]
    world.launcher.close()
    os.close(world.file)


def test_the_event_loop_is_told_once_until_it_collects(world: World) -> None:
    """Each that has ended is collected once, in the order in which they were posted."""
    for queue in (1, 2, 3):
        world.post(queue)
    world.run()

    assert os.eventfd_read(world.file) == 1
    assert [len(world.launcher.collect()), len(world.launcher.collect())] == [3, 0]
    with pytest.raises(BlockingIOError):
        os.eventfd_read(world.file)
    world.post(1)
    world.launcher.wait()
    assert (os.eventfd_read(world.file), len(world.launcher.collect())) == (1, 1)


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_what_is_refused_fails_alone_when_it_is_over(refused: int, launcher: ModuleType, submit: ModuleType) -> None:
    """Its queue is waited for, because its memory is another's from then on; the next one runs as ever."""
    world = World(launcher, submit, refused)
    (first, nothing), (second, something) = world.post(1), world.post(2)

    world.run()

    assert len(world.launcher.collect()) == 2
    what = ["a copy", "launch 0", "launch 1"][refused]
    with pytest.raises(DeviceCommandError, match=what) as caught:
        first()
    second()
    assert "-54" in caught.value.detail
    assert ("finish", 1) in world.driver.story
    assert not nothing.any()
    assert something.any()
    world.launcher.close()
    os.close(world.file)


def test_threads_with_a_queue_each_carry_out_one_after_the_other(launcher: ModuleType, submit: ModuleType) -> None:
    """As many at once as there are threads, each whole, on the thread's queue; whoever is free takes the next."""
    world = World(launcher, submit, queues=(5, 6))
    posted = [world.post(None) for _ in range(6)]

    while len(world.driver.waiting) < 2:
        os.sched_yield()
    world.run()

    assert sorted({queue for _, queue in world.driver.story}) == [5, 6]
    for own in (5, 6):
        assert [what for what, queue in world.driver.story if queue == own][:4] == [*WHOLE, "read"]
    assert len(world.driver.story) == 6 * 4
    ended = world.launcher.collect()
    assert len(ended) == 6
    assert all(each.seconds > 0 for each in ended)
    for check, result in posted:
        check()
        assert result.any()
    world.launcher.close()
    os.close(world.file)


def test_who_is_stopped_launches_no_more_and_reads_nothing(launcher: ModuleType, submit: ModuleType) -> None:
    """What was enqueued by then is waited for, and the thread goes on with the next."""
    world = World(launcher, submit, queues=(5,))
    stop = bytearray(1)
    (first, nothing), (second, something) = world.post(None, stop), world.post(None)
    stop[0] = 1

    world.run()

    assert world.driver.story == [("write", 5), ("finish", 5), *((what, 5) for what in WHOLE), ("read", 5)]
    assert len(world.launcher.collect()) == 2
    first(), second()
    assert not nothing.any()
    assert something.any()
    world.launcher.close()
    os.close(world.file)


def test_who_waits_returns_at_once_where_nothing_was_posted(world: World) -> None:
    """And where all has been collected."""
    world.launcher.wait()
    world.post(1)
    world.run()
    world.launcher.wait()
    assert len(world.launcher.collect()) == 1
    world.launcher.wait()


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_its_end_gives_all_back(how: str, launcher: ModuleType, submit: ModuleType) -> None:
    """Also what was not collected; the thread ends, and nothing can be posted any more."""
    world = World(launcher, submit)
    source, threads = np.array(5), len(os.listdir("/proc/self/task"))
    held = sys.getrefcount(source)
    world.launcher.post(world.prepared, Stream(1), (Transfer(ARENA, 0, source),), ())  # type: ignore[arg-type]
    assert sys.getrefcount(source) > held
    world.run()
    if how == "closed":
        world.launcher.close()
        for call in (world.launcher.collect, world.launcher.wait, world.launcher.close, lambda: world.post(1)):
            with pytest.raises(ValueError, match="not closed"):
                call()
    else:
        del world.launcher
        gc.collect()

    assert world.driver.story[-1] == ("finish", 1)
    assert sys.getrefcount(source) == held
    while len(os.listdir("/proc/self/task")) >= threads:
        os.sched_yield()
    os.close(world.file)


def test_what_is_no_work_is_not_posted(world: World) -> None:
    """Who posts it is told, and nothing of it is held."""
    with pytest.raises(AttributeError):
        world.launcher.post(world.prepared, Stream(1), (Transfer(object(), 0, np.array(1)),), ())  # type: ignore[arg-type]
    world.post(1)
    world.run()
    assert len(world.launcher.collect()) == 1


def test_a_copy_of_the_process_ends_without_it(launcher: ModuleType) -> None:
    """A process that was forked has no such thread to wait for."""
    file = os.eventfd(0)
    native = launcher.start(file, 0, ())
    child = os.fork()
    if not child:
        del native
        os._exit(0)
    _, status = os.waitpid(child, 0)
    launcher.close(native)
    os.close(file)

    assert status == 0


def test_there_is_none_where_it_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where it was built for other tables; then the event loop's thread launches."""
    stale = ModuleType("asyncrt.devices.opencl._launcher")
    stale.LAYOUT, stale.CALLS = opencl_launcher.LAYOUT, opencl_launcher.CALLS - 1  # type: ignore[attr-defined]
    for module in (stale, None):
        monkeypatch.setitem(sys.modules, "asyncrt.devices.opencl._launcher", module)
        monkeypatch.delattr("asyncrt.devices.opencl._launcher", raising=False)
        if module is not None:
            monkeypatch.setattr("asyncrt.devices.opencl._launcher", module, raising=False)

        assert native_launcher(0) is None


def test_there_is_one_where_it_was_built() -> None:
    """It is of the version that Python expects."""
    if native_submitter() is None:
        pytest.skip("there was no C compiler")
    file = os.eventfd(0)
    made = native_launcher(file)
    assert made is not None
    made.close()
    os.close(file)

