"""Does `asyncrt tune` find settings as good as the best of a sweep?

First it searches. Then its choice and fixed settings take turns at sustaining a rate: requests come at random, and the
rate of a setting goes up when 99 of 100 were answered in time, and down when they were not, so that it comes to stand
where a setting sustains it every other time. Turns are short and many, so that what else the machine does meets all
alike. Which fixed setting is the best is told by half of the turns, and how good it is by the other half: the best of
many in the same turns would be the luckiest.
"""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np

import asyncrt
from asyncrt.cli import tune
from asyncrt.cli.arrivals import parse_lengths
from asyncrt.cli.inputs import InputOptions
from asyncrt.cli.load import Traffic
from asyncrt.cli.search import BATCHES, DELAYS, Setting
from asyncrt.scheduler.batching import BatchOptions

from . import command, models
from . import measure as m

LENGTHS = "seq=lognormal:24:0.5:64"
FIXED_DELAYS = (0.0, 0.002, 0.01)
MAX_P99 = 0.02
TURN_S = 0.1  # of 200 requests a second and more; a slower machine needs longer, as a trial of the search does
_FAR, _NEAR = 1.4, 1.05  # how far a rate goes at first, and after some turnings


@attrs.define
class Stair:
    """The rate of a setting: up when it is sustained, down when it is not.

    Attributes:
        rate: To be tried next.
        rates: Those that were tried.
    """

    rate: float
    rates: list[float] = attrs.Factory(list)
    _step: float = _FAR
    _kept: bool | None = None

    def saw(self, kept: bool) -> None:
        """The rate was tried, and sustained or not."""
        self.rates.append(self.rate)
        if self._kept not in (None, kept):
            self._step = max(math.sqrt(self._step), _NEAR)
        self._kept = kept
        self.rate *= self._step if kept else 1 / self._step


async def bench(
    settings: m.Settings,
    batches: Sequence[int] | None = None,
    delays: Sequence[float] = FIXED_DELAYS,
    searched: tuple[Sequence[int], Sequence[float]] = (BATCHES, DELAYS),
    rounds: int | None = None,
    seconds: float | None = None,
    max_p99: float = MAX_P99,
) -> m.Report:
    """Measure all settings of these batches and delays.

    Args:
        searched: The batches and the delays among which is searched.
        rounds: Turns of each setting; the first fourth, in which its rate is found roughly, does not count.
        seconds: Of each trial of the search.
        max_p99: Seconds in which 99 of 100 requests are to be answered.
    """
    batches = batches or (BATCHES[::3] if settings.quick else BATCHES)
    rounds = rounds or (80 if settings.quick else 160)
    seconds = seconds or (0.25 if settings.quick else 1.0)
    fixed = [Setting(batch, delay) for batch in batches for delay in delays]
    with tempfile.TemporaryDirectory() as folder:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder))
        async with (
            # Where there are several streams nobody is held back, and the delay would be nothing to find.
            asyncrt.Runtime(settings.device, streams=1, options=options) as rt,
            contextlib.AsyncExitStack() as stack,
        ):
            model = await rt.load(models.SMALL)
            wanted = InputOptions.parse(None, ["batch=1"], None, 0, several=True)
            traffic = Traffic(model.inputs, wanted, parse_lengths([LENGTHS]))
            begin = time.perf_counter()
            found = await tune.find(model, traffic, BatchOptions(), max_p99, seconds, *searched)
            searched_s = time.perf_counter() - begin
            if found is None:
                raise m.BenchmarkError(f"no setting answers 99 of 100 requests within {max_p99:g} s here")
            stairs = {setting: Stair(found.rate) for setting in {found.setting: None, **dict.fromkeys(fixed)}}
            await climb(stack, model, traffic, stairs, rounds, max_p99)
            info = rt.info
    rates = {setting: stair.rates[rounds // 4 :] for setting, stair in stairs.items()}
    best = max(fixed, key=lambda setting: float(np.median(rates[setting][::2])))
    return m.Report(
        name="tune",
        command=f"python -m benchmarks.tune{settings.flags}",
        environment=m.environment(info),
        rows=[row(setting, found.setting, rates) for setting in rates],
        summary={
            "rate of tune's choice over the best setting's": m.Ratio.of(rates[found.setting][1::2], rates[best][1::2])
        },
        notes=[
            f"The first row is what tune chose, in {found.trials} trials and {searched_s:.0f} s. "
            f"The best fixed setting is max_batch {best.max_batch}, max_delay {best.max_delay * 1e3:g} ms.",
            f"A BERT of two small layers, one stream, {LENGTHS}, 99 of 100 answers within {max_p99 * 1e3:g} ms; "
            f"{rounds} turns of {TURN_S:g} s for each setting.",
        ],
    )


async def climb(
    stack: contextlib.AsyncExitStack,
    model: asyncrt.Model,
    traffic: Traffic,
    stairs: dict[Setting, Stair],
    rounds: int,
    max_p99: float,
) -> None:
    """Let all settings take turns at sustaining the rates of their stairs, in another order in each round."""
    opened = {
        setting: await stack.enter_async_context(model.batched(config=tune.with_setting(BatchOptions(), setting)))
        for setting in stairs
    }
    chance = random.Random(0)
    for turn in range(rounds):
        for setting, stair in chance.sample(list(stairs.items()), len(stairs)):
            kept, _ = await tune.trial(opened[setting], traffic, stair.rate, max_p99, TURN_S)
            stair.saw(kept)
        m.progress(f"turn {turn + 1} of {rounds}")


def row(setting: Setting, chosen: Setting, rates: dict[Setting, list[float]]) -> m.Row:
    """Compare the rates of tune's choice with those of a setting."""
    return {
        "max_batch": setting.max_batch,
        "max_delay ms": setting.max_delay * 1e3,
        "requests/s": float(np.median(rates[setting])),
        "tune's choice against it": None if setting == chosen else m.Ratio.of(rates[chosen], rates[setting]),
    }


if __name__ == "__main__":
    command.run(bench)
