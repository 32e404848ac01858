"""`asyncrt trace`: when does each kernel run, on which stream, and what waits for what?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from asyncrt.options import RuntimeOptions
from asyncrt.runtime.runtime import Runtime

from . import options as o
from .inputs import InputOptions
from .terminal import note, reporting, run_to_end


@reporting
def trace(
    model: o.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", dir_okay=False, help="The trace.")] = Path(
        "trace.json"
    ),
    inputs: o.Inputs = None,
    shape: o.Shapes = None,
    ranges: o.Ranges = None,
    device: o.Device = None,
    streams: o.Streams = None,
    seed: o.Seed = 0,
    requests: Annotated[int, typer.Option(min=1, max=o.MOST_AT_ONCE, help="How many requests run at once.")] = 4,
    warm: Annotated[
        int, typer.Option(min=0, help="Requests before the trace; 0 shows planning and building, too.")
    ] = 1,
    without: o.Without = None,
) -> None:
    """Run a model and write what happened when, to be opened in https://ui.perfetto.dev or chrome://tracing.

    \b
    Example:
      asyncrt trace bert.onnx --shape batch=1 --shape seq=16 --output trace.json
    """
    wanted = InputOptions.parse(inputs, shape, ranges, seed)
    options = RuntimeOptions(without=o.on_the_device(without))
    run_to_end(_trace(model, output, wanted, device, streams, options, requests, warm))
    note(f"the trace is in {output}; open it in https://ui.perfetto.dev or chrome://tracing")


async def _trace(
    model: Path,
    output: Path,
    wanted: InputOptions,
    device: str | None,
    streams: int | None,
    options: RuntimeOptions,
    requests: int,
    warm: int,
) -> None:
    async with Runtime(device, streams=streams, options=options) as runtime:
        loaded = await runtime.load(model)
        (sizes,) = wanted.combinations()
        filled = wanted.fill(loaded.inputs, sizes)
        note(f"on {o.shown_devices(runtime.infos)}")
        for name, array in filled.arrays.items():
            note(f"{name} {array.dtype}{list(array.shape)}: {filled.sources[name]}")
        for _ in range(warm):
            await loaded.infer(filled.arrays)
        async with runtime.trace(output):
            await asyncio.gather(*(loaded.infer(filled.arrays) for _ in range(requests)))
