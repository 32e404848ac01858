"""How do steps of many sequences on a device run together? Those that wait when it becomes free are one inference.

A step waits for no other sequence. It waits for the inference that the group has under way, and then for the event
loop's next turns as long as each brings another step: callers that were answered together ask again together.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping

import attrs
import numpy as np

from asyncrt.arguments import whole
from asyncrt.errors import (
    DeadlineExceeded,
    DeviceError,
    DeviceLostError,
    IndexOutOfRange,
    RuntimeClosedError,
    SequenceError,
)
from asyncrt.layout import Array, Layout
from asyncrt.memory.buffer import Lease
from asyncrt.runtime.loop.pending_request import internal
from asyncrt.runtime.plan.between_steps import Between
from asyncrt.runtime.request.network import Network
from asyncrt.scheduler.queue import RequestQueue

from .own_state import OwnState
from .rows import StateLocation
from .sequence import Sequence, find_pairs
from .shared_safety import Arrays, SharedSafety, Sharing, try_out
from .shared_step import After, SequenceStep, SharedSteps
from .state_axes import NotSharable, find_axes

_log = logging.getLogger(__name__)
_TRIES = 3  # times that trying out may fail for reasons of the device
_REFUSED = 32  # times that it may meet an index out of range, which is that step's fault unless every trial has one


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


def _late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the step's deadline passed before all of it was launched",
        hint="allow it more time, or run fewer sequences at once",
    )


class _ByItself(Exception):
    """A step is to be run by its own caller; it never leaves `DeviceGroup`."""


class DeviceGroup:
    """Sequences of one model on one device, whose steps run together; a part of a `SequenceGroup`."""

    def __init__(self, network: Network, state: Mapping[str, str] | None, max_batch: int) -> None:
        self._network = network
        self._program = network.program
        self._state = state
        self._pairs = find_pairs(self._program, state)
        self._max_batch = whole("max_batch", max_batch, 1)
        #: None if not even one dim is known to be the rows'.
        self._shared: SharedSteps | None = None
        self._alone = 0
        try:
            self._shared = SharedSteps(network, find_axes(self._program, self._pairs))
        except NotSharable as error:
            self._why = SharedSafety(Sharing.NONE, str(error))
            self._say(self._why)
        else:
            if self._max_batch == 1 or not network.session.options.uses("share_steps"):
                self._shared.sharing = SharedSafety(Sharing.NONE, "it is switched off")
        self._sequences: set[GroupedSequence] = set()
        self._queue = RequestQueue()
        self._waiting: dict[int, SequenceStep] = {}
        self._numbers = itertools.count()
        self._driver: asyncio.Task[None] | None = None
        self._under_way: tuple[list[SequenceStep], asyncio.Task[list[After]]] | None = None
        self._closed = False
        self._tries = self._refused = 0

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<SequenceGroup {len(self._sequences)} sequences, {s.steps} steps in {s.inferences} inferences>"

    @property
    def sharing(self) -> SharedSafety | None:
        """Which steps run as one inference, and why no more; None until the first two that might have waited."""
        return self._why if self._shared is None else self._shared.sharing

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that its sequences keep."""
        leases = {id(lease): lease for s in self._sequences for lease in s.leases()}
        return sum(lease.buffer.nbytes for lease in leases.values())

    def statistics(self) -> GroupStatistics:
        """Return counts of what was done."""
        shared = self._shared
        if shared is None:
            return GroupStatistics(self._alone, self._alone, 0)
        return GroupStatistics(shared.steps, shared.inferences, shared.gathered)

    def sequence(self) -> GroupedSequence:
        """Begin a sequence; it is used like `Model.sequence()`'s.

        Raises:
            SequenceError: The group is closed.
        """
        if self._closed:
            raise SequenceError("the group is closed", hint="begin another one with `model.sequences()`")
        sequence = GroupedSequence(self._network, self._state, self)
        self._sequences.add(sequence)
        return sequence

    @property
    def network(self) -> Network:
        """The model, on the device."""
        return self._network

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._sequences)

    async def close(self) -> None:
        """Close all of its sequences."""
        self._closed = True
        if self._network.session.left_behind:
            return
        for sequence in list(self._sequences):
            await sequence.close()

    # For its sequences.

    def left(self, sequence: GroupedSequence) -> None:
        """The sequence is closed."""
        self._sequences.discard(sequence)

    def number(self) -> int:
        """Return a number for a step."""
        return next(self._numbers)

    def stepped_alone(self) -> None:
        """A sequence has run a step by itself."""
        self._alone += 1

    @property
    def shared(self) -> SharedSteps | None:
        """What runs its steps; None if each sequence does that itself."""
        return self._shared

    async def step(self, shared: SharedSteps, step: SequenceStep) -> After:
        """Run a step with whoever waits as well.

        Raises:
            asyncio.CancelledError: Nothing of it is left; the others go on.
        """
        if shared.sharing is not None and shared.sharing.sharing is Sharing.NONE:
            return await self._by_itself(shared, step)
        loop = asyncio.get_running_loop()
        try:
            if step.deadline is not None:
                step.alarm = loop.call_at(step.deadline, self._expire, step)
            self._enter(step)
            if self._driver is None:
                self._driver = loop.create_task(self._drive(shared))
            return await step.future
        except asyncio.CancelledError:
            self._left(step)
            raise
        except _ByItself:
            return await self._by_itself(shared, step)
        finally:
            self._forget(step)

    async def _by_itself(self, shared: SharedSteps, step: SequenceStep) -> After:
        (after,) = await shared.infer([step])
        return after

    def _enter(self, step: SequenceStep) -> None:
        """The step waits from now on."""
        try:
            self._queue.push(step.number, step.priority, step.deadline)
        except Exception as failure:
            self._queue_anew(failure)
            raise internal(failure) from failure
        self._waiting[step.number] = step

    def _left(self, step: SequenceStep) -> None:
        """Nobody waits for the step any more."""
        future = step.future
        if future.done() and not future.cancelled() and future.exception() is None:
            future.result().place.rows.drop()  # it came too late
        if self._under_way is not None:
            steps, task = self._under_way
            if all(s.over for s in steps):
                task.cancel()

    def _forget(self, step: SequenceStep) -> None:
        """The step waits no more."""
        if step.alarm is not None:
            step.alarm.cancel()
        if self._waiting.pop(step.number, None) is not None:
            try:
                self._queue.discard(step.number)
            except Exception as failure:
                self._queue_anew(failure)

    def _queue_anew(self, failure: Exception) -> None:
        """The queue raised *failure*: it is not believed any more, and those that wait do so in another one."""
        _log.error("a group's queue failed", exc_info=failure)
        self._queue = RequestQueue()
        for step in self._waiting.values():
            self._queue.push(step.number, step.priority, step.deadline)

    def _expire(self, step: SequenceStep) -> None:
        if step.number in self._waiting and not step.over:
            step.future.set_exception(_late())

    # The driver, which is there while steps wait.

    async def _drive(self, shared: SharedSteps) -> None:
        steps: list[SequenceStep] = []
        try:
            while True:
                await self._let_others_come()
                steps = self._next(shared)
                if not steps:
                    return
                if shared.sharing is None and len(steps) > 1:
                    if await self._learn(shared, steps[0], steps[1]):
                        continue
                    steps = steps[:1]
                for step in steps:
                    self._waiting.pop(step.number)
                    self._queue.take(step.number)
                await self._run(shared, steps)
        except Exception as failure:
            # Nobody would ever run those that wait, nor those that were taken and not told anything.
            _log.error("a group's steps could not be put together; they run one by one", exc_info=failure)
            waiting, self._queue = [*self._waiting.values(), *steps], RequestQueue()
            self._waiting.clear()
            for step in waiting:
                if not step.over:
                    step.future.set_exception(_ByItself())
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

    def _next(self, shared: SharedSteps) -> list[SequenceStep]:
        """Return the steps that go now: the one whose turn it is, and those that may go with it."""
        steps: list[SequenceStep] = []
        rows, wanted = 0, None
        for number in self._queue:
            step = self._waiting[number]
            if step.over:
                continue
            key = shared.key(step)
            if steps and (key != wanted or rows + step.rows > self._max_batch):
                continue
            steps.append(step)
            rows, wanted = rows + step.rows, key
            if rows >= self._max_batch:
                break
        return steps

    # Whether steps may run as one.

    async def _learn(self, shared: SharedSteps, *pair: SequenceStep) -> bool:
        """Find out which steps may run as one; False if that is to be tried again."""

        async def run(arrays: Arrays) -> Arrays:
            results, _ = await self._network.infer(arrays, pair[0].priority)
            return results

        steps = [(dict(s.arrays), [np.broadcast_to(np.zeros((), x.dtype.numpy), x.shape) for x in s.state.layouts])
                 for s in pair]  # fmt: skip
        try:
            found = await try_out(run, shared.axes, steps, lambda id: self._program.values[id].name)
        except (DeviceLostError, RuntimeClosedError):
            return False  # those who wait are told so when they run
        except (DeviceError, IndexOutOfRange) as error:
            if isinstance(error, DeviceError):
                self._tries += 1
            else:
                self._refused += 1
            if self._tries < _TRIES and self._refused < _REFUSED:
                return False
            found = SharedSafety(Sharing.NONE, f"trying it out failed: {error.message}")
        shared.sharing = found
        self._say(found)
        return True

    def _say(self, found: SharedSafety) -> None:
        level = logging.WARNING if found.why else logging.INFO
        _log.log(level, "'%s': %s", self._program.name, found)

    # Running them.

    async def _run(self, shared: SharedSteps, steps: list[SequenceStep]) -> None:
        """Run steps as one; if that fails, each by itself, for it may be the fault of one."""
        # A sequence may be closed meanwhile, if nobody waits for its step any more.
        held = [step.place.rows.hold() for step in steps if step.place is not None]
        task = asyncio.ensure_future(shared.infer(steps))
        self._under_way = steps, task
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # the loop is being closed
            for step in steps:
                step.future.cancel()
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                for after in task.result():
                    after.place.rows.drop()
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
            await self._again(shared, [waiting])
        elif len(steps) > 1 and not isinstance(error, DeviceLostError | RuntimeClosedError):
            await self._again(shared, [[step] for step in waiting])
        else:
            for step in waiting:
                step.future.set_exception(error)

    async def _again(self, shared: SharedSteps, inferences: list[list[SequenceStep]]) -> None:
        for steps in inferences:
            waiting = [step for step in steps if not step.over]
            if waiting:
                await self._run(shared, waiting)


