"""The pool: what is given out again when, and with what to wait for."""

from __future__ import annotations

import pytest

from asyncrt.devices.base import Allocation
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.errors import OutOfDeviceMemory
from asyncrt.events import Event, Timeline
from asyncrt.memory.pool import MemoryPool, block_size

KB = 1 << 10
A, B = Event(0, 1), Event(1, 1)


class FullDevice(SimulatedDevice):
    """A device whose driver refuses when it is told to."""

    def __init__(self, memory: int = 1 << 30) -> None:
        super().__init__(memory=memory)
        self.refusals = 0

    def allocate(self, nbytes: int) -> Allocation:
        if self.refusals:
            self.refusals -= 1
            raise OutOfDeviceMemory("the driver has no more")
        return super().allocate(nbytes)


class GrowingDevice(FullDevice):
    """A device that makes memory larger and knows which became which."""

    def __init__(self, memory: int = 1 << 30) -> None:
        super().__init__(memory=memory)
        self.grown: list[tuple[int, int]] = []

    def grow(self, allocation: Allocation | None, nbytes: int) -> Allocation:
        larger = self.allocate(nbytes)
        self.grown.append((0 if allocation is None else allocation.size, nbytes))
        if allocation is not None:
            self.release(allocation)
        return larger

    def touch(self, allocation: Allocation) -> None:
        pass


def make(
    limit: int = 1 << 20, *, reuse: bool = True, device: SimulatedDevice | None = None
) -> tuple[MemoryPool, Timeline, SimulatedDevice]:
    device = device or SimulatedDevice()
    timeline = Timeline(3)
    return MemoryPool(device, timeline, limit, reuse=reuse), timeline, device


def test_a_block_is_used_again_at_once_on_its_stream() -> None:
    """Streams are in order: who comes next on the same one need not wait."""
    pool, _, _ = make()
    first = pool.acquire(5000, 0).lease
    memory = first.allocation
    first.drop(after=[A])

    again = pool.acquire(5000, 0)

    assert again.waits == ()
    assert memory is again.lease.allocation
    assert (pool.statistics().reused, pool.statistics().reused_with_wait, pool.statistics().allocated) == (1, 0, 1)


def test_of_equal_blocks_the_one_used_last_is_used_next() -> None:
    """Whoever comes alone, after many who came at once, has the same memory each time."""
    pool, timeline, _ = make()
    leases = [pool.acquire(5000, 0).lease for _ in range(4)]
    last = leases[2].allocation
    for lease in (leases[0], leases[3], leases[1], leases[2]):
        lease.drop(after=[A])
    timeline.advance(A)

    given = []
    for _ in range(5):
        lease = pool.acquire(5000, 1).lease
        given.append(lease.allocation)
        lease.drop()

    assert all(memory is last for memory in given)


def test_another_stream_gets_a_new_block_while_there_is_room() -> None:
    """Waiting for another stream costs more than memory that is not short."""
    pool, _, _ = make()
    first = pool.acquire(5000, 0).lease
    memory = first.allocation
    first.drop(after=[A])

    other = pool.acquire(5000, 1)

    assert other.waits == ()
    assert memory is not other.lease.allocation
    assert pool.statistics().allocated == 2


def test_another_stream_waits_for_the_last_users_when_there_is_no_room() -> None:
    """At the limit a busy block is given out with the events that its first user must wait for."""
    pool, _, _ = make(limit=4 * KB)
    first = pool.acquire(4 * KB, 0).lease
    memory = first.allocation
    first.drop(after=[A])

    other = pool.acquire(4 * KB, 1)

    assert other.waits == (A,)
    assert memory is other.lease.allocation
    assert pool.statistics().reused_with_wait == 1


def test_reached_events_need_no_wait() -> None:
    """What a stream has passed is over for all streams."""
    pool, timeline, _ = make(limit=4 * KB)
    pool.acquire(4 * KB, 0).lease.drop(after=[A])
    timeline.advance(Event(0, 7))

    other = pool.acquire(4 * KB, 1)

    assert other.waits == ()
    assert (pool.statistics().reused, pool.statistics().reused_with_wait) == (1, 0)


