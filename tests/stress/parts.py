"""The parts of `make stress`: many seeds in several processes, every order, and the summary of all.

Apart from `__main__`, because the processes import it by its name.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from asyncrt.scheduler.policies import policy_names

from .attack.crew import Finding, crew
from .attack.hostile import CALLS
from .attack.models import device_of
from .schedules import World, explore
from .wire.callers import callers
from .wire.fuzz import fuzz
from .wire.swaps import swaps

SHOWN = 3
"""Failures of a kind that are printed in full."""

FLAT_MIB = 1.0
"""Of a server's memory for 100,000 requests: what grows by no more is flat."""


@attrs.define
class Result:
    """What came of one part.

    Attributes:
        what: Its name.
        count: How many of them were tried.
        failures: What went wrong, with the seed.
        seconds: How long it took.
        note: What else is worth knowing.
        kinds: How many kinds of failures there are, if they are told apart; one of each comes first.
    """

    what: str
    count: int
    failures: list[str] = attrs.Factory(list)
    seconds: float = 0.0
    note: str = ""
    kinds: int = 0


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


def attacked(what: str, count: int, first: int, processes: int, progress: Progress) -> list[Result]:
    """Try mutated models ("models"), malformed ones, or hostile calls: *count* of them, beginning with a seed.

    What runs on OpenCL has processes of its own.
    """
    names = {
        "models": ("mutated models", "--model", 1), "malformed": ("malformed models", "--malformed", 1),
        "hostile": ("hostile calls", "--hostile-case", CALLS),
    }  # fmt: skip
    name, again, each = names[what]
    drawn = range(first, first + -(-count // each))
    results = []
    for device, words in (("host", name), ("opencl", f"{name} on OpenCL")):
        # The same malformed models are tried on both; of others the seed says where.
        seeds = [s for s in drawn if what == "malformed" or (device_of(s) == "opencl") == (device == "opencl")]
        if not seeds:
            continue
        begun, bar = time.monotonic(), progress.add_task(words, total=len(seeds) * each)
        advance = functools.partial(progress.advance, bar, each)
        at_once = min(len(seeds), processes)
        report = asyncio.run(crew(what, device, seeds, processes=at_once, again=again, progress=advance))
        kinds = len({f.kind for f in report.findings})
        note = ", ".join(f"{n} {word}" for word, n in report.counts.most_common(4))
        note += f"; {report.longest_s:.1f} s and {report.most_bytes >> 20} MiB at most"
        texts, seconds = found_first(report.findings), time.monotonic() - begun
        results.append(Result(words, report.cases * each, texts, seconds, note, kinds))
    return results


def wired(what: str, count: int, first: int, progress: Progress) -> Result:
    """Send messages to a server ("wire"), let callers come and go ("callers"), or exchange its model ("swaps").

    *count* of them, beginning with a seed.
    """
    bar = progress.add_task(what, total=count)

    def advance(done: int) -> None:
        progress.update(bar, completed=done)

    with tempfile.TemporaryDirectory() as folder:
        if what == "wire":
            seeds = range(first, first + count)
            report = fuzz(seeds, Path(folder), advance, "python -m tests.stress --wire-case {}")
        elif what == "swaps":
            report = swaps(count, Path(folder), advance)
        else:
            report = callers(count, Path(folder), advance, first)
    note = ", ".join(f"{n} {word}" for word, n in report.answers.most_common(6))
    if report.resident:
        note += f"; {' '.join(str(nbytes >> 20) for nbytes in report.resident)} MiB"
    if report.grows is not None:
        grows, at_most = (bytes_each * 1e5 / 2**20 for bytes_each in report.grows)
        bare = 0.0 if report.grows_bare is None else report.grows_bare[0] * 1e5 / 2**20
        note += f"; grows by {grows:.2f} MiB for 100,000, {at_most:.2f} at most"
        note += f"; a bare server of gRPC by {bare:.2f}" if report.grows_bare is not None else ""
        if grows - max(bare, 0.0) > FLAT_MIB:
            report.findings.append(f"the memory of the server grows by {grows:.2f} MiB for 100,000")
    return Result(what, report.cases, report.findings, report.seconds, note)


def found_first(findings: Iterable[Finding]) -> list[str]:
    """Return the texts of findings: one of each kind, with how many there are, and then the others."""
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(finding.text)
    firsts = [f"{kind}, {len(texts)} of them\n{texts[0]}" for kind, texts in kinds.items()]
    return firsts + [text for texts in kinds.values() for text in texts[1:]]


def summary(results: list[Result], console: Console) -> None:
    """Print what was tried, and how to see again what went wrong."""
    for result in results:
        for failure in result.failures[: max(SHOWN, result.kinds)]:
            console.rule(f"[red]{result.what}")
            console.print(failure, markup=False, highlight=False)
    table = Table("", "tried", "wrong", "time", "", title="stress")
    for r in results:
        wrong = f"[bold red]{len(r.failures)}[/]" if r.failures else "0"
        table.add_row(r.what, f"{r.count:,}", wrong, f"{r.seconds:.0f} s", r.note)
    console.print(table)
