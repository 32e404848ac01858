"""`asyncrt warm`: build what a model needs ahead of time, so that no process waits for a compiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from asyncrt.options import RuntimeOptions
from asyncrt.runtime.runtime import Runtime
from asyncrt.runtime.statistics import RuntimeStatistics

from . import options as o
from .inputs import InputOptions
from .terminal import reporting, run_to_end, stderr, stdout

if TYPE_CHECKING:
    from asyncrt.runtime.request.warming import Progress as Warmed


@reporting
def warm(
    model: o.Model,
    shape: o.Shapes = None,
    device: o.Device = None,
    cache_dir: Annotated[
        Path | None, typer.Option("--cache-dir", metavar="DIR", file_okay=False, help="The folder to fill.")
    ] = None,
    without: o.Without = None,
    precision: o.Precision = "fp32",
) -> None:
    """Build the kernels of a model ahead of time, into the folder that all processes share.

    That is for the image of a container, or before a server starts: on a machine with the same driver and processor,
    whoever loads the model finds them, and what it became when it was loaded. --shape adds sizes to those that are
    likely, and may name several of one dim.

    \b
    Examples:
      asyncrt warm detector.onnx
      asyncrt warm bert.onnx -s batch=1,8 -s seq=128 --cache-dir /opt/kernels
    """
    from asyncrt.kernels.resident.store import cache_folder

    wanted = InputOptions.parse(None, shape, None, 0, several=True)
    options = RuntimeOptions(without=o.on_the_device(without), precision=precision, cache_dir=cache_dir)
    counts = run_to_end(_warm(model, wanted, device, options))
    stdout().print(
        f"{counts.kernels_built} kernels built, {counts.kernels_from_disk} were there; in {cache_folder(options)}",
        soft_wrap=True, markup=False,
    )  # fmt: skip


async def _warm(model: Path, wanted: InputOptions, device: str | None, options: RuntimeOptions) -> RuntimeStatistics:
    columns = (TextColumn("kernels"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with Runtime(device, options=options) as runtime:
        with Progress(*columns, console=stderr(), transient=True) as bar:
            task = bar.add_task("kernels", total=None)

            def show(progress: Warmed) -> None:
                bar.update(task, completed=progress.built, total=None if progress.planning else progress.wanted)

            loaded = await runtime.load(model, progress=show)
            if wanted.sizes:
                filled = [wanted.fill(loaded.inputs, sizes).arrays for sizes in wanted.combinations()]
                await loaded.ready([{name: array.shape for name, array in arrays.items()} for arrays in filled])
            for network in loaded.network.each:
                await network.build_for_others()
        return runtime.statistics()
