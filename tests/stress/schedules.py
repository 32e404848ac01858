"""Orders in which things can happen to a few requests: all of them, or many at random.

The scheduler, the pool, leases, the timeline and the checker of hazards are the real ones. Around them is as little as
will do, without an event loop: requests that ask for one thing after the other, and streams whose chunks begin as soon
as they may and end when the schedule says so. A chunk writes its request's number to its arena when it begins and
again when it ends, and finds there, and in the arenas of the chunks before it, what it has written: if any order is
missing between two users of a block, some schedule lets one of them find the other's number.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import attrs

from asyncrt.errors import OutOfDeviceMemory
from asyncrt.events import Event, Timeline
from asyncrt.memory.buffer import Lease
from asyncrt.memory.hazards import ByteAccess, Enqueued, Entry, HazardChecker, Marked, Region, Released, Seen, Waited
from asyncrt.memory.pool import MemoryPool
from asyncrt.scheduler.happenings import Ended, Happening, Launched, Reached, Ready, Submitted
from asyncrt.scheduler.instructions import Admit, LaunchChunk, Resume
from asyncrt.scheduler.policies import make_policy, policy_names
from asyncrt.scheduler.state import SchedulerState


class Violation(AssertionError):
    """Something that must never be, and after which steps it was."""


class Step(NamedTuple):
    """What happens next: to a request, or on a stream."""

    what: str
    number: int


@attrs.define(eq=False)
class Block:
    """Device memory: whose number is in it, and which generation of its address it is."""

    number: int
    nbytes: int
    holds: int = 0


@attrs.define(eq=False)
class Memory:
    """A device that only allocates; what is released while a chunk uses it is found by the checker."""

    limit: int
    checker: HazardChecker
    allocated: int = 0
    blocks: int = 0

    @attrs.frozen
    class Info:
        max_allocation: int = 1 << 30

    info: Any = attrs.field(factory=Info)

    def allocate(self, nbytes: int) -> Block:
        if self.allocated + nbytes > self.limit:
            raise OutOfDeviceMemory("the device is full")
        self.allocated += nbytes
        self.blocks += 1
        return Block(self.blocks, nbytes)

    def release(self, block: Block) -> None:
        tell(self.checker, Released("release", block.number))
        self.allocated -= block.nbytes


def tell(checker: HazardChecker, entry: Entry) -> None:
    hazards = checker.take(entry)
    if hazards:
        raise Violation("\n".join(map(str, hazards)))


@attrs.define(eq=False)
class Chunk:
    """What is enqueued: for which request, what it waits for, and its blocks, its own last.

    One whose branches are on several streams is a part on each, of which the first has an end that nobody is told of.
    """

    request: int
    event: Event
    waits: tuple[Event, ...]
    blocks: tuple[Block, ...]
    begun: bool = False
    whole: bool = True
    told: bool = True


@attrs.define(eq=False)
class Request:
    """A request; *doing* is one of wait, prepare, launch, run, over, gone. Parts of its chunk end at *beside*."""

    sizes: tuple[int, ...]
    doing: str = "new"
    chunk: int = 0
    stream: int = 0
    leases: list[Lease] = attrs.Factory(list)
    blocks: tuple[Block, ...] = ()
    events: list[Event] = attrs.Factory(list)
    beside: tuple[Event, ...] = ()


class World:
    """Requests, the scheduler, the pool and the streams.

    Args:
        requests: For each the sizes of the arenas of its chunks.
        streams: How many.
        policy: Its name.
        limit: Bytes of the pool.
        max_in_flight: Of the scheduler.
        cancels: Whether requests may be cancelled at any time, and chunks may fail to be enqueued.
        reuse: Of the pool.
        branches: Whether chunks are spread over the streams that are idle.
        check: Whether the scheduler checks itself after each step.
    """

    def __init__(
        self,
        requests: Sequence[Sequence[int]],
        *,
        streams: int = 2,
        policy: str = "fifo",
        limit: int = 1 << 30,
        max_in_flight: int = 64,
        cancels: bool = True,
        reuse: bool = True,
        branches: bool = False,
        check: bool = True,
    ) -> None:
        self.policy: Any = make_policy(policy)
        self.state = SchedulerState(streams, self.policy, max_in_flight=max_in_flight, story_length=0)
        self.checker = HazardChecker(streams)
        self.timeline = Timeline(streams)
        self.memory = Memory(limit, self.checker)
        self.pool = MemoryPool(self.memory, self.timeline, limit, reuse=reuse)  # type: ignore[arg-type]
        self.requests = [Request(tuple(sizes)) for sizes in requests]
        self.streams: list[deque[Chunk]] = [deque() for _ in range(streams)]
        self.ended = [0] * streams  # the newest stamp that the stream has passed, whether it was reported or not
        self.stamps = [0] * streams
        self.untold: list[deque[int]] = [deque() for _ in range(streams)]  # the stamps that are to be reported
        self.cancels = cancels
        self.branches = branches
        self.spread = 0
        self.check = check
        self.refused = 0

    def steps(self) -> list[Step]:
        """Everything that can happen next."""
        found: list[Step] = []
        for number, request in enumerate(self.requests, 1):
            match request.doing:
                case "new":
                    if number == 1 or self.requests[number - 2].doing != "new":  # one after the other
                        found.append(Step("submit", number))
                case "prepare" if self.timeline.pending(request.beside):
                    pass  # not all of its streams have told that they are through with it
                case "prepare":
                    found.append(Step("ready" if request.chunk < len(request.sizes) else "end", number))
                case "launch":
                    found.append(Step("launch", number))
                    if self.cancels:
                        found.append(Step("break", number))
            if self.cancels and request.doing not in ("new", "gone"):
                found.append(Step("cancel", number))
        for stream, queue in enumerate(self.streams):
            if queue and queue[0].begun:
                found.append(Step("finish", stream))
            if self.untold[stream] and self.ended[stream] >= self.untold[stream][0]:
                found.append(Step("report", stream))
        return found

    def take(self, step: Step) -> None:
        """Let it happen."""
        what, number = step
        match what:
            case "submit":
                self.requests[number - 1].doing = "wait"
                self.tell(Submitted(number, number % 2))
            case "ready":
                self.requests[number - 1].doing = "wait"
                self.tell(Ready(number))
            case "launch" | "break":
                self.launch(number, whole=what == "launch")
            case "end" | "cancel":
                self.end(number)
            case "finish":
                self.finish(number)
            case "report":
                self.report(number)
        self.begin()
        if self.check:
            self.state.check()
        statistics = self.pool.statistics()
        if not statistics.active + statistics.held == self.memory.allocated <= statistics.limit:
            raise Violation(f"{self.pool!r}, {self.memory!r}")

    def tell(self, happening: Happening) -> None:
        for instruction in self.state.handle(happening):
            request = self.requests[instruction.request - 1]
            match instruction:
                case Admit():
                    self.expect(request.doing == "wait", instruction)
                    request.doing = "prepare"
                case LaunchChunk(_, stream):
                    self.expect(request.doing == "wait", instruction)
                    request.doing, request.stream = "launch", stream
                case Resume(_, event):
                    self.expect(request.doing == "run" and self.timeline.reached(event), instruction)
                    request.doing, request.chunk = "prepare", request.chunk + 1

    def expect(self, so: bool, what: object) -> None:
        if not so:
            raise Violation(f"{what}: {self.state!r}")

    def launch(self, number: int, *, whole: bool) -> None:
        request = self.requests[number - 1]
        stream, nbytes = request.stream, request.sizes[request.chunk]
        try:
            lease, waits = self.pool.acquire(nbytes, stream)
        except OutOfDeviceMemory:
            self.refused += 1
            if not any(self.streams) and list(self.ended) == [self.timeline.passed(s) for s in range(len(self.ended))]:
                self.end(number)  # else it tries again when the streams have come further
            return
        request.leases.append(lease)
        request.blocks += (lease.allocation,)
        beside = [s for s in self.state.idle_streams if s != stream] if self.branches else []
        own = request.blocks[-1]
        if beside:
            self.spread += 1
            begin = self.enqueue(number, stream, waits, Region(0, own.nbytes), write=True, told=False)
            request.beside = tuple(self.enqueue(number, s, (begin,), Region(s, 1), write=True) for s in beside)
            request.events += request.beside
            for event in request.beside:
                self.state.abandoned(event)
            joined = request.beside if whole else ()
            event = self.enqueue(number, stream, joined, Region(0, own.nbytes if whole else 0), whole=whole)
        else:
            event = self.enqueue(number, stream, waits, Region(0, own.nbytes), write=True, whole=whole)
        request.events.append(event)
        if whole:
            request.doing = "run"
            self.tell(Launched(number, event))
        else:
            self.state.abandoned(event)
            self.end(number)

    def enqueue(
        self,
        number: int,
        stream: int,
        waits: tuple[Event, ...],
        region: Region,
        *,
        write: bool = False,
        told: bool = True,
        whole: bool = True,
    ) -> Event:
        """Enqueue a chunk, or a part of one, which reads the blocks before its own and uses *region* of that."""
        request = self.requests[number - 1]
        for event in waits:
            tell(self.checker, Waited(stream, event))
        *before, own = request.blocks
        accesses = [ByteAccess(b.number, Region(0, b.nbytes), False) for b in before]
        accesses.append(ByteAccess(own.number, region, write))
        tell(self.checker, Enqueued(stream, f"request {number}, chunk {request.chunk}", tuple(accesses)))
        self.stamps[stream] += 1
        event = Event(stream, self.stamps[stream])
        tell(self.checker, Marked(event))
        self.streams[stream].append(Chunk(number, event, waits, request.blocks, whole=whole, told=told))
        if told:
            self.untold[stream].append(event.stamp)
        return event

    def end(self, number: int) -> None:
        request = self.requests[number - 1]
        request.doing = "gone"
        for lease in request.leases:
            lease.drop(after=request.events)
        self.tell(Ended(number))

    def begin(self) -> None:
        """Every chunk that may begin does: the sooner, the more it finds that is not over."""
        for queue in self.streams:
            if queue and not queue[0].begun and all(self.ended[s] >= stamp for s, stamp in queue[0].waits):
                chunk = queue[0]
                chunk.begun = True
                *before, own = chunk.blocks
                for block in before:
                    self.expect(block.holds == chunk.request, (chunk, block))
                own.holds = chunk.request

    def finish(self, stream: int) -> None:
        chunk = self.streams[stream].popleft()
        for block in chunk.blocks:
            self.expect(block.holds == chunk.request, (chunk, block))
        self.ended[stream] = chunk.event.stamp

    def report(self, stream: int) -> None:
        event = Event(stream, self.untold[stream].popleft())
        self.timeline.advance(event)
        tell(self.checker, Seen(event))
        self.tell(Reached(event))

    def finished(self) -> None:
        """Nothing can happen any more: nothing may be left."""
        self.expect(all(r.doing == "gone" for r in self.requests), "a request cannot go on")
        self.expect(self.state.idle, "the scheduler is not idle")
        self.expect(self.pool.statistics().leases == 0, self.pool)
        self.expect(self.checker.in_flight == 0, self.checker)
        self.pool.close()
        self.expect(self.memory.allocated == 0, self.memory)

    def key(self) -> object:
        """What the future depends on."""
        blocks: dict[int, int] = {}

        def name(block: Block) -> tuple[int, int, int]:
            return blocks.setdefault(block.number, len(blocks)), block.nbytes, block.holds

        requests = tuple(
            (r.doing, r.chunk, r.stream, tuple(map(name, r.blocks)) if r.doing != "gone" else (), r.beside)
            for r in self.requests
        )
        queues = tuple(
            tuple((c.request, c.waits, c.begun, c.whole, c.told, tuple(map(name, c.blocks))) for c in queue)
            for queue in self.streams
        )
        free = tuple((name(b.allocation), self.timeline.pending(b.busy_until)) for b in self.pool.free)
        inside = tuple(self.state.requests.items())
        waiting = tuple(self.state.waiting)
        ready = tuple(self.policy.ready)
        return requests, queues, free, inside, waiting, ready, tuple(self.ended), repr(self.timeline), repr(self.state)


@attrs.frozen
class Explored:
    """How much was explored.

    Attributes:
        states: Different ones.
        ends: Those in which nothing can happen any more.
        complete: Whether nothing was left out.
    """

    states: int
    ends: int
    complete: bool


def explore(world: World, most: int) -> Explored:
    """Go every way from *world*, each state once, up to *most* states; a `Violation` says the way there."""
    todo: list[tuple[World, tuple[Step, ...]]] = [(world, ())]
    seen: set[object] = {world.key()}
    ends = 0
    while todo:
        current, way = todo.pop()
        steps = current.steps()
        if not steps:
            ends += 1
            replayed(current, way, None)
        for place, step in enumerate(steps):
            after = current if place == len(steps) - 1 else copy.deepcopy(current)
            replayed(after, way, step)
            key = after.key()
            if key not in seen:
                if len(seen) >= most:
                    return Explored(len(seen), ends, False)
                seen.add(key)
                todo.append((after, (*way, step)))
    return Explored(len(seen), ends, True)


def replayed(world: World, way: Iterable[Step], step: Step | None) -> None:
    try:
        world.finished() if step is None else world.take(step)
    except Exception as error:
        error.add_note("after " + ", ".join(f"{s.what} {s.number}" for s in (*way, *([] if step is None else [step]))))
        raise


def random_world(chance: random.Random, *, check: bool) -> World:
    """A few requests in more or less memory, under either policy."""
    count = chance.randrange(2, 9)
    requests = [[chance.choice((3000, 5000)) for _ in range(chance.randrange(1, 4))] for _ in range(count)]
    return World(
        requests,
        streams=chance.randrange(1, 4),
        policy=chance.choice(policy_names()),
        limit=chance.choice((1 << 13, 3 << 12, 1 << 14, 1 << 16)),
        max_in_flight=chance.choice((1, 2, 64)),
        cancels=True,
        reuse=chance.random() < 0.9,
        branches=chance.random() < 0.3,
        check=check,
    )


def random_schedule(seed: int, *, check: bool = False) -> World:
    """One schedule, which the seed decides; raises `Violation` with the seed and the way that led there.

    It also decides how often requests are cancelled, whose memory is what others take over from another stream, and
    how fast the streams are.
    """
    chance = random.Random(seed)
    goes_on, speed = chance.choice((1.0, 0.95, 0.8)), chance.choice((1.0, 0.3, 0.1))
    world = random_world(chance, check=check)
    way: list[Step] = []
    try:
        while steps := world.steps():
            if chance.random() < goes_on:
                steps = [s for s in steps if s.what not in ("cancel", "break")] or steps
            if chance.random() > speed:
                steps = [s for s in steps if s.what not in ("finish", "report", "launch")] or steps
            step = chance.choice(steps)
            way.append(step)
            world.take(step)
        world.finished()
    except Exception as error:
        error.add_note(f"seed {seed}, after " + ", ".join(f"{s.what} {s.number}" for s in way))
        raise
    return world
