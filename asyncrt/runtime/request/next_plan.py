"""Which plan will the next step of a sequence need? It is made while the device works on the step before.

A plan by recipe takes some tenths of a millisecond, in which the device would idle. The state that the next step finds
is known when this step is planned. The shapes of its inputs are guessed: each axis changes as it did since the step
before. If another step comes, the guess is dropped; no plan in the cache is evicted for a guess.

A guess delays nobody: it is made in slices, while there is no other request, and only as long as the device works on
the step. The rest of it is made if that step comes.

It is bound to kernels and constants, too, if the step under way has all of them and constants never leave the device:
a guess is no reason to keep them there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from asyncrt.graph.ir import Program
from asyncrt.kernels.resident.weights import Resident, Stored
from asyncrt.layout import Array, Layout, Shape
from asyncrt.runtime.cooperative import Slices
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.plan.between_steps import Between
from asyncrt.runtime.plan.bound_plan import BoundPlan
from asyncrt.runtime.plan.chunk_plan import ChunkPlan
from asyncrt.runtime.plan.foreseen_plan import Guess, Guessed
from asyncrt.runtime.plan.plan_cache import KEYED_BYTES, Plans

Bind: TypeAlias = Callable[[ChunkPlan, Mapping[Any, Any], Mapping[Stored, Resident]], BoundPlan]
"""Binds a plan to kernels and constants that have all that it needs."""


class Foresight:
    """Guesses the plans of one network's sequences; each guess is stored with the state of its sequence.

    Args:
        plans: Has the recipes.
        dispatcher: Knows of other requests.
        bind: Binds plans; None where constants may leave the device for others.
    """

    def __init__(self, program: Program, plans: Plans, dispatcher: Dispatcher, bind: Bind | None) -> None:
        self._program = program
        self._plans = plans
        self._dispatcher = dispatcher
        self._bind = bind
        #: Which makes the guesses.
        self.loop = asyncio.get_running_loop()
        #: How many guesses were right, all time.
        self.taken = 0

    @contextlib.contextmanager
    def guessing(self, kept: KeptState, given: tuple[Shape, ...], bound: BoundPlan) -> Iterator[None]:
        """While this lasts, make the plan of the step behind one that was *given* these shapes and has this plan."""
        before, kept.given = kept.given, given
        guess = kept.guess = self._guess(before, given, bound)
        turns = None if guess is None else _Turns(guess, self.loop, self._dispatcher)
        try:
            yield
        finally:
            if turns is not None:
                turns.end()

    def guess_now(
        self, kept: KeptState, given: tuple[Shape, ...], bound: BoundPlan, seconds: float
    ) -> BoundPlan | None:
        """Make the plan of the step behind one that was *given* these shapes and has this plan, for so many seconds;
        returns it if it is there then."""
        until = time.perf_counter() + seconds
        before, kept.given = kept.given, given
        guess = kept.guess = self._guess(before, given, bound)
        if guess is None:
            return self._known(before, given, bound)
        while guess.go_on():
            if time.perf_counter() >= until:
                return None
        made = guess.plan()
        return None if made is None else made.bound

    def _known(self, before: tuple[Shape, ...] | None, given: tuple[Shape, ...], bound: BoundPlan) -> BoundPlan | None:
        """Return the plan of the step behind, if it came before."""
        shapes = following(before, given)
        if shapes is None or self._program.value_inputs:
            return None
        planned = self._plans.find(self._program.chunks[0], step_signature(shapes, (), bound.left))
        return None if planned is None else planned.bound

    def _guess(self, before: tuple[Shape, ...] | None, given: tuple[Shape, ...], bound: BoundPlan) -> Guess | None:
        shapes, left = following(before, given), bound.left
        if shapes is None or self._program.value_inputs or not self._plans.follows:
            return None
        signature = step_signature(shapes, (), left)
        if self._plans.knows(signature):
            return None
        ids = [id for id in self._program.inputs if id not in left.layouts]
        if len(shapes) != len(ids):
            return None
        dtypes = [self._program.values[id].layout.dtype for id in ids]
        layouts = dict(left.layouts)
        layouts.update((i, Layout(t, s)) for i, t, s in zip(ids, dtypes, shapes, strict=True) if t is not None)
        work = self._plans.foresee([layouts[id] for id in self._program.inputs], left.tensors)
        return None if work is None else Guess(signature, self._work(work, None if self._bind is None else bound))

    def _work(self, plans: Slices[ChunkPlan | None], bound: BoundPlan | None) -> Slices[Guessed | None]:
        plan = yield from plans
        if plan is None:
            return None
        yield
        if self._bind is None or bound is None or not has_all(bound, plan):
            return Guessed(plan, None)
        return Guessed(plan, self._bind(plan, bound.kernels, bound.constants))

    def take(self, kept: KeptState, signature: Any) -> Guessed | None:
        """Return the plan that was guessed for a step, if it was, and forget the guess."""
        guess, kept.guess = kept.guess, None
        if guess is None or guess.signature != signature or not self._plans.follows:
            return None
        plan = guess.plan()
        self.taken += plan is not None
        return plan


class _Turns:
    """Makes a guess, a slice in each turn of the loop, as long as there is no request but its own."""

    def __init__(self, guess: Guess, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher) -> None:
        self._guess, self._loop, self._dispatcher = guess, loop, dispatcher
        self._next: asyncio.Handle | None = loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._next = None
        if self._dispatcher.in_flight == 1 and self._guess.go_on():
            self._next = self._loop.call_soon(self._go_on)

    def end(self) -> None:
        """Go no further."""
        if self._next is not None:
            self._next.cancel()
            self._next = None


def has_all(bound: BoundPlan, plan: ChunkPlan) -> bool:
    """Whether what one plan is bound to has all that another needs."""
    if plan.packings is not bound.plan.packings and any(p.key not in bound.constants for p in plan.packings):
        return False
    sources = {id(s.kernel): s.kernel for s in plan.steps}  # a source's hash is that of its text
    return all(source in bound.kernels for source in sources.values())


def step_signature(given: tuple[Shape, ...], contents: Any, left: Between) -> Any:
    """Return what the plan of a step depends on; None if that is too much to compare, and so no plan is kept.

    Args:
        given: The shapes of the inputs that are not kept, in the program's order.
        contents: Of those inputs whose contents decide, as `contents_of()` gives them.
        left: What is kept; it says which inputs are.
    """
    return None if contents is None else (given, contents, left.signature)


def contents_of(arrays: Iterable[Array]) -> tuple[Any, ...] | None:
    """Return what to compare values by; None if they are too large to be worth it, or no plain numbers."""
    left = KEYED_BYTES
    contents: list[tuple[Shape, bytes]] = []
    for array in arrays:
        left -= array.nbytes
        if left < 0 or array.dtype.hasobject:
            return None  # of texts and sequences, an array has only where they are
        contents.append((array.shape, array.tobytes()))
    return tuple(contents)


def following(before: tuple[Shape, ...] | None, now: tuple[Shape, ...]) -> tuple[Shape, ...] | None:
    """Return the shapes that come next where each axis goes on as it went; None where that says nothing."""
    if before is None or [len(shape) for shape in before] != [len(shape) for shape in now]:
        return None
    shapes = tuple([tuple([2 * n - b for b, n in zip(x, y, strict=True)]) for x, y in zip(before, now, strict=True)])
    return None if any(size < 0 for shape in shapes for size in shape) else shapes
