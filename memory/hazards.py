"""Is every pair of commands that touch the same bytes, one of them writing, ordered?

Two commands on the bytes of one memory are ordered by their queue (streams are in order), by a wait of the second's
stream for a mark behind the first, or by the host: it saw the first passed before it enqueued the second. All three
compose. Each stream has a vector clock, the number of each other stream's commands that its next command comes after;
a mark is a copy of it, a wait and the host's knowledge are maxima. A command is then compared with those alone that its
stream does not come after, and what the host has seen passed is forgotten, because everything enqueued later comes
after it: time is linear in the log, and memory in what is in flight.

Pure: it is told what was enqueued and what the host saw, as a log of the records below, and knows no device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, assert_never

import attrs

from asyncrt.events import Event


class Region(NamedTuple):
    """Bytes of a memory: runs of *nbytes* bytes, one for each index of *shape*, *strides* apart; one run by default.

    Attributes:
        offset: Of the run of index 0, from the memory's start.
        nbytes: Of each run.
        shape: How many runs along each axis.
        strides: In bytes; of any sign.
    """

    offset: int
    nbytes: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def bounds(self) -> tuple[int, int]:
        """The first byte, and the one behind the last."""
        steps = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        begin = self.offset + sum(s for s in steps if s < 0)
        return begin, self.offset + sum(s for s in steps if s > 0) + self.nbytes

    @property
    def empty(self) -> bool:
        """Whether it has no bytes at all."""
        return self.nbytes <= 0 or 0 in self.shape

    def __str__(self) -> str:
        runs = f" in {'×'.join(map(str, self.shape))} runs of {self.nbytes}" if self.shape else ""
        begin, end = self.bounds
        return f"bytes {begin} to {end}{runs}"


#: All of a memory, however large it is.
WHOLE = Region(0, 1 << 62)


def overlap(a: Region, b: Region) -> bool:
    """Return whether two regions of one memory share a byte. Exact, also for strided regions that interleave."""
    if a.empty or b.empty:
        return False
    if not a.shape and not b.shape:
        return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
    (a_begin, a_end), (b_begin, b_end) = a.bounds, b.bounds
    if a_begin >= b_end or b_begin >= a_end:
        return False
    # Runs share a byte if they start less than a run apart: b's start less a's is above -b.nbytes, below a.nbytes.
    # Counting from the lowest start of a and the highest of b, every axis of either adds to that difference.
    axes = [(abs(stride), n) for r in (a, b) for n, stride in zip(r.shape, r.strides, strict=True) if n > 1 and stride]
    axes.sort(reverse=True)
    highest = b_end - b.nbytes - a_begin
    return _reaches(axes, highest - a.nbytes + 1, highest + b.nbytes - 1)


def _reaches(axes: Sequence[tuple[int, int]], low: int, high: int) -> bool:
    """Return whether a sum of one multiple of each axis, from 0 to n - 1 strides, lies between *low* and *high*."""
    if low <= 0 <= high:
        return True
    if high < 0 or not axes:
        return False
    (stride, n), rest = axes[0], axes[1:]
    most = sum(s * (m - 1) for s, m in rest)
    first = max(0, -(-(low - most) // stride))
    last = min(n - 1, high // stride)
    return any(_reaches(rest, low - k * stride, high - k * stride) for k in range(first, last + 1))


# The log.


class ByteAccess(NamedTuple):
    """What a command does with bytes: reads them, or writes them (perhaps after reading).

    Attributes:
        memory: Stands for an allocation, and for one generation of it: after a release, another object does.
        region: Which bytes.
        write: Whether they are written.
    """

    memory: Hashable
    region: Region
    write: bool


class Enqueued(NamedTuple):
    """A command was enqueued; *label* says in an error which it is."""

    stream: int
    label: object
    accesses: tuple[ByteAccess, ...]


class Marked(NamedTuple):
    """A mark was put behind everything enqueued so far on the event's stream."""

    event: Event


class Waited(NamedTuple):
    """What is enqueued next on *stream* starts when *event* is reached."""

    stream: int
    event: Event


class Seen(NamedTuple):
    """The host has learnt that *event* is reached."""

    event: Event


