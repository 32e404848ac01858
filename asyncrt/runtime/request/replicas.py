"""A model on several devices: on each a compiled one with its own weights and plans, and a choice for each request.

A request goes where it ends first (`asyncrt.scheduler.balancing`). What each device has to do is counted where requests
come in, so that steps of sequences count as well, which stay where their state is.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncrt.errors import DeviceLostError
from asyncrt.graph.ir import Program
from asyncrt.layout import Array
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.plan.chunk_plan import Records
from asyncrt.runtime.plan.tools import Tools
from asyncrt.scheduler.balancing import UNKNOWN_NS, Backlog, Candidate, Choice, Costs, choose

from .inputs import renamed
from .network import Instead, Network
from .session import Session
from .sessions import Sessions

if TYPE_CHECKING:
    from .warming import Progress


class Replica(Network):
    """A compiled model on one of several devices: a network whose requests are counted.

    Args:
        backlog: What the device has to do, for all models.
        costs: What requests of this model take there, and on devices like it.
    """

    def __init__(
        self, program: Program, session: Session, instead: Instead | None, *, backlog: Backlog, costs: Costs
    ) -> None:
        super().__init__(program, session, instead)
        self.backlog, self.costs = backlog, costs
        # Who has one device alone on the event loop's thread keeps the others waiting; those at work on all of its
        # streams take the thread for their beginnings and ends.
        self._aside, self.direct = self.direct, None
        self._choice: Choice | None = None

    @property
    def where(self) -> str:
        """On which device the inference was that finished last, and why."""
        return self.session.name if self._choice is None else f"{self.session.name}: {self._choice.why}"

    def note(self, records: Records, choice: Choice | None = None) -> None:
        super().note(records)
        self._choice = choice

    def candidate(self, arrays: Mapping[int, Array]) -> Candidate:
        """Return what is known of a request, were it to go here."""
        left = self.backlog.left_ns(self.session.device.clock())
        return Candidate(self.session.name, left, self.costs.of(*_kind(arrays)))

    async def infer(
        self,
        arrays: Mapping[int, Array],
        priority: int = 0,
        *,
        kept: KeptState | None = None,
        request: int | None = None,
        deadline: float | None = None,
        may_stand_in: bool = False,
    ) -> tuple[dict[int, Array], Records]:
        if request is None:
            request = self.number()
        clock, (kind, size) = self.session.device.clock, _kind(arrays)
        cost = self.costs.of(kind, size)
        self.backlog.begin(clock(), request, UNKNOWN_NS if cost is None else cost)
        missed = self._impls.missed
        try:
            outcome = None if kept is not None else await self._overlapping(arrays, priority, deadline)
            if outcome is None:
                outcome = await super().infer(
                    arrays, priority, kept=kept, request=request, deadline=deadline, may_stand_in=may_stand_in
                )
        except BaseException:
            self.backlog.drop(request)
            raise
        took = self.backlog.end(clock(), request)
        if self._impls.missed == missed and not self._impls.building:  # how long a build takes is another question
            self.costs.took(kind, size, took)
        return outcome

    async def _overlapping(
        self, arrays: Mapping[int, Array], priority: int, until: float | None
    ) -> tuple[dict[int, Array], Records] | None:
        """Run a brief request on the event loop's thread, on a stream of its own; None if it goes the general way."""
        aside = self._aside
        planned = None if aside is None else aside.overlapping(arrays)
        if aside is None or planned is None:
            return None
        return await self._overlapped(aside, planned, arrays, priority, until)

    def close(self) -> None:
        super().close()
        self._aside = None


