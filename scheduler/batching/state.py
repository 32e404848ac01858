"""Which waiting requests run as one, and when.

Everything that decides this is in this folder. It does no I/O, does not wait, knows neither arrays nor devices, and is
told the time: the same happenings give the same instructions.

A request *waits* until a `LaunchBatch` names it, or until it is refused; then it is a *member* of that batch until
the batch is over. A batch is *launched*, then *begun* (from then on its members are fixed), then over. A stream that
has nothing to do gets a batch at once, unless two batches of many rows keep the device busy: a third would only divide
the same requests into smaller ones. Where there is only one stream, the next batch may be enqueued behind the running
one, to keep the device busy between the two. Only for that second place is a request held back, and only as long as
waiting for company promises to gain more time than it costs. Where there are several streams, the others keep the
device busy, and it is not known here behind which of them a batch would go.
"""

from __future__ import annotations

import math
from collections import deque
from typing import assert_never

import attrs

from asyncrt.scheduler.happenings import InvalidHappening

from .admission import SOONEST_S, DelayAllowance, Typical, backlog_s, retry_s
from .batch_shape import BatchShape
from .cost import CostModel, Line
from .group import BatchGroup, form_group, most_rows
from .happenings import Arrived, BatchFinished, Began, Closing, Failed, Happening, Left, Ticked
from .instructions import REASONS, REFUSALS, Drop, Instruction, LaunchBatch, Reason, Refusal, Reject, WakeAt
from .options import USUAL_ROWS, BatchOptions
from .recent_shapes import RecentShapes
from .waiting import QueuedRequest, WaitingQueue, waiting

_LEAD_S = 0.0005  # what the host needs from the end of a batch until the device has the next
_PLAN_S = 0.0003  # what the host needs for a plan of sizes that are new
_PAIR = 2  # batches that keep a device busy: one is at work while the host gives the other's answers and makes the next
_COUNTS = ("requests", "executions", "rows", "members", "work", "padding", "left", "failed")
_RATE = 1 / 16  # weight of the newest gap between arrivals


@attrs.frozen
class BatchingStatistics:
    """What was batched.

    Attributes:
        requests: Requests that came.
        waiting: Those that wait now.
        waiting_nbytes: Bytes of their inputs.
        in_flight: Batches launched and not over.
        executions: Batches begun.
        rows: Their rows.
        members: Their requests.
        work: Elements of their inputs, padding included.
        padding: Elements of that which were padding.
        reasons: How many of them went for each reason; the sum is `executions`.
        left: Requests whose callers were gone before they were in a batch that began.
        rejected: Requests refused, for each reason.
        failed: Batches whose members had to run alone.
    """

    requests: int
    waiting: int
    waiting_nbytes: int
    in_flight: int
    executions: int
    rows: int
    members: int
    work: int
    padding: int
    reasons: dict[Reason, int]
    left: int
    rejected: dict[Refusal, int]
    failed: int

    @property
    def mean_batch(self) -> float:
        """Requests of a batch, on average."""
        return self.members / self.executions if self.executions else 0.0

    @property
    def padding_share(self) -> float:
        """The share of all work that was padding."""
        return self.padding / self.work if self.work else 0.0


@attrs.define
class _Hold:
    """A group is held back.

    Attributes:
        until: When to look again.
        turn: Of the oldest in it.
        due: What comes and is due before that may not be held back so long.
        rows, work: How much must come before it could be full.
    """

    until: float
    turn: float
    due: float
    rows: int
    work: float

    def stands(self, request: QueuedRequest, at: float) -> bool:
        """Whether *request*, which has come now, changes nothing."""
        self.rows -= request.rows
        self.work -= request.work
        enough = self.rows <= 0 or self.work <= 0
        return not enough and at < self.until and request.turn >= self.turn and request.due >= self.due


@attrs.define(eq=False)
class _Batch:
    number: int
    form: BatchShape
    members: dict[int, QueuedRequest]
    reason: Reason
    #: When a stream had nothing else to do; None while it is behind another batch.
    started: float | None
    #: When the device should begin it.
    begins: float
    rows: int
    #: Seconds that it has taken of the device.
    used: float = 0.0
    begun: bool = False
    dropped: bool = False