class Touched(NamedTuple):
    """The host itself reads or writes now: all that touched these bytes must have been seen passed.

    Attributes:
        of: Only commands with a label that has this `request` count; None: all.
    """

    label: object
    accesses: tuple[ByteAccess, ...]
    of: int | None = None


class Released(NamedTuple):
    """A memory is given back: nothing may use it any more, and nothing will."""

    label: object
    memory: Hashable


class HostFinished(NamedTuple):
    """The host has waited for everything on every stream."""


Entry: TypeAlias = Enqueued | Marked | Waited | Seen | Touched | Released | HostFinished


# What is found.


class Command(NamedTuple):
    """A command as the checker knows it: the *number*-th of its stream, or the host, which is stream None."""

    stream: int | None
    number: int
    label: object

    def __str__(self) -> str:
        where = "the host" if self.stream is None else f"stream {self.stream}, command {self.number}"
        return f"{self.label} ({where})"


@attrs.frozen
class Hazard:
    """Two accesses to the same bytes, one of them a write, in no order.

    Attributes:
        kind: "read after write", "write after read" or "write after write".
        first, second: The commands, as they were enqueued.
        memory: Where.
        first_region, second_region: What each touches there.
        known: How many commands of the first's stream the second comes after.
    """

    kind: str
    first: Command
    second: Command
    memory: Hashable
    first_region: Region
    second_region: Region
    known: int

    @property
    def bytes(self) -> tuple[int, int]:
        """The range of bytes in which they meet; strided regions do not share all of it."""
        (a, b), (c, d) = self.first_region.bounds, self.second_region.bounds
        return max(a, c), min(b, d)

    @property
    def missing(self) -> str:
        """The order that is not there."""
        first, second = self.first, self.second
        have = f"it is known to come after {self.known} of that stream's commands"
        if second.stream is None:
            return f"the host did not see command {first.number} of stream {first.stream} passed: {have}"
        return (
            f"stream {second.stream} does not wait for command {first.number} of stream {first.stream}, "
            f"nor did the host see it passed: {have}"
        )

    def __str__(self) -> str:
        begin, end = self.bytes
        return (
            f"{self.kind}, bytes {begin} to {end} of {self.memory}\n"
            f"first   {self.first}: {self.first_region}\n"
            f"second  {self.second}: {self.second_region}\n"
            f"missing {self.missing}"
        )


# The checker.


@attrs.define(eq=False)
class _Uses:
    """What one stream has in flight on one memory: its newest read and its newest write of each region."""

    newest: int = 0
    reads: dict[Region, Command] = attrs.Factory(dict)
    writes: dict[Region, Command] = attrs.Factory(dict)


