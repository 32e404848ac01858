"""Sequences of one model whose steps run together, on each device those whose state is there."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from asyncrt.runtime.loop.trio_bridge import Elsewhere, anywhere
from asyncrt.runtime.request.network import Network
from asyncrt.runtime.request.replicas import Replicas

from .device_group import DeviceGroup, GroupedSequence, GroupStatistics
from .shared_safety import SharedSafety


class SequenceGroup:
    """Sequences of one model whose steps run together. Made by `Model.sequences()`; use it in ``async with``."""

    def __init__(self, network: Network | Replicas, state: Mapping[str, str] | None, max_batch: int) -> None:
        self._network = network
        self._groups = {each: DeviceGroup(each, state, max_batch) for each in network.each}

    def __repr__(self) -> str:
        s = self.statistics()
        sequences = sum(map(len, self._groups.values()))
        return f"<SequenceGroup {sequences} sequences, {s.steps} steps in {s.inferences} inferences>"

    @property
    def sharing(self) -> SharedSafety | None:
        """Which steps run as one inference, and why no more; None until the first two that might have waited.

        Of several devices it is what the first has found out that has found out anything.
        """
        found = (group.sharing for group in self._groups.values())
        return next((sharing for sharing in found if sharing is not None), None)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that its sequences keep."""
        return sum(group.nbytes for group in self._groups.values())

    def statistics(self) -> GroupStatistics:
        """Return counts of what was done."""
        each = [group.statistics() for group in self._groups.values()]
        return GroupStatistics(
            sum(s.steps for s in each), sum(s.inferences for s in each), sum(s.gathered for s in each)
        )

    def sequence(self) -> GroupedSequence:
        """Begin a sequence; it is used like `Model.sequence()`'s.

        Raises:
            SequenceError: The group is closed.
        """
        return self._groups[self._network.for_sequence()].sequence()

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Where its runtime runs if that is not the loop of its callers."""
        return self._network.session.elsewhere

    @anywhere
    async def close(self) -> None:
        """Close all of its sequences."""
        for group in self._groups.values():
            await group.close()

    async def __aenter__(self) -> SequenceGroup:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
