"""What threads tell an event loop, and how a loop waits for a thread."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading

import pytest

from asyncrt.errors import RuntimeClosedError
from asyncrt.loops import LoopThread, on_own_thread, settle_later, tell_loop


async def _turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_loop_that_is_closed_is_told_nothing() -> None:
    """A thread that comes late does not fail."""
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()

    tell_loop(loop, pytest.fail, "nobody waits there")
    settle_later(future, None, 1)

    assert not future.done()


@pytest.mark.asyncio
async def test_the_first_outcome_of_a_future_stays() -> None:
    """A second one, or one for who does not wait any more, changes nothing and is no error."""
    first, cancelled = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    cancelled.cancel()

    for future in (first, cancelled):
        settle_later(future, None, 1)
        settle_later(future, OSError("late"), 2)
    await _turns()

    assert first.result() == 1
    assert cancelled.cancelled()


@pytest.mark.asyncio
async def test_what_fails_on_a_thread_fails_where_it_is_awaited() -> None:
    """The loop goes on while the thread works, and the error is the work's own."""
    go_on = threading.Event()

    def work() -> None:
        assert go_on.wait(60)
        raise OSError("on the thread")

    ended = on_own_thread("asyncrt-test", work)
    await _turns()
    assert not ended.done()
    go_on.set()

    with pytest.raises(OSError, match="on the thread"):
        await ended


def test_the_interpreter_does_not_wait_for_such_a_thread() -> None:
    """A driver that never returns keeps no program from its end."""
    script = (
        "import asyncio, threading\n"
        "from asyncrt.loops import on_own_thread\n"
        "async def main():\n"
        "    on_own_thread('asyncrt-test', threading.Event().wait)\n"
        "    print('left')\n"
        "asyncio.run(main())\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


# A loop on a thread of its own.


class _Stop(BaseException):
    """What no library catches."""


async def _raise(error: type[BaseException]) -> None:
    raise error


@pytest.mark.parametrize("error", [OSError, _Stop, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_call_raises_only_its_caller_is_told(error: type[BaseException]) -> None:
    """Also what would end a loop of asyncio's, and with it what others wait for."""
    go_on = threading.Event()

    async def neighbour() -> str:
        while not go_on.is_set():  # noqa: ASYNC110  # it is another thread's
            await asyncio.sleep(0)
        return "exact"

    with LoopThread("asyncrt-test") as thread:
        ended = threading.Event()
        beside = thread.begin(neighbour, ended.set)
        with pytest.raises(error):
            thread.call(lambda: _raise(error))
        go_on.set()

        assert ended.wait(60)
        assert beside.result() == "exact"


def test_a_call_that_is_cancelled_is_cancelled_once_and_says_when_it_has_ended() -> None:
    """What goes on until it may end is left alone until then."""
    cancelled = 0
    began, seen, may_end, ended = (threading.Event() for _ in range(4))

    async def goes_on() -> None:
        nonlocal cancelled
        began.set()
        while not may_end.is_set():
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                cancelled += 1
                seen.set()

    with LoopThread("asyncrt-test") as thread:
        call = thread.begin(goes_on, ended.set)
        assert began.wait(60)
        call.cancel()
        assert seen.wait(60)
        for _ in range(20):
            thread.call(_turns)
        assert not ended.is_set()
        may_end.set()
        assert ended.wait(60)

    assert cancelled == 1


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="the system has no signals for threads")
def test_ctrl_c_ends_the_wait_and_cancels_the_call() -> None:
    """Whoever waits goes on at once."""
    ended = threading.Event()

    async def never() -> None:
        main = threading.main_thread().ident or 0
        while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:  # noqa: ASYNC110
            await asyncio.sleep(0)
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    # The shell of a job in the background has it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with LoopThread("asyncrt-test") as thread:
            with pytest.raises(KeyboardInterrupt):
                thread.call(never)

            assert ended.wait(60)
    finally:
        signal.signal(signal.SIGINT, before)


def test_nobody_waits_for_a_loop_that_has_ended() -> None:
    """A call in flight is told, and one that comes later too; closing twice is harmless."""
    began = threading.Event()

    async def never() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    thread = LoopThread("asyncrt-test")
    ended = threading.Event()
    call = thread.begin(never, ended.set)
    assert began.wait(60)
    thread.close()
    thread.close()

    assert ended.is_set()
    with pytest.raises(RuntimeClosedError, match="meanwhile"):
        call.result()
    with pytest.raises(RuntimeClosedError, match="is closed"):
        thread.call(never)
    assert thread.here


def test_a_call_that_the_loop_did_not_come_to_is_told() -> None:
    """However late it was begun, who waits for it does not wait for ever."""
    inside, go_on = threading.Event(), threading.Event()

    async def holds_the_loop() -> None:
        inside.set()
        assert go_on.wait(60)

    thread = LoopThread("asyncrt-test")
    ends = [threading.Event() for _ in range(8)]
    thread.begin(holds_the_loop, ends[0].set)
    assert inside.wait(60)
    closing = threading.Thread(target=thread.close)
    closing.start()
    late = [thread.begin(_turns, end.set) for end in ends[1:]]
    go_on.set()
    closing.join(60)

    assert all(end.is_set() for end in ends)
    for call in late:
        with contextlib.suppress(RuntimeClosedError):  # those that the loop came to are done
            call.result()
    assert thread.calls == set()


def test_a_thread_has_the_loops_turn_only_while_the_loop_waits() -> None:
    """And gives it back before the loop goes on, which it does however often it is asked."""
    with LoopThread("asyncrt-test") as thread:
        busy, go_on = threading.Event(), threading.Event()

        async def keeps_the_turn() -> str:
            busy.set()
            go_on.wait(60)
            return "done"

        ended = threading.Event()
        pending = thread.begin(keeps_the_turn, ended.set)
        assert busy.wait(60)
        with thread.turn() as has:
            assert not has
        go_on.set()
        assert ended.wait(60)
        assert pending.result() == "done"

        had = False
        while not had:  # it is on its way to waiting
            with thread.turn() as had:
                pass

        ended = threading.Event()
        pending = thread.begin(keeps_the_turn, ended.set)
        while not ended.is_set():
            with thread.turn():
                pass
        assert pending.result() == "done"
