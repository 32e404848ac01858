"""Transfers through pinned memory: when they land, what is used again, and what goes another way."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import asyncrt
from asyncrt.devices.find import open_device
from asyncrt.devices.opencl import pinned
from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.devices.opencl.pinned import PinnedBlock, PinnedMemory, PinnedTransfers

from ...paths import off
from ...zoo import zoo

KB = 1 << 10


class Pins:
    """Blocks of ordinary memory, filled with a byte that nobody wrote; it notes which were released."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.pinned: list[int] = []
        self.released: list[int] = []

    def __call__(self, nbytes: int) -> PinnedBlock | None:
        if self.refuses:
            return None
        self.pinned.append(nbytes)
        return PinnedBlock(np.full(nbytes, 0xEE, np.uint8), lambda: self.released.append(nbytes))


def array_of(nbytes: int, byte: int = 0) -> np.ndarray:
    return np.full(nbytes, byte, np.uint8)


def test_what_was_read_lands_when_its_mark_is_reached() -> None:
    """Not before, and of two reads only the one that the mark is behind."""
    transfers = PinnedTransfers(PinnedMemory(Pins()))
    first, second = array_of(5), array_of(7)
    with transfers.read(first) as place:
        place[:] = 1
    mark = transfers.enqueued
    with transfers.read(second) as place:
        place[:] = 2
    assert (first.sum(), second.sum()) == (0, 0)

    transfers.land(mark)
    assert (first.sum(), second.sum()) == (5, 0)

    transfers.land(transfers.enqueued)
    assert (first.sum(), second.sum()) == (5, 14)


def test_a_later_mark_lands_what_is_before_an_earlier_one() -> None:
    """The stream is in order; waiting for the earlier one afterwards does nothing."""
    transfers = PinnedTransfers(PinnedMemory(Pins()))
    target = array_of(5)
    with transfers.read(target) as place:
        place[:] = 1
    early, late = transfers.enqueued, transfers.enqueued

    transfers.land(late)
    target[:] = 3  # the caller's by now
    transfers.land(early)

    assert target.tolist() == [3] * 5


def test_results_are_in_pinned_memory_as_long_as_somebody_holds_them() -> None:
    """Whatever refers to a part of one holds it; then the memory is used again, and it is not copied to."""
    memory = PinnedMemory(Pins(), most_lent=128 * KB)
    transfers = PinnedTransfers(memory)
    room = transfers.lend(100 * KB)
    assert room is not None
    result = np.ndarray((100, 256), np.float32, room)
    with transfers.read(result.reshape(-1).view(np.uint8)) as place:
        place[:] = 1
    part = result[3:5]
    del room, result, place

    assert transfers.lend(100 * KB) is None, "somebody refers to it"
    assert part.view(np.uint8).sum() == part.nbytes
    assert (memory.lent, memory.nbytes) == (128 * KB, 128 * KB)

    del part

    assert transfers.lend(100 * KB) is not None
    assert memory.nbytes == 128 * KB, "it is the same memory"


def test_what_is_lent_when_the_device_closes_is_released_by_its_holder() -> None:
    """Results outlive the device that made them."""
    pins = Pins()
    memory = PinnedMemory(pins)
    kept, given_up = memory.lend(64 * KB), memory.lend(128 * KB)
    del given_up

    memory.close()
    assert pins.released == [128 * KB]

    assert kept is not None
    kept[:] = 1
    del kept
    assert pins.released == [128 * KB, 64 * KB]


@pytest.mark.parametrize("nbytes", [pinned.SMALLEST_LENT - 1, pinned.LARGEST_LENT + 1])
def test_results_of_other_sizes_are_in_memory_of_their_own(nbytes: int) -> None:
    """Small ones are copied soon enough, and large ones would keep too much from the system."""
    memory = PinnedMemory(Pins())

    assert PinnedTransfers(memory).lend(nbytes) is None
    assert memory.nbytes == 0


