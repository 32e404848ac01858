"""How fast is a GPU with any shape, beside PyTorch there?

Networks with random weights, float32 and float16; from arrays of the host to an array of the host, but for products,
which are measured on the device. PyTorch runs eagerly, and as a CUDA graph, which is recorded for each shape; asyncrt
prepares nothing for one.
"""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Annotated

import attrs
import typer

import asyncrt

from . import command, page
from . import measure as m
from .gpu_parts import bert, callers, decoder, new, pictures, products, several
from .gpu_parts.bench import Bench
from .gpu_parts.findings import Finding, summary

PARTS: Mapping[str, Callable[[Bench], AsyncIterator[Finding]]] = MappingProxyType(
    {
        "bert": bert.measure,
        "new": new.measure,
        "pictures": pictures.measure,
        "callers": callers.measure,
        "products": products.measure,
        "decoder": decoder.measure,
        "several": several.measure,
    }
)
"""What is measured, by the word that chooses it."""

_CORES = m.cores()
_BLOCKS, _BLOCK_S, _SETTLE_S = 11, 0.03, 0.005
"""Of turns: no peer here leaves threads behind that spin, and the whole table is to take a few minutes."""

NOTES = (
    "`times as good`: above 1, asyncrt is faster, or nearer. `first ms` is the first request of its shape.",
    "A product is timed as one of a chain on the device, without transfers.",
)


async def bench(settings: m.Settings, only: Sequence[str] = tuple(PARTS), compiled: bool = False) -> m.Report:
    """Measure the parts that are named. One that fails becomes a note, and the others are measured all the same."""
    settings = attrs.evolve(
        settings,
        blocks=min(settings.blocks, _BLOCKS),
        block_s=min(settings.block_s, _BLOCK_S),
        settle_s=min(settings.settle_s, _SETTLE_S),
    )
    torch = _torch_peers()
    shared = Bench(settings, torch, compiled and torch is not None)
    async with asyncrt.Runtime(shared.device) as rt:
        info = rt.info
    findings: list[Finding] = []
    for name in only:
        start = time.perf_counter()
        try:
            async for finding in PARTS[name](shared):
                findings.append(finding)
                _say(finding.row)
        except* Exception as group:  # machines with a GPU are dear: the rest is measured
            traceback.print_exception(group)
            shared.notes.append(f"{name} ended early: {command.cause(group)!r}")
        _say({f"{name} took s": time.perf_counter() - start})
    if not findings:
        raise m.BenchmarkError("; ".join(shared.notes) or "nothing was measured")
    chosen = "" if tuple(only) == tuple(PARTS) else f" --only {','.join(only)}"
    return m.Report(
        name="gpu",
        command=f"python -m benchmarks.gpu{chosen}{' --compiled' if compiled else ''}{settings.flags}",
        environment=m.environment(info) | _environment(torch),
        rows=[finding.row for finding in findings],
        summary=summary(findings),
        notes=[*NOTES, *([] if torch else ["PyTorch is left out: it is not installed."]), *shared.notes],
    )


def _torch_peers() -> ModuleType | None:
    """Return what runs PyTorch, if it is installed."""
    try:
        return importlib.import_module("benchmarks.torch_peers")
    except ImportError:
        return None


def _environment(torch_peers: ModuleType | None) -> dict[str, str]:
    """Return PyTorch's version, and what it calls its GPU."""
    if torch_peers is None:
        return {}
    torch = torch_peers.torch
    gpu = {"GPU": torch.cuda.get_device_name()} if torch_peers.CUDA else {}
    return {"PyTorch": torch.__version__, **gpu}


def _say(row: m.Row) -> None:
    """Tell a line as soon as it is known: a machine may be taken away before the end."""
    typer.echo("  ".join(f"{name}={m.show(cell)}" for name, cell in row.items() if cell not in (None, "")), err=True)


def main(
    only: Annotated[str, typer.Option(help="Parts, with commas between them.")] = ",".join(PARTS),
    compiled: Annotated[bool, typer.Option("--compiled", help="`torch.compile` as well, a minute more.")] = False,
    device: command.Device = None,
    quick: command.Quick = False,
    threads: command.Threads = _CORES,
    json_file: command.JsonFile = None,
    write: Annotated[bool, typer.Option("--write", help="Put the table into the page of benchmarks.")] = False,
) -> None:
    names = only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise typer.BadParameter(f"{unknown[0]!r} is no part; there are {', '.join(PARTS)}")
    report = command.execute(partial(bench, only=names, compiled=compiled), device, quick, threads, json_file)
    if write:
        page.put(report)


main.__doc__ = __doc__

if __name__ == "__main__":
    typer.run(main)
