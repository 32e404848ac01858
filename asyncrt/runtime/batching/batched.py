"""How are requests of many callers and shapes run as few batches? What `Model.batched()` returns.

Which requests run together, and when, is decided by `scheduler/batching`; here its instructions are carried out. A
batch runs in a task of its own, so that a caller who leaves disturbs nobody; one request that is to run by itself runs
in its caller's coroutine, as `Model.infer()` would.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import anyio
import attrs

from asyncrt.arguments import check_priority, each_of
from asyncrt.errors import (
    BatchingError,
    DeadlineExceeded,
    DeviceLostError,
    OutOfDeviceMemory,
    OutOfHostMemory,
    Overloaded,
    RuntimeClosedError,
)
from asyncrt.layout import Array
from asyncrt.memory.host import HostBudget, allocating
from asyncrt.runtime.cooperative import off_loop
from asyncrt.runtime.loop.pending_request import internal
from asyncrt.runtime.loop.trio_bridge import Elsewhere, anywhere
from asyncrt.runtime.request.inputs import Checked
from asyncrt.runtime.request.network import Network
from asyncrt.runtime.request.replicas import Replicas
from asyncrt.scheduler.batching import BatchingState, BatchingStatistics, BatchOptions
from asyncrt.scheduler.batching.happenings import (
    Arrived,
    BatchFinished,
    Began,
    Closing,
    Failed,
    Happening,
    Left,
    Ticked,
)
from asyncrt.scheduler.batching.instructions import Drop, Instruction, LaunchBatch, Refusal, Reject, WakeAt

from .batch_axes import find_axes
from .invariance import Invariance
from .pad import check_pad_values, join, joined_nbytes, with_masks
from .pad_safety import PadSafety, check_pad_safety
from .split import owned, split

_log = logging.getLogger("asyncrt.batching")

_NO_BATCH = -1  # of a request that runs by itself because what decides has failed
_OPEN = "use it inside `async with model.batched() as batched`"
_REFUSED: dict[Refusal, str] = {
    "count": "as many requests wait as may (max_queue)",
    "bytes": "the inputs of those that wait have as many bytes as they may (max_queue_bytes)",
    "late": "its answer would come after its deadline",
}


class Watch(Protocol):
    """Somebody who wants to know which requests ran together."""

    def came(self) -> Any:
        """Return what is to be remembered of a request, in whose context this is called."""
        ...

    def running(self, members: list[Any], sizes: tuple[int, ...]) -> AbstractContextManager[object]:
        """Return what is entered while a batch of what `came()` returned runs; *sizes* are its rows and named dims."""
        ...


@attrs.define(eq=False)
class _Caller:
    """A caller, and what it waits for.

    Attributes:
        arrays: Checked inputs.
        sizes: Of the named dims.
        until: Its deadline, by the loop's clock.
        future: None until its caller waits.
        alone: The batch that it is the only one of, and that its caller is to run.
        begun: Whether the batch that it is in is being run.
        answer: Outputs, which are parts of a batch's unless it ran alone, or an error.
        noted: What `Watch.came()` returned.
    """

    arrays: dict[int, Array]
    rows: int
    sizes: Mapping[str, int]
    priority: int
    until: float | None
    future: asyncio.Future[None] | None = None
    alone: int | None = None
    begun: bool = False
    answer: dict[int, Array] | Exception | None = None
    noted: Any = None

    @property
    def is_cancelled(self) -> bool:
        return self.future is not None and self.future.cancelled()

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Batched:
    """A model whose requests run in batches. Made by `Model.batched()`; use it as ``async with``."""

    def __init__(
        self,
        network: Network | Replicas,
        options: BatchOptions,
        *,
        pad_values: Mapping[str, Any],
        mask: str | Iterable[str] | None,
        batch: str | None,
        samples: Iterable[Mapping[str, Any]] | None,
    ) -> None:
        self.options = options
        self._network = network
        self._axes = find_axes(network.program, batch, mask)
        self._names = {t.id: t.name for t in self._axes.outputs}
        self._values = check_pad_values(self._axes, pad_values)
        self._limit = network.tools.host_limit
        self._checked = Checked(network.program, self._limit)
        self._samples = None if samples is None else [
            self._checked.check(self._with_masks(s)) for s in each_of("samples", samples)
        ]
        self._make_state: Callable[[], BatchingState] | None = None
        self._state: BatchingState | None = None
        self._safety: PadSafety | None = None
        self._closed = False
        #: How many have asked; each has that number.
        self._came = 0
        self._requests: dict[int, _Caller] = {}
        #: By what launched it, and its number there.
        self._tasks: dict[tuple[BatchingState, int], asyncio.Task[None]] = {}
        #: The batches of which the task has begun; one that has not finds that nobody is left, and ends.
        self._begun: set[tuple[BatchingState, int]] = set()
        self._timer: asyncio.TimerHandle | None = None
        #: Set when there may be less to wait for.
        self._emptied = asyncio.Event()
        self._invariance = Invariance(self._run_checked) if options.batch_invariant else None
        #: Told of requests that wait and of batches that run; set before the first request.
        self.watch: Watch | None = None

    def __repr__(self) -> str:
        if self._state is None:
            return f"<Batched {self._network.program.name!r}, not open>"
        s = self._state.statistics()
        return (
            f"<Batched {self._network.program.name!r}{' closed' * self._closed}: {s.waiting} waiting, "
            f"{s.in_flight} in flight; {s.members} requests in {s.executions} batches, "
            f"{s.mean_batch:.1f} on average, {s.padding_share:.0%} padding>"
        )

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Where its runtime runs if that is not the loop of its callers."""
        return self._network.session.elsewhere

    @anywhere
    async def open(self) -> None:
        """Find out what is safe to pad; `async with` does it. Says through logging what is not.

        Raises:
            BatchingError: It is open already, or closed.
        """
        self._network.session.check_here()
        if self._state is not None or self._closed:
            raise BatchingError(f"it is {'closed' if self._closed else 'open already'}")
        self._loop = asyncio.get_running_loop()
        axes, decisive = self._axes, self._network.program.value_inputs
        decide = [t.name for t in axes.inputs if t.id in decisive and t.rows is not None]
        self._axes, self._safety = await check_pad_safety(
            self._run_checked, axes, self._values, self._samples,
            exact=self.options.batch_invariant,
            problem=f"the contents of '{decide[0]}' decide shapes" if decide else "",
            limit=self._limit,
        )  # fmt: skip
        if self._safety.refused or self._safety.holes:
            _log.warning("%s: %s", self._network.program.name, self._safety)
        options = self.options if self._safety.rows else attrs.evolve(self.options, max_batch=1)
        self._make_state = functools.partial(
            BatchingState, self._network.session.streams, options, devices=self._network.session.devices
        )
        self._state = self._make_state()

    async def _run_checked(self, arrays: dict[int, Array]) -> dict[int, Array]:
        self._network.session.check_open()
        results, _ = await self._network.infer(arrays)
        return results

    @property
    def pad_safety(self) -> PadSafety:
        """What was found out about padding, and why what is not padded is not."""
        if self._safety is None:
            raise BatchingError("nothing was found out yet", hint=_OPEN)
        return self._safety

    @property
    def state(self) -> BatchingState:
        """What decides; its `story()` tells a request's."""
        if self._state is None:
            raise BatchingError("it is not open", hint=_OPEN)
        return self._state

    def statistics(self) -> BatchingStatistics:
        """Return counts of what was batched, and why."""
        return self.state.statistics()

    @anywhere
    async def infer(
        self, inputs: Mapping[str, Any], *, deadline: float | None = None, priority: int = 0
    ) -> dict[str, Array]:
        """Run the model once, together with others that ask at about the same time.

        Args:
            inputs: An array for each input, of one or more rows; masks may be left out. They must not be changed
                before this returns.
            deadline: Seconds from now after which the answer is of no use. What would come later is refused at once.
            priority: Lower goes first among requests that wait.

        Returns:
            An array for each output, of its own memory.

        Raises:
            InputError: The inputs do not fit the model; nothing was enqueued, and nobody else was disturbed.
            Overloaded: Too many wait, or the answer would be late; it says when to try again.
            DeadlineExceeded: There is no answer within *deadline*.
            BatchingError: It is not open; else as `Model.infer()`.
        """
        self._network.session.check_here()
        self._check_not_closed()
        priority, until = check_priority(priority), self._network.until(deadline)
        arrays = self._checked.fitting(inputs)  # None also where masks were left out
        if arrays is None:
            arrays = await self._checked.take(self._with_masks(inputs))
            self._check_not_closed()
        self._came = number = self._came + 1
        alone = self.state.idle and await self._asks_alone(number, arrays, priority, until)
        rows, shape, sizes, nbytes = self._axes.form(arrays)
        if until is None:
            arrived = Arrived(self._loop.time(), number, shape, rows, nbytes, priority)
            return await self._answer(arrived, arrays, sizes, until, alone)
        arrived = Arrived(self._loop.time(), number, shape, rows, nbytes, priority, until, True)
        scope = asyncio.timeout_at(until)
        try:
            async with scope:
                return await self._answer(arrived, arrays, sizes, until, alone)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise DeadlineExceeded(f"no answer within {deadline:.6g} s") from error

    def _check_not_closed(self) -> None:
        if self._closed:
            raise BatchingError("it is closed", hint="make another one with `model.batched()`")
        if self._state is None:
            raise BatchingError("it is not open", hint=_OPEN)

    async def _asks_alone(
        self, number: int, arrays: Mapping[int, Array], priority: int, until: float | None
    ) -> bool:
        """Return whether a request that comes while nothing runs has nobody to be put together with, so that its
        caller's thread may run it.

        Where another one ran so in this turn of the event loop, others may come in the next: they are waited for. What
        is so brief that callers take turns is not put together: on their threads all are answered sooner.
        """
        direct = self._network.direct
        if direct is None:
            return False
        here = number == self._came
        if direct.ran or direct.crowded:
            if direct.suits(arrays):
                here = await direct.take_turn(priority, until)
            else:
                await asyncio.sleep(0)
                here = number == self._came
            self._network.session.check_here()
            self._check_not_closed()
        return here and self.state.idle

    def _with_masks(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return with_masks(self._axes, inputs, self._limit)

    def _answer(
        self, arrived: Arrived, arrays: dict[int, Array], sizes: Mapping[str, int], until: float | None, alone: bool
    ) -> Coroutine[Any, Any, dict[str, Array]]:
        """Return what gives the outputs of a request that comes now, whoever runs it; it is to be awaited at once."""
        state = self.state
        try:
            batch = state.begin_at_once(arrived)
        except Exception as failure:
            self._start_over(failure, state)
            raise internal(failure) from failure
        if batch is not None:
            return self._run_at_once(batch, arrived, arrays, until, state, here=alone)
        caller = _Caller(arrays, arrived.rows, sizes, arrived.priority, until)
        if self.watch is not None:
            caller.noted = self.watch.came()
        return self._wait(arrived, caller, state)

    async def _run_at_once(
        self,
        batch: int,
        arrived: Arrived,
        arrays: dict[int, Array],
        until: float | None,
        state: BatchingState,
        *,
        here: bool,
    ) -> dict[str, Array]:
        """Return the outputs of a request that has begun as it came."""
        try:
            outputs = await self._run_alone(batch, arrays, arrived.priority, until, state, here=here)
        except BaseException:
            self._tell(Left(self._loop.time(), arrived.request), state)
            raise
        return self._named(outputs)

    def _named(self, outputs: Mapping[int, Array]) -> dict[str, Array]:
        names = self._names
        return {names[id]: array for id, array in outputs.items()}

    async def _run_alone(
        self,
        batch: int,
        arrays: dict[int, Array],
        priority: int,
        until: float | None,
        state: BatchingState,
        *,
        here: bool = False,
    ) -> dict[int, Array]:
        """Run the only request of a batch that has begun; returns its outputs.

        Args:
            here: Whether its caller's thread may run it.
        """
        typical = False
        try:
            self._network.session.check_open()
            outcome = self._network.attempt(arrays, until) if here else None
            if outcome is None:
                outcome = await self._network.infer(arrays, priority, deadline=until, may_stand_in=True)
                typical = True
            outputs, records = outcome
            self._network.note(records)
            return outputs
        finally:
            self._tell(BatchFinished(self._loop.time(), batch, typical), state)

    async def _wait(self, arrived: Arrived, request: _Caller, state: BatchingState) -> dict[str, Array]:
        """Return the outputs of a request whose turn may come later, and which others may share a batch with."""
        # A scope of anyio around the call says when its answer is due; the scope sees to it itself if it is late. Of a
        # request that begins at once nothing hangs on that.
        due = anyio.current_effective_deadline()
        if due < arrived.due:
            arrived = arrived._replace(due=due)
        number = arrived.request
        self._requests[number] = request
        try:
            self._tell(arrived, state)
            if request.alone is None and request.answer is None:
                request.future = self._loop.create_future()
                await request.future
            alone = request.alone is not None
            if request.alone is not None:
                batch, request.alone, request.begun = request.alone, None, True
                self._tell(Began(self._loop.time(), batch), state)
                request.answer = await self._run_alone(batch, request.arrays, request.priority, request.until, state)
            if isinstance(request.answer, Exception):
                raise request.answer
            assert request.answer is not None
            return self._named(request.answer if alone else await owned(request.answer))
        finally:
            if request.answer is None:
                self._tell(Left(self._loop.time(), number), state)
                if request.alone is not None:  # it was to run it, and has not
                    self._tell(BatchFinished(self._loop.time(), request.alone, False), state)
            del self._requests[number]
            if self._closed:
                self._emptied.set()

    @anywhere
    async def close(self) -> None:
        """Let those who wait have their answers; who comes later is refused."""
        if self._state is None or self._closed or self._network.session.left_behind:
            self._closed = True
            return
        self._closed = True
        self._tell(Closing(self._loop.time()), self._state)
        while self._requests or not self._state.idle:
            self._emptied.clear()
            await self._emptied.wait()

    async def __aenter__(self) -> Batched:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # What is to be done.

    def _tell(self, happening: Happening, state: BatchingState) -> None:
        """Tell *state* what has happened, if it is still believed, and do what it asks for."""
        if state is self._state:
            try:
                for instruction in state.handle(happening):
                    self._carry_out(instruction, state)
            except Exception as failure:
                self._start_over(failure, state, getattr(happening, "request", None))
        if self._closed:
            self._emptied.set()

    def _carry_out(self, instruction: Instruction, state: BatchingState) -> None:
        match instruction:
            case LaunchBatch():
                self._launch(instruction, state)
            case Reject():
                self._reject(instruction)
            case Drop(batch):
                if (state, batch) in self._begun:
                    self._tasks[state, batch].cancel()
            case WakeAt(at):
                self._set_timer(at)

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._loop.call_at(at, self._tick)

    def _start_over(self, failure: Exception, state: BatchingState, request: int | None = None) -> None:
        """What decides, or what carries it out, raised *failure*: it is not believed any more, and another takes over.

        The *request* that it happened to fails. All others that wait would do so for ever, and run by themselves; what
        has begun goes on.
        """
        if state is not self._state or self._make_state is None:
            return
        _log.error("batching failed; all requests that wait run alone", exc_info=failure)
        self._state = self._make_state()
        self._set_timer(None)
        if request in self._requests:
            self._requests[request].answer = internal(failure)
            self._requests[request].wake()
        self._let_run_alone(self._requests.values())

    @staticmethod
    def _let_run_alone(requests: Iterable[_Caller]) -> None:
        """Let those run by themselves that nobody has told to run, or why not."""
        for request in requests:
            if request.answer is None and request.alone is None and not request.begun:
                request.alone = _NO_BATCH
                request.wake()

    def _tick(self) -> None:
        self._timer = None
        self._tell(Ticked(self._loop.time()), self.state)

    def _launch(self, launch: LaunchBatch, state: BatchingState) -> None:
        sizes = dict(zip(self._axes.padded, launch.sizes, strict=False))  # none where nothing may be padded
        if len(launch.requests) == 1:
            request = self._requests[launch.requests[0]]
            if all(request.sizes[name] == size for name, size in sizes.items()):
                request.alone = launch.batch
                request.wake()
                return
        task = self._loop.create_task(self._run(launch.batch, sizes, state), name=f"asyncrt-batch-{launch.batch}")
        self._tasks[state, launch.batch] = task

    def _reject(self, reject: Reject) -> None:
        request = self._requests[reject.request]
        if reject.why == "missed":
            request.answer = DeadlineExceeded("the answer would come after the deadline, because others went first")
        else:
            after = reject.retry_after_s
            request.answer = Overloaded(
                f"the request is refused: {_REFUSED[reject.why]}",
                hint=f"try again in {after:.3g} s, or send it to somebody else",
                retry_after_s=after,
            )
        request.wake()

    async def _answer_all(self, members: list[_Caller], sizes: Mapping[str, int]) -> bool:
        """Run requests as one; returns whether they have their answers, or should rather run alone."""
        requests = [m.arrays for m in members]
        batch = sum([m.rows for m in members]), *sizes.values()
        shapes = [] if self._invariance is None else [tuple(m.sizes.items()) for m in members]
        if self._invariance is not None and self._invariance.refuses(batch, shapes):
            return False
        nbytes = joined_nbytes(self._axes, requests[0], batch[0], sizes)
        HostBudget(self._limit).check(nbytes, f"a batch of {len(members)} requests")
        with allocating(f"a batch of {len(members)} requests"):
            arrays = await off_loop(nbytes, lambda: join(self._axes, requests, sizes, self._values))
        watched = nullcontext() if self.watch is None else self.watch.running([m.noted for m in members], batch)
        with watched:
            outputs, records = await self._network.infer(
                arrays, min(m.priority for m in members), may_stand_in=True
            )
        self._network.note(records)
        parts = [(m.rows, m.sizes) for m in members]
        answers = split(self._axes, outputs, parts)
        if self._invariance is not None and not await self._invariance.holds(batch, shapes, requests, answers):
            return False
        for member, answer in zip(members, answers, strict=True):
            member.answer = answer
        return True

    async def _run(self, batch: int, sizes: Mapping[str, int], state: BatchingState) -> None:
        """Run a batch and answer its members."""
        members: list[_Caller] = []
        worked = failed = too_large = False
        try:
            members = self._begin(batch, state)
            if members:
                self._network.session.check_open()
                worked = await self._answer_all(members, sizes)
                failed = not worked
        except asyncio.CancelledError:
            if state.members(batch):
                raise  # not because its members have left, but with the loop
        except Exception as error:
            if not members:
                self._start_over(error, state)
                return
            # Who is to blame cannot be told: each gets a run of its own, and what comes of that.
            several = len(members) > 1 or any(members[0].sizes[name] != size for name, size in sizes.items())
            failed = several and not isinstance(error, DeviceLostError | RuntimeClosedError)
            too_large = failed and isinstance(error, OutOfDeviceMemory | OutOfHostMemory)
            if not failed:
                for member in members:
                    member.answer = error
        finally:
            del self._tasks[state, batch]
            self._begun.discard((state, batch))
            self._end(batch, members, state, worked=worked, failed=failed, too_large=too_large)

    def _begin(self, batch: int, state: BatchingState) -> list[_Caller]:
        """Return the members of a batch that begins, if any are left."""
        # Who was cancelled by now is not in it, even if its task has not gone on since; who leaves later leaves an
        # answer that nobody takes.
        for number in state.members(batch):
            if self._requests[number].is_cancelled:
                self._tell(Left(self._loop.time(), number), state)
        if state is not self._state:
            return []  # they run by themselves
        members = [self._requests[n] for n in state.members(batch)]
        if members:
            for member in members:
                member.begun = True
            self._begun.add((state, batch))
            self._tell(Began(self._loop.time(), batch), state)
        return members

    def _end(
        self, batch: int, members: list[_Caller], state: BatchingState, *, worked: bool, failed: bool, too_large: bool
    ) -> None:
        """A batch is over: its members have their answers, or are to run alone if it *failed*."""
        now = self._loop.time()
        if failed:
            for member in members:
                member.begun = False
            self._tell(Failed(now, batch, too_large), state)
            if state is not self._state:  # it tells nobody to run any more
                self._let_run_alone(members)
            return
        self._tell(BatchFinished(now, batch, worked), state)
        for member in members:
            if member.answer is None:
                member.answer = RuntimeClosedError("the batch was cancelled with its event loop")
            member.wake()


def batch_options(config: BatchOptions | str | Path | None, given: Mapping[str, Any]) -> BatchOptions:
    """Return what *config* says, a record or the path of a file, where *given* says nothing (None)."""
    if config is None:
        config = BatchOptions()
    elif not isinstance(config, BatchOptions):
        config = BatchOptions.read(config)
    return attrs.evolve(config, **{name: value for name, value in given.items() if value is not None})
