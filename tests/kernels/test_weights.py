"""Constants on the device: brought once, shared, and given back."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from asyncrt.devices.simulated import SimulatedDevice, SimulatedStream
from asyncrt.errors import OutOfDeviceMemory, RuntimeClosedError
from asyncrt.kernels.weights import Packing, Stored, WeightsCache, WeightsStatistics
from asyncrt.layout import Array

VALUES: dict[int, Array] = {
    1: np.arange(6, dtype=np.float32).reshape(2, 3),
    2: np.array([True, False, True]),
    3: np.array([], np.int64),
    4: np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
}


class Packer:
    """Turns a constant round; counts, and waits while its gate is closed."""

    def __init__(self) -> None:
        self.count = 0
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def __call__(self, array: Array) -> Array:
        self.count += 1
        self.begun.set()
        assert self.gate.wait(10), "nobody opened the gate"
        if self.error is not None:
            raise self.error
        return array.T


def make(memory: int = 1 << 20) -> tuple[WeightsCache, SimulatedDevice]:
    device = SimulatedDevice(memory=memory)
    return WeightsCache(device, device.open_stream(), VALUES.__getitem__), device


async def until_packing(packer: Packer) -> None:
    assert await asyncio.to_thread(packer.begun.wait, 10), "nobody packs"


@pytest.mark.asyncio
async def test_constants_arrive_as_they_are() -> None:
    """Of every dtype, in row-major order, and also if there is nothing in them; then they need no event."""
    cache, _ = make()
    packings = [Packing(Stored(i)) for i in VALUES]
    await cache.ensure(packings)

    for i, value in VALUES.items():
        assert value.tobytes() == cache.get(Stored(i))[: value.nbytes].tobytes()
    assert cache.missing(packings) == []
    assert WeightsStatistics(entries=4, nbytes=24 + 3 + 12, packed=0) == cache.statistics()
    assert repr(cache) == "<WeightsCache 4 entries (0 packed), 39 bytes>"


@pytest.mark.asyncio
async def test_a_constant_in_two_layouts_is_there_twice() -> None:
    """As the model has it and packed."""
    cache, _ = make()
    await cache.ensure([Packing(Stored(1)), Packing(Stored(1, "turned"), Packer())])

    assert VALUES[1].T.tobytes() == cache.get(Stored(1, "turned")).tobytes()
    assert WeightsStatistics(entries=2, nbytes=48, packed=1) == cache.statistics()


@pytest.mark.asyncio
async def test_a_constant_is_brought_once_however_many_ask() -> None:
    """Those who come while it is on its way wait for it."""
    cache, device = make()
    packer = Packer()
    packing = Packing(Stored(1, "turned"), packer)
    packer.gate.clear()
    waiting = [asyncio.ensure_future(cache.ensure([packing])) for _ in range(5)]
    await until_packing(packer)
    packer.gate.set()
    await asyncio.gather(*waiting)
    await cache.ensure([packing])

    assert packer.count == 1
    assert device.allocated == 24


@pytest.mark.asyncio
async def test_a_failure_fails_all_who_wait() -> None:
    """And may not come again the next time."""
    cache, device = make()
    packer = Packer()
    packer.error = ValueError("cannot be packed")
    packing = Packing(Stored(1, "turned"), packer)
    packer.gate.clear()
    waiting = [asyncio.ensure_future(cache.ensure([packing])) for _ in range(3)]
    await until_packing(packer)
    packer.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)

    assert [ValueError] * 3 == [type(r) for r in results]
    assert device.allocated == 0

    packer.error = None
    await cache.ensure([packing])

    assert device.allocated == 24


@pytest.mark.asyncio
async def test_a_caller_that_is_cancelled_leaves_the_others_waiting() -> None:
    """The constant arrives all the same."""
    cache, _ = make()
    packer = Packer()
    packing = Packing(Stored(1, "turned"), packer)
    packer.gate.clear()
    gone, stays = (asyncio.ensure_future(cache.ensure([packing])) for _ in range(2))
    await until_packing(packer)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    packer.gate.set()
    await stays

    assert gone.cancelled()
    assert packer.count == 1


@pytest.mark.asyncio
async def test_what_does_not_fit_is_refused() -> None:
    """What did fit stays and is not brought again."""
    cache, device = make(memory=30)
    with pytest.raises(OutOfDeviceMemory):
        await cache.ensure([Packing(Stored(1)), Packing(Stored(4))])

    assert [Stored(4)] == [p.key for p in cache.missing([Packing(Stored(1)), Packing(Stored(4))])]
    assert device.allocated == 24


@pytest.mark.asyncio
async def test_what_fails_on_its_way_leaves_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's error comes out."""
    cache, device = make()

    def fails(self: SimulatedStream, target: object, offset: int, source: Array) -> None:
        def start() -> None:
            raise ValueError("a broken bus")

        self._enqueue(start)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedStream, "write", fails)

    with pytest.raises(RuntimeError, match="a command failed"):
        await cache.ensure([Packing(Stored(1))])
    assert device.allocated == 0


@pytest.mark.asyncio
async def test_close_gives_everything_back() -> None:
    """Also what arrives after it, whose readers are told."""
    cache, device = make()
    await cache.ensure([Packing(Stored(1))])
    late = asyncio.ensure_future(cache.ensure([Packing(Stored(4))]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert device.allocated == 36

    cache.close()

    with pytest.raises(RuntimeClosedError):
        await late
    assert device.allocated == 0
    with pytest.raises(RuntimeClosedError):
        await cache.ensure([Packing(Stored(2))])
