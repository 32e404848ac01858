"""How is long work cut, so that the event loop can do other things in between?

It is a generator that yields wherever it may be interrupted, and returns what comes of it. Whoever has a loop to share
lets it turn at each of those places; whoever has not runs the generator to its end. It yields after so much work rather
than after so much time, so that the same happens each time.

Work on a large array is long in one piece. It is yielded as a function, for who has a loop to call on a thread.
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
    """Do all of the work now and return what comes of it."""
    while True:
        try:
            piece = next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
        if piece is not None:
            piece()


async def in_turns(work: Slices[_T]) -> _T:
    """Do a slice of the work in each turn of the loop, and what is long in one piece on a thread.

    What comes after it has a turn of its own, unless all of the work was done in one: to bind a plan and to enqueue it
    takes as long as some slices.
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
    """Do work on so many bytes as a part of slices: at once if they are few. Returns or raises what it does."""
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
    """Do work on so many bytes: at once if they are few, else on a thread. Returns or raises what it does."""
    return work() if nbytes < LONG else await asyncio.to_thread(work)
