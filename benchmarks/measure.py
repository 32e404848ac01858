"""How do we measure, so that a figure can be believed?

Peers run in the same process, on the same cores, and take turns in blocks (A B A B ...), so that what else the machine
does meets all alike. They start when they are warm: when two blocks in a row agree. Published are ratios of medians
with the 95 % interval of a bootstrap over the pairs of blocks, beside the device, the driver and the versions.
"""

from __future__ import annotations

import asyncio
import datetime
import importlib.metadata
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table

from asyncrt import Model, Runtime
from asyncrt.devices.base import DeviceInfo
from asyncrt.version import __version__

from . import instructions

ROOT = Path(__file__).resolve().parent.parent

Array: TypeAlias = NDArray[Any]
Inputs: TypeAlias = Mapping[str, Array]

Block: TypeAlias = Callable[[], Awaitable[float]]
"""Does a turn's work and returns its figure: seconds for a call, say."""

Samples: TypeAlias = Sequence[float]
"""The figures of a peer's blocks, in the order of the turns."""

QUIET = 0.1
"""Cores that others may use. More, and peers that spin while they wait lose their turns by the hundredfold."""

_RESAMPLES = 2000
_STABLE = 0.05  # two blocks agree when they differ by less than this part
_OFTEN = 20  # requests after which all is asked for that would be built
_LONGEST_BUILDS_S, _LOOK_S = 120.0, 0.5
_LONGEST_WARMUP = 12  # blocks; a machine that never settles is measured all the same, and the interval shows it


class BenchmarkError(Exception):
    """A benchmark cannot run here, or its peers do not give the same results; the message says what to do."""


# --- what a user chooses ----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Settings:
    """How long and on what to measure.

    Attributes:
        device: As `asyncrt.Runtime` takes it.
        blocks: Turns of each peer.
        block_s: Seconds that a turn lasts at least, where it is not one piece of work.
        settle_s: Pause before a turn: threads of the peer before may spin after their last work, those of OpenBLAS for
            a tenth of a second.
        quick: Fewer and smaller cases: to see that everything works, not to publish.
    """

    device: str | None = None
    blocks: int = 30
    block_s: float = 0.1
    settle_s: float = 0.15
    quick: bool = False

    @classmethod
    def of(cls, quick: bool, device: str | None = None) -> Settings:
        """Return the settings for a quick look or for figures to publish."""
        return cls(device=device, quick=True, blocks=7, block_s=0.02) if quick else cls(device=device)

    @property
    def flags(self) -> str:
        """The options that give these settings, with a space before each."""
        return (" --quick" if self.quick else "") + (f" --device {self.device}" if self.device else "")


# --- turns ------------------------------------------------------------------------------------------------------------


def awaited(call: Callable[[], Awaitable[object]], seconds: float) -> Block:
    """Return a block that awaits *call* for *seconds*, at least once, and gives the median seconds of a call."""

    async def block() -> float:
        latencies: list[float] = []
        end = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            await call()
            now = time.perf_counter()
            latencies.append(now - start)
            if now >= end:
                return float(np.median(latencies))

    return block


def called(call: Callable[[], object], seconds: float) -> Block:
    """Return a block that calls *call* for *seconds*, at least once, and gives the median seconds of a call."""

    async def block() -> float:
        latencies: list[float] = []
        end = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            call()
            now = time.perf_counter()
            latencies.append(now - start)
            if now >= end:
                return float(np.median(latencies))

    return block


async def interleave(peers: Mapping[str, Block], settings: Settings) -> dict[str, list[float]]:
    """Warm every peer up until two blocks agree, then let them take turns; returns each one's figures by name."""
    for block in peers.values():
        await warm_up(block)
    samples: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(settings.blocks):
        for name, block in peers.items():
            await asyncio.sleep(settings.settle_s)
            samples[name].append(await block())
    return samples


