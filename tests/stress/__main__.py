"""All that is too long for every change: `make stress`; and one seed again.

    python -m tests.stress                          # everything, in about half an hour on two cores
    python -m tests.stress --schedules 2000000      # longer
    python -m tests.stress --graph 635              # the graph of that seed alone, on the simulated device
    python -m tests.stress --graph 635 --opencl     # on the best OpenCL device
    python -m tests.stress --schedule 17            # the schedule of that seed
    python -m tests.stress --run 17                 # the requests, faults and cancellations of that seed
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import mutants as mutation
from .batching import ten_thousand
from .compare import compare
from .parts import Result, every_order, seeds, summary
from .runs import random_run
from .schedules import random_schedule
from .soak import show, soak


def main(
    schedules: Annotated[int, typer.Option(help="Random orders of the scheduler and the pool.")] = 500_000,
    states: Annotated[int, typer.Option(help="Most states of each scenario of which every order is tried.")] = 60_000,
    runs: Annotated[int, typer.Option(help="Requests with random faults and cancellations.")] = 5_000,
    graphs: Annotated[int, typer.Option(help="Random models on the simulated device.")] = 2_000,
    opencl_graphs: Annotated[int, typer.Option(help="Random models on the best OpenCL device.")] = 100,
    mutants: Annotated[bool, typer.Option(help="Whether to try what the tests find.")] = True,
    storms: Annotated[int, typer.Option(help="Of ten thousand callers of batched requests.")] = 10,
    requests: Annotated[int, typer.Option(help="Of the soak.")] = 200_000,
    shapes: Annotated[int, typer.Option(help="Of the soak.")] = 5_000,
    cancels: Annotated[int, typer.Option(help="Of the soak.")] = 10_000,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    schedule: Annotated[int | None, typer.Option(help="One schedule again, by its seed.")] = None,
    run: Annotated[int | None, typer.Option(help="One run again, by its seed.")] = None,
    graph: Annotated[int | None, typer.Option(help="One model again, by its seed.")] = None,
    opencl: Annotated[bool, typer.Option(help="The model on OpenCL.")] = False,
) -> None:
    """Try many orders, faults, graphs, mutants and requests, and print a summary."""
    os.environ.setdefault("ASYNCRT_CHECK_HAZARDS", "1")
    console = Console()
    if schedule is not None:
        console.print(random_schedule(schedule, check=True).pool)
    if run is not None:
        console.print(random_run(run))
    if graph is not None:
        console.print(compare(graph, opencl=opencl))
    if (schedule, run, graph) != (None, None, None):
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        results = [
            seeds("schedules", random_schedule, range(first, first + schedules), progress),
            every_order(states, progress),
            seeds("runs with faults", random_run, range(first, first + runs), progress),
            seeds("storms of batched requests", ten_thousand, range(first, first + storms), progress),
            seeds("graphs", compare, range(first, first + graphs), progress),
            seeds(
                "graphs on OpenCL",
                functools.partial(compare, opencl=True),
                range(first, first + opencl_graphs),
                progress,
            ),
        ]
    if mutants:
        begun = time.monotonic()
        survivors = mutation.run(mutation.MUTANTS, console)
        names = [f"nothing finds: {m.name}" for m in survivors]
        results.append(Result("mutants", len(mutation.MUTANTS), names, time.monotonic() - begun))
    if requests:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("soak", total=requests)
            soaked = asyncio.run(
                soak(requests, shapes, cancels, progress=lambda done: progress.update(bar, completed=done))
            )
        show(soaked, console)
        left = [f"left at close: {name}: {count}" for name, count in soaked.left.items() if count]
        bound = f"grows by {soaked.grows[1] * 1e5 / 2**20:.2f} MiB for 100,000 requests at most"
        results.append(Result("requests", requests, left, soaked.seconds, bound))
    summary(results, console)
    sys.exit(any(r.failures for r in results))


if __name__ == "__main__":
    typer.run(main)
