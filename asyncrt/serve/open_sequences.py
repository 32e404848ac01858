"""The sequences of a model that callers have open, by the ids that they gave them.

A step with `sequence_start` begins one, and begins it anew if it is there; a step with `sequence_end` is its last. What
nobody uses for a while is closed, so that callers who have gone leave nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import attrs

from asyncrt.arguments import shown
from asyncrt.errors import Overloaded
from asyncrt.layout import Array
from asyncrt.runtime.model import Model
from asyncrt.runtime.sequences.device_group import GroupedSequence
from asyncrt.runtime.sequences.group import SequenceGroup

from .errors import NotFound
from .protocol.messages import Parameters, SequenceId
from .settings import SequenceSettings


@attrs.define(eq=False)
class _Open:
    """A sequence.

    Attributes:
        steps: Of it that are under way or wait; it is idle without any.
        alarm: Closes it when it has been idle for too long.
    """

    sequence: GroupedSequence
    steps: int = 0
    alarm: asyncio.TimerHandle | None = None


class OpenSequences:
    """What is open of one model."""

    def __init__(self, model: Model, settings: SequenceSettings) -> None:
        self._settings = settings
        self._group: SequenceGroup = model.sequences(settings.state, max_batch=settings.max_batch)
        self._open: dict[SequenceId, _Open] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._open)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that they keep."""
        return self._group.nbytes

    @property
    def inferences(self) -> int:
        """How many inferences their steps took, and those of sequences that have ended."""
        return self._group.statistics().inferences

    async def step(
        self, inputs: Mapping[str, Any], asked: Parameters, priority: int, deadline: float | None
    ) -> dict[str, Array]:
        """Run a step; arguments as for `Sequence.infer()`.

        Raises:
            NotFound: There is no such sequence, and the step does not begin one.
            Overloaded: There are as many as there may be.
        """
        there = self._find(asked)
        there.steps += 1
        if there.alarm is not None:
            there.alarm.cancel()
        done = False
        try:
            outputs = await there.sequence.infer(inputs, priority=priority, deadline=deadline)
            done = True
            return outputs
        finally:
            there.steps -= 1
            current = self._open.get(asked.sequence_id) is there
            if current and asked.sequence_end and done:
                del self._open[asked.sequence_id]
                await there.sequence.close()
            elif current and not there.steps:
                loop = asyncio.get_running_loop()
                there.alarm = loop.call_later(self._settings.max_idle_s, self._expire, asked.sequence_id, there)

    def _find(self, asked: Parameters) -> _Open:
        there = self._open.get(asked.sequence_id)
        if not asked.sequence_start:
            if there is None:
                raise NotFound(
                    f"there is no sequence {shown(asked.sequence_id)}: it has ended, or its first step has not come",
                    hint="the first step of a sequence says sequence_start",
                )
            return there
        if there is not None:
            self._expire(asked.sequence_id, there)
        elif len(self._open) >= self._settings.max_sequences:
            raise Overloaded("as many sequences are open as may be", retry_after_s=self._until_one_closes())
        there = self._open[asked.sequence_id] = _Open(self._group.sequence())
        return there

    def _until_one_closes(self) -> float:
        """Seconds until the one that has been idle for longest is closed, if nobody uses it."""
        now = asyncio.get_running_loop().time()
        idle = [there.alarm.when() for there in self._open.values() if there.alarm is not None and not there.steps]
        return max(min(idle, default=now + self._settings.max_idle_s) - now, 0.0)

    def _expire(self, id: SequenceId, there: _Open) -> None:
        """Close a sequence; a step that is under way ends."""
        if self._open.get(id) is there:
            del self._open[id]
        if there.alarm is not None:
            there.alarm.cancel()
        task = asyncio.get_running_loop().create_task(there.sequence.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all of them."""
        for id, there in list(self._open.items()):
            self._expire(id, there)
        await asyncio.gather(*self._closing)
        await self._group.close()
