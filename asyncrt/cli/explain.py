"""`asyncrt explain`: which nodes ran for these inputs, which were skipped, and why?"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer
from rich.markup import escape

from asyncrt.options import RuntimeOptions
from asyncrt.runtime.runtime import Runtime
from asyncrt.writing import write_text

from . import options as o
from .inputs import InputOptions
from .terminal import note, reporting, run_to_end, stdout

if TYPE_CHECKING:
    from asyncrt.runtime.explain.explain import Explanation


class Decision(enum.StrEnum):
    """What may become of a node."""

    SKIPPED = "skipped"
    VIEW = "view"
    RAN = "ran"
    FUSED = "fused"
    HOST = "host"
    EMPTY = "empty"


@reporting
def explain(
    model: o.Model,
    inputs: o.Inputs = None,
    shape: o.Shapes = None,
    ranges: o.Ranges = None,
    device: o.Device = None,
    streams: o.Streams = None,
    seed: o.Seed = 0,
    only: Annotated[Decision | None, typer.Option(help="Show only nodes that were treated so.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", dir_okay=False, help="Write the graph there, too, as one page to open."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Measure how long each node takes on the device.")] = False,
    without: o.Without = None,
) -> None:
    """Run a model once and say of every node what became of it, and why.

    "ran" is a kernel on the device, "fused" work that another node's kernel does, "skipped" a no-op for these shapes,
    "view" one whose readers take its input's bytes through strides, "host" shape arithmetic in Python, "empty" a node
    without elements.

    \b
    Example:
      asyncrt explain bert.onnx --shape batch=1 --shape seq=16 --only skipped
    """
    wanted = InputOptions.parse(inputs, shape, ranges, seed)
    options = RuntimeOptions(without=o.on_the_device(without))
    everything = run_to_end(_explain(model, wanted, device, streams, options, profile))
    if html_file is not None:
        write_text(html_file, everything.to_html())
        note(f"the graph is in {html_file}; open it in a browser")
    if as_json:
        typer.echo(everything.to_json(only=only))
    else:
        nodes = tuple(n for n in everything.nodes if only in (None, n.decision))
        table = attrs.evolve(everything, nodes=nodes).table()
        table.title = escape(everything.summary())
        stdout().print(table)


async def _explain(
    model: Path,
    wanted: InputOptions,
    device: str | None,
    streams: int | None,
    options: RuntimeOptions,
    profile: bool,
) -> Explanation:
    async with Runtime(device, streams=streams, options=options) as runtime:
        loaded = await runtime.load(model)
        (sizes,) = wanted.combinations()
        filled = wanted.fill(loaded.inputs, sizes)
        for name, array in filled.arrays.items():
            note(f"{name} {array.dtype}{list(array.shape)}: {filled.sources[name]}")
        await loaded.infer(filled.arrays)
        return await loaded.profile(filled.arrays) if profile else loaded.explain()
