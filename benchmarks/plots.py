"""What do the benchmarks' figures look like?

Each plot is made of a report alone, as the page's tables are. matplotlib may be missing: then there are no plots.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from .measure import Ratio, Report, show
from .peers import installed


@attrs.frozen
class Ratios:
    """A point with its interval for each row and each ratio in it; 1 is a line.

    Attributes:
        labels: The columns that say what a row is.
        axis: What is above 1.
    """

    labels: Sequence[str]
    axis: str


@attrs.frozen
class Bars:
    """A group of bars for each row.

    Attributes:
        label: The column that says what a row is.
        columns: The columns that are bars.
        axis: What the bars show.
    """

    label: str
    columns: Sequence[str]
    axis: str


@attrs.frozen
class Lines:
    """A line for each row, over the columns that begin alike.

    Attributes:
        label: The column that says what a row is.
        start: How the columns begin; the rest is where they stand.
        axis: What the line shows.
        along: What the columns differ in.
    """

    label: str
    start: str
    axis: str
    along: str


Plot: TypeAlias = Ratios | Bars | Lines

PLOTS: Mapping[str, Plot] = {
    "minilm": Ratios(("batch", "tokens"), "times as fast as the peer"),
    "resnet": Ratios(("batch", "height", "width"), "times as fast as the peer"),
    "vision": Ratios(("network", "batch", "height", "width"), "times as fast as the peer"),
    "vision_int8": Ratios(("network", "batch", "height", "width"), "times as fast as the peer"),
    "decode": Lines("runtime", "ms at ", "ms for a token", "tokens in the cache"),
    "new_shapes": Bars("runtime", ("first ms", "second ms"), "ms for a request"),
    "memory": Bars("runtime", ("opened MB", "loaded MB", "peak MB"), "MB beyond imports"),
    "callers": Bars("runtime", ("requests/s",), "requests/s"),
    "per_node": Bars("who", ("µs per node",), "µs for a node"),
    "gemm": Ratios(("M", "N", "K"), "GFLOP/s over NumPy's"),
}

#: The same runtime has the same colour everywhere.
_COLOURS = {"asyncrt": "#1f5fbf", "ONNX Runtime": "#d9730d", "OpenVINO": "#2a8f6a", "tinygrad": "#8a5fb0"}
_NOBODY = "#707070"
_SHADES = ("#1f5fbf", "#7fa8e0", "#c9d8ee")
_GRID = "#d8d8d8"


def draw(report: Report, folder: Path) -> Path | None:
    """Draw a report into a folder and return the file; None, and no file, if it has no plot or nothing can draw."""
    file = folder / f"{report.stem}.png"
    file.unlink(missing_ok=True)
    plot = PLOTS.get(report.name)
    if plot is None or not installed("matplotlib"):
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    match plot:
        case Ratios():
            _ratios(axes, plot, report)
        case Bars():
            _bars(axes, plot, report)
        case Lines():
            _lines(axes, plot, report)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120, metadata={"Software": None})
    return file


def _ratios(axes: Any, plot: Ratios, report: Report) -> None:
    labels = ["×".join(show(row[column]) for column in plot.labels) for row in report.rows]
    columns = [name for name, cell in report.rows[0].items() if isinstance(cell, Ratio)]
    for number, column in enumerate(columns):
        ratios = [cell for row in report.rows if isinstance(cell := row[column], Ratio)]
        middle = [r.ratio for r in ratios]
        interval = [[r.ratio - r.low for r in ratios], [r.high - r.ratio for r in ratios]]
        shifted = [x + 0.15 * (number - (len(columns) - 1) / 2) for x in range(len(ratios))]
        axes.errorbar(shifted, middle, yerr=interval, fmt="o", capsize=2, color=_colour(column), label=column)
    axes.axhline(1, color="#404040", linewidth=1)
    axes.set_xticks(range(len(labels)), labels, rotation=90 if len(labels) > 12 else 0)
    axes.set_xlabel(" × ".join(plot.labels))
    axes.set_ylabel(plot.axis)
    axes.set_ylim(bottom=0)
    if len(columns) > 1:
        axes.legend(frameon=False)


def _bars(axes: Any, plot: Bars, report: Report) -> None:
    labels = [textwrap.fill(str(row[plot.label]), 18) for row in report.rows]
    width = 0.8 / len(plot.columns)
    for number, column in enumerate(plot.columns):
        places = [x + width * (number - (len(plot.columns) - 1) / 2) for x in range(len(labels))]
        one = len(plot.columns) == 1
        colours = [_colour(str(row[plot.label])) for row in report.rows] if one else _SHADES[number]
        drawn = axes.bar(places, [row[column] for row in report.rows], 0.9 * width, color=colours, label=column)
        axes.bar_label(drawn, [show(row[column]) for row in report.rows], fontsize=8)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylabel(plot.axis)
    if len(plot.columns) > 1:
        axes.legend(frameon=False)


def _lines(axes: Any, plot: Lines, report: Report) -> None:
    columns = [name for name in report.rows[0] if name.startswith(plot.start)]
    styles: dict[str, list[str]] = {}
    for row in report.rows:
        label = str(row[plot.label])
        colour = _colour(label)
        style = ["-", "--", ":"][len(styles.setdefault(colour, [])) % 3]  # the ways of one runtime differ in this
        styles[colour].append(style)
        axes.plot(range(len(columns)), [row[c] for c in columns], style, marker="o", color=colour, label=label)
    axes.set_xticks(range(len(columns)), [name.removeprefix(plot.start) for name in columns])
    axes.set_xlabel(plot.along)
    axes.set_ylabel(plot.axis)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)


def _colour(name: str) -> str:
    """Return the colour of what *name* tells of; "over" a peer has the peer's."""
    found = [colour for runtime, colour in _COLOURS.items() if name.removeprefix("over ").startswith(runtime)]
    return found[0] if found else _NOBODY
