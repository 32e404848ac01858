"""Where about as many requests are there as cores, each has one: who begins when, and what becomes of the others."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from asyncrt import DeviceLostError
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.runtime.loop.crew import ThreadCrew
from asyncrt.runtime.loop.own_cores import OwnCores, enough

CORES = 2


class Cores:
    """What requests on cores of their own may ask of the rest of the runtime; notes what they do.

    Attributes:
        others: Requests on the general way.
        may: Whether one may begin.
        told: What those who wait for the runtime were told, in order.
        begun: Puts in the name of each request that a thread begins.
    """

    def __init__(self, cores: int = CORES, most: int = 64) -> None:
        self.others, self.may = 0, True
        self.told: list[str] = []
        self.begun = queue.SimpleQueue[str]()
        device, loop = SimulatedDevice(), asyncio.get_running_loop()
        self.own = OwnCores(
            cores, most, lambda cores, ended: ThreadCrew(cores, device.open_stream, loop, ended), loop,
            lambda: self.others, lambda: self.may,
            lambda: self.told.append("begun"), lambda: self.told.append("ended"),
        )  # fmt: skip

    async def next(self) -> str:
        """Return the request that a thread begins next."""
        return await asyncio.to_thread(self.begun.get)


class Request:
    """A request that a thread works on until it is let go."""

    def __init__(self, cores: Cores, name: str, *, fails: bool = False) -> None:
        self._cores, self.name, self._fails = cores, name, fails
        self.goes_on = threading.Event()
        self.stopped = self.gave_back = False

    def carry_out(self, stream: Any) -> None:
        self._cores.begun.put(self.name)
        assert self.goes_on.wait(60)
        if self._fails:
            raise OSError(self.name)

    def stop(self) -> None:
        self.stopped = True

    def end(self, error: BaseException | None) -> str:
        self.gave_back = True
        if error is not None:
            raise error
        return self.name


@contextlib.asynccontextmanager
async def cores(most: int = 64) -> AsyncIterator[Cores]:
    made = Cores(most=most)
    yield made
    made.own.close()


def ask(
    there: Cores, requests: Sequence[Request], priority: int = 0, until: float | None = None
) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(there.own.run(lambda r=r: r, priority, until)) for r in requests]  # type: ignore[misc]


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("count", "least"), [(1, 2), (2, 2), (4, 3), (8, 6), (16, 12), (64, 48)])
def test_fewer_than_most_cores_would_leave_too_many_without_work(count: int, least: int) -> None:
    """Three quarters of them, each by itself, answer as many as all together; one request alone has all."""
    assert enough(count) == least


@pytest.mark.asyncio
async def test_those_on_the_general_way_count_as_well() -> None:
    """With the one that has just come; a request that would keep a core for long has none of its own."""
    async with cores() as there:
        alone = there.own.wanted
        there.others = 1

        assert not alone
        assert there.own.wanted
        assert there.own.suits(0.2)
        assert not there.own.suits(0.3)


@pytest.mark.asyncio
@pytest.mark.parametrize("why", ["no stream", "few may be in flight"])
async def test_where_none_may_have_one_none_is_wanted(why: str) -> None:
    """However many requests are there."""
    there = Cores(cores=16, most=11 if why == "few may be in flight" else 64)
    if why == "no stream":
        there.own = OwnCores(16, 64, None, asyncio.get_running_loop(), lambda: 20, lambda: True, list, list)
    there.others = 20

    assert not there.own.wanted


@pytest.mark.asyncio
async def test_as_many_are_at_work_as_there_are_cores_and_others_follow_as_they_end() -> None:
    """Each is told its own outcome; the runtime hears of the first that begins, and of each that ends."""
    async with cores() as there:
        requests = [Request(there, str(n)) for n in range(7)]
        tasks = ask(there, requests)
        first = {await there.next(), await there.next()}
        await turns()
        waiting, more = len(there.own), there.begun.empty()
        for request in requests:
            request.goes_on.set()

        assert await asyncio.gather(*tasks) == [r.name for r in requests]
        assert first == {"0", "1"}
        assert waiting == 7
        assert more
        assert there.told == ["begun", *["ended"] * 7]
        assert all(r.gave_back for r in requests)
        assert not len(there.own)


@pytest.mark.asyncio
async def test_the_urgent_go_first_of_those_that_wait() -> None:
    """Lower priorities, then earlier deadlines, then who came first; no more are made ready than may be in flight."""
    async with cores(most=2) as there:
        busy = [Request(there, "a"), Request(there, "b")]
        tasks = ask(there, busy)
        await there.next(), await there.next()
        now = asyncio.get_running_loop().time()
        late = [Request(there, name) for name in ("plain", "soon", "urgent")]
        for (request, priority, until) in zip(late, (0, 0, -1), (None, now + 3600, None), strict=True):
            tasks += ask(there, [request], priority, until)
        await turns()

        order = []
        for ended in (*busy, late[2]):
            ended.goes_on.set()
            order.append(await there.next())
        for request in late:
            request.goes_on.set()
        await asyncio.gather(*tasks)

        assert order == ["urgent", "soon", "plain"]


@pytest.mark.asyncio
async def test_who_waits_until_its_deadline_goes_the_general_way_which_says_so() -> None:
    """At that time; one that has begun goes on."""
    async with cores(most=2) as there:
        now = asyncio.get_running_loop().time()
        busy = ask(there, requests := [Request(there, "a"), Request(there, "b")], until=now)
        await there.next(), await there.next()
        (late,) = ask(there, [Request(there, "late")], until=now)

        assert await late is None
        for request in requests:
            request.goes_on.set()
        assert await asyncio.gather(*busy) == ["a", "b"]


@pytest.mark.asyncio
async def test_one_that_fails_fails_alone() -> None:
    """Its error is its caller's, what it used is given back, and the thread goes on."""
    async with cores() as there:
        requests = [Request(there, str(n), fails=n == 1) for n in range(6)]
        tasks = ask(there, requests)
        for request in requests:
            request.goes_on.set()

        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert [r for r in results if not isinstance(r, OSError)] == ["0", "2", "3", "4", "5"]
        assert str(results[1]) == "1"
        assert all(r.gave_back for r in requests)