def test_who_gives_up_before_waiting_does_not_free_the_block() -> None:
    """A request that fails between `acquire` and its first command leaves the users before it in place."""
    pool, _, _ = make(limit=4 * KB)
    pool.acquire(4 * KB, 0).lease.drop(after=[A])
    pool.acquire(4 * KB, 1).lease.drop()

    third = pool.acquire(4 * KB, 2)

    assert third.waits == (A,)


def test_every_user_before_is_waited_for_once() -> None:
    """Of several events of a stream only the newest counts."""
    pool, _, _ = make(limit=4 * KB)
    lease = pool.acquire(4 * KB, 2).lease
    lease.hold()
    lease.drop(after=[A, Event(0, 3), Event(0, 2)])
    lease.drop(after=[B])

    assert {Event(0, 3), B} == set(pool.acquire(4 * KB, 2).waits)


def test_a_lease_ends_with_its_last_holder() -> None:
    """An alias keeps the bytes: the block comes back when the last of those who hold it drops it."""
    pool, _, _ = make()
    lease = pool.acquire(5000, 0).lease
    alias = lease.hold()
    lease.drop(after=[A])

    assert pool.statistics().leases == 1
    assert alias.allocation is lease.allocation

    alias.drop()

    assert (pool.statistics().leases, pool.statistics().active, pool.statistics().held) == (0, 0, 5120)


def test_a_lease_that_has_ended_is_of_no_use() -> None:
    """Dropping twice, holding or using an ended lease is an error in the program, and says so."""
    pool, _, _ = make()
    lease = pool.acquire(5000, 0).lease
    lease.drop()

    for use in (lease.drop, lease.hold, lambda: lease.allocation):
        with pytest.raises(RuntimeError, match="the lease has ended"):
            use()
    assert pool.statistics().held == 5120


def test_the_limit_holds() -> None:
    """Beyond it there is an error with the numbers and what to do, and nothing has changed."""
    pool, _, device = make(limit=10 * KB)
    held = pool.acquire(8 * KB, 0).lease

    with pytest.raises(OutOfDeviceMemory, match=r"4096 bytes wanted .* 2048 free within the limit of 10240") as caught:
        pool.acquire(4 * KB, 0)

    assert "memory_limit" in caught.value.hint
    assert 8 * KB == device.allocated == pool.statistics().active
    held.drop()


def test_all_of_the_limit_can_be_used() -> None:
    """Rounding up for the sake of sharing does not refuse what fits exactly."""
    pool, _, _ = make(limit=9000)

    assert pool.acquire(9000, 0).lease.buffer.nbytes == 9000
    assert block_size(9000) == 9216


def test_the_largest_allocation_can_be_used() -> None:
    """The same holds for the largest block that the driver allows."""
    pool, _, _ = make(limit=1 << 20, device=SimulatedDevice(memory=9000))

    assert pool.acquire(9000, 0).lease.buffer.nbytes == 9000


def test_free_blocks_make_room_for_others() -> None:
    """At the limit, blocks of other sizes that nothing uses go back to the device."""
    pool, timeline, device = make(limit=16 * KB)
    for size in (4 * KB, 8 * KB):
        pool.acquire(size, 0).lease.drop(after=[A])
    timeline.advance(A)

    lease = pool.acquire(16 * KB, 1).lease

    assert 16 * KB == device.allocated == lease.buffer.nbytes
    assert pool.statistics().held == 0


def test_a_full_device_gets_its_free_blocks_back_and_is_asked_again() -> None:
    """The driver may be full before the limit is reached."""
    device = FullDevice()
    pool, _, _ = make(device=device)
    pool.acquire(4 * KB, 0).lease.drop()
    device.refusals = 1

    pool.acquire(64 * KB, 0)

    assert device.allocated == 64 * KB