class GroupedSequence(Sequence):
    """A sequence of a `SequenceGroup`: what `Sequence` is, and its steps run with those of the others."""

    def __init__(self, network: Network, state: Mapping[str, str] | None, group: DeviceGroup) -> None:
        super().__init__(network, state)
        self._group = group
        #: None before the first step.
        self._own: OwnState | None = None
        self._place: StateLocation | None = None

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
        kept = self._kept if self._place is None else self._place.rows.kept
        return [lease for lease in kept.leases if lease is not None]

    @property
    def _between(self) -> Between:
        return self._kept.between if self._own is None else self._own.between

    async def _step(
        self, arrays: Mapping[int, Array], given: bool, priority: int, deadline: float | None
    ) -> dict[int, Array]:
        group, shared = self._group, self._group.shared
        if shared is None:
            results = await super()._step(arrays, given, priority, deadline)
            group.stepped_alone()
            return results
        state = self._own
        if state is None:
            state = OwnState.of(shared.axes.states, [
                Layout(t.layout.dtype, arrays[t.input].shape) if t.input in arrays else t.layout
                for t in self._kept.tensors
            ])  # fmt: skip
        layouts = state.layouts
        sizes = shared.axes.sizes(arrays, layouts)
        step = SequenceStep(
            group.number(), arrays, state, self._place, given, layouts[0].shape[shared.axes.states[0].rows],
            sizes, shared.axes.growing_along(sizes), priority, deadline, asyncio.get_running_loop().create_future(),
        )  # fmt: skip
        after = await group.step(shared, step)
        before, self._place, self._own = self._place, after.place, after.state
        if before is not None:
            before.rows.drop()
        return after.outputs

    def _release(self) -> None:
        super()._release()
        if self._place is not None:
            self._place.rows.drop()
            self._place = None
        self._group.left(self)
