"""Runs cases in processes that may die or hang, and says of each what came of it.

A case that kills its process, or in which the process does nothing for too long, or works for too long, is a finding
like any other: it has the seed and what the process said last, and another process goes on with the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from ...environment import ROOT, with_sources

LOOKS_S = 0.1
IDLE_S = 2.0
"""Seconds in which a process neither works nor wants to: it waits for what will not come."""

WORKS_S = {"host": 6.0, "opencl": 40.0}
"""Seconds of processors after which a case is ended. One that ends by itself is measured by its process, which knows
how much of the time the driver took to build kernels; this is for those that do not."""

CASES = 250
"""After so many a process ends, and another begins."""

TICKS = os.sysconf("SC_CLK_TCK")


class Finding(NamedTuple):
    """Something that must not be.

    Attributes:
        kind: What it is counted by.
        text: What it was, what the model was, and how to see it again.
    """

    seed: int
    kind: str
    text: str


@attrs.define
class Report:
    """What came of cases."""

    cases: int = 0
    counts: Counter[str] = attrs.field(factory=Counter)
    findings: list[Finding] = attrs.field(factory=list)
    longest_s: float = 0.0
    most_bytes: int = 0


class Usage(NamedTuple):
    """A process and those it has started, at one moment: seconds of processors they have had, and whether a thread of
    theirs wants one or a disk."""

    worked_s: float
    wants: bool


def usage(pid: int) -> Usage:
    """Return what the system says of a process and of those below it, such as compilers that it waits for."""
    stats = {int(p.name): fields for p in Path("/proc").iterdir() if p.name.isdigit() and (fields := _stat(p))}
    family = {pid}
    while more := {p for p, fields in stats.items() if int(fields[1]) in family} - family:
        family |= more
    ticks = sum(int(f) for p in family for f in stats[p][11:15])  # those of children that have ended, too
    return Usage(ticks / TICKS, any(s in "RD" for p in family for s in _states(p)))


def _stat(process: Path) -> list[str]:
    """Return what follows the name in what the system says of a process or a thread; nothing if it has ended."""
    with contextlib.suppress(OSError):
        return (process / "stat").read_text().rpartition(")")[2].split()
    return []


def _states(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return [fields[0] for t in Path(f"/proc/{pid}/task").iterdir() if (fields := _stat(t))]
    return []


@attrs.define
class Watch:
    """Decides whether a case hangs, from what its process used so far.

    Time is that of processors, so that others who use them change nothing; where a process uses none and wants none, it
    is the clock's.
    """

    works_s: float
    first: Usage
    since: float

    def hangs(self, now: float, seen: Usage) -> str | None:
        """Say what is wrong; None if nothing is yet."""
        if seen.wants or seen.worked_s > self._last:
            self.since, self._last = now, seen.worked_s
        if seen.worked_s - self.first.worked_s > self.works_s:
            return f"it has worked for {seen.worked_s - self.first.worked_s:.1f} s"
        if now - self.since > IDLE_S:
            return f"it waits, and has done nothing for {now - self.since:.1f} s"
        return None

    _last: float = attrs.field(default=-1.0, init=False)


class Member:
    """One process of a crew."""

    def __init__(self, what: str, device: str, folder: Path, cache: Path) -> None:
        self._arguments = what, device, str(folder), str(cache)
        folder.mkdir(parents=True, exist_ok=True)
        self._words = folder / "words"
        self._works_s = WORKS_S[device]
        self._process: Process | None = None
        self._cases = 0

    async def start(self) -> Process:
        """Return the process, started if there is none."""
        if self._process is not None and self._cases < CASES:
            return self._process
        await self.close()
        self._cases = 0
        with self._words.open("w") as words:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"{__package__}.worker", *self._arguments,
                stdin=PIPE, stdout=PIPE, stderr=words, cwd=ROOT, limit=1 << 24, env=with_sources(),
            )  # fmt: skip
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise RuntimeError(f"a worker did not start: {self._words.read_text()[-3000:]}")
        self._process = process
        return process

    async def run(self, seed: int) -> tuple[list[dict[str, Any]], str]:
        """Run a case; returns what the process wrote, and why it was ended if it was."""
        process = await self.start()
        self._cases += 1
        self._words.write_text("")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"%d\n" % seed)
        said: list[dict[str, Any]] = []
        for watched in (True, False):
            line, why = await self._line(process, watched=watched)
            if not line:
                await self._end(process)
                return said, why or self._death(process)
            said.append(json.loads(line))
        return said, ""

    async def _line(self, process: Process, *, watched: bool) -> tuple[bytes, str]:
        """Return a line of the process, or why there is none."""
        assert process.stdout is not None
        reading = asyncio.ensure_future(process.stdout.readline())
        watch: Watch | None = None
        while True:
            done, _ = await asyncio.wait((reading,), timeout=LOOKS_S)
            if done:
                return reading.result(), ""
            with contextlib.suppress(KeyError):  # it has ended
                seen = usage(process.pid)
                watch = watch or Watch(self._works_s, seen, time.monotonic())
                why = watch.hangs(time.monotonic(), seen) if watched else None
                if why is not None:
                    for number in (signal.SIGUSR2, signal.SIGUSR1):  # its tasks, then its threads say where they are
                        process.send_signal(number)
                        await asyncio.sleep(0.5)
                    reading.cancel()
                    return b"", "hang: " + why

    async def _end(self, process: Process) -> None:
        self._process = None
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    def _death(self, process: Process) -> str:
        code = process.returncode or 0
        return f"crash: by {signal.Signals(-code).name}" if code < 0 else f"crash: it ended with {code}"

    @property
    def words(self) -> str:
        """What the process has said to stderr during the case: how that began, and how it ended."""
        words = self._words.read_text(errors="replace").replace("\0", "")
        return words if len(words) < 12_000 else f"{words[:6000]}\n...\n{words[-6000:]}"

    async def close(self) -> None:
        """End the process, once it has done what it does."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
                await process.wait()


