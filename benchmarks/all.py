"""What do all the benchmarks say, on one page?

Runs each in a process of its own, keeps its report, and writes docs/benchmarks.md from the reports that there are.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from . import measure as m

#: Title and further options of each, in the page's order.
BENCHMARKS: Mapping[str, tuple[str, Sequence[str]]] = {
    "minilm": ("A sentence embedding", ()),
    "new_shapes": ("Shapes never seen before", ("--many", "10000")),
    "callers": ("Many callers at once", ()),
    "skip": ("Skipped nodes", ()),
    "per_node": ("The host's time for a node", ()),
    "streams": ("Several streams", ()),
    "loop": ("The event loop's stalls", ()),
    "gemm": ("Matrix products", ()),
    "load": ("Loading", ()),
}
_QUICK = {"new_shapes": ("--many", "1000")}
_MODEL = ("minilm", "new_shapes", "callers", "load")  # they take --model

PAGE = m.ROOT / "docs" / "benchmarks.md"
REPORTS = m.ROOT / ".bench"

HEAD = """\
# Benchmarks

<!-- Written by `python -m benchmarks`; change the files in benchmarks/ instead. -->

How fast asyncrt is, beside what, and how sure that is.
Every table can be made again with the command above it; `make bench` makes them all and writes this page.

The rules:

- Peers run in the same process on the same cores, in turns (A B A B ...), and start when two turns in a row agree.
- Figures are medians. A ratio is of medians, and the brackets hold its 95 % interval, from a bootstrap over the turns.
- Peers must give the same results, or there is no table.
- Where others use more than a tenth of a core meanwhile, there is no table either: figures would say nothing.
"""


def main(
    only: Annotated[
        list[str] | None, typer.Argument(help=f"Some of: {', '.join(BENCHMARKS)}. All, if not given.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Measure for long, to publish: a quarter of an hour.")] = False,
    model: m.ModelFile = None,
    device: m.Device = None,
    threads: m.Threads = 2,
    noisy: Annotated[bool, typer.Option("--noisy", help="Write tables though others used the machine.")] = False,
    reports: Annotated[Path, typer.Option(file_okay=False, help="Folder of the reports as JSON.")] = REPORTS,
    page: Annotated[Path, typer.Option(dir_okay=False, help="The page to write.")] = PAGE,
) -> None:
    names = only or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            raise typer.BadParameter(f"{name!r} is not a benchmark; there are {', '.join(BENCHMARKS)}")
    failed: list[str] = []
    for name in names:
        file = reports / f"{name}.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(file), "--threads", str(threads)]
        command += BENCHMARKS[name][1] if full else ["--quick", *_QUICK.get(name, ())]
        command += ["--device", device] if device else []
        command += ["--model", str(model.resolve())] if model and name in _MODEL else []
        typer.echo(f"\n{name}: {question(name)}")
        file.unlink(missing_ok=True)  # a report that could not be made again is not to be shown as if it were
        if subprocess.run(command, cwd=m.ROOT, check=False).returncode:
            failed.append(name)
    found = [m.Report.from_json(f.read_text()) for name in BENCHMARKS if (f := reports / f"{name}.json").exists()]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(HEAD + "".join(section(report, noisy) for report in found))
    typer.echo(f"\n{page} has {len(found)} of {len(BENCHMARKS)} tables")
    if withheld := [report.name for report in found if not (report.quiet or noisy)]:
        typer.echo(f"tables withheld, because others used the machine: {', '.join(withheld)}; see --noisy", err=True)
    if failed:
        typer.echo(f"not measured: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def question(name: str) -> str:
    """Return the question that a benchmark answers."""
    text = importlib.import_module(f"benchmarks.{name}").__doc__
    assert text is not None
    return text.splitlines()[0]


def section(report: m.Report, noisy: bool = False) -> str:
    """Return a report's part of the page; without its figures if others used the machine, unless *noisy*."""
    text = importlib.import_module(f"benchmarks.{report.name}").__doc__
    assert text is not None
    first, _, rest = text.partition("\n")
    measured = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    others = f"Others used {m.show(report.others)} cores while this was measured"
    figures = [report.markdown()] if report.quiet or noisy else [f"{others}, so the figures are withheld."]
    if noisy and not report.quiet:
        figures.insert(0, f"**{others}: these figures are not to be relied on.**")
    parts = [
        f"## {BENCHMARKS[report.name][0]}",
        f"*{first}*",
        rest.strip(),
        f"```text\n{report.command}\n```",
        *figures,
        f"<sub>{measured}</sub>",
    ]
    return "\n" + "\n\n".join(parts) + "\n"


main.__doc__ = __doc__

if __name__ == "__main__":
    typer.run(main)
