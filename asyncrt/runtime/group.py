"""Sequences whose steps run together: whoever waits when the device becomes free goes with the others.

A step waits for no other sequence. It waits for the inference that the group has under way, and then for the event
loop's next turns as long as each brings another step: callers that were answered together ask again together.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from collections.abc import Sequence as Many
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from asyncrt.errors import DeadlineExceeded, DeviceError, DeviceLostError, RuntimeClosedError, SequenceError
from asyncrt.layout import Array, Layout
from asyncrt.memory.buffer import Lease
from asyncrt.scheduler.queue import RequestQueue

from .network import Network
from .plan import KeptTensor
from .rows import Member, Place, Rows, gather
from .sequence import Sequence, find_pairs, nothing
from .shared_safety import Arrays, SharedSafety, Sharing, try_out
from .stack import Part, stack, unstack
from .state_axes import NotSharable, StateAxes, Tensor, find_axes

if TYPE_CHECKING:
    from .model import Model

_log = logging.getLogger(__name__)
_TRIES = 3  # times that trying out may fail for reasons of the device
_COMPARED = 1 << 16  # bytes of an input that has to be equal; a larger one is equal to none


@attrs.frozen
class GroupStatistics:
    """Counts of a group.

    Attributes:
        steps: That have succeeded.
        inferences: That they took.
        gathered: How often state was copied on the device to lie together.
    """

    steps: int
    inferences: int
    gathered: int


@attrs.frozen(eq=False)
class _After:
    """What a step leaves: its outputs, and the sequence's state."""

    outputs: dict[int, Array]
    tensors: tuple[KeptTensor, ...]
    place: Place


@attrs.define(eq=False)
class _Step:
    """A step that waits or is under way.

    Attributes:
        arrays: Its inputs; where the state is nothing yet, also those that are kept.
        layouts: Of its state as it is, by slot.
        place: Where that is; None if nowhere yet.
        given: Whether the caller has given the state.
        rows: How many it has.
        sizes: Of the named dims.
        along: The dims that may be the past and what is appended together.
        deadline: When it is too late, by the loop's clock.
        future: What it leaves.
        alarm: Goes off at the deadline.
    """

    number: int
    arrays: Mapping[int, Array]
    layouts: tuple[Layout, ...]
    place: Place | None
    given: bool
    rows: int
    sizes: Mapping[str, int]
    along: frozenset[str]
    priority: int
    deadline: float | None
    future: asyncio.Future[_After]
    alarm: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.done()


def _order(place: Place | None) -> tuple[int, int]:
    """What lies together stays together."""
    return (0, 0) if place is None else (id(place.rows), place.row)


def _late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the step's deadline passed before its turn came", hint="allow it more time, or run fewer sequences at once"
    )


