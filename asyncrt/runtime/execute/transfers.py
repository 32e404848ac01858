"""Which bytes of a chunk go to the device before its launches, and which come back behind them? Nothing here waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.devices.base import Stream, Transfer
from asyncrt.graph.reading.mapped import check
from asyncrt.kernels.resident.weights import Stored
from asyncrt.kinds import is_plain
from asyncrt.layout import Array
from asyncrt.runtime.plan.bound_plan import BoundPlan, buffer_index, is_long_copy
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, Fetch, ReadBlock


def upload(bound: BoundPlan, stream: Stream, arenas: Sequence[Any], arrays: Mapping[int, Array]) -> None:
    """Enqueue what comes before a chunk's launches; for the arguments see `uploads`."""
    for memory, offset, host in uploads(bound, arenas, arrays):
        stream.write(memory, offset, host)


def uploads(bound: BoundPlan, arenas: Sequence[Any], arrays: Mapping[int, Array]) -> list[Transfer]:
    """Return what comes before a chunk's launches.

    Args:
        arenas: The device memory of the arena of each chunk, None where a chunk has none; then that of what is kept.
        arrays: The request's inputs, by value id.
    """
    plan = bound.plan
    arena = arenas[plan.chunk]
    transfers: list[Transfer] = []
    staging = bytearray(plan.staging)
    if staging:
        transfers.append(Transfer(arena, plan.staging_offset, np.frombuffer(staging, np.uint8)))
    for value, offset, nbytes, staged, array in plan.uploads:
        if staged:
            staging[offset : offset + nbytes] = arrays[value].tobytes()
        elif nbytes:
            transfers.append(Transfer(arena, offset, _as_bytes(arrays[value] if array is None else array)))
    return transfers


def _as_bytes(host: Array) -> Array:
    """Return an array that gives a buffer: one of what is none of NumPy's own dtypes gives none, but its bytes do."""
    return host if host.dtype.isbuiltin == 1 else host.reshape(-1).view(np.uint8)


class Arriving(NamedTuple):
    """What a chunk's results are read into; they are there once the stream has passed it, but for `BoundPlan.copies`.

    Attributes:
        plan: The chunk's.
        arrays: By value id.
        block: What the plan's block is read into, if it has one.
    """

    plan: ChunkPlan
    arrays: dict[int, Array]
    block: Array | None

    @property
    def read(self) -> list[Array]:
        """All that commands write to."""
        own = [self.arrays[f.value] for f in self.plan.fetches if f.home is not None and not f.together]
        return own if self.block is None else [self.block, *own]

    def lay(self) -> None:
        """Make the array of a result that alone lies in the block, before that is there."""
        block, where, together = self.block, self.plan.block, self._together
        if block is not None and where is not None and len(together) == 1:
            self.arrays[together[0].value] = _part_of(block, where, together[0])

    @property
    def _together(self) -> list[Fetch]:
        return [fetch for fetch in self.plan.fetches if fetch.together]

    def take(self) -> dict[int, Array]:
        """Return the results, now that they are there, by value id; each has memory of its own.

        Raises:
            IndexOutOfRange: A node was given an index that is out of range; nothing of what was read counts.
        """
        block, where = self.block, self.plan.block
        if block is not None and where is not None:
            where.check(block)
            together = self._together
            for fetch in together:
                if fetch.value not in self.arrays:
                    array = _part_of(block, where, fetch)
                    self.arrays[fetch.value] = array if len(together) == 1 else array.copy()
        return self.arrays


def _part_of(block: Array, where: ReadBlock, fetch: Fetch) -> Array:
    """Return what lies in a block that was read, as an array of its memory."""
    (dtype, shape), home = fetch.layout, fetch.home
    assert home is not None
    return np.ndarray(shape, dtype.numpy, block, home.offset - where.offset)


def download(bound: BoundPlan, stream: Stream, arenas: Sequence[Any], arrays: Mapping[int, Array]) -> Arriving:
    """Enqueue what comes behind a chunk's launches; for the arguments see `uploads`."""
    arriving, transfers = downloads(bound, stream, arenas, arrays)
    for memory, offset, host in transfers:
        stream.read(memory, offset, host)
    return arriving


def downloads(
    bound: BoundPlan, stream: Stream, arenas: Sequence[Any], arrays: Mapping[int, Array]
) -> tuple[Arriving, list[Transfer]]:
    """Return what comes behind a chunk's launches on *stream*, and where to; for the arguments see `uploads`."""
    plan = bound.plan
    results: dict[int, Array] = {}
    transfers: list[Transfer] = []
    block: Array | None = None
    if plan.block is not None:
        block = np.empty(plan.block.nbytes, np.uint8)
        transfers.append(Transfer(arenas[plan.chunk], plan.block.offset, block))
    for fetch in plan.fetches:
        if fetch.together:
            continue
        if fetch.home is not None:
            dtype, shape = fetch.layout
            room = stream.room(fetch.layout.nbytes)
            target = np.empty(shape, dtype.numpy) if room is None else np.ndarray(shape, dtype.numpy, room)
            buffer = fetch.home.buffer
            source = bound.constants[buffer].memory if isinstance(buffer, Stored) else arenas[buffer_index(buffer)]
            if target.nbytes:
                transfers.append(Transfer(source, fetch.home.offset, _as_bytes(target)))
            results[fetch.value] = target
        elif not is_long_copy(fetch):
            results[fetch.value] = host_copy(fetch, arrays)
    return Arriving(plan, results, block), transfers


def short_copies(plan: ChunkPlan, arrays: Mapping[int, Array]) -> dict[int, Array]:
    """Return what a chunk gives that needs no device, but for `BoundPlan.copies`; by value id."""
    return host_copies([f for f in plan.fetches if not is_long_copy(f)], arrays)


def host_copies(fetches: Iterable[Fetch], arrays: Mapping[int, Array]) -> dict[int, Array]:
    """Return values that the host has, each as an array of its own, by value id."""
    return {f.value: host_copy(f, arrays) for f in fetches}


def host_copy(fetch: Fetch, arrays: Mapping[int, Array]) -> Array:
    """Return a value that the host has, as an array of its own: nothing that a caller gets is shared."""
    if fetch.array is not None:
        copy = fetch.array.copy()
        check(fetch.array)
        return copy
    assert fetch.source is not None
    if not is_plain(fetch.layout.dtype):
        return arrays[fetch.source].copy()
    data = arrays[fetch.source].reshape(-1).view(np.uint8)[fetch.offset : fetch.offset + fetch.layout.nbytes]
    return data.copy().view(fetch.layout.dtype.numpy).reshape(fetch.layout.shape)