class BatchingState:
    """All requests to one model.

    Args:
        streams: Batches that the devices run at once.
        options: The knobs.
        devices: How many share these streams.
        story_length: Happenings and instructions remembered for `story()`.
    """

    def __init__(self, streams: int, options: BatchOptions, *, devices: int = 1, story_length: int = 4096) -> None:
        self.streams = options.max_in_flight or streams
        self._most_batches = max(self.streams, 2)
        #: Batches of many rows that are in flight at once.
        self._enough = options.max_in_flight or min(self.streams, _PAIR * devices)
        self._many = USUAL_ROWS * devices
        self.options = options
        #: Seconds from when a batch begins until it is over, whatever else runs.
        self.cost = CostModel()
        #: Seconds that it takes of the device: those in which several run are divided among them.
        self.share = CostModel()
        self._queue = WaitingQueue(options.ageing_s)
        self._batches: dict[int, _Batch] = {}
        self._retries: dict[int, QueuedRequest] = {}
        #: The batch of each member.
        self._batch_of: dict[int, int] = {}
        self._launched = 0
        self._now = -math.inf
        #: Until when the time was divided among those that ran.
        self._divided = 0.0
        self._closing = False
        self._wake: float | None = None
        #: Why nobody is launched, if only time or enough of company can change that.
        self._hold: _Hold | None = None
        self._ran = RecentShapes()
        self._typical = Typical()
        self._allowance = DelayAllowance()
        #: Seconds between arrivals lately, and when the newest was.
        self._gap: float | None = None
        self._arrived: float | None = None
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._reasons: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self._rejected: dict[Refusal, int] = dict.fromkeys(REFUSALS, 0)
        self._log: deque[Happening | Instruction] = deque(maxlen=story_length)

    def __repr__(self) -> str:
        return (
            f"<BatchingState {len(self._queue)} waiting, {len(self._retries)} to run alone, {len(self._batches)} of "
            f"{self.streams} batches in flight, {self._counts['executions']} executions, {self.cost!r}>"
        )

    @property
    def idle(self) -> bool:
        """Whether nobody waits and nothing is in flight."""
        return not (self._queue or self._retries or self._batches)

    @property
    def in_flight(self) -> list[int]:
        """The batches that were launched and are not over, oldest first."""
        return list(self._batches)

    def statistics(self) -> BatchingStatistics:
        """Return what was batched so far."""
        c = self._counts
        return BatchingStatistics(
            requests=c["requests"],
            waiting=len(self._queue) + len(self._retries),
            waiting_nbytes=self._queue.nbytes,
            in_flight=len(self._batches),
            executions=c["executions"],
            rows=c["rows"],
            members=c["members"],
            work=c["work"],
            padding=c["padding"],
            reasons=dict(self._reasons),
            left=c["left"],
            rejected=dict(self._rejected),
            failed=c["failed"],
        )

    def members(self, batch: int) -> tuple[int, ...]:
        """Return the members that a launched batch still has."""
        return tuple(self._batches[batch].members)

    def story(self, request: int) -> list[str]:
        """Return what is remembered of a request: its happenings and instructions, in order, and its batches'."""
        found: list[str] = []
        batches: set[int] = set()
        for entry in self._log:
            if isinstance(entry, LaunchBatch) and request in entry.requests:
                batches.add(entry.batch)
            if getattr(entry, "request", None) == request or getattr(entry, "batch", None) in batches:
                found.append(repr(entry))
        return found

    def begin_at_once(self, arrived: Arrived) -> int | None:
        """Take note of a request that is launched when it comes, by itself and as it came, and has begun.

        It is what `handle()` of *arrived*, and of `Began` at the same time, would come to, for half the time: this is
        the way of a lone caller's every request.

        Returns:
            The batch; None if `handle()` may come to something else, and then nothing has changed.
        """
        at, batches = arrived.at, self._batches
        if not self._has_idle_stream or self._closing or at < self._now or arrived.due <= at:
            return None
        if self.options.mode == "buckets" or arrived.request in self._batch_of:
            return None
        # Nobody waits, as a stream has nothing to do; so nobody is to be looked after beside this one.
        request = self._came(arrived)
        launch = self._launch([request], request.form, request.rows, "idle", at)
        number = launch.batch
        self._begin(batches[number], at)
        self._now = at
        self._log.extend((arrived, launch, Began(at, number)))
        return number

    def handle(self, happening: Happening) -> list[Instruction]:
        """Take note of *happening* and return what is to be done now, in order.

        Raises:
            InvalidHappening: It cannot be; nothing has changed.
        """
        at = happening.at
        if at < self._now:
            raise InvalidHappening(f"{happening!r}: it is {self._now} already")
        given: list[Instruction] = []
        match happening:
            case Arrived():
                request = self._arrive(happening, given)
                no_place = not self._has_place
                if request is not None and (no_place or (self._hold is not None and self._hold.stands(request, at))):
                    self._now = at
                    self._log.append(happening)
                    return given
            case BatchFinished():
                batch = self._expect(happening, happening.batch)
                self._divide(at)
                if happening.typical:
                    self._learn(batch, at)
                self._over(batch, at)
            case Left(_, number):
                self._leave(number, given)
            case Began(_, number):
                batch = self._expect(happening, number)
                if batch.begun or not batch.members:
                    state = "begun before" if batch.begun else "no members"
                    raise InvalidHappening(f"{happening!r}: it has {state}; {self!r}")
                self._begin(batch, at)
            case Failed(_, number, too_large):
                batch = self._expect(happening, number)
                if too_large:
                    most = max(batch.rows * batch.form.per_row // 2, 1)
                    self.options = attrs.evolve(self.options, max_work=min(self.options.max_work or most, most))
                self._counts["failed"] += 1
                self._divide(at)
                self._over(batch, at)
                self._retries.update(batch.members)
            case Ticked():
                self._wake = None
            case Closing():
                self._closing = True
            case _:
                assert_never(happening)
        self._now = at
        self._log.append(happening)
        self._hold = None
        if self._queue or self._retries:
            self._release(at, given)
        wake = None if self._hold is None else self._hold.until
        if wake != self._wake:
            self._wake = wake
            given.append(WakeAt(wake))
        self._log.extend(given)
        return given

    def check(self) -> None:
        """Raise AssertionError unless the state is consistent. For tests: after every happening it must hold."""
        queue, options = self._queue, self.options
        assert len(queue) <= options.max_queue, self
        assert queue.nbytes == sum(w.nbytes for w in queue), self
        order = [(w.turn, w.number) for w in queue]
        assert order == sorted(order), self
        members = [m for b in self._batches.values() for m in b.members]
        known = [w.number for w in queue] + list(self._retries) + members
        assert len(known) == len(set(known)), self
        assert self._batch_of == {m: b.number for b in self._batches.values() for m in b.members}, self
        assert all(b.members or b.dropped for b in self._batches.values()), self
        assert len(self._batches) <= self._most_batches, self
        # Whoever waits does so because every stream has something to do.
        assert not (queue or self._retries) or not self._has_idle_stream, self
        assert sum(self._reasons.values()) == self._counts["executions"], self
        assert self._wake is None or self._wake > self._now, self

    @property
    def _places(self) -> int:
        """How many batches may be in flight now, each on a stream of its own."""
        if len(self._batches) < self._enough or sum([b.rows for b in self._batches.values()]) < self._many:
            return self.streams
        return self._enough

    @property
    def _has_idle_stream(self) -> bool:
        """Whether a stream has nothing to do, and may have a batch."""
        return len(self._batches) < self._places

    @property
    def _has_place(self) -> bool:
        """Whether a batch may be launched now, be it behind one that runs."""
        return self._has_idle_stream or (self.streams == 1 and len(self._batches) < self._most_batches)

    # Happenings.

    def _expect(self, happening: Happening, number: int) -> _Batch:
        batch = self._batches.get(number)
        if batch is None:
            raise InvalidHappening(f"{happening!r}: there is no such batch in flight; {self!r}")
        return batch

    def _arrive(self, arrived: Arrived, given: list[Instruction]) -> QueuedRequest | None:
        number, at = arrived.request, arrived.at
        if number in self._queue or number in self._batch_of or number in self._retries:
            raise InvalidHappening(f"{arrived!r}: it came before; its story: {self.story(number)}")
        if self._closing:
            raise InvalidHappening(f"{arrived!r}: it comes after Closing")
        request = self._came(arrived)
        if self._has_idle_stream and request.due > at:
            # Nobody waits, or this could not be: it goes at once. What is expected of it is not asked, because that may
            # be wrong, and only a run can tell.
            given.append(self._launch([request], request.form, request.rows, "idle", at))
            return None
        rejection = self._refusal(request, at)
        if rejection is not None:
            self._reject(rejection, given)
            return None
        self._queue.add(request)
        return request

    def _came(self, arrived: Arrived) -> QueuedRequest:
        self._counts["requests"] += 1
        if self._arrived is not None:
            gap = arrived.at - self._arrived
            self._gap = gap if self._gap is None else self._gap + _RATE * (gap - self._gap)
        self._arrived = arrived.at
        return waiting(arrived, self.options)

    def _leave(self, number: int, given: list[Instruction]) -> None:
        if self._queue.take(number) is not None or self._retries.pop(number, None) is not None:
            self._counts["left"] += 1
            return
        batch = self._batches.get(self._batch_of.get(number, -1))
        if batch is None:
            return
        del batch.members[number], self._batch_of[number]
        self._counts["left"] += not batch.begun
        if not batch.members:
            batch.dropped = True
            given.append(Drop(batch.number))

    def _begin(self, batch: _Batch, at: float) -> None:
        self._divide(at)
        batch.begun = True
        rows = own = 0
        for member in batch.members.values():
            rows += member.rows
            own += member.work
        batch.rows, work = rows, rows * batch.form.per_row
        self._reasons[batch.reason] += 1
        counts = self._counts
        counts["executions"] += 1
        counts["rows"] += rows
        counts["members"] += len(batch.members)
        counts["work"] += work
        counts["padding"] += work - own

    def _divide(self, at: float) -> None:
        """Divide the time since they were others among those that ran; not what the host needed to begin them."""
        passed, self._divided = at - self._divided, at
        if passed:
            running = [b for b in self._batches.values() if b.begun and b.started is not None]
            for batch in running:
                batch.used += passed / len(running)

    def _learn(self, batch: _Batch, at: float) -> None:
        """A batch has answered its members."""
        if batch.begun and batch.started is not None:
            kind, work = batch.form.kind, batch.rows * batch.form.per_row
            self.cost.observe(kind, work, at - batch.started)
            self.share.observe(kind, work, batch.used)
        self._ran.saw(batch.form, batch.rows)
        for member in batch.members.values():
            if member.expected is not None:
                self._saw(member, at)

    def _over(self, batch: _Batch, at: float) -> None:
        del self._batches[batch.number]
        if batch.started is not None and self._batches:
            behind = next((b for b in self._batches.values() if b.started is None), None)
            if behind is not None:
                behind.started = at
        for number in batch.members:
            del self._batch_of[number]

    # Admission.

    def _refusal(self, request: QueuedRequest, at: float) -> Reject | None:
        options, queue = self.options, self._queue
        if len(queue) >= options.max_queue or queue.nbytes + request.nbytes > options.max_queue_bytes:
            why: Refusal = "count" if len(queue) >= options.max_queue else "bytes"
            return Reject(request.number, why, max(self._until_free(at), SOONEST_S))
        line = self._line(request.form) if request.strict else None
        if line is not None:
            ahead = backlog_s(self._queue.ahead(request.turn), line, self._typical, self.options, self._enough)
            before, own = self._until_free(at) + ahead, line.at_least(request.form.per_row * request.rows)
            request.expected, allowed = before + own, (request.due - at) / self._allowance.factor
            if request.expected > allowed:
                return Reject(request.number, "late", retry_s(before, own, allowed))
        return None

    def _saw(self, request: QueuedRequest, at: float) -> None:
        """A request had its answer, or it is too late for one."""
        if request.expected is not None:
            self._allowance.saw(request.expected, at - request.arrived, request.due - request.arrived)

    def _until_free(self, at: float) -> float:
        """Seconds until a stream should have nothing to do, and may have."""
        places = self._places
        if len(self._batches) < places:
            return 0.0
        ends = sorted(b.begins + self._expected(b) for b in self._batches.values())
        return max(ends[len(ends) - places] - at, 0.0)

    def _expected(self, batch: _Batch) -> float:
        line = self._line(batch.form)
        return 0.0 if line is None else line.at_least(batch.rows * batch.form.per_row)

    def _reject(self, rejection: Reject, given: list[Instruction]) -> None:
        self._rejected[rejection.why] += 1
        given.append(rejection)

    # Release.

    def _release(self, at: float, given: list[Instruction]) -> None:
        """Launch what is to go now."""
        while self._has_idle_stream and self._retries:
            request = self._retries.pop(next(iter(self._retries)))
            # As it came: a model may have failed because it does not take sizes that were rounded up.
            given.append(self._launch([request], request.own, request.rows, "retry", at))
        while not self._retries and self._has_place:
            head = self._queue.first()
            if head is None:
                return
            line = self._line(head.form)
            if self._is_missed(head, line, at):
                self._queue.take(head.number)
                self._saw(head, at)
                self._reject(Reject(head.number, "missed", max(self._until_free(at), SOONEST_S)), given)
                continue
            share = self.share.cautious(head.form.kind)
            group = form_group(self._queue, head, self.options, line, share, at, at + self._until_free(at))
            reason, until = self._reason(group, line, share, at)
            if reason is None:
                self._hold = self._held(group, head, until, line, share)
                return
            self._queue.take_all(group.members)
            if self.options.mode == "cost" and len(group.members) > 1:
                group.form = self._ran.fitting(group.form, group.rows, self._most(group, share))
            if len(self._queue) >= group.rows:
                self._typical.saw(group.rows, group.own / max(group.work, 1))
            given.append(self._launch(group.members, group.form, group.rows, reason, at))

    def _most(self, group: BatchGroup, share: Line | None) -> float:
        """How much work a batch may become for the sake of a plan that is there already."""
        most = min(group.own / (1 - self.options.max_waste), self.options.max_work or math.inf)
        if share is not None and share.told and share.per_work:
            most = min(most, group.work + _PLAN_S / share.per_work)
        return most

    def _held(
        self, group: BatchGroup, head: QueuedRequest, until: float, line: Line | None, share: Line | None
    ) -> _Hold:
        options = self.options
        work = ((options.max_work or math.inf) - group.work) * (1 - options.max_waste)
        due = until + (0.0 if line is None else 2 * line(group.work) + _LEAD_S)
        return _Hold(until, head.turn, due, most_rows(options, group.work, share) - group.rows, work)

    def _is_missed(self, head: QueuedRequest, line: Line | None, at: float) -> bool:
        """Whether it is of no use to run it. While nothing runs the model of cost is not believed."""
        if not head.strict:
            return False
        expected = 0.0 if line is None or not self._batches else line.at_least(head.rows * head.form.per_row)
        return at + expected > head.due

    def _reason(
        self, group: BatchGroup, line: Line | None, share: Line | None, at: float
    ) -> tuple[Reason | None, float]:
        """Why the group goes now; or None, and when to ask again."""
        if self._has_idle_stream:
            return "idle", at
        if group.full:
            return "full", at
        if self._closing:
            return "closing", at
        # It would go behind a batch that runs. Until that one is over company costs nothing, but for the time that the
        # host needs to enqueue it, in which the device would have nothing to do.
        free = at + self._until_free(at)
        if line is None:
            free = min(m.arrived for m in group.members)
        held = free + self.options.max_delay
        if at >= held:
            return "delay", at
        if line is None:
            return None, held
        if at < free - _LEAD_S:
            return None, free - _LEAD_S
        last = group.due - line(group.work) - _LEAD_S
        if at >= last:
            return "deadline", at
        if share is not None and share.told and (self._gap is None or share.fixed <= self._gap):
            return "no gain", at  # what is saved by those who come is less than the time in which they do
        return None, min(held, last)

    def _launch(
        self, members: list[QueuedRequest], form: BatchShape, rows: int, reason: Reason, at: float
    ) -> LaunchBatch:
        self._launched = number = self._launched + 1
        known = {m.number: m for m in members}
        if self._has_idle_stream:
            batch = _Batch(number, form, known, reason, at, at, rows)
        else:
            batch = _Batch(number, form, known, reason, None, at + self._until_free(at), rows)
        self._batches[number] = batch
        for member in known:
            self._batch_of[member] = number
        return LaunchBatch(number, tuple(known), form.sizes, reason)

    def _line(self, form: BatchShape) -> Line | None:
        return self.cost.line(form.kind)
