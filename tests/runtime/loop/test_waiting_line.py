"""Those who wait to be at work beside others go in the order of all requests, and nobody is passed by for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from asyncrt.runtime.loop.waiting_line import WaitingLine
from asyncrt.scheduler.queue import PATIENCE


def line(*wanted: tuple[str, int, float | None]) -> tuple[WaitingLine[str], dict[str, asyncio.Future[None]]]:
    """Those who wait, each by its name, priority and deadline; and by what they are told."""
    made, futures = WaitingLine[str](), dict[str, asyncio.Future[None]]()
    for name, priority, until in wanted:
        futures[name] = asyncio.get_running_loop().create_future()
        made.push(priority, until, name, futures[name])
    return made, futures


def drained(waiting: WaitingLine[str], names: Iterable[str] = ()) -> list[str]:
    """Return who goes, one after the other, while as many others come, each more urgent."""
    order, coming = list[str](), iter(names)
    while (found := waiting.pop()) is not None:
        order.append(found[0])
        name = next(coming, None)
        if name is not None:
            waiting.push(-1, None, name, asyncio.get_running_loop().create_future())
    return order


@pytest.mark.asyncio
async def test_the_urgent_go_first_but_not_for_ever() -> None:
    """However many of them come, the oldest goes behind so many of them."""
    waiting, _ = line(("patient", 0, None), ("urgent", -1, None))

    order = drained(waiting, (f"urgent {n}" for n in range(3 * PATIENCE)))

    assert order.index("patient") == PATIENCE
    assert len(order) == 2 + 3 * PATIENCE


@pytest.mark.asyncio
async def test_they_go_by_priority_then_deadline_then_order() -> None:
    """Whoever has been told something by then is passed over."""
    waiting, futures = line(
        ("later", 1, None), ("late", 0, 9.0), ("gone", -1, None), ("soon", 0, 5.0), ("plain", 0, None),
        ("last", 1, None),
    )  # fmt: skip
    futures["gone"].cancel()

    assert drained(waiting) == ["soon", "late", "plain", "later", "last"]


@pytest.mark.asyncio
async def test_as_many_begin_as_there_is_room_and_the_refused_are_told() -> None:
    """What beginning one raises is its own."""
    waiting, futures = line(("a", 0, None), ("refused", 0, None), ("fails", 0, None), ("b", 0, None), ("c", 0, None))
    begun = list[str]()

    def begin(name: str, future: asyncio.Future[None]) -> bool:
        if name == "fails":
            raise OSError(name)
        if name != "refused":
            begun.append(name)
        return name != "refused"

    waiting.begin_next(lambda: len(begun) < 2, begin)

    assert begun == ["a", "b"]
    assert (futures["refused"].result(), str(futures["fails"].exception())) == (None, "fails")
    assert not futures["a"].done()
    assert waiting.leave() == [futures["c"]]
    assert len(waiting) == 0
