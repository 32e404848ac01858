"""How is a benchmark run from the command line?

All take the same options; those that measure MiniLM take its file, too.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import attrs
import typer
from rich.console import Console

from asyncrt.errors import AsyncrtError

from . import instructions, models
from .measure import BenchmarkError, Others, Report, Settings, cores, show

Bench: TypeAlias = Callable[..., Coroutine[Any, Any, Report]]
"""``bench(settings)``, or ``bench(settings, model)`` if it measures MiniLM; what else it takes has defaults."""

Device = Annotated[str | None, typer.Option(help="Where asyncrt runs, as `asyncrt devices` lists; else the best.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer and smaller cases: to see that it works, not to publish.")]
Threads = Annotated[int, typer.Option(min=1, help="Cores that this process, and so every peer in it, may use.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", dir_okay=False, help="Write the report, too.")]
ModelFile = Annotated[
    Path | None,
    typer.Option("--model", metavar="FILE", help="MiniLM as ONNX; by default it is made from the installed weights."),
]


def takes_model(bench: Bench) -> bool:
    """Whether a benchmark measures MiniLM, and so has the option ``--model``."""
    return "model" in inspect.signature(bench).parameters


def run(bench: Bench) -> None:
    """Be the command of a benchmark: print its report, write it, or say why there is none."""

    def with_model(
        model: ModelFile = None, device: Device = None, quick: Quick = False, threads: Threads = 2,
        json_file: JsonFile = None,
    ) -> None:  # fmt: skip
        execute(lambda settings: bench(settings, models.minilm(model)), device, quick, threads, json_file)

    def without(
        device: Device = None, quick: Quick = False, threads: Threads = 2, json_file: JsonFile = None
    ) -> None:
        execute(bench, device, quick, threads, json_file)

    main = with_model if takes_model(bench) else without
    main.__doc__ = sys.modules[bench.__module__].__doc__
    typer.run(main)


def execute(bench: Bench, device: str | None, quick: bool, threads: int, json_file: Path | None) -> Report:
    """Run a benchmark on so many cores, print its report, write it to *json_file*, and return it.

    Raises:
        typer.Exit: There is no report; stderr says why.
    """
    bound_threads(threads)
    others = Others()
    try:
        report = asyncio.run(bench(Settings.of(quick, device)))
    except* (BenchmarkError, AsyncrtError) as group:
        typer.echo(f"error  {cause(group)}", err=True)
        raise typer.Exit(1) from None
    command = " ".join(filter(None, (instructions.chosen(), report.command)))
    report = attrs.evolve(report, command=command, others=others.cores())
    print_report(report)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(report.to_json())
    return report


def cause(error: BaseException) -> BaseException:
    """Return the first exception of a group, or of one in it; any other as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def print_report(report: Report) -> None:
    """Show a report on the terminal."""
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(", ".join(f"{name} {value}" for name, value in report.environment.items()), style="dim")
    console.print(report.table())
    for heading, cell in report.summary.items():
        console.print(f"{heading}: [bold]{show(cell)}[/]")
    for note in report.notes:
        console.print(note, style="dim")
    if not report.quiet:
        console.print(f"[red]Others used {show(report.others)} cores meanwhile: do not publish these figures.[/]")


def bound_threads(threads: int) -> None:
    """See to it that this process has *threads* cores.

    Thread pools are made for the cores that a process has when its libraries are loaded, and some are loaded by now: so
    this starts the same command anew where there are more. Where a system cannot bind processes, it has all cores, and
    the report says so.
    """
    if not hasattr(os, "sched_setaffinity") or cores() <= threads:
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = str(threads)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
