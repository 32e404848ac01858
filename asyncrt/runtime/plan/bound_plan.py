"""A plan with its kernels and constants in the place of their names: all that a request still brings is memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from asyncrt.devices.base import PreparedLaunch
from asyncrt.kernels.resident.weights import Resident, Stored
from asyncrt.runtime.cooperative import LONG

from .between_steps import Between, between, place
from .chunk_plan import BufferName, ChunkPlan, Deferred, Fetch, Kept, NodeRecord, PlanStep


@attrs.frozen(eq=False)
class BoundPlan:
    """A plan with its kernels built and its constants on the device; only arenas are missing.

    Attributes:
        plan: What it carries out.
        steps: ``(kernel, buffers, record, grid, group, local)``; a buffer is memory, or the number of an arena.
        kernels: The generic ones, by their sources.
        constants: What the steps read; they stay on the device as long as this record is held.
        left: What it leaves a sequence.
        records: What became of each node.
        copies: Large values that the host has already and that are copied for the request, off the event loop.
        generation: Of the specialised kernels that it was bound to.
        named: What the steps take for each name of memory; plans with the same constants share it.
    """

    plan: ChunkPlan
    steps: tuple[PreparedLaunch, ...]
    kernels: Mapping[Any, Any]
    constants: Mapping[Stored, Resident]
    left: Between
    records: tuple[NodeRecord, ...] | Deferred
    copies: tuple[Fetch, ...] = ()
    generation: int = 0
    named: Mapping[BufferName, Any] = {}

    @functools.cached_property
    def numbers(self) -> tuple[int, ...]:
        """Of the arenas, and of what a sequence keeps, that its steps use, in ascending order."""
        return tuple(sorted({b for step in self.steps for b in step[1] if isinstance(b, int)}))

    @functools.cached_property
    def work(self) -> int:
        """How much it is for the device, very roughly: work-items, and one for each command."""
        plan = self.plan
        return len(plan.uploads) + len(plan.fetches) + sum([1 + math.prod(s.grid) for s in plan.steps])


def bind(
    plan: ChunkPlan,
    kernels: Mapping[Any, Any],
    constants: Mapping[Stored, Resident],
    special: Callable[[PlanStep], Any] | None = None,
    generation: int = 0,
    like: BoundPlan | None = None,
) -> BoundPlan:
    """Put a plan's kernels and constants in the place of their names.

    Args:
        special: Gives the specialised kernel of a step, if there is one.
        like: Of a plan that may have some of the steps, what they were bound to.
    """
    named = like.named if like is not None and like.constants is constants else _Named(constants)
    memory = named.__getitem__
    steps = []
    specialised = set()
    built: dict[int, Any] = {}  # a source's hash is that of its text and more, so each is looked up once
    known = _shared(plan, constants, like)
    for s, (same, bound) in zip(plan.steps, known, strict=False):
        kernel = None if special is None else special(s)
        if kernel is not None:
            specialised.add(s.node)
        elif (kernel := built.get(id(s.kernel))) is None:
            kernel = built[id(s.kernel)] = kernels[s.kernel]
        if same is s and bound[0] is kernel:
            steps.append(bound)
            continue
        buffers = bound[1] if same is not None and same.buffers is s.buffers else tuple(map(memory, s.buffers))
        steps.append((kernel, buffers, s.record, s.grid, s.group, s.local))
    records = plan.records
    if specialised:
        records = Deferred(lambda: tuple(
            r._replace(how=f"{r.how}, specialised") if r.node.id in specialised else r for r in plan.known_records()
        ))  # fmt: skip
    copies = tuple([f for f in plan.fetches if is_long_copy(f)])
    left = between(plan.after.kept)
    return BoundPlan(plan, tuple(steps), kernels, constants, left, records, copies, generation, named)


_UNKNOWN: tuple[Any, Any] = None, None


def _shared(
    plan: ChunkPlan, constants: Mapping[Stored, Resident], like: BoundPlan | None
) -> Iterable[tuple[PlanStep | None, Any]]:
    """Return for each step one that may be the same or have the same memory, and what that is bound to."""
    if like is None or len(plan.steps) != len(like.steps):
        return itertools.repeat(_UNKNOWN)
    have = like.constants
    if constants is not have and any(constants[p.key] is not have.get(p.key) for p in plan.packings):
        return itertools.repeat(_UNKNOWN)  # they are elsewhere now
    return zip(like.plan.steps, like.steps, strict=True)


def is_long_copy(fetch: Fetch) -> bool:
    """Whether it would stop the event loop for long."""
    return fetch.home is None and fetch.layout.nbytes >= LONG


class _Named(dict[BufferName, Any]):
    """What a step takes for each name of memory; of a plan's names most come again and again."""

    def __init__(self, constants: Mapping[Stored, Resident]) -> None:
        self._constants = constants

    def __missing__(self, name: BufferName) -> Any:
        found = self[name] = self._constants[name].memory if isinstance(name, Stored) else buffer_index(name)
        return found


def buffer_index(buffer: int | Kept) -> int:
    return buffer if isinstance(buffer, int) else place(buffer)