class SequenceGroup:
    """Sequences of one model whose steps run together. Made by `Model.sequences()`; use it in ``async with``."""

    def __init__(self, model: Model, network: Network, state: Mapping[str, str] | None, max_batch: int) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {max_batch}")
        self._model, self._network = model, network
        self._program = network.program
        self._state = state
        self._pairs = find_pairs(self._program, state)
        self._max_batch = max_batch
        self._axes: StateAxes | None = None
        self._sharing: SharedSafety | None = None
        try:
            self._axes = find_axes(self._program, self._pairs)
        except NotSharable as error:
            self._found(SharedSafety(Sharing.NONE, str(error)))
        if self._sharing is None and (max_batch == 1 or not network.options.share_steps):
            self._sharing = SharedSafety(Sharing.NONE, "it is switched off")
        self._sequences: set[GroupedSequence] = set()
        self._queue = RequestQueue()
        self._waiting: dict[int, _Step] = {}
        self._numbers = itertools.count()
        self._driver: asyncio.Task[None] | None = None
        self._under_way: tuple[list[_Step], asyncio.Task[list[_After]]] | None = None
        self._closed = False
        self._tries = 0
        self._steps = self._inferences = self._gathered = 0

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<SequenceGroup {len(self._sequences)} sequences, {s.steps} steps in {s.inferences} inferences>"

    @property
    def sharing(self) -> SharedSafety | None:
        """Which steps run as one inference, and why no more; None until the first two that might have waited."""
        return self._sharing

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that its sequences keep."""
        leases = {id(lease): lease for s in self._sequences for lease in s.leases()}
        return sum(lease.buffer.nbytes for lease in leases.values())

    def statistics(self) -> GroupStatistics:
        """Return counts of what was done."""
        return GroupStatistics(self._steps, self._inferences, self._gathered)

    def sequence(self) -> GroupedSequence:
        """Begin a sequence; it is used like `Model.sequence()`'s.

        Raises:
            SequenceError: The group is closed.
        """
        if self._closed:
            raise SequenceError("the group is closed", hint="begin another one with `model.sequences()`")
        sequence = GroupedSequence(self._model, self._network, self._state, self)
        self._sequences.add(sequence)
        return sequence

    async def close(self) -> None:
        """Close all of its sequences."""
        self._closed = True
        for sequence in list(self._sequences):
            await sequence.close()

    async def __aenter__(self) -> SequenceGroup:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # For its sequences.

    def left(self, sequence: GroupedSequence) -> None:
        """The sequence is closed."""
        self._sequences.discard(sequence)

    async def step(
        self,
        arrays: Mapping[int, Array],
        layouts: tuple[Layout, ...],
        place: Place | None,
        given: bool,
        priority: int,
        deadline: float | None,
    ) -> _After:
        """Run a step with whoever waits as well.

        Args:
            arrays: Its inputs; where the state is nothing yet, also those that are kept.
            layouts: Of its state as it is, by slot.
            place: Where that lies; None if nowhere yet.
            given: Whether the caller has given any of it.

        Raises:
            asyncio.CancelledError: Nothing of it is left; the others go on.
        """
        axes = self._axes
        sizes: Mapping[str, int] = {}
        along: frozenset[str] = frozenset()
        rows = 1
        if axes is not None:
            sizes, rows = axes.sizes(arrays, layouts), layouts[0].shape[axes.states[0].rows]
            along = axes.growing_along(sizes)
        loop = asyncio.get_running_loop()
        step = _Step(
            next(self._numbers), arrays, layouts, place, given, rows, sizes, along,
            priority, deadline, loop.create_future(),
        )  # fmt: skip
        if deadline is not None:
            step.alarm = loop.call_at(deadline, self._expire, step)
        self._waiting[step.number] = step
        self._queue.push(step.number, priority, deadline)
        if self._driver is None:
            self._driver = loop.create_task(self._drive())
        try:
            return await step.future
        except asyncio.CancelledError:
            self._left(step)
            raise
        finally:
            self._forget(step)

    def _left(self, step: _Step) -> None:
        """Nobody waits for the step any more."""
        future = step.future
        if future.done() and not future.cancelled() and future.exception() is None:
            future.result().place.rows.drop()  # it came too late
        if self._under_way is not None:
            steps, task = self._under_way
            if all(s.over for s in steps):
                task.cancel()

    def _forget(self, step: _Step) -> None:
        """The step waits no more."""
        if step.alarm is not None:
            step.alarm.cancel()
        if self._waiting.pop(step.number, None) is not None:
            self._queue.discard(step.number)

    def _expire(self, step: _Step) -> None:
        if step.number in self._waiting and not step.over:
            step.future.set_exception(_late())

    # The driver, which is there while steps wait.

    async def _drive(self) -> None:
        try:
            while True:
                await self._let_others_come()
                steps = self._next()
                if not steps:
                    return
                if self._sharing is None and len(steps) > 1:
                    if await self._learn(steps[0], steps[1]):
                        continue
                    steps = steps[:1]
                for step in steps:
                    self._waiting.pop(step.number)
                    self._queue.take(step.number)
                await self._run(steps)
        except Exception as error:
            for step in self._waiting.values():
                if not step.over:
                    step.future.set_exception(error)
        finally:
            self._driver = None
            for step in self._waiting.values():
                step.future.cancel()  # the loop is being closed

    async def _let_others_come(self) -> None:
        """Return after a turn of the loop that has brought no other step."""
        before = -1
        while len(self._waiting) != before:
            before = len(self._waiting)
            await asyncio.sleep(0)

    def _next(self) -> list[_Step]:
        """Return the steps that go now: the one whose turn it is, and those that may go with it."""
        steps: list[_Step] = []
        rows, wanted = 0, None
        for number in self._queue:
            step = self._waiting[number]
            if step.over:
                continue
            key = self._key(step)
            if steps and (key != wanted or rows + step.rows > self._max_batch):
                continue
            steps.append(step)
            rows, wanted = rows + step.rows, key
            if rows >= self._max_batch:
                break
        return steps

    def _key(self, step: _Step) -> Any:
        """What has to be equal where steps run as one."""
        axes, sharing = self._axes, self._sharing
        if axes is None or step.given or (sharing is not None and sharing.sharing is Sharing.NONE):
            return step.number
        any_length = self._any_length(step)
        along = step.along if sharing is None else sharing.along
        along = along | {axes.past or ""} if any_length else frozenset()
        parts: list[Any] = [any_length]
        for tensor in axes.inputs:
            array = step.arrays[tensor.id]
            parts.append(tuple([
                size for axis, (name, size) in enumerate(zip(tensor.names, array.shape, strict=True))
                if axis != tensor.rows and name not in along
            ]))  # fmt: skip
            if tensor.id in axes.fixed:
                parts.append(array.tobytes() if array.nbytes <= _COMPARED else step.number)
        parts += [
            s.shape_of(x.shape, 0, 0 if any_length else None)
            for s, x in zip(axes.states, step.layouts, strict=True)
        ]  # fmt: skip
        return tuple(parts)

    def _any_length(self, step: _Step) -> bool:
        """Whether the step may run with others whose past is shorter or longer, as far as is known."""
        axes, sharing = self._axes, self._sharing
        if axes is None or axes.past is None:
            return False
        if sharing is None:
            return True
        return sharing.sharing is Sharing.ANY_LENGTH and sharing.along <= step.along

    # Whether steps may run as one.

    async def _learn(self, *pair: _Step) -> bool:
        """Find out which steps may run as one; False if that is to be tried again."""
        assert self._axes is not None

        async def run(arrays: Arrays) -> Arrays:
            results, _ = await self._network.infer(arrays, pair[0].priority)
            return results

        steps = [(dict(s.arrays), [np.broadcast_to(np.zeros((), x.dtype.numpy), x.shape) for x in s.layouts])
                 for s in pair]  # fmt: skip
        try:
            self._found(await try_out(run, self._axes, steps, lambda id: self._program.values[id].name))
        except DeviceError as error:
            self._tries += 1
            if self._tries < _TRIES:
                return False
            self._found(SharedSafety(Sharing.NONE, f"trying it out failed: {error.message}"))
        return True

    def _found(self, found: SharedSafety) -> None:
        self._sharing = found
        level = logging.INFO if found.sharing is Sharing.ANY_LENGTH else logging.WARNING
        _log.log(level, "'%s': %s", self._program.name, found)

    # Running them.

    async def _run(self, steps: list[_Step]) -> None:
        """Run steps as one; if that fails, each by itself, for it may be the fault of one."""
        # A sequence may be closed meanwhile, if nobody waits for its step any more.
        held = [step.place.rows.hold() for step in steps if step.place is not None]
        task = asyncio.ensure_future(self._infer(steps))
        self._under_way = steps, task
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self._under_way = None
            for rows in held:
                rows.drop()
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            for step, after in zip(steps, task.result(), strict=True):
                if step.over:
                    after.place.rows.drop()
                else:
                    step.future.set_result(after)
            return
        waiting = [step for step in steps if not step.over]
        if isinstance(error, DeadlineExceeded):
            now = asyncio.get_running_loop().time()
            for step in waiting:
                if step.deadline is not None and step.deadline <= now:
                    step.future.set_exception(_late())
            await self._again([step for step in waiting if not step.over], together=True)
        elif len(steps) > 1 and not isinstance(error, DeviceLostError | RuntimeClosedError):
            await self._again(waiting, together=False)
        else:
            for step in waiting:
                step.future.set_exception(error)

    async def _again(self, steps: list[_Step], *, together: bool) -> None:
        for some in [steps] if together else [[step] for step in steps]:
            some = [step for step in some if not step.over]
            if some:
                await self._run(some)

    async def _infer(self, steps: list[_Step]) -> list[_After]:
        """Run steps as one inference; what each leaves is in the order of *steps*."""
        rows, starts = await self._together(steps)
        try:
            return await self._step_from(rows, starts, steps)
        finally:
            rows.drop()

    async def _together(self, steps: list[_Step]) -> tuple[Rows, list[int]]:
        """Return rows that hold the state of all, to be dropped, and from where on each one's are."""
        covered = sum(step.rows for step in steps)
        places = [step.place for step in steps]
        starts = list(itertools.accumulate((step.rows for step in steps), initial=0))[:-1]
        if all(place is None for place in places):
            return Rows(nothing(self._program, self._pairs), covered).hold(), starts
        if self._lie_together(steps):
            first, *_ = [place for place in places if place is not None]
            return first.rows.hold(), [place.row for place in places if place is not None]
        assert self._axes is not None
        order = sorted(range(len(steps)), key=lambda i: _order(places[i]))
        members = [Member(steps[i].layouts, steps[i].rows, places[i]) for i in order]
        moves, tensors = gather(self._axes, self._network.tools, members)
        leases, events = await self._network.move(moves, min(step.priority for step in steps))
        self._gathered += 1
        kept = nothing(self._program, self._pairs)
        kept.tensors = tuple([t for t, _ in tensors])
        kept.leases = [None if number is None else leases[number] for _, number in tensors]
        kept.after = events
        start = 0
        for i in order:
            starts[i] = start
            start += steps[i].rows
        return Rows(kept, covered).hold(), starts

    def _lie_together(self, steps: Many[_Step]) -> bool:
        """Whether the steps can start from where their state is, others' rows with them."""
        places = [step.place for step in steps]
        first = next(place for place in places if place is not None).rows
        if not first.newest or any(place is None or place.rows is not first for place in places):
            return False
        if any(self._pad(step, first) for step in steps) and not all(self._any_length(step) for step in steps):
            return False
        # Copying what lies together costs about what it costs to calculate as many rows for nothing.
        covered = sum(step.rows for step in steps)
        idle = first.count - covered
        return not idle or first.idle + idle < covered

    def _pad(self, step: _Step, rows: Rows) -> int:
        """By how much the step's past is shorter than what lies there."""
        axes = self._axes
        if axes is None or axes.past is None:
            return 0
        grows, tensor = next((s.grows, t) for s, t in zip(axes.states, rows.kept.tensors, strict=True)
                             if s.grows is not None)  # fmt: skip
        return tensor.layout.shape[grows] - step.sizes[axes.past] if tensor.layout.count else 0

    async def _step_from(self, rows: Rows, starts: list[int], steps: list[_Step]) -> list[_After]:
        axes = self._axes
        tensors = rows.kept.tensors
        along: frozenset[str] = frozenset()
        parts = [Part(s.arrays, s.sizes, s.rows, 0, start) for s, start in zip(steps, starts, strict=True)]
        if axes is None:
            arrays = dict(steps[0].arrays)
        else:
            parts = [attrs.evolve(p, pad=self._pad(s, rows)) for p, s in zip(parts, steps, strict=True)]
            if axes.past is not None and any(p.pad for p in parts):
                assert self._sharing is not None
                along = self._sharing.along | {axes.past}
            nowhere = [Tensor(s.input, s.rows, tensors[slot].layout.shape)
                       for slot, s in enumerate(axes.states) if not tensors[slot].layout.count]  # fmt: skip
            arrays = stack([*axes.inputs, *nowhere], parts, along, rows.count)
        deadlines = [step.deadline for step in steps if step.deadline is not None]
        step_state = rows.begin()
        try:
            results, records = await self._network.infer(
                arrays, min(step.priority for step in steps), kept=step_state, deadline=min(deadlines, default=None)
            )
        except BaseException:
            rows.failed(step_state)
            raise
        self._model.finished(records)
        self._steps += len(steps)
        self._inferences += 1
        after = rows.succeeded(step_state, rows.count - sum(step.rows for step in steps)).hold()
        try:
            outputs = [results if axes is None else unstack(axes.outputs, results, part, along) for part in parts]
            own = [self._left_by(step, tensors, after) for step in steps]
            return [_After(o, t, Place(after.hold(), start)) for o, t, start in zip(outputs, own, starts, strict=True)]
        finally:
            after.drop()

    def _left_by(self, step: _Step, before: Many[KeptTensor], after: Rows) -> tuple[KeptTensor, ...]:
        """A sequence's own state after its step."""
        left: list[KeptTensor] = []
        for slot, tensor in enumerate(after.kept.tensors):
            shape = tensor.layout.shape
            if self._axes is not None:
                s = self._axes.states[slot]
                past = None
                if s.grows is not None:
                    own = step.layouts[slot].shape[s.grows]
                    old = before[slot].layout
                    past = shape[s.grows] - (old.shape[s.grows] - own if old.count else 0)
                shape = s.shape_of(shape, step.rows, past)
            left.append(KeptTensor(tensor.input, tensor.output, Layout(tensor.layout.dtype, shape), shape))
        return tuple(left)