def _kind(arrays: Mapping[int, Array]) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return what is the same for requests that take equally long, and how large a request is, in bytes."""
    return tuple([a.shape for a in arrays.values()]), sum([a.nbytes for a in arrays.values()])


class Replicas:
    """A model on several devices, as `Network` is one on one.

    Value ids are those of the first device's program; devices of another kind may have another one.

    Args:
        replicas: One for each device.

    Attributes:
        checked: Looks at the inputs of requests.
        direct: None: no request runs on its caller's thread.
    """

    direct = None

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = tuple(replicas)
        self.session = Sessions([r.session for r in replicas])
        first = replicas[0]
        self.program, self.checked = first.program, first.checked
        #: The one whose inference ended last, and why it was that.
        self._ended: tuple[Replica, Choice] | None = None

    def __repr__(self) -> str:
        return f"<Replicas {self.program!r} on {', '.join(r.session.name for r in self.replicas)}>"

    @property
    def tools(self) -> Tools:
        """What planning knows of the first device; the limits of requests are those of all."""
        return self.replicas[0].tools

    def number(self) -> int:
        """Return a number for a request; no other has it."""
        return self.replicas[0].number()

    def until(self, deadline: float | None) -> float | None:
        """Return when a deadline is by the loop's clock that is given in seconds from now."""
        return self.replicas[0].until(deadline)

    def attempt(self, arrays: Mapping[int, Array], until: float | None, *, on_loop: bool = True) -> None:
        """No request runs on its caller's thread."""

    async def attempt_in_turn(self, arrays: Mapping[int, Array], priority: int, until: float | None) -> None:
        """Likewise."""

    @property
    def there(self) -> tuple[Replica, ...]:
        """Those whose devices are not lost.

        Raises:
            DeviceLostError: All are.
        """
        found = tuple([r for r in self.replicas if not r.session.dispatcher.lost])
        if not found:
            self.session.check_open()
        return found

    def choose(self, arrays: Mapping[int, Array]) -> tuple[Replica, Choice]:
        """Return where a request goes that comes now, and why."""
        there = self.there
        candidates = [r.candidate(self._as_of(r, arrays)) for r in there]
        choice = choose(candidates)
        chosen = there[choice.chosen]
        for costs in {id(r.costs): r.costs for r in there if r.costs is not chosen.costs}.values():
            costs.passed_over(_kind(arrays)[0])
        return chosen, choice

    def _as_of(self, replica: Replica, arrays: Mapping[int, Array]) -> Mapping[int, Array]:
        """Return a request's inputs by the value ids of a replica."""
        return arrays if replica.program is self.program else renamed(arrays, self.program, replica.program)

    def placed(self, arrays: Mapping[int, Array]) -> tuple[Replica, Mapping[int, Array]]:
        """Return where a request goes that comes now, and its inputs as they are called there."""
        replica, _ = self.choose(arrays)
        return replica, self._as_of(replica, arrays)

    async def infer(
        self,
        arrays: Mapping[int, Array],
        priority: int = 0,
        *,
        deadline: float | None = None,
        may_stand_in: bool = False,
    ) -> tuple[dict[int, Array], Records]:
        """Run once where that ends first; see `Network.infer()`."""
        replica, choice = self.choose(arrays)
        outputs, records = await replica.infer(
            self._as_of(replica, arrays), priority, deadline=deadline, may_stand_in=may_stand_in
        )
        self._ended = replica, choice
        if replica.program is not self.program:
            outputs = renamed(outputs, replica.program, self.program)
        return outputs, records

    # What became of the nodes of the inference that finished last.

    @property
    def latest(self) -> Replica:
        """The one whose inference finished last."""
        return max(self.replicas, key=lambda r: r.ends)

    def note(self, records: Records) -> None:
        """Note what became of the nodes of the inference whose outcome `infer()` has just returned."""
        assert self._ended is not None
        replica, choice = self._ended  # nobody has had a turn since it was set
        replica.note(records, choice)

    # Sequences.

    def for_sequence(self) -> Replica:
        """Return where a sequence is to stay that begins now: where there are fewest, and least is to be done."""
        return min(self.there, key=lambda r: (len(r.sequences), r.backlog.left_ns(r.session.device.clock())))

    def for_request(self) -> Replica:
        """Return where a request goes of which nothing is known yet: where least is to be done."""
        return min(self.there, key=lambda r: r.backlog.left_ns(r.session.device.clock()))

    @property
    def each(self) -> tuple[Replica, ...]:
        """All of them."""
        return self.replicas

    # Loading.

    async def warmed(self, progress: Callable[[Progress], object] | None = None) -> None:
        """Return when every device has what likely shapes need; one that is lost meanwhile is not waited for."""
        there = self.there
        told = summed(progress, len(there))
        await on_each([r.warmed(each) for r, each in zip(there, told, strict=True)])

    async def bring(self, arrays: Mapping[int, Array]) -> None:
        """Bring what requests of these shapes and contents need to every device."""
        await on_each([r.bring(self._as_of(r, arrays)) for r in self.there])


async def on_each(work: Sequence[Coroutine[Any, Any, object]]) -> None:
    """Return when what is done on several devices is done, on those that are not lost meanwhile.

    Raises:
        Exception: What the first raised that has failed, when all have ended; DeviceLostError only if all did.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    errors = [e for e in outcomes if isinstance(e, BaseException)]
    others = [e for e in errors if not isinstance(e, DeviceLostError)]
    if others or len(errors) == len(outcomes):
        raise (others or errors)[0]


def summed(
    progress: Callable[[Progress], object] | None, devices: int
) -> list[Callable[[Progress], object] | None]:
    """Return for each device whom it tells its progress; *progress* is told the sum."""
    if progress is None or devices == 1:
        return [progress] * devices
    seen: dict[int, Progress] = {}

    def tell(device: int, its: Progress) -> None:
        seen[device] = its
        every = seen.values()
        built, wanted = sum(p.built for p in every), sum(p.wanted for p in every)
        progress(type(its)(built, wanted, any(p.planning for p in every)))

    return [functools.partial(tell, device) for device in range(devices)]
