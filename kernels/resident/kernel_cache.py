"""Built kernels: each source is built once, however many ask, and kept on disk.

A request for a kernel that is being built waits for that build. Several kernels are built as one program, because a
driver takes nearly as long for one small kernel as for several. If a program fails, or is not built in time, each of its
kernels is built alone, and fails or succeeds by itself.

On disk each kernel is found by itself, whatever it was built with: under its own key lies the key of its program. So
kernels that another model or another shape has built are there for all, and of a program only what is wanted is taken.

The cache is bounded; the least recently used kernels leave first. A kernel that `ensure` returned stays valid as long as
somebody holds it: the driver's object is released with its last holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from asyncrt.devices.base import Device, Kernel, LoadsAhead
from asyncrt.errors import KernelBuildError, RuntimeClosedError
from asyncrt.loops import end, retrieved, tell_loop
from asyncrt.lru import LruCache

from . import library
from .build_pauses import BuildPauses
from .builders import Builders, Job
from .foretold import Foretold
from .store import BinaryStore

_CLOSED = "the runtime was closed while kernels were built"
# Kernels of a program: building one costs about 30 ms, each further about 8 and often more. So many at most, and fewer
# where that leaves threads without work.
_LEAST, _MOST = 6, 24
KERNEL_NBYTES = 128 << 10
"""What a driver takes for a kernel beside its binary, about: so much with Intel's runtime 2026.2 for 480 kernels."""
_BUILD_S, _LOAD_S = 0.15, 0.003  # that a kernel takes to be built, until that was seen, and to be loaded from disk
_PATIENCE_S = 4.0  # for builds that run while the cache is closed
_HELD_S = 10.0  # for which programs that were loaded ahead wait to be wanted


@attrs.frozen
class CacheStatistics:
    """Counts of an `ImplCache`.

    Attributes:
        kernels: Kernels at hand.
        nbytes: What they take, about: `KERNEL_NBYTES` each, and their share of their programs' binaries, or their text
            where the driver gives none.
        built: Kernels built by the driver, all time.
        from_disk: Kernels loaded as binaries, all time.
        pending: Kernels that are being built, or wait for it.
        hits, misses: Kernels asked for that were at hand, and that were not, all time.
        evictions: Kernels that left because there was no room, all time.
        abandoned: Builds that were not done in time, all time.
    """

    kernels: int
    nbytes: int
    built: int
    from_disk: int
    pending: int
    hits: int
    misses: int
    evictions: int
    abandoned: int


class Expected(NamedTuple):
    """What is known of kernels that somebody wants.

    Attributes:
        wanted: How many there are.
        missing: How many of them are not at hand.
        building: How many of those are not on disk either, and have to be built.
        seconds: After which they are expected, if their builds begin now; by the builds so far.
    """

    wanted: int
    missing: int
    building: int
    seconds: float


class _BuiltKernel(NamedTuple):
    """A kernel, what it takes, and the key of its program on disk, if it lies there."""

    kernel: Kernel
    nbytes: int
    program: str | None


@attrs.define(eq=False)
class _Build:
    """A program that is being built, or waits for it.

    Attributes:
        kept: Its key on disk, if it lies there.
        job: What a thread does for it, until it has.
        deadline: What happens when the driver takes too long.
        hurried: Whether it has begun to be waited for, because it took too long while it gave way.
        expired: Whether it has taken too long.
    """

    sources: Sequence[Any]
    urgent: bool
    kept: str | None = None
    job: Job | None = None
    deadline: asyncio.TimerHandle | None = None
    hurried: bool = False
    expired: bool = False


