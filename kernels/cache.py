"""Built kernels: each source is built once, however many ask, and kept on disk.

Builds run on worker threads; who needs a kernel that is being built waits for that build. A batch of sources is built
as one program, because a driver takes nearly as long for one small kernel as for several.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs

from asyncrt.devices.base import Device, Kernel
from asyncrt.errors import RuntimeClosedError

from .store import BinaryStore

_CLOSED = "the runtime was closed while kernels were built"
_BATCH = 24  # kernels per program: building one costs about 30 ms, each further about 8


@attrs.frozen
class CacheStatistics:
    """Counts of an `ImplCache`.

    Attributes:
        kernels: Kernels at hand.
        built: Kernels built by the driver.
        from_disk: Kernels loaded as binaries.
    """

    kernels: int
    built: int
    from_disk: int


class ImplCache:
    """The kernels of one device.

    Args:
        device: What builds them.
        store: Where binaries are kept; None keeps none.
        version: Part of every key on disk, so that another version of the package never finds this one's.
        threads: Builds at once.
    """

    def __init__(self, device: Device, store: BinaryStore | None, *, version: str, threads: int = 2) -> None:
        self._device = device
        self._store = store
        self._version = version
        self._executor = ThreadPoolExecutor(threads, "asyncrt-build")
        self._kernels: dict[Any, Kernel] = {}
        self._pending: dict[Any, asyncio.Future[None]] = {}
        self._built = self._from_disk = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<ImplCache {len(self._kernels)} kernels, {self._built} built, {self._from_disk} from disk>"

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(len(self._kernels), self._built, self._from_disk)

    def get(self, source: Any) -> Kernel | None:
        """Return the kernel if it is at hand."""
        return self._kernels.get(source)

    async def ensure(self, sources: Iterable[Any]) -> None:
        """Return when all *sources* are built.

        Raises:
            KernelBuildError: The driver refused one. Those that were asked for with it may be built on the next try.
            RuntimeClosedError: The cache was closed before they were built.
        """
        wanted = list(dict.fromkeys(s for s in sources if s not in self._kernels))
        if not wanted:
            return
        if not self._device.info.takes_source:
            self._kernels.update(self._device.build(wanted, None)[0])
            return
        fresh = [s for s in wanted if s not in self._pending]
        for start in range(0, len(fresh), _BATCH):
            batch = fresh[start : start + _BATCH]
            task = asyncio.ensure_future(self._build(batch))
            task.add_done_callback(_seen)
            for source in batch:
                self._pending[source] = task
        # Shielded: who stops waiting must not stop a build that others wait for.
        waited = {self._pending[s] for s in wanted if s in self._pending}
        await asyncio.gather(*(asyncio.shield(t) for t in waited))

    async def _build(self, batch: Sequence[Any]) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._closed:
                raise RuntimeClosedError(_CLOSED)
            kernels, built = await loop.run_in_executor(self._executor, self._build_blocking, batch)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            raise RuntimeClosedError(_CLOSED) from None  # close() cancels builds that have not begun
        finally:
            for source in batch:
                self._pending.pop(source, None)
        if self._closed:
            raise RuntimeClosedError(_CLOSED)
        self._kernels.update(kernels)
        if built:
            self._built += len(batch)
        else:
            self._from_disk += len(batch)

    def _build_blocking(self, batch: Sequence[Any]) -> tuple[Any, bool]:
        ordered = sorted(batch, key=lambda s: s.name)
        digest = hashlib.sha256(chr(0).join(s.text for s in ordered).encode()).hexdigest()
        key = f"{self._version}|{self._device.info.identity}|{digest}"
        kept = self._store.get(key) if self._store is not None else None
        kernels, binary = self._device.build(ordered, kept)
        if binary is not None and self._store is not None:
            self._store.put(key, binary)
        return kernels, binary is not None or kept is None

    def close(self) -> None:
        """Let builds end and forget the kernels; who still waits for one gets an error. Blocks while a build runs."""
        self._closed = True
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._kernels.clear()


def _seen(task: asyncio.Future[None]) -> None:
    """Fetch the outcome, so that a failure nobody waits for any more is not reported as lost."""
    if not task.cancelled():
        task.exception()