def test_on_a_full_device_a_busy_block_will_do() -> None:
    """Even if giving back what is free was not enough."""
    device = FullDevice()
    pool, _, _ = make(device=device)
    idle, busy = pool.acquire(4 * KB, 0).lease, pool.acquire(64 * KB, 0).lease
    idle.drop()
    busy.drop(after=[A])
    device.refusals = 2

    lease, waits = pool.acquire(64 * KB, 1)

    assert waits == (A,)
    assert busy.buffer is lease.buffer


def test_a_full_device_says_so() -> None:
    """If nothing helps, the driver's own error comes out."""
    device = FullDevice()
    pool, _, _ = make(device=device)
    device.refusals = 9

    with pytest.raises(OutOfDeviceMemory, match="the driver has no more"):
        pool.acquire(4 * KB, 0)
    assert pool.statistics().leases == 0


def test_trim_gives_back_what_nothing_uses() -> None:
    """Blocks that a stream has not passed stay."""
    pool, timeline, device = make()
    idle, busy = pool.acquire(8 * KB, 0).lease, pool.acquire(4 * KB, 0).lease
    idle.drop(after=[A])
    busy.drop(after=[Event(0, 2)])
    timeline.advance(A)

    assert pool.trim() == 8 * KB
    assert 4 * KB == device.allocated == pool.statistics().held


def test_a_small_request_does_not_take_a_large_block() -> None:
    """A block more than twice too large, and large at all, stays for those who need it: who knows for how long."""
    pool, _, _ = make(limit=1 << 30)
    pool.acquire(64 << 20, 0).lease.drop()

    small = pool.acquire(1 << 20, 0).lease

    assert small.buffer.nbytes == 1 << 20
    assert pool.statistics().held == 64 << 20


def test_one_block_serves_requests_of_all_sizes_one_after_the_other() -> None:
    """A small one takes the large block, and a larger one's takes its place: memory is what the largest needs."""
    pool, _, device = make(limit=1 << 30)
    sizes = [3 << 20, 64 << 20, 1 << 20, 5, 128 << 20, 64 << 20]

    given = []
    for size in sizes:
        lease = pool.acquire(size, 0, brief=True).lease
        given.append((lease.buffer.nbytes >> 20, device.allocated >> 20))
        lease.drop()

    assert given == [(3, 3), (64, 64), (64, 64), (64, 64), (128, 128), (128, 128)]
    assert pool.statistics().allocated == 3


def test_a_request_beside_others_takes_a_block_of_its_size() -> None:
    """However brief: else each of many small ones might keep a large one from the block that it needs."""
    pool, _, _ = make(limit=1 << 30)
    pool.acquire(64 << 20, 0).lease.drop()
    kept = pool.acquire(5000, 0).lease

    small = pool.acquire(1 << 20, 0, brief=True).lease
    large = pool.acquire(96 << 20, 0, brief=True).lease

    assert [kept.buffer.nbytes, small.buffer.nbytes, large.buffer.nbytes] == [5120, 1 << 20, 96 << 20]
    assert pool.statistics().held == 64 << 20


def test_a_block_that_a_stream_is_not_done_with_is_not_replaced() -> None:
    """Nor taken by another stream while there is room."""
    pool, timeline, device = make(limit=1 << 30)
    pool.acquire(8 << 20, 0, brief=True).lease.drop(after=[A])

    other = pool.acquire(1 << 20, 1, brief=True)
    other.lease.drop()
    timeline.advance(A)
    pool.acquire(16 << 20, 1, brief=True).lease.drop()

    assert (other.lease.buffer.nbytes, other.waits) == (1 << 20, ())
    assert device.allocated == 16 << 20


@pytest.mark.parametrize("exact", [True, False])
def test_who_should_take_no_more_than_needed_does_not(exact: bool) -> None:
    """Where memory is short, also of what is given back soon."""
    pool, _, _ = make(limit=1 << 30)
    pool.acquire(64 << 20, 0, brief=True).lease.drop()

    lease = pool.acquire(2 << 20, 0, brief=True, exact=exact).lease

    assert lease.buffer.nbytes == (2 if exact else 64) << 20


