"""In which order does what likely shapes need come, and who waits for whom?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.runtime.plan.plan_cache import Plans
from asyncrt.runtime.plan.recipe import make_recipe
from asyncrt.runtime.request.warming import Warming, pause_of_planning

from ...builders import model, node

PRODUCT = model([node("y = MatMul(x, w)")], ["x f32[n,8]"], ["y"], {"w": np.ones((8, 8), np.float32)})


class Fake:
    """A network of which a plan is there at once, and whose kernels and constants come when the test says so."""

    def __init__(self) -> None:
        self.plans, self.weights, self.one_plan = self, self, asyncio.Lock()
        self.may, self.slices = asyncio.Event(), 0
        #: Whether it was asked when kernels are expected, after which the thread that plans goes on.
        self.asked = False
        #: Whether builds may begin, and after how long kernels are expected then.
        self.builds, self.seconds = True, 0.0

    # As plans.

    def scouting(self) -> Fake:
        return self

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def learn(self, scout: Fake) -> None:
        pass

    def likely(self, *, asked: object, found: Callable[[Any], object], go_on: Callable[[], bool]) -> Sequence[Any]:
        assert asked is None
        go_on()
        found(self)
        while not self.asked:
            pass
        for _ in range(self.slices):
            go_on()
        return [self]

    # As a plan, constants and kernels.

    packings = kernels = ()

    def begin(self, kernels: object, *, urgent: bool) -> None:
        pass

    def hold_back(self, seconds: float) -> None:
        self.builds = False

    def go_on(self) -> None:
        self.builds = True

    async def expected(self, kernels: object, *, urgent: bool) -> Any:
        self.asked = True
        return type("Expected", (), {"seconds": self.seconds})

    async def ensure(self, wanted: object, *, urgent: bool = True) -> None:
        await self.may.wait()


@pytest.mark.parametrize(
    ("planned_s", "busy", "bringing", "pause_s"),
    [
        (1.0, False, False, 0.0), (1e-5, True, True, 0.0), (1e-3, False, True, 0.015), (1e-3, True, False, 0.3),
        (3e-4, True, True, 0.09), (0.2, True, False, 1.0),
    ],
)  # fmt: skip
def test_how_long_planning_pauses(planned_s: float, busy: bool, bringing: bool, pause_s: float) -> None:
    """For as long as makes it a third of a percent of the time of requests, and not where nobody is there."""
    assert pause_of_planning(planned_s, busy=busy, bringing=bringing) == pytest.approx(pause_s)


@pytest.mark.asyncio
@pytest.mark.parametrize("ends", ["hurry", "stop"])
async def test_a_pause_of_planning_ends_when_somebody_waits(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all of it, or for its end."""
    fake = Fake()
    fake.slices, fake.asked = 3, True
    pausing = threading.Event()

    def pause(planned_s: float, *, busy: bool, bringing: bool) -> float:
        pausing.set()
        return 600.0

    monkeypatch.setattr("asyncrt.runtime.request.warming.pause_of_planning", pause)
    warms = Warming([fake], fake, lambda: True, urgent=False, patience_s=1.0)  # type: ignore[list-item, arg-type]
    async with asyncio.timeout(30):
        await asyncio.to_thread(pausing.wait)
        getattr(warms, ends)()
        fake.may.set()
        await asyncio.wait((warms.whole,))

    assert warms.whole.cancelled() == (ends == "stop")


@pytest.mark.asyncio
async def test_planning_that_pauses_has_no_thread_that_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may pause until requests end that need one of them: for as many models as there are, nothing would go on."""
    fake, pausing = Fake(), threading.Event()
    fake.slices, fake.asked = 3, True

    def pause(planned_s: float, *, busy: bool, bringing: bool) -> float:
        pausing.set()
        return 600.0

    monkeypatch.setattr("asyncrt.runtime.request.warming.pause_of_planning", pause)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    warms = Warming([fake], fake, lambda: True, urgent=False, patience_s=1.0)  # type: ignore[list-item, arg-type]
    async with asyncio.timeout(30):
        found = await asyncio.to_thread(pausing.wait) and await asyncio.to_thread(lambda: "done")
        warms.stop()
        await warms.ended()

    assert found == "done"
    assert all(thread.name != "asyncrt-plan" for thread in threading.enumerate())


@pytest.mark.asyncio
@pytest.mark.parametrize(("urgent", "seconds", "builds"), [(False, 9.0, False), (False, 0.1, True), (True, 9.0, True)])
async def test_builds_let_a_first_request_come_that_numpy_answers(urgent: bool, seconds: float, builds: bool) -> None:
    """Not if kernels are soon there, or somebody waits for all of it, be it later."""
    fake = Fake()
    fake.seconds = seconds

    warms = Warming([fake], fake, lambda: False, urgent=urgent, patience_s=1.0)  # type: ignore[list-item, arg-type]
    async with asyncio.timeout(30):
        while not fake.asked or warms.first.done() != (seconds > 1.0):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    meanwhile = fake.builds
    warms.hurry()
    fake.may.set()
    await warms.whole

    assert meanwhile == builds
    assert fake.builds


@pytest.mark.asyncio
async def test_the_first_plan_is_told_before_a_recipe_is_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may wait for what it needs."""
    order: list[str] = []
    likely = Plans.likely

    def makes(*given: Any) -> Any:
        order.append("recipe")
        return make_recipe(*given)

    def guesses(plans: Plans, *, found: Callable[[ChunkPlan], object], **more: Any) -> list[ChunkPlan]:
        def told(plan: ChunkPlan) -> None:
            order.append("plan")
            found(plan)

        return likely(plans, found=told, **more)

    monkeypatch.setattr("asyncrt.runtime.plan.plan_cache.make_recipe", makes)
    monkeypatch.setattr(Plans, "likely", guesses)
    async with Runtime(options=RuntimeOptions(cache_dir=tmp_path)) as rt:
        loaded = await rt.load(PRODUCT)
        await loaded.ready()

    assert order[0] == "plan"
    assert "recipe" in order
