"""How is long work cut, so that the event loop can do other things in between?

Such work is a generator that yields wherever it may be interrupted, and returns its result. `in_turns` lets the event
loop turn at each yield; elsewhere `finished` runs the generator to its end. It yields after an amount of work,
not after a time, so that every run is the same.

Work on one large array cannot be cut. It is yielded as a function, which `in_turns` calls on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")

Slices: TypeAlias = Generator[Any, None, _T]
"""Work that may be interrupted, and what it returns.

It yields `Callable[[], None] | None`, for which mypy takes no bare `yield`; what is not None is to be called before the
work goes on.
"""

LONG = 1 << 20
"""Bytes: to make or to copy more of them takes the better part of a millisecond."""


def finished(work: Slices[_T]) -> _T:
    """Do all of the work now and return its result."""
    while True:
        try:
            piece = next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
        if piece is not None:
            piece()


async def in_turns(work: Slices[_T]) -> _T:
    """Do a slice of the work in each turn of the loop, and pieces that cannot be cut on a thread; returns its result.

    The caller goes on in a new turn unless all of the work was one slice: to bind a plan and to enqueue it takes as
    long as several slices.
    """
    sliced = False
    while True:
        try:
            piece = next(work)
        except StopIteration as end:
            result: _T = end.value
            break
        sliced = True
        await (asyncio.sleep(0) if piece is None else asyncio.to_thread(piece))
    if sliced:
        await asyncio.sleep(0)
    return result


def in_one_piece(nbytes: int, work: Callable[[], _T]) -> Slices[_T]:
    """Do work on that many bytes as part of a generator: at once if they are few. Returns or raises what it does."""
    if nbytes < LONG:
        return work()
    outcome: Future[_T] = Future()

    def piece() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:
            outcome.set_exception(error)

    yield piece
    return outcome.result()


async def off_loop(nbytes: int, work: Callable[[], _T]) -> _T:
    """Do work on that many bytes: at once if they are few, else on a thread. Returns or raises what it does."""
    return work() if nbytes < LONG else await asyncio.to_thread(work)
