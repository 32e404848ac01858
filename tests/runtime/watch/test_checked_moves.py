"""Moves between a group's states, checked: two may read the same memory at once, and no order that counts is missed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

import asyncrt.debug
from asyncrt import HazardError, Runtime, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.events import Event
from asyncrt.layout import FLOAT32, Layout
from asyncrt.memory.buffer import Lease
from asyncrt.memory.hazards import Enqueued, Entry, Region
from asyncrt.memory.pool import Acquired, MemoryPool
from asyncrt.runtime.execute.device_copies import Box, DeviceCopies
from asyncrt.runtime.request import session
from asyncrt.runtime.request.network import Network
from asyncrt.scheduler.policies.base import StreamView
from asyncrt.scheduler.policies.fifo import Policy

from ...builders import model, node

ROOM, ROWS = Layout(FLOAT32, (4, 8)), Layout(FLOAT32, (2, 8))
BLOCK = 4096  # bytes that the pool takes for ROOM


async def network(rt: Runtime) -> Network:
    return (await rt.load(model([node("y = Neg(x)")], ["x f32[n,m]"], ["y"]))).network


async def zeros(network: Network) -> Lease:
    moves = DeviceCopies(network.tools)
    moves.allocate(ROOM.nbytes, zeroed=True)
    (lease,), _ = await network.move(moves)
    return lease


async def copy(network: Network, source: Lease) -> DeviceCopies:
    """Make the move that copies the first rows of a tensor to the last ones of a new one, and its kernel."""
    moves = DeviceCopies(network.tools)
    target = moves.allocate(ROOM.nbytes, zeroed=False)
    moves.copy(source, (ROOM.shape, Box((0, 0), (2, 8))), target, (ROOM.shape, Box((2, 0), (2, 8))), ROWS)
    await network.session.kernels.ensure(moves.kernels)
    return moves


def cancel_next(rt: Runtime) -> None:
    """Cancel the next request when all of its commands are enqueued: they still run."""
    launched = rt.session.dispatcher.launched

    def launch(request: int, stream: int, keep: object) -> Event:
        rt.session.dispatcher.launched = launched  # type: ignore[method-assign]
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return launched(request, stream, keep)

    rt.session.dispatcher.launched = launch  # type: ignore[method-assign]


def copies(log: Sequence[Entry]) -> list[Enqueued]:
    return [e for e in log if isinstance(e, Enqueued) and "kernel" in str(e.label)]


class InTurn(Policy):
    """Each request to the next stream."""

    _next = 0

    def pop(self, streams: Sequence[StreamView]) -> tuple[int, int] | None:
        self._next += 1
        return super().pop([streams[self._next % len(streams)]])


@pytest.fixture(autouse=True)
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go to the streams in turn."""
    monkeypatch.setattr(session, "make_policy", lambda name: InTurn())


def runtime(device: str | SimulatedDevice | None, blocks: int) -> Runtime:
    options = RuntimeOptions(warm=False, check_hazards=True, memory_limit=blocks * BLOCK, without={"preallocate"})
    return Runtime(device, streams=2, options=options)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["simulated", "host", None], ids=lambda d: d or "opencl")
async def test_moves_may_read_the_same_memory_at_once(device: str | None) -> None:
    """On two streams that know nothing of each other; each says which request it is and which bytes it touches."""
    async with runtime(device, 3) as rt:
        net = await network(rt)
        source = await zeros(net)
        with asyncrt.debug.recording(rt) as log:
            moves = await copy(net, source), await copy(net, source)
            cancel_next(rt)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.ensure_future(net.move(moves[0]))
            (lease,), _ = await net.move(moves[1])
            first, second = copies(log)

            assert {first.stream, second.stream} == {0, 1}
            assert str(first.label).split(",")[0] != str(second.label).split(",")[0]
            for entry in first, second:
                read, *written = ((a.write, a.region) for a in entry.accesses)
                assert read == (False, Region(0, ROWS.nbytes))
                assert set(written) == {(True, Region(ROWS.nbytes, ROWS.nbytes))}
            assert asyncrt.debug.check(rt).hazards == ()
        for held in source, lease:
            held.drop()


@pytest.mark.asyncio
async def test_a_move_to_memory_that_another_still_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that forgets who uses a block, in which a move that was cancelled is not over."""
    acquire = MemoryPool.acquire

    def forgetful(pool: MemoryPool, nbytes: int, stream: int, **how: Any) -> Acquired:
        return acquire(pool, nbytes, stream, **how)._replace(waits=())

    async with runtime(SimulatedDevice(3), 2) as rt:
        net = await network(rt)
        source = await zeros(net)
        moves = await copy(net, source), await copy(net, source)
        monkeypatch.setattr(MemoryPool, "acquire", forgetful)
        cancel_next(rt)
        outcomes = await asyncio.gather(*map(net.move, moves), return_exceptions=True)
        source.drop()

    assert [type(e) for e in outcomes] == [asyncio.CancelledError, HazardError]
    assert re.match(r"unordered: request \d+, kernel .* and request \d+, kernel ", str(outcomes[1]))
