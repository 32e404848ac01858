"""The order of a log as a graph in which paths are searched: the truth that the checker is compared with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from asyncrt.events import Event
from asyncrt.memory.hazards import (
    ByteAccess,
    Enqueued,
    Entry,
    HostFinished,
    Marked,
    Region,
    Released,
    Seen,
    Touched,
    Waited,
)


def cells(region: Region) -> set[int]:
    """Every byte of a region."""
    starts = [region.offset]
    for n, stride in zip(region.shape, region.strides, strict=True):
        starts = [s + i * stride for s in starts for i in range(n)]
    return {s + i for s in starts for i in range(region.nbytes)}


def share_a_byte(a: Region, b: Region) -> bool:
    """Byte by byte."""
    return bool(cells(a) & cells(b))


def brute_force(
    log: Sequence[Entry], meet: Callable[[Region, Region], bool] = share_a_byte
) -> set[tuple[int, int]]:
    """The pairs of places in the log that touch the same bytes, one writing, without a path of order between them.

    There are no clocks, and nothing is forgotten.
    """
    before: dict[int, set[int]] = {}  # for each entry, all entries whose end it comes after
    on_stream: dict[int, set[int]] = {}  # what the next command of a stream comes after
    at_mark: dict[Event, set[int]] = {}
    by_host: set[int] = set()
    found: set[tuple[int, int]] = set()
    touched: list[tuple[int, ByteAccess]] = []
    gone: set[Hashable] = set()

    def compare(place: int, access: ByteAccess, only: int | None = None) -> None:
        for earlier, other in touched:
            label = log[earlier].label  # type: ignore[union-attr]
            counts = only is None or getattr(label, "request", None) == only
            conflict = other.memory == access.memory and (other.write or access.write) and other.memory not in gone
            if conflict and counts and earlier not in before[place] and meet(other.region, access.region):
                found.add((earlier, place))

    for place, entry in enumerate(log):
        match entry:
            case Enqueued(stream, _, accesses):
                before[place] = on_stream.setdefault(stream, set()) | by_host
                for access in accesses:
                    compare(place, access)
                touched += [(place, a) for a in accesses]
                on_stream[stream] = before[place] | {place}
            case Marked(event):
                at_mark[event] = set(on_stream.setdefault(event.stream, set()))
            case Waited(stream, event):
                on_stream[stream] = on_stream.setdefault(stream, set()) | at_mark[event]
            case Seen(event):
                by_host |= at_mark[event]
            case Touched(_, accesses, of):
                before[place] = set(by_host)
                for access in accesses:
                    compare(place, access, of)
            case Released(_, memory):
                before[place] = set(by_host)
                compare(place, ByteAccess(memory, Region(0, 200), True))
                gone.add(memory)
            case HostFinished():
                by_host |= set(before)
    return found
