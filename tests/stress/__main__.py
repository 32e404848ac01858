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
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from asyncrt.scheduler.policies import policy_names

from . import mutants as mutation
from .compare import compare
from .runs import random_run
from .schedules import World, explore, random_schedule
from .soak import show, soak

SHOWN = 3
"""Failures of a kind that are printed in full."""


@attrs.define
class Result:
    """What came of one part.

    Attributes:
        what: Its name.
        count: How many of them were tried.
        failures: What went wrong, with the seed.
        seconds: How long it took.
        note: What else is worth knowing.
    """

    what: str
    count: int
    failures: list[str] = attrs.Factory(list)
    seconds: float = 0.0
    note: str = ""


def tried(work: Callable[[int], Any], seed: int) -> str | None:
    """What went wrong with a seed; None if nothing did."""
    try:
        work(seed)
    except Exception:
        return traceback.format_exc()
    return None


def seeds(what: str, work: Callable[[int], Any], numbers: Iterable[int], progress: Progress) -> Result:
    """Try all seeds, in as many processes as there are processors."""
    numbers = list(numbers)
    result, begun = Result(what, len(numbers)), time.monotonic()
    bar = progress.add_task(what, total=len(numbers))
    # Fresh interpreters: a process that has had OpenCL cannot be forked.
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count(), maxtasksperchild=20_000) as pool:
        size = max(1, min(500, len(numbers) // 50))
        for failure in pool.imap_unordered(functools.partial(tried, work), numbers, size):
            progress.advance(bar)
            if failure is not None:
                result.failures.append(failure)
    result.seconds = time.monotonic() - begun
    return result


def every_order(most: int, progress: Progress) -> Result:
    """Every order of small scenarios, up to *most* states of each."""
    scenarios: list[tuple[list[tuple[int, ...]], dict[str, Any]]] = [
        ([(100,), (100,), (100,)], {}),
        ([(100, 5000), (5000, 100), (100,)], {"cancels": False}),
        ([(100, 5000), (5000, 100)], {"limit": 3 << 12}),
        ([(5000,), (5000,), (5000,)], {"limit": 3 << 12}),
    ]
    result, begun = Result("orders", 0), time.monotonic()
    bar = progress.add_task("every order", total=len(scenarios) * len(policy_names()))
    left_out = 0
    for requests, more in scenarios:
        for policy in policy_names():
            try:
                explored = explore(World(requests, policy=policy, **more), most)
                result.count += explored.states
                left_out += not explored.complete
            except Exception:
                result.failures.append(traceback.format_exc())
            progress.advance(bar)
    result.seconds = time.monotonic() - begun
    result.note = f"{len(scenarios) * len(policy_names())} scenarios, {left_out} of them not to the end"
    return result


def summary(results: list[Result], console: Console) -> None:
    """Print what was tried, and how to see again what went wrong."""
    for result in results:
        for failure in result.failures[:SHOWN]:
            console.rule(f"[red]{result.what}")
            console.print(failure, markup=False, highlight=False)
    table = Table("", "tried", "wrong", "time", "", title="stress")
    for r in results:
        wrong = f"[bold red]{len(r.failures)}[/]" if r.failures else "0"
        table.add_row(r.what, f"{r.count:,}", wrong, f"{r.seconds:.0f} s", r.note)
    console.print(table)


def main(
    schedules: Annotated[int, typer.Option(help="Random orders of the scheduler and the pool.")] = 500_000,
    states: Annotated[int, typer.Option(help="Most states of each scenario of which every order is tried.")] = 60_000,
    runs: Annotated[int, typer.Option(help="Requests with random faults and cancellations.")] = 5_000,
    graphs: Annotated[int, typer.Option(help="Random models on the simulated device.")] = 2_000,
    opencl_graphs: Annotated[int, typer.Option(help="Random models on the best OpenCL device.")] = 100,
    mutants: Annotated[bool, typer.Option(help="Whether to try what the tests find.")] = True,
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
