"""What streams report comes in any order, and when it likes: what each request is told of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from asyncrt.devices.base import Mark, Reached
from asyncrt.errors import DeviceCommandError, InternalError
from asyncrt.events import Timeline
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.loop.pending_request import RunAgain
from asyncrt.scheduler.policies import make_policy
from asyncrt.scheduler.state import SchedulerState


class Stream:
    """It comes to its marks when the test says so."""

    def __init__(self) -> None:
        self._callbacks: list[Reached] = []

    def mark(self) -> Mark:
        return cast("Mark", object())

    def when_reached(self, mark: Mark, callback: Reached) -> None:
        self._callbacks.append(callback)

    def wait_for(self, marks: Any) -> None:
        """Marks are reached when the test says so."""

    async def reach(self, error: Exception | None = None) -> None:
        """Report that the oldest mark is reached, with what failed before it."""
        self._callbacks.pop(0)(error)
        for _ in range(3):
            await asyncio.sleep(0)


def two_streams() -> tuple[list[Stream], Dispatcher]:
    streams = [Stream(), Stream()]
    return streams, Dispatcher(
        cast("Any", streams), lambda: SchedulerState(2, make_policy("fifo")), Timeline(2), max_iterations=1
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("known", [False, True], ids=["not yet", "known"])
async def test_who_fails_while_what_it_waits_for_may_have_failed_runs_again(known: bool) -> None:
    """Its stream reports first: nobody knows whose failure it was. Once the other is known to be fine it is its own."""
    streams, dispatcher = two_streams()
    for request in (1, 2):
        await dispatcher.admit(request)
    first = await dispatcher.place(1)
    event = dispatcher.launched(1, first)
    second = await dispatcher.place(2)
    dispatcher.marks.wait_for(second, [event])
    dispatcher.launched(2, second)
    passed = asyncio.create_task(dispatcher.passed(2))

    if known:
        await streams[first].reach()
    await streams[second].reach(DeviceCommandError("a command failed"))

    assert first != second
    with pytest.raises(DeviceCommandError if known else RunAgain):
        await passed
    dispatcher.close()


@pytest.mark.asyncio
async def test_a_scheduler_that_fails_costs_the_others_one_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one knows what streams still have to pass: it uses the others, and reports of it disturb nobody."""
    streams, dispatcher = two_streams()
    for request in (1, 2):
        await dispatcher.admit(request)
    before = await dispatcher.place(1)
    dispatcher.launched(1, before)

    def fails(happening: object) -> list[Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(dispatcher.state, "handle", fails)
    with pytest.raises(InternalError):
        await dispatcher.place(2)
    with pytest.raises(RunAgain):
        await dispatcher.passed(1)
    await dispatcher.begin_again(1)
    again = await dispatcher.place(1)
    dispatcher.launched(1, again)
    passed = asyncio.create_task(dispatcher.passed(1))
    await streams[before].reach()
    await streams[again].reach()
    await passed

    assert again != before
    dispatcher.close()
