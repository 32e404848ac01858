"""The kernel cache: who builds what, how often, what stays, and what a failure, a driver that hangs or a cancelled
caller does to the others."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from asyncrt.devices.host import HostDevice
from asyncrt.errors import KernelBuildError, RuntimeClosedError
from asyncrt.kernels.resident import kernel_cache
from asyncrt.kernels.resident.kernel_cache import KERNEL_NBYTES, CacheStatistics, ImplCache
from asyncrt.kernels.resident.store import BinaryStore

from .fake import Builder, source

A, B, C = source("a"), source("b"), source("c")


@pytest.fixture
def device() -> Builder:
    return Builder()


@pytest_asyncio.fixture
async def cache(device: Builder) -> AsyncIterator[ImplCache]:
    cache = ImplCache(device, None, version="1")
    yield cache
    device.gate.set()
    device.freed.set()
    await cache.close()


async def until_building(device: Builder, builds: int) -> None:
    """Return when so many builds have begun."""
    for _ in range(builds - device.seen):
        assert await asyncio.to_thread(device.begun.acquire, timeout=10), "nobody builds"
        device.seen += 1


@pytest.mark.asyncio
async def test_a_kernel_is_built_once_however_many_ask(device: Builder, cache: ImplCache) -> None:
    """Those who come while it is being built wait for that build; those who come later do not wait."""
    device.gate.clear()
    first = [asyncio.ensure_future(cache.ensure([A, B, A])) for _ in range(5)]
    await until_building(device, 1)
    later = asyncio.ensure_future(cache.ensure([B, C]))
    await until_building(device, 2)
    device.gate.set()
    assert cache.statistics().pending == 3

    await asyncio.gather(*first, later)
    kernels = await cache.ensure([A, B, C])

    assert device.batches == [["a", "b"], ["c"]]
    assert [k.name for k in kernels.values()] == ["a", "b", "c"]
    assert first[0].result()[A] is first[1].result()[A] is kernels[A]
    nbytes = 3 * KERNEL_NBYTES + 2 + 2 + 1
    assert cache.statistics() == CacheStatistics(
        kernels=3, nbytes=nbytes, built=3, from_disk=0, pending=0, hits=3, misses=12, evictions=0, abandoned=0
    )
    assert repr(cache) == f"<ImplCache 3 kernels, {nbytes} bytes, 3 built, 0 from disk, 0 pending>"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kernels", "batches"), [(5, [5]), (8, [6, 2]), (50, [13, 13, 13, 11]), (100, [24, 24, 24, 24, 4])], ids=str
)
async def test_many_kernels_are_built_in_batches(
    kernels: int, batches: list[int], device: Builder, cache: ImplCache
) -> None:
    """Neither one program each nor one of all, so that two threads share the work and end at about the same time."""
    await cache.ensure(source(f"k{i:03}") for i in range(kernels))

    assert sorted((len(b) for b in device.batches), reverse=True) == batches


@pytest.mark.asyncio
async def test_a_failing_build_fails_all_who_wait(device: Builder, cache: ImplCache) -> None:
    """And may succeed the next time it is asked for. What was only built with it is there."""
    device.gate.clear()
    device.broken = {"b"}
    waiting = [asyncio.ensure_future(cache.ensure([A, B])) for _ in range(3)]
    await until_building(device, 1)
    device.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    alone = await cache.ensure([A])

    assert [KernelBuildError] * 3 == [type(r) for r in results]
    assert alone[A].name == "a"
    assert device.batches[0] == ["a", "b"]
    assert sorted(device.batches[1:]) == [["a"], ["b"]]

    device.broken = set()
    kernels = await cache.ensure([A, B])

    assert kernels[B].name == "b"


@pytest.mark.asyncio
async def test_a_caller_that_is_cancelled_leaves_the_others_waiting(device: Builder, cache: ImplCache) -> None:
    """The build goes on, for them and for those who come later; so it does if nobody waits any more."""
    device.gate.clear()
    gone, stays = (asyncio.ensure_future(cache.ensure([A])) for _ in range(2))
    alone = asyncio.ensure_future(cache.ensure([B]))
    await until_building(device, 2)
    gone.cancel()
    alone.cancel()
    await asyncio.gather(gone, alone, return_exceptions=True)
    device.gate.set()
    await stays
    await cache.ensure([B])

    assert gone.cancelled()
    assert alone.cancelled()
    assert sorted(device.batches) == [["a"], ["b"]]


@pytest.mark.asyncio
async def test_a_failure_that_nobody_waits_for_is_not_reported_as_lost(device: Builder, cache: ImplCache) -> None:
    """asyncio complains of exceptions that nobody has seen."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    device.gate.clear()
    device.broken = {"a"}
    waiting = asyncio.ensure_future(cache.ensure([A]))
    await until_building(device, 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    device.gate.set()
    with pytest.raises(KernelBuildError):
        await cache.ensure([A])
    del waiting
    gc.collect()

    assert complaints == []


@pytest.mark.asyncio
async def test_another_cache_on_the_same_folder_builds_nothing(tmp_path: Path) -> None:
    """Kernels are on disk for the next process, in whatever order it asks for them, and whichever of them."""
    for names, expected in (("ab", (2, 0)), ("ba", (0, 2)), ("a", (0, 1)), ("ac", (1, 1)), ("cb", (0, 2))):
        device = Builder()
        cache = ImplCache(device, BinaryStore(tmp_path / "k"), version="1")
        await cache.ensure([source(n) for n in names])
        await cache.close()

        statistics = cache.statistics()
        assert expected == (statistics.built, statistics.from_disk), names


@pytest.mark.asyncio
@pytest.mark.parametrize("breaks", [False, True])
async def test_of_devices_that_are_alike_one_builds(tmp_path: Path, breaks: bool) -> None:
    """The other waits, and finds it on disk; it builds by itself what that one has failed to build."""
    store, devices = BinaryStore(tmp_path), (Builder(), Builder())
    caches = [ImplCache(device, store, version="1") for device in devices]
    caches[0].alike, caches[1].alike = (caches[1],), (caches[0],)
    for device in devices:  # neither ends a build before it was asked what is missing
        device.gate.clear()
    devices[0].broken = {"a"} if breaks else set()

    first = asyncio.ensure_future(caches[0].ensure([A], urgent=False))
    await until_building(devices[0], 1)
    expected = await caches[1].expected([A, B])
    second = asyncio.ensure_future(caches[1].ensure([A, B]))
    for device in devices:
        device.gate.set()
    await asyncio.wait((first, second))

    assert (expected.missing, expected.building) == (2, 2)
    assert set(second.result()) == {A, B}
    assert isinstance(first.exception(), KernelBuildError) if breaks else A in first.result()
    assert [cache.statistics().built for cache in caches] == ([0, 2] if breaks else [1, 1])
    assert caches[1].statistics().from_disk == (0 if breaks else 1)
    for cache in caches:
        await cache.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("change", ["version", "device", "text"])
async def test_kernels_of_another_kind_are_not_found(change: str, tmp_path: Path) -> None:
    """Another version of the package, another driver, or other text under the same name."""
    store = BinaryStore(tmp_path / "k")
    first = ImplCache(Builder(), store, version="1")
    await first.ensure([A])
    await first.close()
    device = Builder()
    if change == "device":
        device.info = type(device.info)(spec="x", name="x", kind="cpu", identity="another driver")
    second = ImplCache(device, store, version="2" if change == "version" else "1")
    await second.ensure([source("a", "other text") if change == "text" else A])
    await second.close()

    assert device.binaries == [None]


@pytest.mark.asyncio
async def test_a_binary_that_the_driver_refuses_is_built_and_kept_anew(tmp_path: Path) -> None:
    """It counts as built."""
    store = BinaryStore(tmp_path / "k")
    first = ImplCache(Builder(), store, version="1")
    await first.ensure([A])
    await first.close()
    device = Builder()
    device.refuses_binaries = True
    second = ImplCache(device, store, version="1")
    await second.ensure([A])
    await second.close()

    assert device.binaries == [b"a"]
    assert (second.statistics().built, second.statistics().from_disk) == (1, 0)


@pytest.mark.asyncio
async def test_closing_fails_those_who_wait(device: Builder) -> None:
    """With an error, not with a cancellation of which they know nothing; what is being built is let end."""
    device.gate.clear()
    cache = ImplCache(device, None, version="1", threads=1)
    running = asyncio.ensure_future(cache.ensure([A]))
    await until_building(device, 1)
    queued = asyncio.ensure_future(cache.ensure([B]))
    closing = asyncio.ensure_future(cache.close())
    results = await asyncio.gather(running, queued, return_exceptions=True)
    device.gate.set()
    await closing

    assert [str(r) for r in results] == ["the runtime was closed while kernels were built"] * 2
    assert device.batches == [["a"]]
    assert cache.statistics().kernels == 0
    with pytest.raises(RuntimeClosedError, match=r"^the runtime is closed$"):  # none was built then
        await cache.ensure([C])


@pytest.mark.asyncio
async def test_a_device_without_a_compiler_has_every_kernel() -> None:
    """Its kernels are the references themselves, of which every plan has its own: none is kept."""
    cache = ImplCache(HostDevice(), None, version="1")
    kernels = await cache.ensure([A])
    await cache.close()

    assert A is kernels[A]
    assert cache.statistics().kernels == 0


# Bounds.


@pytest.mark.asyncio
async def test_the_kernels_unused_longest_leave_first(device: Builder) -> None:
    """Where there is room for two; those that left are built again when they are asked for."""
    cache = ImplCache(device, None, version="1", nbytes=2 * (KERNEL_NBYTES + 1))
    for asked in (A, B, A, C, A, B):
        await cache.ensure([asked])
    statistics = cache.statistics()
    await cache.close()

    assert device.batches == [["a"], ["b"], ["c"], ["b"]]
    assert (statistics.kernels, statistics.evictions) == (2, 2)
    assert (statistics.hits, statistics.misses) == (2, 4)


@pytest.mark.asyncio
async def test_binaries_count(device: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of the programs' binaries, of which every kernel has its share. One that is too large stays out."""
    monkeypatch.setattr(kernel_cache, "KERNEL_NBYTES", 0)
    cache = ImplCache(device, None, version="1", nbytes=8)
    large = source("large-name")
    for asked in ([A, B, C], [large], [A]):
        kernels = await cache.ensure(asked)
        assert [s.name for s in asked] == [k.name for k in kernels.values()]
        assert cache.statistics().nbytes <= 8
    statistics = cache.statistics()
    await cache.close()

    assert device.batches == [["a", "b", "c"], ["large-name"]]  # a, of 2 bytes, is still there
    assert (statistics.kernels, statistics.nbytes, statistics.evictions) == (3, 6, 0)


@pytest.mark.asyncio
async def test_a_kernel_that_left_lives_as_long_as_somebody_holds_it(device: Builder) -> None:
    """And not longer; that there are more than fit at once does not keep anybody from getting all of them."""
    cache = ImplCache(device, None, version="1", nbytes=KERNEL_NBYTES + 2)
    kernels = dict(await cache.ensure([A, B, C]))
    watched = weakref.ref(kernels[A])

    assert cache.statistics().kernels == 1
    assert [k.name for k in kernels.values()] == ["a", "b", "c"]
    assert watched() is not None

    kernels.clear()
    gc.collect()
    async with asyncio.timeout(60):  # the thread that has built it may be about to let go of it
        while watched() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)

    await cache.close()


# Drivers that hang.


def hurried(device: Builder, threads: int = 1) -> ImplCache:
    return ImplCache(device, None, version="1", threads=threads, timeout_s=0.25)


@pytest.mark.asyncio
async def test_who_waits_for_a_build_that_hangs_is_told(device: Builder) -> None:
    """With the kernel and the time; others are built by the thread that takes its place, and it is not tried again."""
    device.hanging = {"a"}
    cache = hurried(device)
    with pytest.raises(KernelBuildError, match=r"kernel a: .* has not built it within 0\.25 s"):
        await cache.ensure([A])
    kernels = await cache.ensure([B])
    with pytest.raises(KernelBuildError, match="kernel a: "):
        await cache.ensure([A, C])

    assert kernels[B].name == "b"
    assert device.batches == [["a"], ["b"]]
    assert cache.statistics().abandoned == 1
    device.freed.set()
    await cache.close()


@pytest.mark.asyncio
async def test_those_built_with_one_that_hangs_do_not_suffer(device: Builder) -> None:
    """The program is taken apart: each is built alone."""
    device.hanging = {"b"}
    cache = hurried(device, threads=2)
    bystander = asyncio.ensure_future(cache.ensure([A, B, C]))
    waiting = asyncio.ensure_future(cache.ensure([A, C]))
    with pytest.raises(KernelBuildError, match="kernel b: "):
        await bystander
    kernels = await waiting

    assert [k.name for k in kernels.values()] == ["a", "c"]
    assert device.batches[0] == ["a", "b", "c"]
    assert sorted(device.batches[1:]) == [["a"], ["b"], ["c"]]
    device.freed.set()
    await cache.close()


@pytest.mark.asyncio
async def test_a_build_that_ends_late_is_welcome(device: Builder) -> None:
    """Whoever asks after that gets the kernel, and the thread that was replaced ends."""
    device.hanging = {"a"}
    before = {*threading.enumerate()}
    cache = hurried(device)
    with pytest.raises(KernelBuildError):
        await cache.ensure([A])
    (stuck,) = [t for t in {*threading.enumerate()} - before if t.name == "asyncrt-build"]
    device.freed.set()
    await asyncio.to_thread(stuck.join, 10)
    await asyncio.sleep(0)  # what the thread left for the event loop
    kernels = await cache.ensure([A])

    assert not stuck.is_alive()
    assert kernels[A].name == "a"
    assert device.batches == [["a"]]
    await cache.close()


@pytest.mark.asyncio
async def test_a_build_that_gives_way_is_late_only_if_hurrying_does_not_help(device: Builder) -> None:
    """Others may have had all of the processor: it hurries, and has as much time again."""
    said: list[bool] = []

    def hurry(hurries: bool) -> None:
        said.append(hurries)
        device.freed.set()

    device.hanging = {"a"}
    cache = ImplCache(device, None, version="1", threads=1, timeout_s=0.25, hurry=hurry)
    kernels = await cache.ensure([A], urgent=False)

    assert kernels[A].name == "a"
    assert said == [True, False]
    await cache.close()
    device.hanging, device.freed = {"b"}, threading.Event()
    cache = ImplCache(device, None, version="1", threads=1, timeout_s=0.25, hurry=said.append)
    with pytest.raises(KernelBuildError, match="kernel b: "):
        await cache.ensure([B], urgent=False)

    assert said == [True, False] * 2
    device.freed.set()
    await cache.close()


@pytest.mark.asyncio
async def test_builds_hurry_while_anybody_waits_for_them(device: Builder) -> None:
    """However many do."""
    said: list[bool] = []
    cache = ImplCache(device, None, version="1", hurry=said.append)
    with cache.waited_for():
        with cache.waited_for():
            pass
        one = list(said)

    assert one == [True]
    assert said == [True, False]
    await cache.close()


@pytest.mark.asyncio
async def test_waiting_for_a_thread_does_not_count(device: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a driver has begins with the build."""
    device.gate.clear()
    cache = ImplCache(device, None, version="1", threads=1, timeout_s=5)
    deadlines: list[float] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(delay: float, *call: Any, **context: Any) -> asyncio.TimerHandle:
        deadlines.append(delay)
        return later(delay, *call, **context)

    monkeypatch.setattr(loop, "call_later", call_later)
    first = asyncio.ensure_future(cache.ensure([A]))
    await until_building(device, 1)
    second = asyncio.ensure_future(cache.ensure([B]))
    await asyncio.sleep(0)
    begun = deadlines.count(5)
    device.gate.set()
    await asyncio.gather(first, second)
    await cache.close()

    assert begun == 1
    assert deadlines.count(5) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("abandoned", [True, False])
async def test_close_does_not_wait_for_a_build_that_hangs(abandoned: bool, device: Builder) -> None:
    """Neither one that was given up, nor, for long, one that still has time."""
    device.hanging = {"a"}
    cache = hurried(device) if abandoned else ImplCache(device, None, version="1")
    waiting = asyncio.ensure_future(cache.ensure([A]))
    await until_building(device, 1)
    if abandoned:
        await asyncio.wait([waiting])
    await asyncio.wait_for(cache.close(patience_s=60 if abandoned else 0.01), 10)

    assert isinstance(waiting.exception(), KernelBuildError if abandoned else RuntimeClosedError)
    device.freed.set()


# Builds that nobody waits for.


@pytest.mark.asyncio
async def test_what_nobody_waits_for_is_built_last(device: Builder) -> None:
    """Not even beside what somebody waits for."""
    device.gate.clear()
    cache = ImplCache(device, None, version="1", threads=2)
    first = asyncio.ensure_future(cache.ensure([A]))
    await until_building(device, 1)
    idle = asyncio.ensure_future(cache.ensure([B], urgent=False))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(cache.ensure([C]))
    await until_building(device, 2)
    device.gate.set()
    await asyncio.gather(first, idle, second)
    await cache.close()

    assert device.batches == [["a"], ["c"], ["b"]]


@pytest.mark.asyncio
async def test_what_somebody_waits_for_after_all_is_hurried(device: Builder) -> None:
    """It goes to the threads for urgent builds, and is built once."""
    device.gate.clear()
    cache = ImplCache(device, None, version="1", threads=2)
    first = asyncio.ensure_future(cache.ensure([A]))
    await until_building(device, 1)
    idle = asyncio.ensure_future(cache.ensure([B], urgent=False))
    await asyncio.sleep(0)
    after_all = asyncio.ensure_future(cache.ensure([B]))
    await until_building(device, 2)
    device.gate.set()
    await asyncio.gather(first, idle, after_all)
    await cache.close()

    assert device.batches == [["a"], ["b"]]
