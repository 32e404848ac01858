"""Constants on the device: brought once, shared, and given back; what nobody uses leaves where there is a bound."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrt.devices.host import HostDevice
from asyncrt.devices.simulated import SimulatedDevice, SimulatedStream
from asyncrt.errors import OutOfDeviceMemory, RuntimeClosedError
from asyncrt.kernels.conv import packed as conv_packed
from asyncrt.kernels.matmul import cpu as matmul_cpu
from asyncrt.kernels.resident import weights
from asyncrt.kernels.resident.weights import Packing, Resident, Stored, WeightsCache, WeightsStatistics
from asyncrt.layout import Array
from asyncrt.memory.paged import page_out, pages_of

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


def make(
    memory: int = 1 << 20, limit: int | None = None, let_go: Callable[[], bool] = lambda: False
) -> tuple[WeightsCache, SimulatedDevice]:
    device = SimulatedDevice(memory=memory)
    cache = WeightsCache(device, device.open_stream(), VALUES.__getitem__, limit=limit, let_go=let_go)
    return cache, device


async def memory_of(cache: WeightsCache, key: Stored) -> Any:
    """Return the device memory of a constant that is there; it is not brought."""
    packing = Packing(key)
    assert cache.missing([packing]) == []
    return (await cache.ensure([packing]))[key].memory


async def until_packing(packer: Packer) -> None:
    assert await asyncio.to_thread(packer.begun.wait, 10), "nobody packs"


@pytest.mark.asyncio
async def test_constants_arrive_as_they_are() -> None:
    """Of every dtype, in row-major order, and also if there is nothing in them; then they need no event."""
    cache, _ = make()
    packings = [Packing(Stored(i)) for i in VALUES]
    await cache.ensure(packings)

    for i, value in VALUES.items():
        assert value.tobytes() == (await memory_of(cache, Stored(i)))[: value.nbytes].tobytes()
    assert cache.missing(packings) == []
    assert WeightsStatistics(entries=4, nbytes=24 + 3 + 12, packed=0, shared=0, evictions=0) == cache.statistics()
    assert repr(cache) == "<WeightsCache 4 entries (0 packed), 39 bytes>"


@pytest.mark.asyncio
async def test_a_constant_in_two_layouts_is_there_twice() -> None:
    """As the model has it and packed."""
    cache, _ = make()
    await cache.ensure([Packing(Stored(1)), Packing(Stored(1, "turned"), Packer())])

    assert VALUES[1].T.tobytes() == (await memory_of(cache, Stored(1, "turned"))).tobytes()
    assert WeightsStatistics(entries=2, nbytes=48, packed=1, shared=0, evictions=0) == cache.statistics()


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["in a file", "too small", "no folder", "no such folder", "a device of its own"])
async def test_large_constants_are_read_where_they_lie(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file of their own, by a device of the host's memory; packed ones, and where that cannot be, are copied."""
    monkeypatch.setattr(weights, "_PAGED", 24 if where != "too small" else 25)
    device = SimulatedDevice() if where == "a device of its own" else HostDevice()
    folder = {"no folder": None, "no such folder": tmp_path / "missing"}.get(where, tmp_path)
    used: list[Array] = []
    cache = WeightsCache(device, device.open_stream(), VALUES.__getitem__, folder=folder, used=used.append)

    await cache.ensure([Packing(Stored(1)), Packing(Stored(2)), Packing(Stored(1, "turned"), Packer())])

    memory = await memory_of(cache, Stored(1))
    assert VALUES[1].tobytes() == memory[:24].tobytes()
    assert VALUES[1].T.tobytes() == (await memory_of(cache, Stored(1, "turned")))[:24].tobytes()
    assert (pages_of(memory) is not None) == (where == "in a file")
    assert pages_of(await memory_of(cache, Stored(1, "turned"))) is None
    assert cache.statistics().nbytes == 24 + 3 + 24
    assert any(a is VALUES[1] for a in used)
    device.close()


