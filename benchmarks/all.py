"""How fast is asyncrt, by all benchmarks, one after the other?

Each runs in a process of its own, and its report is kept; `--write` makes docs/benchmarks.md, and the plots in
docs/benchmarks/, of the reports there are. Those of one set of instructions do not replace those of another:
begin the command with CL_CONFIG_CPU_TARGET_ARCH=core-avx2 to measure a processor with AVX2 alone, say.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from . import command as c
from . import instructions
from . import measure as m
from .page import BENCHMARKS, NEEDS_GPU, PAGE, module, page, question
from .peers import installed
from .plots import draw
from .process import fresh

REPORTS = m.ROOT / ".bench"


def main(
    only: Annotated[
        list[str] | None, typer.Argument(help=f"Some of: {', '.join(BENCHMARKS)}. If not given, all that need no GPU.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Measure for long, to publish: half an hour.")] = False,
    model: c.ModelFile = None,
    device: c.Device = None,
    threads: c.Threads = 2,
    noisy: Annotated[bool, typer.Option("--noisy", help="Write tables though others used the machine.")] = False,
    reports: Annotated[Path, typer.Option(file_okay=False, help="Folder of the reports as JSON.")] = REPORTS,
    write: Annotated[bool, typer.Option("--write", help="Write the page of all reports there are.")] = False,
    file: Annotated[Path, typer.Option("--page", dir_okay=False, help="The page to write.")] = PAGE,
) -> None:
    names = only or [name for name in BENCHMARKS if name not in NEEDS_GPU]
    for name in names:
        if name not in BENCHMARKS:
            raise typer.BadParameter(f"{name!r} is not a benchmark; there are {', '.join(BENCHMARKS)}")
    compiled = _instructions(device)
    failed: list[str] = []
    for name in names:
        report = reports / f"{instructions.stem(name, compiled)}.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(report), "--threads", str(threads)]
        command += [] if full else ["--quick"]
        command += ["--device", device] if device else []
        command += ["--model", str(model.resolve())] if model and c.takes_model(module(name).bench) else []
        typer.echo(f"\n{name}: {question(name)}")
        report.unlink(missing_ok=True)  # a report that could not be made again is not to be shown as if it were
        if subprocess.run(command, cwd=m.ROOT, check=False).returncode:
            failed.append(name)
    if write:
        write_page(file, reports, noisy)
    if failed:
        typer.echo(f"not measured: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def write_page(file: Path, folder: Path, noisy: bool) -> None:
    """Write the page of the reports in a folder, its plots beside it, and say what is on it."""
    order = list(BENCHMARKS)
    found = [r for f in folder.glob("*.json") if (r := m.Report.from_json(f.read_text())).name in BENCHMARKS]
    found.sort(key=lambda report: (order.index(report.name), report.instructions != "AVX-512", report.instructions))
    shown = [report for report in found if report.quiet or noisy]
    drawn = {report.stem: draw(report, file.with_suffix("")) for report in shown}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(found, noisy, {name: plot for name, plot in drawn.items() if plot is not None}))
    typer.echo(f"\n{file} has {len({report.name for report in found})} of {len(BENCHMARKS)} benchmarks")
    if not installed("matplotlib"):
        typer.echo("it has no plots, for matplotlib is not installed (`pip install matplotlib`)", err=True)
    if withheld := [report.stem for report in found if report not in shown]:
        typer.echo(f"tables withheld, because others used the machine: {', '.join(withheld)}; see --noisy", err=True)


def _instructions(device: str | None) -> str:
    try:
        return fresh(instructions.of_device, device)
    except m.BenchmarkError as error:
        typer.echo(f"error  {error}", err=True)
        raise typer.Exit(1) from None


main.__doc__ = __doc__