class HazardChecker:
    """Takes a log entry by entry, and says at each which accesses it finds unordered.

    Args:
        streams: How many there are; numbered from 0.
    """

    def __init__(self, streams: int) -> None:
        #: Per stream, how many commands of each stream its next command comes after; of its own, all.
        self._clocks = [[0] * streams for _ in range(streams)]
        #: How many commands of each stream the host has seen passed.
        self._seen = [0] * streams
        #: Per stream, the clock at each mark that the host has not seen reached, by stamp; and the newest it has seen.
        self._marks: list[dict[int, tuple[int, ...]]] = [{} for _ in range(streams)]
        self._reached = [0] * streams
        self._memories: dict[Hashable, dict[int, _Uses]] = {}
        #: Per stream what is in flight, oldest first: command, memory, region, and where it is noted.
        self._flight: list[deque[tuple[int, Hashable, _Uses, Region, dict[Region, Command]]]] = [
            deque() for _ in range(streams)
        ]
        self.commands = 0

    def __repr__(self) -> str:
        return f"<HazardChecker {self.commands} commands, {self.in_flight} accesses in flight>"

    @property
    def in_flight(self) -> int:
        """How many accesses are remembered."""
        return sum(len(f) for f in self._flight)

    @property
    def memories(self) -> int:
        """Of how many memories it remembers anything."""
        return len(self._memories)

    @property
    def marks(self) -> int:
        """How many marks it remembers that the host has not seen reached."""
        return sum(map(len, self._marks))

    def take(self, entry: Entry) -> list[Hazard]:
        """Take note of *entry*; returns what is unordered because of it."""
        match entry:
            case Enqueued(stream, label, accesses):
                return self._enqueued(stream, label, accesses)
            case Marked(event):
                self._marks[event.stream][event.stamp] = tuple(self._clocks[event.stream])
            case Waited(stream, event):
                if event.stamp > self._reached[event.stream]:
                    _join(self._clocks[stream], self._marks[event.stream][event.stamp])
            case Seen(event):
                self._see(event)
            case Touched(label, accesses, of):
                return self._by_host(Command(None, 0, label), accesses, of)
            case Released(label, memory):
                found = self._by_host(Command(None, 0, label), (ByteAccess(memory, WHOLE, True),), None)
                self._memories.pop(memory, None)
                return found
            case HostFinished():
                for stream, clock in enumerate(self._clocks):
                    self._seen[stream] = clock[stream]
                self._forget()
            case _:
                assert_never(entry)
        return []

    def _enqueued(self, stream: int, label: object, accesses: Sequence[ByteAccess]) -> list[Hazard]:
        clock = self._clocks[stream]
        _join(clock, self._seen)
        clock[stream] += 1
        self.commands += 1
        command = Command(stream, clock[stream], label)
        found: list[Hazard] = []
        for access in accesses:
            found += self._unordered(command, access, clock)
        flight = self._flight[stream]
        for memory, region, write in accesses:
            users = self._memories.setdefault(memory, {})
            uses = users.get(stream)
            if uses is None:
                uses = users[stream] = _Uses()
            uses.newest = command.number
            noted = uses.writes if write else uses.reads
            noted[region] = command
            flight.append((command.number, memory, uses, region, noted))
        return found

    def _by_host(self, command: Command, accesses: Sequence[ByteAccess], of: int | None) -> list[Hazard]:
        found = [h for access in accesses for h in self._unordered(command, access, self._seen)]
        return found if of is None else [h for h in found if getattr(h.first.label, "request", None) == of]

    def _unordered(self, second: Command, access: ByteAccess, clock: Sequence[int]) -> list[Hazard]:
        memory, region, write = access
        found: list[Hazard] = []
        for stream, uses in self._memories.get(memory, {}).items():
            known = clock[stream]
            if uses.newest <= known or stream == second.stream:
                continue
            kinds = [(uses.writes, "write after write" if write else "read after write")]
            if write:
                kinds.append((uses.reads, "write after read"))
            for noted, kind in kinds:
                found += [
                    Hazard(kind, first, second, memory, other, region, known)
                    for other, first in noted.items()
                    if first.number > known and overlap(other, region)
                ]
        return found

    def _see(self, event: Event) -> None:
        stream, stamp = event
        if stamp <= self._reached[stream]:
            return
        marks = self._marks[stream]
        _join(self._seen, marks[stamp])
        self._reached[stream] = stamp
        for older in [s for s in marks if s <= stamp]:
            del marks[older]
        self._forget()

    def _forget(self) -> None:
        """Drop what the host has seen passed: whatever is enqueued from now on comes after it."""
        for stream, flight in enumerate(self._flight):
            seen = self._seen[stream]
            while flight and flight[0][0] <= seen:
                number, memory, uses, region, noted = flight.popleft()
                if region in noted and noted[region].number == number:
                    del noted[region]
                if uses.newest <= seen:
                    users = self._memories.get(memory)
                    if users is not None and users.get(stream) is uses:
                        del users[stream]
                        if not users:
                            del self._memories[memory]


def _join(clock: list[int], other: Sequence[int]) -> None:
    for stream, number in enumerate(other):
        if number > clock[stream]:
            clock[stream] = number


def streams_of(log: Iterable[Entry]) -> int:
    """Return how many streams a log has: one more than the highest number in it."""
    highest = -1
    for entry in log:
        match entry:
            case Enqueued(stream=stream):
                highest = max(highest, stream)
            case Waited(stream, event):
                highest = max(highest, stream, event.stream)
            case Marked(event) | Seen(event):
                highest = max(highest, event.stream)
            case _:
                pass
    return highest + 1


def check(log: Sequence[Entry]) -> list[Hazard]:
    """Return every hazard of a log that is complete from its beginning."""
    checker = HazardChecker(streams_of(log))
    return [hazard for entry in log for hazard in checker.take(entry)]