@pytest.mark.asyncio
async def test_a_cancelled_one_is_told_to_stop_and_gives_back_what_it_uses_when_it_has() -> None:
    """Not before: its thread still works on that. One that waits never begins."""
    async with cores(most=2) as there:
        requests = [Request(there, name) for name in "abc"]
        tasks = ask(there, requests)
        await there.next(), await there.next()
        tasks[0].cancel()
        tasks[2].cancel()
        await asyncio.wait([tasks[0], tasks[2]])
        still = len(there.own.begun), requests[0].gave_back
        for request in requests:
            request.goes_on.set()

        assert await tasks[1] == "b"
        while there.own.begun:  # noqa: ASYNC110  # it is another thread's
            await asyncio.sleep(0)
        assert still == (2, False)
        assert requests[0].stopped
        assert requests[0].gave_back
        assert not requests[2].gave_back
        assert there.begun.empty()


@pytest.mark.asyncio
async def test_who_can_not_be_made_ready_goes_the_general_way() -> None:
    """At once, or when it is its turn; what making it ready raises is its caller's; and none begins that may not."""

    def refuses() -> Request | None:
        raise OSError("refused")

    async with cores(most=2) as there:
        there.may = False
        not_now = await there.own.run(lambda: Request(there, "never"), 0, None)
        there.may = True
        at_once = await there.own.run(lambda: None, 0, None)
        with pytest.raises(OSError, match="refused"):
            await there.own.run(refuses, 0, None)
        requests = [Request(there, "a"), Request(there, "b")]
        tasks = ask(there, requests)
        await turns()
        later = asyncio.ensure_future(there.own.run(lambda: None, 0, None))
        refused = asyncio.ensure_future(there.own.run(refuses, 0, None))
        await turns()
        for request in requests:
            request.goes_on.set()

        assert (not_now, at_once, await later) == (None, None, None)
        with pytest.raises(OSError, match="refused"):
            await refused
        assert await asyncio.gather(*tasks) == ["a", "b"]


@pytest.mark.asyncio
async def test_without_a_thread_requests_go_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have no more of them; nothing is held for one that never begins."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with cores() as there:
        request = Request(there, "a")
        monkeypatch.setattr(threading.Thread, "start", refuse)

        assert await there.own.run(lambda: request, 0, None) is None
        assert not len(there.own)


@pytest.mark.asyncio
async def test_of_a_lost_device_all_are_told() -> None:
    """Whether they are at work or wait; what comes from a thread after that changes nothing."""
    async with cores(most=2) as there:
        requests = [Request(there, name) for name in "abc"]
        tasks = ask(there, requests)
        await there.next(), await there.next()

        there.own.lose(DeviceLostError("gone"))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for request in requests:
            request.goes_on.set()
        await asyncio.to_thread(lambda: None)
        await turns()

        assert [type(r) for r in results] == [DeviceLostError] * 3
        assert not any(r.gave_back for r in requests)


@pytest.mark.asyncio
async def test_what_no_thread_can_be_given_is_given_back() -> None:
    """Its caller is told why, and nothing is held for it."""

    class Refusing(ThreadCrew):
        def give(self, work: Any, future: asyncio.Future[Any]) -> None:
            raise MemoryError("no room")

    loop = asyncio.get_running_loop()
    there = Cores()
    there.own = OwnCores(
        CORES, 64, lambda cores, ended: Refusing(cores, SimulatedDevice().open_stream, loop, ended), loop,
        lambda: 0, lambda: True, list, list,
    )  # fmt: skip
    request = Request(there, "a")

    with pytest.raises(MemoryError, match="no room"):
        await there.own.run(lambda: request, 0, None)

    assert request.gave_back
    assert not len(there.own)
    there.own.close()
