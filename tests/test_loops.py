"""What threads tell an event loop, and how a loop waits for a thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from asyncrt.loops import on_own_thread, settle_later, tell_loop


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