def test_what_failed_does_not_land() -> None:
    """The array stays as it was, and the block can be used again."""
    memory = PinnedMemory(Pins())
    transfers = PinnedTransfers(memory)
    target = array_of(5, 9)
    with transfers.read(target) as place:
        place[:] = 1

    transfers.land(transfers.enqueued, failed=True)

    assert target.tolist() == [9] * 5
    assert memory.taken == 0


def test_a_transfer_that_is_refused_lands_nothing() -> None:
    """Its block is there for the next one, and the mark behind it does not wait for it."""
    pins = Pins()
    memory = PinnedMemory(pins)
    transfers = PinnedTransfers(memory)
    with pytest.raises(RuntimeError, match="refused"), transfers.read(array_of(5)):
        raise RuntimeError("refused")
    assert (transfers.enqueued, memory.taken) == (0, 0)

    with transfers.read(array_of(9)):
        pass

    assert pins.pinned == [4 * KB]


def test_blocks_are_used_again_once_they_have_landed() -> None:
    """By reads and writes alike, of any size up to the block's."""
    pins = Pins()
    memory = PinnedMemory(pins)
    transfers = PinnedTransfers(memory)
    for nbytes in (70 * KB, 100 * KB, 128 * KB):
        with transfers.read(array_of(nbytes)):
            pass
        transfers.land(transfers.enqueued)
        with transfers.write(array_of(nbytes)):
            pass
        transfers.land(transfers.enqueued)

    assert pins.pinned == [128 * KB]
    memory.close()
    assert (pins.released, memory.nbytes) == ([128 * KB], 0)


def test_a_write_is_a_copy_so_that_its_source_may_change() -> None:
    """What is small or large is not copied: the driver is as fast, or it would take too long here."""
    transfers = PinnedTransfers(PinnedMemory(Pins()))
    small, some, large = (
        array_of(n, 1) for n in (pinned.SMALLEST_WRITE - 1, pinned.SMALLEST_WRITE, pinned.LARGEST_WRITE + 1)
    )

    for source, copied in ((small, False), (some, True), (large, False)):
        with transfers.write(source) as place:
            source[:] = 2
            assert place.tobytes() == (b"\1" if copied else b"\2") * source.size

    assert transfers.enqueued == 1


@pytest.mark.parametrize("reason", ["the driver pins none", "too much is pinned", "it is too large"])
def test_what_cannot_be_pinned_goes_the_drivers_way(reason: str) -> None:
    """The command gets the caller's own array."""
    memory = PinnedMemory(Pins(refuses=reason == "the driver pins none"), most=3 if "too much" in reason else 1 << 30)
    transfers = PinnedTransfers(memory)
    target = array_of(pinned.LARGEST_READ + 1 if "large" in reason else 5)

    with transfers.read(target) as place:
        assert place is target

    assert (transfers.enqueued, memory.nbytes, memory.taken) == (0, 0, 0)


@pytest.mark.asyncio
async def test_requests_are_the_same_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many at once over several streams, some of them cancelled: bit for bit, and all blocks come back."""
    monkeypatch.setattr(pinned, "SMALLEST_WRITE", 1)
    model = zoo()[0]
    given = [model.inputs(case, salt) for salt in range(4) for case in range(model.cases)]
    outputs = []
    for on in (False, True):
        device = open_device(None)
        assert isinstance(device, OpenCLDevice)
        device.pins_transfers = True
        async with asyncrt.Runtime(device, streams=3, options=asyncrt.RuntimeOptions(without=off(pinned=on))) as rt:
            loaded = await rt.load(model.path)
            cancelled = [asyncio.ensure_future(loaded.infer(g)) for g in given[:3]]
            await asyncio.sleep(0)
            for task in cancelled:
                task.cancel()
            outputs.append(await asyncio.gather(*(loaded.infer(g) for g in given)))
            used = device.pinned.nbytes
        assert (used > 0) == on
        assert (device.pinned.nbytes, device.pinned.taken) == (0, 0)

    for without, on_ in zip(*outputs, strict=True):
        assert {k: v.tobytes() for k, v in without.items()} == {k: v.tobytes() for k, v in on_.items()}
