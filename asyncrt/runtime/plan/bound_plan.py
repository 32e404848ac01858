"""A plan with its kernels and constants in the place of their names: all that a request still brings is memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
        work: How much it is for the device, very roughly: work-items, and one for each command.
    """

    plan: ChunkPlan
    steps: tuple[PreparedLaunch, ...]
    kernels: Mapping[Any, Any]
    constants: Mapping[Stored, Resident]
    left: Between
    records: tuple[NodeRecord, ...] | Deferred
    copies: tuple[Fetch, ...] = ()
    generation: int = 0
    work: int = 1


def bind(
    plan: ChunkPlan,
    kernels: Mapping[Any, Any],
    constants: Mapping[Stored, Resident],
    special: Callable[[PlanStep], Any] | None = None,
    generation: int = 0,
) -> BoundPlan:
    """Put a plan's kernels and constants in the place of their names.

    Args:
        special: Gives the specialised kernel of a step, if there is one.
    """
    memory = _Named(constants).__getitem__
    steps = []
    specialised = set()
    built: dict[int, Any] = {}  # a source's hash is that of its text and more, so each is looked up once
    for s in plan.steps:
        kernel = None if special is None else special(s)
        if kernel is not None:
            specialised.add(s.node)
        elif (kernel := built.get(id(s.kernel))) is None:
            kernel = built[id(s.kernel)] = kernels[s.kernel]
        steps.append((kernel, tuple(map(memory, s.buffers)), s.record, s.grid, s.group, s.local))
    records = plan.records
    if specialised:
        records = Deferred(lambda: tuple(
            r._replace(how=f"{r.how}, specialised") if r.node.id in specialised else r for r in plan.known_records()
        ))  # fmt: skip
    work = len(plan.uploads) + len(plan.fetches) + sum([1 + math.prod(s.grid) for s in plan.steps])
    copies = tuple([f for f in plan.fetches if is_long_copy(f)])
    left = between(plan.after.kept)
    return BoundPlan(plan, tuple(steps), kernels, constants, left, records, copies, generation, work)


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
