"""The kernel cache: who builds what, how often, and what a failure or a cancelled caller does to the others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrt.devices.host import HostDevice
from asyncrt.errors import KernelBuildError, RuntimeClosedError
from asyncrt.kernels.cache import CacheStatistics, ImplCache
from asyncrt.kernels.store import BinaryStore

from .fake import Builder, source

A, B, C = source("a"), source("b"), source("c")


@pytest.fixture
def device() -> Builder:
    return Builder()


@pytest.fixture
def cache(device: Builder) -> Iterator[ImplCache]:
    cache = ImplCache(device, None, version="1")
    yield cache
    device.gate.set()
    cache.close()


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
    await asyncio.gather(*first, later)
    await cache.ensure([A, B, C])

    assert device.batches == [["a", "b"], ["c"]]
    assert (cache.get(A), cache.get(C)) == ("kernel a", "kernel c")
    assert CacheStatistics(kernels=3, built=3, from_disk=0) == cache.statistics()
    assert repr(cache) == "<ImplCache 3 kernels, 3 built, 0 from disk>"


@pytest.mark.asyncio
async def test_many_kernels_are_built_in_batches(device: Builder, cache: ImplCache) -> None:
    """Neither one program each nor one of all, so that threads can share the work."""
    await cache.ensure(source(f"k{i:02}") for i in range(50))

    assert sorted((len(b) for b in device.batches), reverse=True) == [24, 24, 2]


@pytest.mark.asyncio
async def test_a_failing_build_fails_all_who_wait(device: Builder, cache: ImplCache) -> None:
    """And may succeed the next time it is asked for."""
    device.gate.clear()
    device.broken = {"b"}
    waiting = [asyncio.ensure_future(cache.ensure([A, B])) for _ in range(3)]
    await until_building(device, 1)
    device.gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)

    assert [KernelBuildError] * 3 == [type(r) for r in results]
    assert cache.get(A) is None

    device.broken = set()
    await cache.ensure([A, B])

    assert cache.get(B) == "kernel b"


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
    assert device.batches == [["a"], ["b"]]


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
    """Kernels are on disk for the next process, in whatever order it asks for them."""
    for names, expected in (("ab", (2, 0)), ("ba", (0, 2)), ("a", (1, 0)), ("a", (0, 1))):
        device = Builder()
        cache = ImplCache(device, BinaryStore(tmp_path / "k"), version="1")
        await cache.ensure([source(n) for n in names])
        cache.close()

        statistics = cache.statistics()
        assert expected == (statistics.built, statistics.from_disk), names


@pytest.mark.asyncio
@pytest.mark.parametrize("change", ["version", "device", "text"])
async def test_kernels_of_another_kind_are_not_found(change: str, tmp_path: Path) -> None:
    """Another version of the package, another driver, or other text under the same name."""
    store = BinaryStore(tmp_path / "k")
    first = ImplCache(Builder(), store, version="1")
    await first.ensure([A])
    first.close()
    device = Builder()
    if change == "device":
        device.info = type(device.info)(spec="x", name="x", kind="cpu", identity="another driver")
    second = ImplCache(device, store, version="2" if change == "version" else "1")
    await second.ensure([source("a", "other text") if change == "text" else A])
    second.close()

    assert device.binaries == [None]


@pytest.mark.asyncio
async def test_a_binary_that_the_driver_refuses_is_built_and_kept_anew(tmp_path: Path) -> None:
    """It counts as built."""
    store = BinaryStore(tmp_path / "k")
    first = ImplCache(Builder(), store, version="1")
    await first.ensure([A])
    first.close()
    device = Builder()
    device.refuses_binaries = True
    second = ImplCache(device, store, version="1")
    await second.ensure([A])
    second.close()

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
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    device.gate.set()
    cache.close()
    results = await asyncio.gather(running, queued, return_exceptions=True)

    assert [RuntimeClosedError, RuntimeClosedError] == [type(r) for r in results]
    assert cache.get(A) is None
    with pytest.raises(RuntimeClosedError):
        await cache.ensure([C])


@pytest.mark.asyncio
async def test_a_device_without_a_compiler_has_every_kernel() -> None:
    """Its kernels are the references themselves."""
    device = HostDevice()
    cache = ImplCache(device, None, version="1")
    await cache.ensure([A])
    kernel = cache.get(A)
    cache.close()

    assert A is kernel