async def crew(
    what: str,
    device: str,
    seeds: Iterable[int],
    *,
    processes: int,
    again: str,
    progress: Callable[[], object] = lambda: None,
    found: Callable[[Finding], object] = lambda finding: None,
) -> Report:
    """Run the cases of all seeds.

    Args:
        what: "models" or "hostile".
        device: "host" (and the simulated device), or "opencl".
        again: The option of `make stress` that runs one of them again.
        progress: Told of each case.
        found: Told of each finding.
    """
    report, left = Report(), iter(seeds)
    with tempfile.TemporaryDirectory(prefix="asyncrt-attack-") as folder:
        cache = Path(folder) / "kernels"
        cache.mkdir(mode=0o700)

        async def work(number: int) -> None:
            member = Member(what, device, Path(folder) / str(number), cache)
            try:
                for seed in left:
                    said, why = await member.run(seed)
                    for finding in _count(report, seed, said, why, member, again):
                        report.findings.append(finding)
                        found(finding)
                    progress()
            finally:
                await member.close()

        async with asyncio.TaskGroup() as group:
            for number in range(processes):
                group.create_task(work(number))
    return report


def _count(
    report: Report, seed: int, said: Sequence[dict[str, Any]], why: str, member: Member, again: str
) -> list[Finding]:
    """Add what a process said of a case; returns what is wrong with it."""
    report.cases += 1
    note = f"seed {seed}: python -m tests.stress {again} {seed}"
    findings = []
    for part in said:
        report.counts.update(part["counts"])
        report.longest_s = max(report.longest_s, part.get("seconds", 0.0))
        report.most_bytes = max(report.most_bytes, part.get("nbytes", 0))
        findings += [Finding(seed, kind, f"{text}\n{part['case']}\n{note}") for kind, text in part["findings"]]
    if why:
        findings.append(Finding(seed, why.partition(":")[0], f"{why}\n{member.words}\n{note}"))
    return findings
