"""Who has a sequence open, and how long those wait who may not have one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from asyncrt import Overloaded, Runtime, RuntimeOptions
from asyncrt.serve.open_sequences import OpenSequences
from asyncrt.serve.protocol.messages import Parameters
from asyncrt.serve.settings import SequenceSettings

from .running import running_sum

STEP = {"x": np.array([[1.5, -2]], np.float32)}


class Ahead(asyncio.SelectorEventLoop):
    """A loop of which the clock may be put forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def test_one_sequence_too_many_is_told_when_the_first_of_the_idle_ones_is_closed() -> None:
    """Not how long an idle one is kept: it has been idle for a while already."""
    loop = Ahead()

    async def scenario() -> list[float]:
        told = []
        async with Runtime("host", options=RuntimeOptions(warm=False)) as rt:
            model = await rt.load(running_sum())
            sequences = OpenSequences(model, SequenceSettings(max_sequences=2, max_idle_s=60.0))
            for id in (1, 2):
                await sequences.step(STEP, Parameters(sequence_id=id, sequence_start=True), 0, None)
                loop.ahead += 20
            for _ in range(2):
                with pytest.raises(Overloaded) as caught:
                    await sequences.step(STEP, Parameters(sequence_id=3, sequence_start=True), 0, None)
                told.append(caught.value.retry_after_s)
                await sequences.step(STEP, Parameters(sequence_id=1), 0, None)  # so that the other is closed first
            await sequences.close()
        return told

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        told = runner.run(scenario())

    assert told == [pytest.approx(20, abs=10), pytest.approx(40, abs=10)]
