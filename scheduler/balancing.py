"""To which of several devices does a request go? To the one where it ends first.

What a device has outstanding and what a request takes there are nanoseconds, by what was seen. Between two ends of
requests a device that had something to do all the time has done the work of one, however many it runs side by side: so
that time is what the later one took of the device. Nothing here asks a clock; times come in as arguments.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import attrs

from asyncrt.lru import LruCache

UNKNOWN_NS = 1_000_000
"""What a request takes of which nothing is known, nor of any like it."""

_MOST_SEEN = 4096  # kinds of request of which it is kept what they take
_AVERAGED = 16  # requests of a kind, about, over which that is an average
_LEAP, _LEAST_NS = 4, 250_000  # times the average, and at least so much, that one request may count for
_FORGETS = 128  # of what is known of a device that was passed over, one part in so many
_RECENT = 256  # requests, about, by which those are guessed that are of another kind


class Candidate(NamedTuple):
    """A device that a request may go to.

    Attributes:
        name: What users call it.
        outstanding_ns: What it has been given and has not ended takes.
        cost_ns: What the request takes there; None if nothing is known of it.
    """

    name: str
    outstanding_ns: int
    cost_ns: int | None


class Choice(NamedTuple):
    """Where a request goes: to which of the candidates, and when each would have ended it."""

    chosen: int
    candidates: tuple[Candidate, ...]
    ends_ns: tuple[int, ...]

    @property
    def why(self) -> str:
        """The reason, as a sentence."""
        ends = [f"on {c.name} in {ns / 1e6:.3g} ms" for c, ns in zip(self.candidates, self.ends_ns, strict=True)]
        mine = ends.pop(self.chosen)
        return f"it was to end {mine}" + (f"; {', '.join(ends)}" if ends else "")


def choose(candidates: Sequence[Candidate]) -> Choice:
    """Return where a request ends first; of equal ones the first, which has seen most of its like.

    Where nothing is known of what a request takes, it takes as little as on the best of the others, so that each device
    is tried as soon as the others are busy.
    """
    known = [c.cost_ns for c in candidates if c.cost_ns is not None]
    unknown = min(known, default=UNKNOWN_NS)
    ends = tuple([c.outstanding_ns + (unknown if c.cost_ns is None else c.cost_ns) for c in candidates])
    return Choice(ends.index(min(ends)), tuple(candidates), ends)


class Backlog:
    """What one device has been given and has not ended."""

    def __init__(self) -> None:
        self._costs: dict[int, int] = {}
        self._total = 0
        #: When the device was last seen to end something, or to begin after a rest.
        self._since = 0

    def __repr__(self) -> str:
        return f"<Backlog {len(self._costs)} requests, {self._total / 1e6:.3g} ms>"

    def __len__(self) -> int:
        return len(self._costs)

    def left_ns(self, now: int) -> int:
        """Return what is left of it; the request that came first is taken to be at work since the last one ended."""
        first = next(iter(self._costs.values()), 0)
        return self._total - min(max(now - self._since, 0), first)

    def begin(self, now: int, request: int, cost_ns: int) -> None:
        """A request was given to the device."""
        if not self._costs:
            self._since = now
        self._costs[request] = cost_ns
        self._total += cost_ns

    def end(self, now: int, request: int) -> int:
        """A request has ended; returns what it took of the device."""
        self.drop(request)
        took, self._since = now - self._since, now
        return max(took, 0)

    def drop(self, request: int) -> None:
        """A request has failed or was cancelled, and tells nothing of what it takes."""
        self._total -= self._costs.pop(request)


@attrs.define
class _Seen:
    """What requests of one kind took, on average."""

    ns: int
    times: int = 1


class Costs:
    """What requests of one model take on devices of one kind."""

    def __init__(self) -> None:
        self._seen: LruCache[Hashable, _Seen] = LruCache(_MOST_SEEN)
        #: Of the last requests, whatever they were: what they took, and what the guess goes by.
        self._ns = self._sizes = 0.0

    def of(self, kind: Hashable, size: int) -> int | None:
        """Return what a request takes; None if nothing is known.

        Args:
            kind: The same for requests that take equally long.
            size: How large it is, in any unit: of a kind that was not seen, it is guessed by that.
        """
        seen = self._seen.get(kind)
        if seen is not None:
            return seen.ns
        return round(self._ns / self._sizes * size) if self._sizes else None

    def took(self, kind: Hashable, size: int, ns: int) -> None:
        """Note what a request took."""
        seen = self._seen.get(kind)
        if seen is None:
            self._seen.put(kind, _Seen(ns))
        else:  # what held up the host for once is not what a request takes
            ns = min(ns, _LEAP * max(seen.ns, _LEAST_NS))
            seen.times = min(seen.times + 1, _AVERAGED)
            seen.ns += round((ns - seen.ns) / seen.times)
        keeps = 1 - 1 / _RECENT
        self._ns, self._sizes = self._ns * keeps + ns, self._sizes * keeps + size

    def passed_over(self, kind: Hashable) -> None:
        """Another device was taken: believe a little less in what is known of this one, so that it is tried again."""
        seen = self._seen.peek(kind)
        if seen is not None:
            seen.ns -= seen.ns // _FORGETS
