"""A runtime belongs to the event loop and to the process that opened it: whoever else asks is told, and never waits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrt import Model, Runtime, RuntimeClosedError, WrongLoopError

from ...builders import model, node
from ...stress.scenarios import run

ROOT = Path(__file__).parents[3]
X = np.ones((2, 3), np.float32)


def summed() -> Any:
    """Each step adds to what the one before gave."""
    nodes = [node("y = Add(x, past)"), node("present = Identity(y)")]
    return model(nodes, ["x f32[n,3]", "past f32[n,3]"], ["y", "present"])


async def load(rt: Runtime, _: Model) -> object:
    return await rt.load(summed())


async def trace(rt: Runtime, _: Model) -> object:
    async with rt.trace("/dev/null"):
        return None


DOORS: dict[str, Callable[[Runtime, Model], Awaitable[object]]] = {
    "infer": lambda rt, loaded: loaded.infer({"x": X, "past": X}),
    "profile": lambda rt, loaded: loaded.profile({"x": X, "past": X}),
    "sequence().infer": lambda rt, loaded: loaded.sequence().infer({"x": X}),
    "sequences().infer": lambda rt, loaded: loaded.sequences().sequence().infer({"x": X}),
    "batched().open": lambda rt, loaded: loaded.batched().open(),
    "load": load,
    "trace": trace,
    "close": lambda rt, loaded: rt.close(),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("spec", [None, "host", "simulated"], ids=lambda d: d or "opencl")
async def test_another_loop_is_told_at_every_door(spec: str | None) -> None:
    """It says which loop it is, and what to do; those on its own loop notice nothing."""
    async with Runtime(spec) as rt:
        loaded = await rt.load(summed())
        async with loaded.batched() as batched, loaded.sequence() as sequence:
            beside = [asyncio.ensure_future(loaded.infer({"x": X * i, "past": X})) for i in range(8)]
            doors: dict[str, Callable[[Runtime, Model], Awaitable[object]]] = {
                **DOORS,
                "batched().infer": lambda rt, loaded: batched.infer({"x": X, "past": X}),
                "a sequence's infer": lambda rt, loaded: sequence.infer({"x": X}),
            }
            for name, door in doors.items():

                async def call(door: Any = door) -> object:
                    return await door(rt, loaded)

                with pytest.raises(WrongLoopError, match="another event loop than it was opened on"):
                    await asyncio.to_thread(run, call())
                assert isinstance(name, str)
            for index, outputs in enumerate(await asyncio.gather(*beside)):
                np.testing.assert_array_equal(X * index + X, outputs["y"])


def test_what_a_loop_leaves_behind_can_be_closed() -> None:
    """A loop that is closed waits for nothing: closing gives everything back, and all else is refused."""
    rt = Runtime("simulated")

    async def open_and_infer() -> Model:
        await rt.open()
        loaded = await rt.load(summed())
        await loaded.infer({"x": X, "past": X})
        return loaded

    loaded = run(open_and_infer())
    for door in ("infer", "load"):

        async def call(door: str = door) -> object:
            return await DOORS[door](rt, loaded)

        with pytest.raises(WrongLoopError):
            run(call())
    with pytest.raises(RuntimeClosedError, match="event loop is closed"):
        loaded.infer_sync({"x": X, "past": X})
    run(rt.close())

    assert rt.statistics().memory.leases == 0
    with pytest.raises(RuntimeClosedError):
        run(DOORS["infer"](rt, loaded))  # type: ignore[arg-type]


CHILD = """
    import asyncio, os, sys, threading
    import numpy as np
    import asyncrt
    from tests.runtime.loop.test_wrong_loop_or_process import DOORS, X, summed

    def told(call):
        try:
            call()
        except asyncrt.WrongLoopError as error:
            assert "process" in str(error), error
        else:
            raise AssertionError("nobody was told")

    async def of(door, rt, loaded):
        return await door(rt, loaded)

    def child(rt, loaded, synchronous):
        for name, door in DOORS.items():
            if name == "close":
                asyncio.run(of(door, rt, loaded))
            else:
                told(lambda: asyncio.run(of(door, rt, loaded)))
        told(lambda: loaded.infer_sync({"x": X, "past": X}))
        told(lambda: synchronous.infer_sync({"x": X, "past": X}))
        told(lambda: loaded.sequence())
        told(lambda: loaded.batched())
        synchronous.close()
        asyncio.run(fresh())

    async def fresh():
        async with asyncrt.Runtime("host") as rt:
            loaded = await rt.load(summed())
            assert ((await loaded.infer({"x": X, "past": X}))["y"] == 2).all()

    def forked(*given):
        pid = os.fork()
        if not pid:
            try:
                child(*given)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        return os.waitpid(pid, 0)[1]

    async def main(synchronous):
        async with asyncrt.Runtime(SPEC) as rt:
            loaded = await rt.load(summed())
            await loaded.infer({"x": X, "past": X})
            under_way = [asyncio.ensure_future(loaded.infer({"x": X, "past": X})) for _ in range(4)]
            await asyncio.sleep(0)
            status = forked(rt, loaded, synchronous)
            for outputs in await asyncio.gather(*under_way):
                assert (outputs["y"] == 2).all()
        return status

    with asyncrt.load_sync(summed(), SPEC) as synchronous:
        status = asyncio.run(main(synchronous))
        assert (synchronous.infer_sync({"x": X, "past": X})["y"] == 2).all()
        pid = os.fork()
    if not pid:
        sys.exit(0)  # as an interpreter ends, with what it has of the parent
    status |= os.waitpid(pid, 0)[1]
    print("ended with", status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.parametrize("spec", [None, "host", "simulated"], ids=lambda d: d or "opencl")
def test_a_forked_process_is_told_at_every_door(spec: str | None) -> None:
    """It never waits for threads that it does not have; its parent goes on, and it may open a runtime of its own."""
    program = textwrap.dedent(CHILD).replace("SPEC", repr(spec))

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert done.stdout.strip() == "ended with 0", done.stderr