class GroupedSequence(Sequence):
    """A sequence of a `SequenceGroup`: what `Sequence` is, and its steps run with those of the others."""

    def __init__(self, model: Model, network: Network, state: Mapping[str, str] | None, group: SequenceGroup) -> None:
        super().__init__(model, network, state)
        self._group = group
        #: Its own state by itself: fewer rows, and maybe a shorter past, than there are where it lies.
        self._own = self._kept.tensors
        self._place: Place | None = None

    def __repr__(self) -> str:
        if self._closed:
            return f"<GroupedSequence closed after {self._steps} steps>"
        return f"<GroupedSequence {self._steps} steps, {len(self._inputs)} tensors, of {self._group!r}>"

    @property
    def nbytes(self) -> int:
        """Bytes of device memory where its state lies, which others' may share."""
        return sum(lease.buffer.nbytes for lease in self.leases())

    def leases(self) -> list[Lease]:
        """Return the memory where its state lies."""
        return [] if self._place is None else [x for x in self._place.rows.kept.leases if x is not None]

    @property
    def _tensors(self) -> tuple[KeptTensor, ...]:
        return self._own

    async def _step(
        self, arrays: Mapping[int, Array], given: bool, priority: int, deadline: float | None
    ) -> dict[int, Array]:
        layouts = tuple([
            Layout(t.layout.dtype, arrays[t.input].shape) if t.input in arrays else t.layout for t in self._own
        ])  # fmt: skip
        after = await self._group.step(arrays, layouts, self._place, given, priority, deadline)
        before, self._place, self._own = self._place, after.place, after.tensors
        if before is not None:
            before.rows.drop()
        return after.outputs

    def _release(self) -> None:
        if self._place is not None:
            self._place.rows.drop()
            self._place = None
        self._group.left(self)
