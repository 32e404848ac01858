"""`asyncrt tune`: how large may batches be here, and how long may they be waited for?

Finds the size and the delay that sustain the highest rate within a latency, and writes them to a file for
`Model.batched(config=...)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from asyncrt.errors import AsyncrtError
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.runtime import Runtime

from . import options as o
from .arrivals import parse_lengths
from .inputs import InputOptions
from .load import Traffic, solo_rate
from .open_loop import Point, measure
from .search import BATCHES, DELAYS, Found, Setting, search
from .terminal import note, reporting, run_to_end, stdout

if TYPE_CHECKING:
    from asyncrt.runtime.batching.batched import Batched
    from asyncrt.runtime.model import Model
    from asyncrt.scheduler.batching import BatchOptions

_ENOUGH_FOR_P99 = 200  # requests of a trial: two of them may be slower
_ATTEMPTS = 2  # what else the machine does makes trials slower, never faster: one that was in time is believed
_IN_TIME = 0.95  # of the rate at which requests come, answers must come at least, or requests pile up


@reporting
def tune(
    model: o.Model,
    max_p99: Annotated[
        float, typer.Option("--max-p99", min=1e-6, callback=o.finite, help="Seconds in which 99 of 100 are answered.")
    ],
    inputs: o.Inputs = None,
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", "-s", metavar="DIM=SIZE,...", help="Sizes of a dynamic dim, each as often."),
    ] = None,
    ranges: o.Ranges = None,
    lengths: o.Lengths = None,
    arrivals: o.Arrivals = "poisson",
    device: o.Device = None,
    streams: o.Streams = None,
    seed: o.Seed = 0,
    seconds: Annotated[float, typer.Option(min=0.001, callback=o.finite, help="Of each trial, at least.")] = 1.0,
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Other options of batching, which are kept.")
    ] = None,
    write: Annotated[Path, typer.Option(dir_okay=False, help="The file to write.")] = Path("batching.json"),
) -> None:
    """Find the size of batches and the delay that sustain the highest rate within --max-p99, and write them.

    Requests come at random, as for `asyncrt bench --batched`. A trial sends them at some rate with some options; the
    next trial depends on what came of it.

    \b
    Example:
      asyncrt tune bert.onnx --max-p99 0.05 -s batch=1 --lengths seq=lognormal:40:0.6:256
      asyncrt bench bert.onnx --batched --config batching.json -s batch=1 --lengths seq=lognormal:40:0.6:256
    """
    wanted = InputOptions.parse(inputs, shape, ranges, seed, several=True)
    drawn = parse_lengths(lengths)
    from asyncrt.scheduler.batching import BatchOptions

    base = BatchOptions() if config is None else BatchOptions.read(config)

    async def run() -> Found | None:
        options = RuntimeOptions(without=o.on_the_device(None), collect_when_idle=True)
        async with Runtime(device, streams=streams, options=options) as runtime:
            loaded = await runtime.load(model)
            traffic = Traffic(loaded.inputs, wanted, drawn, arrivals)
            note(f"on {o.shown_devices(runtime.infos)}")
            return await find(loaded, traffic, base, max_p99, seconds)

    found = run_to_end(run())
    if found is None:
        raise AsyncrtError(
            f"no size of batches answers 99 of 100 requests within {max_p99:g} s, however few come",
            hint="allow more with --max-p99; `asyncrt bench` says how long one takes",
        )
    options = with_setting(base, found.setting)
    options.write(write)
    stdout().print(
        f"max_batch {found.setting.max_batch}, max_delay {found.setting.max_delay:g} s: {found.rate:.4g} requests/s "
        f"with p99 within {max_p99:g} s, found in {found.trials} trials; written to {write}",
        soft_wrap=True,
    )


def with_setting(base: BatchOptions, setting: Setting) -> BatchOptions:
    """Return *base* with a setting."""
    return attrs.evolve(base, max_batch=setting.max_batch, max_delay=setting.max_delay)


async def find(
    model: Model,
    traffic: Traffic,
    base: BatchOptions,
    max_p99: float,
    seconds: float,
    batches: Sequence[int] = BATCHES,
    delays: Sequence[float] = DELAYS,
) -> Found | None:
    """Return the best setting for a model. Where several batches run at once, none is held back: the delay stays."""
    async with model.batched(config=base) as batched:
        at_once = batched.state.streams
    if at_once > 1:
        note(f"{at_once} batches run at once, so none is held back: max_delay stays {base.max_delay:g} s")
        delays = (base.max_delay,)

    async def sustains(setting: Setting, rate: float) -> bool:
        async with model.batched(config=with_setting(base, setting)) as batched:
            for _ in range(_ATTEMPTS):
                kept, point = await trial(batched, traffic, rate, max_p99, seconds)
                p99 = "-" if point.p99_ms is None else f"{point.p99_ms:.1f} ms"
                note(
                    f"max_batch {setting.max_batch}, max_delay {setting.max_delay:g} s, {rate:.4g} requests/s: "
                    f"p99 {p99}" + ("" if kept else ", too slow")
                )
                if kept:
                    return True
        return False

    return await search(sustains, await solo_rate(model, traffic), batches, delays)


async def trial(
    batched: Batched, traffic: Traffic, rate: float, max_p99: float, seconds: float
) -> tuple[bool, Point]:
    """Send requests at a rate; returns whether they were answered in time and as fast as they came, and the figures."""
    lasting = max(seconds, _ENOUGH_FOR_P99 / rate)
    await measure("batched", batched.infer, rate, traffic.at_rate(rate, lasting / 4, seed=1), None)
    requests = traffic.at_rate(rate, lasting)
    point = await measure("batched", batched.infer, rate, requests, None)
    return keeps_up(point, max_p99, requests[-1][0]), point


def keeps_up(point: Point, max_p99: float, lasted: float) -> bool:
    """Whether requests were answered in time, and as fast as they came in the *lasted* seconds until the last one.

    Where answers are as fast as requests, the last one comes a usual latency after the last request.
    """
    if point.p99_ms is None or point.p50_ms is None or point.refused or point.late:
        return False
    answering = point.answered / point.goodput - point.p50_ms / 1e3
    return point.p99_ms <= max_p99 * 1e3 and lasted >= _IN_TIME * answering