async def warm_up(block: Block) -> None:
    """Run blocks until two in a row agree, or until it is enough."""
    before = await block()
    for _ in range(_LONGEST_WARMUP):
        now = await block()
        if abs(now - before) <= _STABLE * before:
            return
        before = now


async def settle(loaded: Model, inputs: Inputs, rt: Runtime) -> None:
    """Ask a model until nothing is built for such requests any more: a compiler takes cores from all peers."""
    await loaded.ready()
    end = time.perf_counter() + _LONGEST_BUILDS_S
    while time.perf_counter() < end:
        for _ in range(_OFTEN):
            await loaded.infer(inputs)
        await asyncio.sleep(_LOOK_S)
        if not rt.statistics().kernels.pending:
            return


async def closed_loop(
    infer: Callable[[Inputs], Awaitable[object]], requests: Sequence[Inputs], callers: int
) -> float:
    """Let *callers* send the requests, each its next one when its last is answered; returns requests per second."""
    waiting = iter(requests)

    async def caller() -> None:
        for request in waiting:
            await infer(request)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return len(requests) / (time.perf_counter() - start)


# --- ratios -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Ratio:
    """A ratio of medians, and where 95 of 100 resamplings of the blocks put it."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Samples, below: Samples) -> Ratio:
        """Return the median of *above* over the median of *below*, whose blocks alternated."""
        return cls.geometric_mean([(above, below)])

    @classmethod
    def geometric_mean(cls, pairs: Iterable[tuple[Samples, Samples]]) -> Ratio:
        """Return the geometric mean of several ratios; the blocks of each pair alternated."""
        random = np.random.default_rng(0)
        value, resampled = 0.0, np.zeros(_RESAMPLES)
        count = 0
        for above, below in pairs:
            a, b = np.array(above), np.array(below)
            picks = random.integers(0, a.size, (_RESAMPLES, a.size))  # pairs stay pairs: both met the same load
            resampled += np.log(np.median(a[picks], axis=1) / np.median(b[picks], axis=1))
            value += math.log(np.median(a) / np.median(b))
            count += 1
        low, high = np.percentile(np.exp(resampled / count), [2.5, 97.5]).tolist()
        return cls(math.exp(value / count), low, high)

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


# --- reports ----------------------------------------------------------------------------------------------------------

Cell: TypeAlias = str | int | float | Ratio | None
Row: TypeAlias = dict[str, Cell]
"""A row of a table; the headings, units included, are the keys."""


@attrs.frozen(kw_only=True)
class Report:
    """What a benchmark found.

    Attributes:
        name: The file that measures it.
        command: How to run it again.
        environment: Machine, device, driver and versions.
        others: Cores that other processes used meanwhile; None where the system does not tell.
        rows: The table. All rows have the same headings.
        summary: What holds for all rows, by heading.
        notes: How to read the table: sentences.
    """

    name: str
    command: str
    environment: dict[str, str]
    others: float | None = None
    rows: list[Row]
    summary: Row = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)

    @property
    def quiet(self) -> bool:
        """Whether the machine was left alone, so that the figures mean something. Unknown counts as yes."""
        return self.others is None or self.others <= QUIET

    @property
    def instructions(self) -> str:
        """What asyncrt compiled for, as `instructions.of` says it."""
        return self.environment.get("instructions", "")

    @property
    def stem(self) -> str:
        """What its files are called."""
        return instructions.stem(self.name, self.instructions)

    @property
    def processor(self) -> str:
        """The processor, and what asyncrt compiled for on it."""
        return ", ".join(filter(None, (self.environment.get("processor", ""), self.instructions)))

    def to_json(self) -> str:
        """Return the report as JSON; ratios become objects with `ratio`, `low` and `high`."""
        return json.dumps(attrs.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Return the report that `to_json` wrote."""
        document = json.loads(text)
        document["rows"] = [_with_ratios(row) for row in document["rows"]]
        document["summary"] = _with_ratios(document["summary"])
        return cls(**document)

    def table(self) -> Table:
        """Return the rows as a table for the terminal."""
        table = Table(box=None, header_style="bold", title=self.command, title_justify="left")
        for heading in self.rows[0]:
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*map(show, row.values()))
        return table

    def markdown(self) -> str:
        """Return the rows and the summary for a page."""
        headings = list(self.rows[0])
        lines = [_line(headings), _line(["---:"] * len(headings))]
        lines += [_line([show(cell) for cell in row.values()]) for row in self.rows]
        if self.summary:
            lines += ["", *(f"- {heading}: **{show(cell)}**" for heading, cell in self.summary.items())]
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines)


