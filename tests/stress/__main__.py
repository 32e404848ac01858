"""All that is too long for every change: `make stress`; and one seed again.

    python -m tests.stress                          # everything, in about an hour on two cores
    python -m tests.stress --schedules 2000000      # longer
    python -m tests.stress --graph 635              # the graph of that seed alone, on the simulated device
    python -m tests.stress --graph 635 --opencl     # on the best OpenCL device
    python -m tests.stress --schedule 17            # the schedule of that seed
    python -m tests.stress --run 17                 # the requests, faults and cancellations of that seed
    python -m tests.stress --model 17               # the mutated model of that seed
    python -m tests.stress --hostile-case 17        # the hostile calls of that seed, and those among whom they are
    python -m tests.stress --wire-case 17           # the message of that seed, to a server
    python -m tests.stress --only models --only hostile --only schedules
    python -m tests.stress --only models --models 30000 --first 1000000 --processes 1       # beside other work
"""

from __future__ import annotations

import asyncio
import enum
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import mutants as mutation
from .attack.hostile import CALLS
from .attack.malformed import corpus
from .batching import ten_thousand
from .compare import compare
from .many_models import loaded_in_turn
from .parts import Result, attacked, every_order, seeds, summary, wired
from .runs import random_run
from .schedules import random_schedule
from .soak import show, soak


class Part(enum.StrEnum):
    """What there is to try."""

    SCHEDULES = "schedules"
    ORDERS = "orders"
    RUNS = "runs"
    STORMS = "storms"
    GRAPHS = "graphs"
    OPENCL_GRAPHS = "opencl-graphs"
    MODELS = "models"
    MALFORMED = "malformed"
    HOSTILE = "hostile"
    MUTANTS = "mutants"
    WIRE = "wire"
    CALLERS = "callers"
    SWAPS = "swaps"
    REQUESTS = "requests"
    LOADING = "loading"


COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def main(
    schedules: Annotated[int, typer.Option(help="Random orders of the scheduler and the pool.")] = 500_000,
    states: Annotated[int, typer.Option(help="Most states of each scenario of which every order is tried.")] = 60_000,
    runs: Annotated[int, typer.Option(help="Requests with random faults and cancellations.")] = 5_000,
    graphs: Annotated[int, typer.Option(help="Random models on the simulated device.")] = 2_000,
    opencl_graphs: Annotated[int, typer.Option(help="Random models on the best OpenCL device.")] = 100,
    models: Annotated[int, typer.Option(help="Mutated models, an eighth of them on OpenCL.")] = 5_000,
    hostile: Annotated[int, typer.Option(help="Hostile calls among innocent ones.")] = 2_000,
    mutants: Annotated[bool, typer.Option(help="Whether to try what the tests find.")] = True,
    storms: Annotated[int, typer.Option(help="Of ten thousand callers of batched requests.")] = 10,
    wire: Annotated[int, typer.Option(help="Messages to a server, most of them wrong.")] = 200_000,
    callers: Annotated[int, typer.Option(help="Callers of a server, some of whom go.")] = 100_000,
    swaps: Annotated[int, typer.Option(help="Of a server's model, while requests run.")] = 20,
    requests: Annotated[int, typer.Option(help="Of the soak.")] = 200_000,
    shapes: Annotated[int, typer.Option(help="Of the soak.")] = 5_000,
    cancels: Annotated[int, typer.Option(help="Of the soak.")] = 10_000,
    loading: Annotated[int, typer.Option(help="Models that are loaded one after the other.")] = 200,
    only: Annotated[list[Part] | None, typer.Option(help="This part alone; may be given several times.")] = None,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    processes: Annotated[int, typer.Option(help="That are attacked at once.")] = os.cpu_count() or 1,
    schedule: Annotated[int | None, typer.Option(help="One schedule again, by its seed.")] = None,
    run: Annotated[int | None, typer.Option(help="One run again, by its seed.")] = None,
    graph: Annotated[int | None, typer.Option(help="One model again, by its seed.")] = None,
    opencl: Annotated[bool, typer.Option(help="The model on OpenCL.")] = False,
    model: Annotated[int | None, typer.Option(help="One mutated model again, by its seed.")] = None,
    malformed: Annotated[int | None, typer.Option(help="One malformed model again, by its number.")] = None,
    hostile_case: Annotated[int | None, typer.Option(help="Hostile calls again, by their seed.")] = None,
    wire_case: Annotated[int | None, typer.Option(help="One message to a server again, by its seed.")] = None,
) -> None:
    """Try many orders, faults, graphs, hostile models and calls, mutants and requests, and print a summary."""
    os.environ.setdefault("ASYNCRT_CHECK_HAZARDS", "1")
    console = Console()
    _again(schedule, run, graph, console, opencl=opencl)
    again = [("models", 1, model), ("malformed", 1, malformed), ("hostile", CALLS, hostile_case)]
    with Progress(*COLUMNS, console=console) as progress:
        results = [r for what, n, seed in again if seed is not None for r in attacked(what, n, seed, 1, progress)]
        results += [wired("wire", 1, wire_case, progress)] if wire_case is not None else []
    if (schedule, run, graph, model, malformed, hostile_case, wire_case) == (None,) * 7:
        wanted = set(only or Part)
        seeded: list[tuple[Part, str, Callable[[int], Any], int]] = [
            (Part.SCHEDULES, "schedules", random_schedule, schedules),
            (Part.RUNS, "runs with faults", random_run, runs),
            (Part.STORMS, "storms of batched requests", ten_thousand, storms),
            (Part.GRAPHS, "graphs", compare, graphs),
            (Part.OPENCL_GRAPHS, "graphs on OpenCL", functools.partial(compare, opencl=True), opencl_graphs),
        ]
        with Progress(*COLUMNS, console=console) as progress:
            for part, name, work, n in seeded:
                results += [seeds(name, work, range(first, first + n), progress)] if part in wanted else []
            results += [every_order(states, progress)] if Part.ORDERS in wanted else []
            for part, n in ((Part.MODELS, models), (Part.MALFORMED, len(corpus())), (Part.HOSTILE, hostile)):
                results += attacked(part, n, first, processes, progress) if part in wanted else []
            for part, n in ((Part.WIRE, wire), (Part.CALLERS, callers), (Part.SWAPS, swaps)):
                results += [wired(part, n, first, progress)] if part in wanted else []
        results += [_mutants(console)] if mutants and Part.MUTANTS in wanted else []
        results += [_soak(requests, shapes, cancels, console)] if requests and Part.REQUESTS in wanted else []
        results += [loaded_in_turn(loading)] if loading and Part.LOADING in wanted else []
    summary(results, console)
    sys.exit(any(r.failures for r in results))


def _again(schedule: int | None, run: int | None, graph: int | None, console: Console, *, opencl: bool) -> None:
    if schedule is not None:
        console.print(random_schedule(schedule, check=True).pool)
    if run is not None:
        console.print(random_run(run))
    if graph is not None:
        console.print(compare(graph, opencl=opencl))


def _mutants(console: Console) -> Result:
    begun = time.monotonic()
    survivors = mutation.run(mutation.MUTANTS, console)
    names = [f"nothing finds: {m.name}" for m in survivors]
    return Result("mutants", len(mutation.MUTANTS), names, time.monotonic() - begun)


def _soak(requests: int, shapes: int, cancels: int, console: Console) -> Result:
    with Progress(*COLUMNS, console=console) as progress:
        bar = progress.add_task("soak", total=requests)
        soaked = asyncio.run(
            soak(requests, shapes, cancels, progress=lambda done: progress.update(bar, completed=done))
        )
    show(soaked, console)
    left = [f"left at close: {name}: {count}" for name, count in soaked.left.items() if count]
    bound = f"grows by {soaked.grows[1] * 1e5 / 2**20:.2f} MiB for 100,000 requests at most"
    return Result("requests", requests, left, soaked.seconds, bound)


if __name__ == "__main__":
    typer.run(main)