@pytest.mark.asyncio
async def test_a_constant_that_is_in_a_file_of_its_own_needs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device reads the very pages; what leaves because there is no room leaves them as they are."""
    monkeypatch.setattr(weights, "_PAGED", 24)
    device = HostDevice()
    constants = page_out([VALUES[1] * (i + 1) for i in range(2)], tmp_path)
    assert constants is not None
    monkeypatch.setattr(weights, "page_out", lambda arrays, folder: pytest.fail("it is in a file already"))
    cache = WeightsCache(device, device.open_stream(), constants.__getitem__, folder=tmp_path, limit=24)

    for i in (0, 1, 0):
        await cache.ensure([Packing(Stored(i))])
        assert np.shares_memory(await memory_of(cache, Stored(i)), constants[i])
        assert (await memory_of(cache, Stored(i)))[:24].tobytes() == (VALUES[1] * (i + 1)).tobytes()

    assert cache.statistics().evictions == 2
    device.close()


@pytest.mark.asyncio
async def test_a_cache_that_is_closed_while_a_file_is_written_adopts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for it is told."""
    monkeypatch.setattr(weights, "_PAGED", 24)
    begun, gate = threading.Event(), threading.Event()

    def slow(arrays: Sequence[Array], folder: Path) -> list[Array] | None:
        begun.set()
        assert gate.wait(10), "nobody opened the gate"
        return page_out(arrays, folder)

    monkeypatch.setattr(weights, "page_out", slow)
    device = HostDevice()
    cache = WeightsCache(device, device.open_stream(), VALUES.__getitem__, folder=tmp_path)
    waiting = asyncio.ensure_future(cache.ensure([Packing(Stored(1))]))
    assert await asyncio.to_thread(begun.wait, 10), "no file is written"
    cache.close()
    gate.set()

    with pytest.raises(RuntimeClosedError):
        await waiting
    assert cache.statistics().nbytes == 0
    device.close()


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

        self._enqueue("write", start)  # type: ignore[arg-type]

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


@pytest.mark.asyncio
async def test_stopping_ends_all_that_is_on_its_way_and_tells_those_who_wait() -> None:
    """What is being packed, what is being uploaded, and what has not begun: no task stays behind for the loop's end."""
    cache, device = make()
    packer = Packer()
    packer.gate.clear()
    packed, plain, fresh = Packing(Stored(1, "turned"), packer), Packing(Stored(1)), Packing(Stored(4))
    waiting = [asyncio.ensure_future(cache.ensure([packed]))]
    await until_packing(packer)
    waiting.append(asyncio.ensure_future(cache.ensure([plain])))
    while not device.allocated:  # noqa: ASYNC110
        await asyncio.sleep(0)  # a turn of the loop
    waiting.append(asyncio.ensure_future(cache.ensure([fresh])))
    await asyncio.sleep(0)

    await cache.stop()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [RuntimeClosedError] * 3
    assert asyncio.all_tasks() == {asyncio.current_task()}
    packer.gate.set()
    device.close()
    cache.device_closed()
    assert device.allocated == 0


# Layouts that are the same bytes.


@pytest.mark.asyncio
@pytest.mark.parametrize("first", ["", "row"])
async def test_a_layout_of_the_same_bytes_shares_their_memory(first: str) -> None:
    """Whichever of the two is wanted first; the packed constant is only reinterpreted."""
    cache, device = make()
    wanted = {"": Packing(Stored(1)), "row": Packing(Stored(1, "row"), lambda a: a.reshape(1, 6).copy())}
    (other,) = set(wanted) - {first}
    one = await cache.ensure([wanted[first]])
    two = await cache.ensure([wanted[other]])

    assert one[Stored(1, first)].memory is two[Stored(1, other)].memory
    assert VALUES[1].tobytes() == (await memory_of(cache, Stored(1, "row"))).tobytes()
    assert device.allocated == 24
    assert WeightsStatistics(entries=2, nbytes=24, packed=1, shared=1, evictions=0) == cache.statistics()

    cache.close()

    assert device.allocated == 0


@pytest.mark.asyncio
async def test_what_is_read_packed_alone_is_not_brought_as_it_is() -> None:
    """The model's own layout stays in host memory."""
    cache, device = make()
    await cache.ensure([Packing(Stored(1, "turned"), Packer())])

    assert [Stored(1)] == [p.key for p in cache.missing([Packing(Stored(1))])]
    assert device.allocated == 24


# Bounds.


TURNED = Packing(Stored(1, "turned"), lambda a: a.T)  # 24 bytes
TURNED_SHORT = Packing(Stored(4, "turned"), lambda a: a.T)  # 12 bytes


