"""`asyncrt bench --batched`: what do batches give, when callers come at random?

For each rate the same requests come at the same times, once batched and once each by itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
from rich.table import Table

from asyncrt.errors import AsyncrtError
from asyncrt.runtime.runtime import Runtime
from asyncrt.version import __version__
from asyncrt.writing import write_text, written_whole

from . import options as o
from .arrivals import Draw, Pattern
from .inputs import InputOptions
from .load import Traffic, Ways, default_rates, solo_rate
from .open_loop import Point
from .terminal import note, progress_bar, stdout, wrong

_COLOURS = {"batched": "#1f5fbf", "alone": "#d9730d"}


@attrs.frozen(kw_only=True)
class Wanted:
    """What the user asked for.

    Attributes:
        rates: Requests a second; None goes by what the model does here.
        config: A file of `BatchOptions`.
        compare: Whether to measure requests that run alone, too.
    """

    inputs: InputOptions
    lengths: dict[str, Draw]
    pattern: Pattern
    rates: Sequence[float] | None
    seconds: float
    deadline: float | None
    config: Path | None
    compare: bool
    json_file: Path | None
    plot: Path | None


def parse_rates(text: str | None) -> list[float] | None:
    """Read `--rate`.

    Raises:
        typer.BadParameter: It is no list of rates.
    """
    if text is None:
        return None
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise wrong("--rate", f"expected requests a second, as 100 or 50,100,200, got '{text}'")
    return rates


async def bench_batched(model: Path, wanted: Wanted, runtime: Runtime) -> None:
    """Measure, and print, write and draw what was found."""
    if wanted.plot is not None:
        check_matplotlib()
    async with runtime:
        loaded = await runtime.load(model)
        traffic = Traffic(loaded.inputs, wanted.inputs, wanted.lengths, wanted.pattern)
        for name, source in traffic.sources().items():
            note(f"{name}: {source}")
        solo = await solo_rate(loaded, traffic)
        rates = wanted.rates or default_rates(solo)
        async with loaded.batched(config=wanted.config) as batched:
            infos = runtime.infos
            note(f"on {o.shown_devices(infos)}; one after the other: {solo:.4g} requests/s")
            note(str(batched.pad_safety))
            ways = Ways(batched, loaded if wanted.compare else None, traffic, wanted.seconds, wanted.deadline)
            points: list[Point] = []
            with progress_bar() as progress:
                task = progress.add_task("warm-up", total=len(rates) + 1)
                await ways.warm_up(min(solo, max(rates)))
                for number, rate in enumerate(rates, 1):
                    progress.update(task, description=f"{rate:.6g} requests/s", advance=1)
                    points += await ways.at(rate, seed=number)
            options = attrs.asdict(batched.options)
    document: dict[str, Any] = {
        "model": str(model),
        "asyncrt": __version__,
        **o.document_of(infos),
        "arrivals": wanted.pattern,
        "seconds": wanted.seconds,
        "deadline": wanted.deadline,
        "one_after_the_other_per_s": solo,
        "options": options,
        "points": [attrs.asdict(point) for point in points],
    }
    if wanted.json_file is not None:
        write_text(wanted.json_file, json.dumps(document, indent=2) + "\n")
    if wanted.plot is not None:
        draw(points, wanted.plot)
        note(f"the plot is in {wanted.plot}")
    stdout().print(table(points, wanted.deadline))


def table(points: Sequence[Point], deadline: float | None) -> Table:
    """Return the points as a table."""
    title = "latencies in ms, from the time at which a request was to be sent"
    if deadline is not None:
        title += f"; answers count within {deadline:g} s"
    found = Table(title=title, title_justify="left", box=None, header_style="bold")
    for heading in ("sent/s", "answers/s", "p50", "p90", "p99", "refused", "late", "batch", "padding"):
        found.add_column(heading, justify="right", no_wrap=True)
    for heading in ("", "batches went because"):
        found.add_column(heading, no_wrap=True)
    for p in points:
        latencies = ["-" if ms is None else f"{ms:.3f}" for ms in (p.p50_ms, p.p90_ms, p.p99_ms)]
        batch = "-" if p.mean_batch is None else f"{p.mean_batch:.1f}"
        padding = "-" if p.padding is None else f"{p.padding:.0%}"
        reasons = ", ".join(f"{reason} {count}" for reason, count in p.reasons.items())
        counts = (str(p.refused), str(p.late))
        found.add_row(f"{p.rate:.6g}", f"{p.goodput:.4g}", *latencies, *counts, batch, padding, p.way, reasons)
    return found


def check_matplotlib() -> None:
    """Raise `AsyncrtError` if nothing is there that draws."""
    try:
        import matplotlib.figure  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise AsyncrtError("matplotlib is not there, so --plot cannot draw", hint="pip install matplotlib") from error


def draw(points: Sequence[Point], file: Path) -> None:
    """Draw latencies against load, as PNG or whatever the file's name ends in."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes: Any = figure.subplots()
    for way in dict.fromkeys(p.way for p in points):
        answered = [p for p in points if p.way == way and p.answered]
        rates = [p.rate for p in answered]
        colour = _COLOURS[way]
        axes.plot(rates, [p.p50_ms for p in answered], "-o", color=colour, label=f"{way}, median")
        axes.plot(rates, [p.p99_ms for p in answered], "--o", color=colour, label=f"{way}, p99", fillstyle="none")
    axes.set(xscale="log", yscale="log", xlabel="requests/s sent", ylabel="ms until the answer")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#d8d8d8", linewidth=0.6)
    axes.legend(frameon=False)
    form = file.suffix[1:].lower() or "png"
    if form not in figure.canvas.get_supported_filetypes():
        raise wrong("--plot", f"expected a name that ends in .png, .svg or .pdf, got '{file}'")
    with written_whole(file) as written:
        figure.savefig(written, dpi=120, format=form)