def test_a_new_block_has_the_room_that_was_wished() -> None:
    """It is given out again as it is to whoever needs more; room is no reason for a new block."""
    pool, _, device = make()
    first = pool.acquire(5000, 0, room=lambda: 20 * KB).lease
    first.drop()
    second = pool.acquire(18 * KB, 0, room=lambda: 90 * KB).lease

    assert first.buffer is second.buffer
    assert 20 * KB == device.allocated == second.buffer.nbytes


@pytest.mark.parametrize("room", [0, 5000, 5120])
def test_room_for_no_more_than_needed_changes_nothing(room: int) -> None:
    """A block is never smaller than what is asked."""
    pool, _, _ = make()

    assert pool.acquire(5000, 0, room=lambda: room).lease.buffer.nbytes == 5120


@pytest.mark.parametrize(
    ("limit", "memory", "reuse"),
    [(28 * KB - 1, 1 << 30, True), (1 << 20, 20 * KB - 1, True), (1 << 20, 1 << 30, False)],
    ids=["the limit", "the largest allocation", "no reuse"],
)
def test_room_is_left_out_where_it_does_not_fit(limit: int, memory: int, reuse: bool) -> None:
    """What is asked is given all the same, and what is held is not given up for room."""
    pool, _, _ = make(limit, reuse=reuse, device=SimulatedDevice(memory=memory))
    held = pool.acquire(8 * KB, 0).lease

    lease = pool.acquire(5000, 1, room=lambda: 20 * KB).lease

    assert lease.buffer.nbytes == 5120
    held.drop()


def test_a_driver_that_has_no_room_is_asked_for_what_is_needed() -> None:
    """The wish fails in silence, and takes nothing from the pool."""
    device = FullDevice()
    pool, _, _ = make(device=device)
    pool.acquire(8 * KB, 0).lease.drop(after=[A])
    device.refusals = 1

    assert pool.acquire(5000, 1, room=lambda: 20 * KB).lease.buffer.nbytes == 5120
    assert (pool.statistics().held, pool.statistics().allocated) == (8 * KB, 2)


def test_a_block_far_larger_than_what_was_asked_lately_goes_back() -> None:
    """After 64 requests of less than a tenth of it; one of just a tenth of it stays."""
    pool, _, device = make()
    leases = [pool.acquire(size, 0).lease for size in (40 * KB, 44 * KB)]
    for lease in leases:
        lease.drop()
    for _ in range(63):
        pool.acquire(4 * KB, 0, room=lambda: 0).lease.drop()

    assert device.allocated == 84 * KB

    pool.acquire(4 * KB, 0).lease.drop()

    assert 40 * KB == device.allocated == pool.statistics().held


def test_a_block_in_use_is_not_far_too_large() -> None:
    """A large block that a stream has not passed goes back later, when it has."""
    pool, timeline, device = make()
    pool.acquire(64 * KB, 0).lease.drop(after=[A])
    small = [pool.acquire(4 * KB, 1).lease for _ in range(64)]

    assert device.allocated == (64 + 64 * 4) * KB

    timeline.advance(A)
    small[0].drop()
    pool.acquire(4 * KB, 1)

    assert device.allocated == 64 * 4 * KB


def test_without_reuse_blocks_go_back_as_soon_as_they_are_passed() -> None:
    """`without={"pool"}`: each lease has a block of its own, which lives until its events are reached."""
    pool, timeline, device = make(reuse=False)
    pool.acquire(4 * KB, 0).lease.drop(after=[A])
    second = pool.acquire(4 * KB, 0).lease

    assert device.allocated == 8 * KB

    timeline.advance(A)
    second.drop()

    assert device.allocated == 0
    assert (pool.statistics().reused, pool.statistics().allocated) == (0, 2)


def test_close_gives_everything_back() -> None:
    """Also what is still under a lease, when that ends."""
    pool, _, device = make()
    pool.acquire(4 * KB, 0).lease.drop(after=[A])
    late = pool.acquire(8 * KB, 1).lease
    pool.close()

    assert device.allocated == 8 * KB

    late.drop()

    assert device.allocated == 0
    assert (pool.statistics().active, pool.statistics().held, pool.statistics().leases) == (0, 0, 0)