@pytest.mark.asyncio
async def test_packed_constants_leave_first_and_those_unused_longest_before_others() -> None:
    """Only where there is a bound, and when something else needs the room."""
    cache, device = make(limit=60)
    await cache.ensure([Packing(Stored(1))])
    await cache.ensure([TURNED])
    await cache.ensure([TURNED_SHORT])

    assert device.allocated == 60

    await cache.ensure([TURNED])  # used again
    await cache.ensure([Packing(Stored(4))])

    assert cache.missing([Packing(Stored(1)), TURNED, TURNED_SHORT, Packing(Stored(4))]) == [TURNED_SHORT]

    again = await cache.ensure([TURNED_SHORT])

    assert VALUES[4].T.tobytes() == again[TURNED_SHORT.key].memory.tobytes()
    assert cache.missing([Packing(Stored(1)), TURNED, Packing(Stored(4))]) == [TURNED]
    assert (device.allocated, cache.statistics().nbytes, cache.statistics().evictions) == (48, 48, 2)


@pytest.mark.asyncio
async def test_what_somebody_uses_does_not_leave() -> None:
    """Not for the bound; it leaves when it has no users any more and others need the room."""
    cache, device = make(limit=24)
    held = await cache.ensure([TURNED])
    await cache.ensure([Packing(Stored(4))])

    assert cache.missing([TURNED]) == []
    assert device.allocated == 36

    del held
    gc.collect()
    await cache.ensure([TURNED_SHORT])

    assert cache.missing([TURNED]) == [TURNED]
    assert device.allocated == 24


@pytest.mark.asyncio
async def test_those_who_use_something_they_do_not_need_now_are_asked_to_let_go() -> None:
    """One after the other, and no more than it takes."""
    held: list[object] = []
    asked: list[int] = []

    def let_go() -> bool:
        asked.append(len(held))
        return bool(held) and held.pop(0) is not None

    cache, device = make(limit=36, let_go=let_go)
    held.append(await cache.ensure([TURNED]))
    held.append(await cache.ensure([TURNED_SHORT]))
    await cache.ensure([Packing(Stored(4))])

    assert asked == [2]
    assert cache.missing([TURNED, TURNED_SHORT]) == [TURNED]
    assert device.allocated == 24


@pytest.mark.asyncio
async def test_a_full_device_makes_what_nobody_uses_leave() -> None:
    """Without a bound, too: an inference is worth more than what it does not read."""
    cache, device = make(memory=30)
    await cache.ensure([Packing(Stored(1))])
    await cache.ensure([Packing(Stored(4))])

    assert device.allocated == 12
    assert cache.statistics().evictions == 1


# Host memory.


@pytest.mark.asyncio
async def test_few_packed_copies_exist_at_a_time() -> None:
    """However many are wanted at once."""
    alive, most = 0, 0
    lock = threading.Lock()

    def pack(array: Array) -> Array:
        nonlocal alive, most
        with lock:
            alive += 1
            most = max(most, alive)
        return array.T

    class Counting(WeightsCache):
        async def _store(self, key: Stored, data: Array) -> Resident:
            nonlocal alive
            resident = await super()._store(key, data)
            with lock:
                alive -= 1
            return resident

    device = SimulatedDevice()
    cache = Counting(device, device.open_stream(), VALUES.__getitem__)
    await cache.ensure([Packing(Stored(1, f"layout {i}"), pack) for i in range(20)])

    assert alive == 0
    assert most == 2


@pytest.mark.parametrize(
    "pack",
    [
        matmul_cpu.pack_panels,
        matmul_cpu.pack_transposed,
        lambda a: conv_packed.pack_filters(a.reshape(100, 1000, 2, 5), 1, 32),
        lambda a: conv_packed.pack_filters(a.reshape(100, 1000, 2, 5), 4, 16),
    ],
    ids=["panels", "panels transposed", "filters", "filters in groups"],
)
def test_packing_holds_one_copy(pack: Callable[[Array], Array]) -> None:
    """No second one of a large matrix, however it is turned on its way."""
    constant = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    tracemalloc.start()
    try:
        packed = pack(constant)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < packed.nbytes * 1.25
