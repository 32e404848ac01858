"""The threads for builds: what a job that never ends costs the others, and the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

from asyncrt.kernels.resident.builders import Builders, Job

from ...environment import with_sources


class Work:
    """A job whose beginning and end can be waited for, and which ends when it is let."""

    def __init__(self, *, free: bool = False) -> None:
        self.begun, self.free, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        if free:
            self.free.set()
        self.job = Job(self._work, self.begun.set, self.end)

    def _work(self) -> str:
        assert self.free.wait(10), "nobody let it end"
        return threading.current_thread().name

    def end(self, result: Any, error: BaseException | None) -> None:
        self.result, self.error = result, error
        self.ended.set()


def test_a_thread_that_is_stuck_is_replaced() -> None:
    """The next job runs while it is stuck; when it comes back its result is told and it ends."""
    builders = Builders(1, "test-builders")
    stuck, following = Work(), Work(free=True)
    builders.submit(stuck.job)
    assert stuck.begun.wait(10)
    builders.submit(following.job)
    builders.abandon(stuck.job)

    assert following.ended.wait(10)
    assert not stuck.ended.is_set()

    stuck.free.set()

    assert stuck.ended.wait(10)
    assert (stuck.result, stuck.error) == ("test-builders", None)
    builders.stop()
    builders.join(10)


def test_background_jobs_begin_when_nothing_else_is_to_do() -> None:
    """While an urgent one runs they wait, though there are threads; urgent ones do not wait for them."""
    builders = Builders(2)
    urgent, idle, later = Work(), Work(), Work(free=True)
    builders.submit(urgent.job)
    assert urgent.begun.wait(10)
    builders.submit(idle.job, urgent=False)

    assert not builders.quiet
    assert repr(builders) == "<Builders 1 running, 0 waiting, 1 in the background>"

    urgent.free.set()
    assert idle.begun.wait(10)
    builders.submit(later.job)

    assert later.ended.wait(10)
    assert not idle.ended.is_set()
    idle.free.set()
    builders.stop()
    builders.join(10)


def test_jobs_that_are_held_back_begin_when_they_may() -> None:
    """Before, if somebody waits for them; those that had begun go on."""
    builders = Builders(2)
    begun, held = Work(), Work(free=True)
    builders.submit(begun.job)
    assert begun.begun.wait(10)
    builders.hold_back(1e6)
    builders.submit(held.job)
    begun.free.set()

    assert begun.ended.wait(10)
    assert "1 waiting" in repr(builders)
    assert not held.begun.is_set()
    builders.go_on()
    assert held.ended.wait(10)

    late = Work(free=True)
    builders.hold_back(1e-3)
    builders.submit(late.job)

    assert late.ended.wait(10)
    builders.stop()
    builders.join(10)


def test_what_a_job_raises_is_told() -> None:
    """And the thread goes on."""
    builders = Builders(1)
    failing, following = Work(), Work(free=True)
    failing.job = Job(lambda: 1 // 0, failing.begun.set, failing.end)
    builders.submit(failing.job)
    builders.submit(following.job)

    assert following.ended.wait(10)
    assert isinstance(failing.error, ZeroDivisionError)
    builders.stop()
    builders.join(10)


def test_a_process_ends_though_a_build_does_not() -> None:
    """An interpreter joins threads at its end, but not these."""
    script = (
        "import threading\n"
        "from asyncrt.kernels.resident.builders import Builders, Job\n"
        "begun = threading.Event()\n"
        "Builders(1).submit(Job(threading.Event().wait, begun.set, print))\n"
        "begun.wait()\n"
        "print('end')\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, env=with_sources())

    assert (done.returncode, done.stdout, done.stderr) == (0, b"end\n", b"")
