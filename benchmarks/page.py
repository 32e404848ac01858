"""What do all the benchmarks say, on one page?

The page is made of reports alone; figures that were measured beside others' work are withheld. The command
`python -m benchmarks.page REPORT.json` puts one report, of another machine perhaps, into the page that there is.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from . import measure as m

#: Title of each benchmark, in the page's order.
BENCHMARKS: Mapping[str, str] = {
    "minilm": "A sentence embedding",
    "resnet": "Pictures",
    "vision": "Pictures in small networks",
    "vision_int8": "Pictures in quantised networks",
    "real_models": "Trained models of Python packages",
    "decode": "Token after token",
    "new_shapes": "Shapes never seen before",
    "compiled": "Compiled for each shape",
    "growth": "What shapes leave behind",
    "memory": "Memory",
    "callers": "Many callers at once",
    "cancelling": "Callers who leave",
    "tune": "Settings of batching",
    "skip": "Skipped nodes",
    "per_node": "The host's time for a node",
    "launches": "Who enqueues",
    "streams": "Several streams",
    "loop": "The event loop's stalls",
    "gemm": "Matrix products",
    "precision": "Precision",
    "sequences": "Many sequences at once",
    "load": "Loading",
    "gpu": "On a GPU",
}
NEEDS_GPU = frozenset({"gpu"})
"""Run by name alone: `python -m benchmarks gpu`, where there is a GPU, and best PyTorch for it."""

PAGE = m.ROOT / "docs" / "benchmarks.md"
_GLANCE = "## At a glance"

HEAD = """\
# Benchmarks

<!-- Written by `python -m benchmarks --write`; change the files in benchmarks/ instead. -->

How fast asyncrt is, beside what, and how sure that is.
Every table can be made again with the command above it; `make bench` makes them all and writes this page.

The rules:

- Peers run in the same process on the same cores, in turns (A B A B ...), and start when two turns in a row agree.
- Figures are medians. A ratio is of medians, and the brackets hold its 95 % interval, from a bootstrap over the turns.
- Peers must give the same results, or there is no table. All calculate in float32, unless the table says otherwise.
- A peer that is not installed is left out, and the table says so; `make bench` installs them.
- NumPy can be told to use fewer instructions than the processor has, by variables before a command, OpenVINO in part
  (its products by MLAS use all there are), and ONNX Runtime not at all: such a table flatters both.
- Where others use more than a tenth of a core meanwhile, there is no table either: figures would say nothing.
"""


def module(name: str) -> ModuleType:
    """Return the module of a benchmark."""
    return importlib.import_module(f"benchmarks.{name}")


def question(name: str) -> str:
    """Return the question that a benchmark answers."""
    return _text(name).splitlines()[0]


def page(reports: Sequence[m.Report], noisy: bool = False, plots: Mapping[str, Path] = {}) -> str:
    """Return the page of the reports there are, those of a benchmark one behind the other.

    *plots* are files by `Report.stem`, in a folder beside the page.
    """
    sections = [section(list(of_one), noisy, plots) for _, of_one in groupby(reports, lambda report: report.name)]
    return HEAD + glance(reports, noisy) + "".join(sections)


def put(report: m.Report, file: Path = PAGE) -> None:
    """Put a report's section, and its rows of the first table, into the page, in the place of those before."""
    text = with_rows(file.read_text(encoding="utf-8"), BENCHMARKS[report.name], _rows(report))
    text = with_section(text, section([report]))
    file.write_text(text, encoding="utf-8")
    typer.echo(f"\n{file} has the figures of {report.name}")


def with_section(text: str, made: str) -> str:
    """Return a page with a section in the place of that of the same title, or at its end."""
    heading = made.split("\n", 2)[1]
    before, found, behind = text.partition(f"\n{heading}\n")
    if not found:
        return text + made
    _, other, rest = behind.partition("\n## ")
    return before + made + other + rest


def with_rows(text: str, title: str, rows: Sequence[str]) -> str:
    """Return a page whose first table has these rows of a benchmark, behind the others'."""
    before, found, behind = text.partition(f"\n{_GLANCE}\n\n")
    if not found:
        return text
    table, _, rest = behind.partition("\n\n")
    kept = [line for line in table.splitlines() if not line.startswith(f"| {title} |")]
    return before + found + "\n".join([*kept, *rows]) + "\n\n" + rest


def glance(reports: Sequence[m.Report], noisy: bool = False) -> str:
    """Return a table of all ratios that sum a benchmark up; empty if there is none."""
    rows = [row for report in reports for row in _rows(report, noisy)]
    if not rows:
        return ""
    head = ["| benchmark | figure | processor | ratio | command |", "| --- | --- | --- | ---: | --- |"]
    return f"\n{_GLANCE}\n\n" + "\n".join(head + rows) + "\n"


def _rows(report: m.Report, noisy: bool = False) -> list[str]:
    """Return a report's rows of the first table; none if others used the machine, unless *noisy*."""
    if not (report.quiet or noisy):
        return []
    return [
        f"| {BENCHMARKS[report.name]} | {heading} | {report.processor} | {cell} | `{report.command}` |"
        for heading, cell in report.summary.items()
        if isinstance(cell, m.Ratio)
    ]


def section(reports: Sequence[m.Report], noisy: bool = False, plots: Mapping[str, Path] = {}) -> str:
    """Return a benchmark's part of the page, of one report or of one for each set of instructions."""
    name = reports[0].name
    first, _, rest = _text(name).partition("\n")
    parts = [f"## {BENCHMARKS[name]}", f"*{first}*", rest.strip()]
    for report in reports:
        if len(reports) > 1:
            parts.append(f"**{report.processor}**")
        parts += _figures(report, first, noisy, plots.get(report.stem))
    return "\n" + "\n\n".join(parts) + "\n"


def _figures(report: m.Report, question: str, noisy: bool, plot: Path | None) -> list[str]:
    """Return a report's paragraphs; without its figures if others used the machine, unless *noisy*."""
    measured = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    others = f"Others used {m.show(report.others)} cores while this was measured"
    figures = [report.markdown()] if report.quiet or noisy else [f"{others}, so the figures are withheld."]
    if noisy and not report.quiet:
        figures.insert(0, f"**{others}: these figures are not to be relied on.**")
    if plot is not None:
        figures.append(f"![{question}]({plot.parent.name}/{plot.name})")
    return [f"```text\n{report.command}\n```", *figures, f"<sub>{measured}</sub>"]


def _text(name: str) -> str:
    text = module(name).__doc__
    assert text is not None
    return text


def main(report: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="As --json wrote it.")]) -> None:
    put(m.Report.from_json(report.read_text(encoding="utf-8")))


main.__doc__ = __doc__

if __name__ == "__main__":
    typer.run(main)