class ImplCache:
    """The kernels of one device.

    Args:
        device: What builds them.
        store: Where binaries are kept; None keeps none.
        version: Part of every key on disk, so that another version of the package never finds this one's kernels.
        threads: Builds at once.
        nbytes: Most bytes to keep.
        timeout_s: Seconds that the driver has for a build; where builds give way, as long again in which one hurries.
        nice: How much less of the processor builds get than requests.
        hurry: Where builds give way to whatever else runs, lets them hurry, or give way again.
        ahead: The device, if it gains by knowing early which programs will be wanted.
        pauses: Lets builds rest while requests come, where they may.

    Attributes:
        pauses: The same.
        alike: The caches of other devices whose binaries this one can use: what they build is waited for, and loaded.
    """

    def __init__(
        self,
        device: Device,
        store: BinaryStore | None,
        *,
        version: str,
        threads: int = 2,
        nbytes: int = 1 << 29,
        timeout_s: float = 120.0,
        nice: int = 0,
        hurry: Callable[[bool], None] | None = None,
        ahead: LoadsAhead | None = None,
        pauses: BuildPauses | None = None,
    ) -> None:
        self._device = device
        self._store = store
        self._foretold = None if store is None or ahead is None else Foretold(store, ahead)
        #: What was loaded ahead and not let go yet, by model.
        self._held: dict[str, Any] = {}
        self._version = version
        self._max_nbytes = nbytes
        self._timeout_s = timeout_s
        self._threads = threads
        self._hurry_builds = hurry
        self.pauses = pauses
        self._waiting = 0
        self._builders = Builders(threads, nice=nice)
        # Of its own: what takes milliseconds does not wait behind what takes seconds.
        self._loaders = Builders(1, "asyncrt-load")
        self._kernels: LruCache[Any, _BuiltKernel] = LruCache(None, nbytes, sized=lambda entry: entry.nbytes)
        self._pending: dict[Any, asyncio.Future[Kernel]] = {}
        self._builds: dict[Any, _Build] = {}
        self.alike: tuple[ImplCache, ...] = ()
        #: Those that one of these builds, and what waits for it.
        self._elsewhere: dict[Any, ImplCache] = {}
        self._following: set[asyncio.Task[None]] = set()
        #: Those of which nobody knows yet whether they lie on disk, and what looks.
        self._searches: dict[Any, asyncio.Task[None]] = {}
        #: Of those, what somebody waits for.
        self._hurried: set[Any] = set()
        #: Seconds that a build takes for each kernel, lately.
        self._pace = _BUILD_S
        #: Kernels that the driver did not build in time, alone in their program: they are not tried again.
        self._hung: set[Any] = set()
        self._built = self._from_disk = self._hits = self._misses = 0
        self._abandoned = 0
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<ImplCache {len(self._kernels)} kernels, {self._kernels.nbytes} bytes, {self._built} built, "
            f"{self._from_disk} from disk, {len(self._pending)} pending>"
        )

    def statistics(self) -> CacheStatistics:
        """Return the cache's numbers."""
        return CacheStatistics(
            kernels=len(self._kernels),
            nbytes=self._kernels.nbytes,
            built=self._built,
            from_disk=self._from_disk,
            pending=len(self._pending),
            hits=self._hits,
            misses=self._misses,
            evictions=self._kernels.evictions,
            abandoned=self._abandoned,
        )

    def begin(self, sources: Iterable[Any], *, urgent: bool = True) -> None:
        """Begin to build what is missing, and hurry what waits already if that is *urgent*."""
        self._ask_for([s for s in dict.fromkeys(sources) if s not in self._kernels], urgent=urgent)

    def hold_back(self, seconds: float) -> None:
        """Let no build begin for so long, or until `go_on()`: somebody else needs the processor more."""
        self._builders.hold_back(seconds)

    def go_on(self) -> None:
        """Let builds begin again: somebody waits for them."""
        self._builders.go_on()

    @contextlib.contextmanager
    def waited_for(self) -> Iterator[None]:
        """Somebody waits for builds meanwhile, and for nothing else: they begin, and do not give way."""
        self.go_on()
        with self.unpaused():
            self._wait(1)
            try:
                yield
            finally:
                self._wait(-1)

    def unpaused(self) -> contextlib.AbstractContextManager[None]:
        """Somebody looks for builds to come meanwhile: they give way to requests, but do not rest."""
        return contextlib.nullcontext() if self.pauses is None else self.pauses.waited_for()

    def _wait(self, more: int) -> None:
        before, self._waiting = self._waiting, self._waiting + more
        if self._hurry_builds is not None and bool(before) != bool(self._waiting):
            self._hurry_builds(bool(self._waiting))

    def foretell(self, model: str) -> None:
        """Begin to load what a model wanted before, if that was noted; it will be known by this name again."""
        if self._foretold is None or self._closed:
            return
        loop = asyncio.get_running_loop()
        work = functools.partial(self._foretold.load, self._about, model)
        on_ended = functools.partial(tell_loop, loop, self._on_foretold, loop, model)
        self._loaders.submit(Job(work, lambda: None, on_ended))

    def _on_foretold(
        self, loop: asyncio.AbstractEventLoop, model: str, held: Any, error: BaseException | None
    ) -> None:
        if held and not self._closed:
            self._held[model] = held
            loop.call_later(_HELD_S, self._held.pop, model, None)

    async def note(self, model: str, sources: Iterable[Any]) -> None:
        """Note that a model wants these kernels, which are at hand, as soon as it is loaded."""
        entries = {source: entry for source in sources if (entry := self._kernels.peek(source)) is not None}
        programs = {entry.program: source.name for source, entry in entries.items() if entry.program is not None}
        if self._foretold is not None and not self._closed:
            await asyncio.to_thread(self._foretold.note, self._about, model, programs)

    async def expected(self, sources: Iterable[Any], *, urgent: bool = True) -> Expected:
        """Begin to build what is missing of *sources*; return how much that is, and when it may be there.

        Raises:
            KernelBuildError: The driver did not build one of them before.
            RuntimeClosedError: The cache was closed.
        """
        wanted = dict.fromkeys(sources)
        missing = self._ask_for([s for s in wanted if s not in self._kernels], urgent=urgent)
        if not self._device.info.takes_source or not missing:
            return Expected(len(wanted), 0, 0, 0.0)
        while searches := {self._searches[s] for s in missing if s in self._searches}:
            await asyncio.wait(searches)
        there = [s for s in missing if s in self._builds and self._builds[s].kept is not None]
        absent = sum(s in self._builds or s in self._elsewhere for s in missing) - len(there)
        seconds = absent * self._pace / self._threads + len(there) * _LOAD_S
        return Expected(len(wanted), len(missing), absent, seconds)

    @property
    def _rested_s(self) -> float:
        return 0.0 if self.pauses is None else self.pauses.rested_s

    @property
    def missed(self) -> int:
        """How many kernels that were asked for were not at hand, all time."""
        return self._misses

    @property
    def building(self) -> bool:
        """Whether a kernel is being built, or waits for it."""
        return bool(self._pending)

    async def settled(self) -> None:
        """Return when no kernel is being built or waits for it."""
        while self._pending:
            await asyncio.wait(list(self._pending.values()))

    async def one_settled(self) -> None:
        """Return when one of the kernels that are being built now, or wait for it, no longer is."""
        if self._pending:
            await asyncio.wait(list(self._pending.values()), return_when=asyncio.FIRST_COMPLETED)

    def at_hand(self, sources: Iterable[Any]) -> Mapping[Any, Kernel] | None:
        """Return the kernel of each of *sources* if all are built; else None, and nothing is built for it."""
        if not self._device.info.takes_source:
            return None
        kernels: dict[Any, Kernel] = {}
        for source in sources:
            entry = self._kernels.get(source)
            if entry is None:
                return None
            kernels[source] = entry.kernel
        self._hits += len(kernels)
        return kernels

    async def ensure(self, sources: Iterable[Any], *, urgent: bool = True) -> Mapping[Any, Kernel]:
        """Return the kernel of each of *sources* when all are built; they stay valid when they leave the cache.

        Args:
            sources: What to build.
            urgent: False builds when nobody waits for anything else.

        Raises:
            KernelBuildError: The driver refused one, or did not build it within `timeout_s`.
            RuntimeClosedError: The cache was closed before they were built.
        """
        wanted = dict.fromkeys(sources)
        if not self._device.info.takes_source:
            return self._device.build(list(wanted), None)[0]
        kernels: dict[Any, Kernel] = {}
        for source in wanted:
            entry = self._kernels.get(source)
            if entry is not None:
                kernels[source] = entry.kernel
        missing = [s for s in wanted if s not in kernels]
        self._hits += len(kernels)
        self._misses += len(missing)
        if not missing:
            return kernels
        self._ask_for(missing, urgent=urgent)
        futures = {s: self._pending[s] for s in missing}
        # `wait` and not `gather`: a caller that is cancelled must not cancel a build that others wait for.
        done, _ = await asyncio.wait(set(futures.values()), return_when=asyncio.FIRST_EXCEPTION)
        for future in done:
            future.result()
        return kernels | {s: f.result() for s, f in futures.items()}

    def _ask_for(self, missing: Sequence[Any], *, urgent: bool) -> Sequence[Any]:
        """Begin the builds of those that nobody has asked for, and hurry those that wait; returns *missing*."""
        if not self._device.info.takes_source:
            return missing
        self._begin([s for s in missing if s not in self._pending], urgent)
        if urgent:
            for source in missing:
                self._hurry(source)
        return missing

    def _begin(self, fresh: Sequence[Any], urgent: bool) -> None:
        if self._closed:
            raise RuntimeClosedError("the runtime is closed")
        for source in fresh:
            if source in self._hung:
                raise self._late(source)
        loop = asyncio.get_running_loop()
        if self.pauses is not None and fresh and not self._pending:
            self.pauses.begin()
        for source in fresh:
            future: asyncio.Future[Kernel] = loop.create_future()
            future.add_done_callback(retrieved)
            self._pending[source] = future
        if not fresh:
            return
        if self._store is None:
            self._build_in_programs(fresh, urgent)
            return
        # Whoever was asked for one first waits for nobody else with it, so that no two wait for each other.
        elsewhere = {s: (cache, at) for cache in self.alike for s in fresh if (at := cache.under_way(s)) is not None}
        if elsewhere:
            self._elsewhere.update({s: cache for s, (cache, _) in elsewhere.items()})
            begun = [at for _, at in elsewhere.values()]
            following = asyncio.create_task(self._follow(list(elsewhere), begun, self._store, urgent))
            self._following.add(following)
            following.add_done_callback(self._following.discard)
        self._look_for([s for s in fresh if s not in elsewhere], self._store, urgent)

    def _look_for(self, fresh: Sequence[Any], store: BinaryStore, urgent: bool) -> None:
        if fresh:
            search = asyncio.create_task(self._search(fresh, store, urgent))
            self._searches.update(dict.fromkeys(fresh, search))

    async def _follow(
        self, fresh: Sequence[Any], begun: Sequence[asyncio.Future[Kernel]], store: BinaryStore, urgent: bool
    ) -> None:
        """Look for kernels on disk when another device's cache has built them, or failed to."""
        await asyncio.wait(begun)
        for source in fresh:
            del self._elsewhere[source]
        if not self._closed:
            self._look_for(fresh, store, urgent)

    async def _search(self, fresh: Sequence[Any], store: BinaryStore, urgent: bool) -> None:
        """Look for kernels on disk; load those that are there, and build the others."""
        programs: library.Found = {}
        try:
            programs = await asyncio.to_thread(library.find, store, self._about, fresh)
        finally:
            hurried = not self._hurried.isdisjoint(fresh)
            self._hurried.difference_update(fresh)
            for source in fresh:
                self._searches.pop(source, None)
            if not self._closed:
                there = [s for sources in programs.values() for s in sources]
                for key, sources in programs.items():
                    self._submit(sources, urgent or hurried, key)
                kept = set(there)
                self._build_in_programs([s for s in fresh if s not in kept], urgent or hurried)

    @property
    def _about(self) -> str:
        """What every binary depends on."""
        return f"{self._version}|{self._device.info.identity}"

    def _build_in_programs(self, sources: Sequence[Any], urgent: bool) -> None:
        each = min(max(-(-len(sources) // (2 * self._threads)), _LEAST), _MOST)
        for start in range(0, len(sources), each):
            self._submit(sources[start : start + each], urgent)

    def under_way(self, source: Any) -> asyncio.Future[Kernel] | None:
        """Return what is done when a kernel is built that is being built; None if it is not."""
        return self._pending.get(source)

    def hurry(self, source: Any) -> None:
        """Somebody waits for a kernel that may be being built."""
        if source in self._pending:
            self._hurry(source)

    def _hurry(self, source: Any) -> None:
        if source in self._searches:
            self._hurried.add(source)
            return
        if source in self._elsewhere:
            self._hurried.add(source)
            self._elsewhere[source].hurry(source)
            return
        build = self._builds[source]
        if not build.urgent and build.job is not None:
            build.urgent = True
            self._threads_of(build).hurry(build.job)

    # Builds. What follows runs on the event loop, except `_build_blocking`.

    def _threads_of(self, build: _Build) -> Builders:
        return self._builders if build.kept is None else self._loaders

    def _submit(self, sources: Sequence[Any], urgent: bool, kept: str | None = None) -> None:
        build = _Build(sources, urgent, kept)
        on_loop = functools.partial(tell_loop, asyncio.get_running_loop())
        build.job = Job(
            functools.partial(self._build_blocking, sources, kept),
            functools.partial(on_loop, self._on_begun, build),
            functools.partial(on_loop, self._on_ended, build),
        )
        self._builds.update(dict.fromkeys(sources, build))
        self._threads_of(build).submit(build.job, urgent=urgent)

    def _on_begun(self, build: _Build) -> None:
        # The driver's time begins with the build: waiting for a thread does not count.
        if not self._closed:
            self._set_deadline(build)

    def _set_deadline(self, build: _Build) -> None:
        build.deadline = asyncio.get_running_loop().call_later(self._timeout_s, self._on_deadline, build)

    def _on_deadline(self, build: _Build) -> None:
        assert build.job is not None
        if self._hurry_builds is not None and not build.hurried:  # others may have had all of the processor
            build.hurried = True
            self._wait(1)
            self._set_deadline(build)
            return
        self._no_more(build)
        build.expired = True
        self._abandoned += 1
        self._threads_of(build).abandon(build.job)
        if self._split(build):
            return
        (source,) = build.sources
        if source in self._pending:  # unless an abandoned build has brought it since
            self._hung.add(source)
            self._fail(source, self._late(source))

    def _no_more(self, build: _Build) -> None:
        """It is not waited for any more, if it was because it took too long."""
        if build.hurried:
            build.hurried = False
            self._wait(-1)

    def _late(self, source: Any) -> KernelBuildError:
        return KernelBuildError(
            f"kernel {source.name}: {self._device.info.spec}'s driver has not built it within {self._timeout_s:g} s",
            detail="its build goes on in a thread that is not counted on any more, and it is not tried again",
            hint="raise RuntimeOptions.build_timeout_s, or use another driver",
        )

    def _on_ended(self, build: _Build, result: tuple[Mapping[Any, _BuiltKernel], bool] | None, error: BaseException | None) -> None:
        if build.deadline is not None:
            build.deadline.cancel()
        build.job = None  # which has the build
        if self._closed:
            return  # `close` told those who waited
        self._no_more(build)
        if result is None:
            assert error is not None
            if not build.expired and not self._split(build):
                self._fail(build.sources[0], error)
            return
        entries, built = result
        if built:
            self._built += len(entries)
        else:
            self._from_disk += len(entries)
        for source, entry in entries.items():  # late ones, too
            self._hung.discard(source)
            self._put(source, entry)
            self._builds.pop(source, None)
            future = self._end(source)
            if future is not None:
                future.set_result(entry.kernel)

    def _split(self, build: _Build) -> bool:
        """Build each kernel of a failed program alone; False if it was only one."""
        if len(build.sources) == 1:
            return False
        for source in build.sources:
            self._submit([source], build.urgent)
        return True

    def _fail(self, source: Any, error: BaseException) -> None:
        self._builds.pop(source, None)
        future = self._end(source)
        if future is not None:
            future.set_exception(error)

    def _end(self, source: Any) -> asyncio.Future[Kernel] | None:
        """Return what is to be told of a kernel that is no longer being built."""
        future = self._pending.pop(source, None)
        if self.pauses is not None and future is not None and not self._pending:
            self.pauses.end()
        return future

    def _build_blocking(self, batch: Sequence[Any], kept_key: str | None) -> tuple[Mapping[Any, _BuiltKernel], bool]:
        begin, rested_s = time.monotonic(), self._rested_s
        ordered = sorted(batch, key=lambda s: s.name)
        kept = None if self._store is None or kept_key is None else self._store.get(kept_key)
        kernels, binary = self._device.build(ordered, kept)
        fresh = binary is not None or kept is None
        if fresh:
            seconds = (time.monotonic() - begin - (self._rested_s - rested_s)) / len(batch)
            self._pace += (seconds - self._pace) / 4
        key = kept_key
        if binary is not None and self._store is not None:
            key = library.keep(self._store, self._about, ordered, binary)
        program = binary if binary is not None else kept
        share = None if program is None else -(-len(program) // len(batch))
        entries = {
            s: _BuiltKernel(k, KERNEL_NBYTES + (len(s.text) if share is None else share), key)
            for s, k in kernels.items()
        }
        return entries, fresh

    def _put(self, source: Any, entry: _BuiltKernel) -> None:
        if entry.nbytes > self._max_nbytes:
            return  # all others would leave, and then it would, too
        self._kernels.put(source, entry)

    def stop(self) -> None:
        """Begin no build any more; who waits for a kernel gets an error."""
        self._closed = True
        self._held.clear()
        for build in self._builds.values():
            build.job = None
            if build.deadline is not None:
                build.deadline.cancel()
        for source in list(self._pending):
            self._fail(source, RuntimeClosedError(_CLOSED))
        for threads in (self._builders, self._loaders):
            threads.stop()

    async def ended(self) -> None:
        """After `stop()`, return when no task is left."""
        await end({*self._searches.values(), *self._following})

    async def close(self, patience_s: float = _PATIENCE_S) -> None:
        """Stop, and forget the kernels.

        Returns when the builds that run have ended, or after *patience_s* seconds; abandoned ones do not count.
        """
        self.stop()
        both = (self._builders, self._loaders)
        await asyncio.gather(*(asyncio.to_thread(threads.join, patience_s) for threads in both))
        self._kernels.clear()