def show(cell: Cell) -> str:
    """Return a cell as people read it: three significant digits, no exponents."""
    if cell is None:
        return ""
    if not isinstance(cell, float) or not math.isfinite(cell):
        return str(cell)
    if cell == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(cell))))
    return f"{cell:.{digits}f}" if digits <= 6 else f"{cell:.1e}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _with_ratios(row: dict[str, Any]) -> Row:
    return {heading: Ratio(**cell) if isinstance(cell, dict) else cell for heading, cell in row.items()}


def environment(info: DeviceInfo | None) -> dict[str, str]:
    """Return what a figure depends on, as text; `info` is of asyncrt's device."""
    found = {
        "measured": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": f"{cores()} of {os.cpu_count()}",
        "system": f"{platform.system()} {platform.release()}",
    }
    if info is not None:
        found["device"] = f"{info.name} ({info.platform or info.kind}, driver {info.driver or 'none'})"
        if compiled := instructions.of(info):
            found["instructions"] = compiled
    found["asyncrt"] = __version__ + _commit()
    found["Python"] = platform.python_version()
    for package in ("pyopencl", "numpy", "onnx", "onnxruntime", "openvino", "tinygrad"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str:
    """Return the commit of the sources in brackets, with a plus if they were changed since."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""  # an archive without history
    return f" ({done.stdout.strip()})"


class Others:
    """How much of the machine others use, from when this is made: what makes figures worth nothing."""

    def __init__(self) -> None:
        self._start, self._busy, self._own = time.perf_counter(), _busy_s(), _own_s()

    def cores(self) -> float | None:
        """Return how many other processes, and other machines on the same host, had on average; None if unknown."""
        busy = _busy_s()
        if self._busy is None or busy is None:
            return None
        used = (busy - self._busy - (_own_s() - self._own)) / (time.perf_counter() - self._start)
        return max(used, 0.0)


def _busy_s() -> float | None:
    """Seconds that all cores were busy with anything, since the system started; None where it does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    times = os.times()  # children count once they have ended
    return times.user + times.system + times.children_user + times.children_system


# --- beside the figures -----------------------------------------------------------------------------------------------


def progress(text: str) -> None:
    """Say on stderr what was done, if someone looks."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


NEAR = 1e-4
"""How far apart results of float32 may be, as a part of the largest."""


def check_equal(
    what: str, ours: Iterable[Array], theirs: Iterable[Array], tolerance: float = NEAR, least: float = 1.0
) -> float:
    """Return the largest difference; a benchmark of different results compares nothing.

    Raises:
        BenchmarkError: It is more than *tolerance* times the largest value, or times *least* if that is larger.
    """
    worst = 0.0
    for a, b in itertools.zip_longest(ours, theirs):
        if a is None or b is None or a.shape != b.shape:
            raise BenchmarkError(f"{what}: the outputs have different shapes, so there is nothing to compare")
        difference = float(np.abs(np.subtract(a, b, dtype=np.float64)).max(initial=0.0))
        if not difference <= tolerance * max(least, float(np.abs(b).max(initial=0.0))):
            raise BenchmarkError(f"{what}: results differ by {difference:.1e}, so speeds are not compared")
        worst = max(worst, difference)
    return worst