def test_block_sizes_are_near_what_was_asked() -> None:
    """Never less, never more than an eighth more (above the smallest), and few different ones."""
    sizes = [*range(4097, 70_000, 13), (1 << 31) + 1]

    assert all(n <= block_size(n) <= n * 9 / 8 for n in sizes)
    assert 4096 == block_size(0) == block_size(4096)
    assert len({block_size(n) for n in range(4097, 65_537)}) == 32


def test_it_says_what_it_holds() -> None:
    """`repr` is the debugger."""
    pool, _, _ = make()
    lease = pool.acquire(5000, 0).lease

    assert repr(pool) == "<MemoryPool active=5120 held=0 limit=1048576 leases=1 reused=0 allocated=1>"
    assert repr(lease) == "<Lease 5120 bytes, 1 holders>"


def test_memory_at_hand_is_what_nothing_uses() -> None:
    """A free block is lent without a lease once its events are reached; one far too large, or leased, is not."""
    pool, timeline, _ = make()
    assert pool.at_hand(5000) is None  # there is none yet

    lease = pool.acquire(5000, 0).lease
    memory = lease.allocation
    assert pool.at_hand(5000) is None
    lease.drop(after=[A])
    assert pool.at_hand(5000) is None
    timeline.advance(A)

    assert pool.at_hand(5000) is memory
    assert pool.at_hand(block_size(5000) + 1) is None
    assert pool.statistics().leases == 0
    pool.acquire(900 * KB, 0).lease.drop()
    assert pool.at_hand(6 * KB) is None  # `acquire()` gives what is far too large back


def _alone(pool: MemoryPool, *sizes: int) -> list[int]:
    """Lease memory of these sizes, one after the other; returns how much there is after each."""
    held = []
    for nbytes in sizes:
        pool.acquire(nbytes, 0, brief=True).lease.drop()
        held.append(pool.statistics().held)
    return held


def test_the_block_of_requests_that_come_alone_grows_where_the_device_can_do_that() -> None:
    """What was used of it stays in use: only what is new has to be found and cleared by the system."""
    device = GrowingDevice()
    pool, _, _ = make(device=device)

    held = _alone(pool, 8 * KB, 16 * KB, 12 * KB, 64 * KB)

    assert held == [8 * KB, 16 * KB, 16 * KB, 64 * KB]
    assert device.grown == [(0, 8 * KB), (8 * KB, 16 * KB), (16 * KB, 64 * KB)]
    assert device.allocated == 64 * KB
    assert (pool.statistics().allocated, pool.statistics().reused) == (3, 1)


def test_a_block_that_a_stream_still_uses_does_not_grow() -> None:
    """Its commands have the memory as it is; it goes back when they are done."""
    device = GrowingDevice()
    pool, timeline, _ = make(device=device)
    pool.acquire(8 * KB, 0, brief=True).lease.drop(after=[A])

    held = _alone(pool, 16 * KB)
    timeline.advance(A)
    later = _alone(pool, 32 * KB)

    assert device.grown == [(0, 8 * KB), (0, 16 * KB), (16 * KB, 32 * KB)]
    assert (held, later) == ([24 * KB], [32 * KB])


def test_a_block_that_cannot_grow_makes_room_for_another() -> None:
    """The driver refuses, so a new one takes its place; and none grows beyond the limit for what may be asked later."""
    device = GrowingDevice()
    pool, _, _ = make(64 * KB, device=device)
    held = _alone(pool, 8 * KB)
    device.refusals = 1

    held += _alone(pool, 32 * KB)
    pool.acquire(48 * KB, 0, brief=True, room=lambda: 96 * KB).lease.drop()

    assert device.grown == [(0, 8 * KB), (32 * KB, 48 * KB)]
    assert held == [8 * KB, 32 * KB]
    assert pool.statistics().held == device.allocated == 48 * KB
