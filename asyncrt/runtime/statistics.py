"""What has a runtime done, and what does it hold? Of several devices each, and all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from asyncrt.kernels.resident.kernel_cache import CacheStatistics
    from asyncrt.kernels.resident.weights import WeightsStatistics
    from asyncrt.memory.pool import PoolStatistics
    from asyncrt.scheduler.state import SchedulerStatistics

    from .execute.prepared_launches import PresetStatistics


@attrs.frozen
class RuntimeStatistics:
    """What a runtime has done, and what it holds.

    Attributes:
        requests: Inferences begun.
        in_flight: Inferences not ended.
        cancelled, failed: Inferences that ended so.
        plans: Chunks planned: new shape signatures.
        by_recipe: Those made by the formulas of another shape's plan.
        foreseen: Those of them that were made before the step of a sequence that uses them had begun.
        plans_kept: Plans there to be used again.
        replays: Chunks run by a plan made before.
        launches: Kernels enqueued.
        native: How often native code enqueued all launches of a chunk, or of one of its lanes, in one call.
        skipped: Nodes skipped.
        stood_in: Inferences that NumPy answered, because kernels that they need were being built.
        scheduler: Requests by their state.
        memory: Of intermediates.
        kernels: Of built kernels.
        weights: Constants on the device, of all models.
        presets: Of launches whose arguments are set beforehand.
        devices: Of several devices what each has done and holds, by name; empty where there is one.
    """

    requests: int
    in_flight: int
    cancelled: int
    failed: int
    plans: int
    by_recipe: int
    foreseen: int
    plans_kept: int
    replays: int
    launches: int
    native: int
    skipped: int
    stood_in: int
    scheduler: SchedulerStatistics
    memory: PoolStatistics
    kernels: CacheStatistics
    weights: WeightsStatistics
    presets: PresetStatistics
    devices: Mapping[str, RuntimeStatistics] = attrs.field(factory=dict)

    @property
    def kernels_built(self) -> int:
        """Kernels built by the driver."""
        return self.kernels.built

    @property
    def kernels_from_disk(self) -> int:
        """Kernels loaded from disk instead."""
        return self.kernels.from_disk

    @property
    def weights_nbytes(self) -> int:
        """Bytes of constants on the device."""
        return self.weights.nbytes


def together(devices: Mapping[str, RuntimeStatistics]) -> RuntimeStatistics:
    """Return the counts of all devices as one: sums, and one stream after the other."""
    each = list(devices.values())
    return each[0] if len(each) == 1 else attrs.evolve(added(each), devices=dict(devices))


def added(records: Sequence[Any]) -> Any:
    """Return records of counts as one: numbers are added, tuples put together, and records within treated likewise."""
    first = records[0]
    if isinstance(first, tuple):
        return sum(records[1:], first)
    if not attrs.has(type(first)):
        return sum(records)
    return type(first)(**{
        f.name: added([getattr(record, f.name) for record in records])
        for f in attrs.fields(type(first))
        if f.name != "devices"
    })  # fmt: skip
