"""`asyncrt bench`: how fast is a model here under load, and how fast is ONNX Runtime beside it?

Load is closed-loop: as many clients as `--concurrency`, each sending its next request when the last one is answered.
The two runtimes take turns in blocks, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import attrs
import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from asyncrt.errors import AsyncrtError
from asyncrt.layout import Array
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.runtime import Runtime
from asyncrt.version import __version__
from asyncrt.writing import write_text

from . import options as o
from .arrivals import parse_lengths
from .bench_batched import Wanted, bench_batched, parse_rates
from .bench_url import bench_url
from .compare import OnnxRuntime, cores
from .inputs import InputOptions, Sizes
from .terminal import note, progress_bar, reporting, run_to_end, stdout, wrong

BLOCKS = 5  # turns that each runtime takes for one row
_ENOUGH_FOR_P99 = 100
_DEFAULT_SECONDS = 3.0
# ONNX Runtime's threads spin for a while after their last work; asyncrt's turn starts when they have stopped.
_SETTLE_S = 0.05


class Budget:
    """How much a block may do: a number of requests, or a time that begins now. Clients on any thread ask it."""

    def __init__(self, requests: int | None, seconds: float | None) -> None:
        self._numbers = itertools.count()
        self._requests = math.inf if requests is None else requests
        self._deadline = math.inf if seconds is None else time.perf_counter() + seconds

    def take(self) -> bool:
        """Return whether one more request may begin."""
        return next(self._numbers) < self._requests and time.perf_counter() < self._deadline

    def stop(self) -> None:
        """Let no more requests begin."""
        self._requests = 0


@attrs.frozen
class Turn:
    """One turn of one runtime: the latency of each request, and how long the turn took; in seconds."""

    latencies: list[float]
    wall: float


@attrs.frozen
class Measured:
    """What one runtime did for one row, in milliseconds; p99 only of at least 100 requests."""

    requests: int
    p50_ms: float
    p90_ms: float
    p99_ms: float | None
    requests_per_s: float

    @classmethod
    def of(cls, blocks: list[Turn]) -> Measured:
        """Summarise a runtime's blocks."""
        latencies = np.concatenate([b.latencies for b in blocks]) * 1e3
        p50, p90, p99 = np.percentile(latencies, [50, 90, 99]).tolist()
        rate = latencies.size / sum(b.wall for b in blocks)
        return cls(latencies.size, p50, p90, p99 if latencies.size >= _ENOUGH_FOR_P99 else None, rate)


@attrs.frozen
class Ratio:
    """ONNX Runtime's median latency over asyncrt's: above 1, asyncrt is faster. The spread is over pairs of blocks."""

    medians: float
    least: float
    greatest: float

    @classmethod
    def of(cls, ours: list[Turn], theirs: list[Turn]) -> Ratio:
        """Compare blocks that alternated."""
        pairs = [_median([t]) / _median([a]) for a, t in zip(ours, theirs, strict=True)]
        return cls(_median(theirs) / _median(ours), min(pairs), max(pairs))


@attrs.frozen
class Row:
    """One combination of sizes."""

    sizes: dict[str, int]
    asyncrt: Measured
    onnxruntime: Measured | None
    ratio: Ratio | None


Client: TypeAlias = Callable[[Budget], Awaitable[list[float]]]
"""Sends requests one after the other as long as the budget lasts; returns the latency of each."""


Shapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", "-s", metavar="DIM=SIZE,...", help="Sizes of a dynamic dim. Repeatable: all combinations run."
    ),
]
Concurrency: TypeAlias = Annotated[
    int, typer.Option("--concurrency", "-c", min=1, max=o.MOST_AT_ONCE, help="Requests in flight at once.")
]
Requests: TypeAlias = Annotated[int | None, typer.Option("--requests", "-n", min=1, help="Requests for each row.")]
Seconds: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0.001, callback=o.finite, help=f"Time of each runtime for each row; {_DEFAULT_SECONDS:g} by default."
    ),
]
NoCompare: TypeAlias = Annotated[bool, typer.Option("--no-compare", help="Leave ONNX Runtime out, though installed.")]
JsonFile: TypeAlias = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", dir_okay=False, help="Write the figures there, too.")
]
IsBatched: TypeAlias = Annotated[
    bool, typer.Option("--batched", help="Callers come at random and are batched; see the options below.")
]
Rate: TypeAlias = Annotated[
    str | None, typer.Option(metavar="N,...", help="Requests/s; by default from a quiet time to four times solo.")
]
Deadline: TypeAlias = Annotated[
    float | None, typer.Option(min=1e-6, callback=o.finite, help="Seconds in which an answer is of use.")
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="Options of batching, as `asyncrt tune` writes.")
]
Plot: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Draw latency against load, as PNG.")
]


Url: TypeAlias = Annotated[
    str | None, typer.Option(help="Send the requests to a server of the Open Inference Protocol; http://host:port.")
]
ServedAs: TypeAlias = Annotated[str | None, typer.Option(help="With --url: the model's name there; else the file's.")]


@reporting
def bench(
    model: o.Model,
    inputs: o.Inputs = None,
    shape: Shapes = None,
    ranges: o.Ranges = None,
    device: o.Device = None,
    streams: o.Streams = None,
    seed: o.Seed = 0,
    concurrency: Concurrency = 1,
    requests: Requests = None,
    seconds: Seconds = None,
    no_compare: NoCompare = False,
    json_file: JsonFile = None,
    batched: IsBatched = False,
    rate: Rate = None,
    arrivals: o.Arrivals = "poisson",
    lengths: o.Lengths = None,
    deadline: Deadline = None,
    config: Config = None,
    plot: Plot = None,
    without: o.Without = None,
    precision: o.Precision = "fp32",
    url: Url = None,
    served_as: ServedAs = None,
) -> None:
    """Measure latency and throughput, beside ONNX Runtime where it is installed.

    For every combination of sizes, after a warm-up, the two take turns with the same inputs, as many requests in flight
    and threads for all cores. The ratio is ONNX Runtime's median over asyncrt's, with its spread over the turns.

    With --batched, requests come at random times and are put together (`Model.batched()`), beside the same requests
    that run alone; --rate, --arrivals, --lengths, --deadline, --config and --plot belong to it.

    With --url they go to a server instead, of asyncrt or another one of the Open Inference Protocol, in the same way.

    \b
    Examples:
      asyncrt bench bert.onnx -s seq=8,16,128 -s batch=1 --concurrency 8 --seconds 5
      asyncrt bench bert.onnx --batched -s batch=1 --lengths seq=lognormal:40:0.6:256 --rate 50,100,200,400
      asyncrt bench bert.onnx --url http://localhost:8000 -s batch=1 -s seq=16 --rate 50,100
    """
    options = RuntimeOptions(without=o.on_the_device(without), precision=precision, collect_when_idle=True)
    runtime = Runtime(device, streams=streams, options=options)
    if batched or url is not None:
        _refuse_closed_loop(requests, concurrency)
        wanted_load = Wanted(
            inputs=InputOptions.parse(inputs, shape, ranges, seed, several=True),
            lengths=parse_lengths(lengths), pattern=arrivals, rates=parse_rates(rate),
            seconds=seconds or _DEFAULT_SECONDS, deadline=deadline, config=config, compare=not no_compare,
            json_file=json_file, plot=plot,
        )  # fmt: skip
        if url is None:
            run_to_end(bench_batched(model, wanted_load, runtime))
        else:
            run_to_end(bench_url(model, url, served_as, wanted_load))
        return
    _refuse_open_loop({
        "--rate": rate, "--lengths": lengths, "--deadline": deadline, "--config": config, "--plot": plot
    })  # fmt: skip
    load = _closed_loop(concurrency, requests, seconds)
    wanted = InputOptions.parse(inputs, shape, ranges, seed, several=True)
    theirs = None if no_compare else _onnx_runtime(model)
    document, rows = run_to_end(_bench(model, wanted, runtime, theirs, load))
    if json_file is not None:
        write_text(json_file, json.dumps({**document, "rows": [attrs.asdict(row) for row in rows]}, indent=2) + "\n")
    stdout().print(_table(rows, concurrency))


def _refuse_closed_loop(requests: int | None, concurrency: int) -> None:
    """With --batched: refuse what only clients that wait for answers have."""
    if requests is not None or concurrency != 1:
        raise wrong("--batched", "callers come by --rate for --seconds; --requests and --concurrency do not apply")


def _refuse_open_loop(given: Mapping[str, object]) -> None:
    """Without --batched: refuse what only callers that come at random have."""
    for option, value in given.items():
        if value is not None:
            raise wrong(option, "it belongs to --batched")


def _closed_loop(concurrency: int, requests: int | None, seconds: float | None) -> Load:
    if requests is not None and seconds is not None:
        raise wrong("--seconds", "expected either --requests or --seconds, got both")
    return Load(concurrency, requests, _DEFAULT_SECONDS if requests is None and seconds is None else seconds)


def _onnx_runtime(model: Path) -> OnnxRuntime | None:
    try:
        return OnnxRuntime(model)
    except AsyncrtError as error:
        note(f"not compared: {error.message}")
        return None


@attrs.frozen
class Load:
    """How many clients, and how much they do for a row: requests or seconds."""

    concurrency: int
    requests: int | None
    seconds: float | None

    def blocks(self) -> list[tuple[int | None, float | None]]:
        """Return the budget of each block: equal parts, in each of which every client has something to do."""
        if self.requests is None:
            assert self.seconds is not None
            return [(None, self.seconds / BLOCKS)] * BLOCKS
        count = max(1, min(BLOCKS, self.requests // self.concurrency))
        each, rest = divmod(self.requests, count)
        return [(each + (i < rest), None) for i in range(count)]


async def _bench(
    model: Path, wanted: InputOptions, runtime: Runtime, theirs: OnnxRuntime | None, load: Load
) -> tuple[dict[str, Any], list[Row]]:
    rows: list[Row] = []
    async with runtime:
        loaded = await runtime.load(model)
        # All inputs first: a wrong option shows before anything is measured.
        filled = [(sizes, wanted.fill(loaded.inputs, sizes)) for sizes in wanted.combinations()]
        infos = runtime.infos
        note(f"on {o.shown_devices(runtime.infos)}; {cores()} cores, {load.concurrency} requests in flight")
        for name, source in filled[0][1].sources.items():
            note(f"{name}: {source}")
        with ThreadPoolExecutor(load.concurrency, "onnxruntime") as threads, progress_bar() as progress:
            task = progress.add_task("", total=len(filled) * len(load.blocks()))
            for sizes, inputs in filled:
                progress.update(task, description=escape(_show(sizes)))
                ours = _asyncrt_client(loaded.infer, inputs.arrays)
                other = None if theirs is None else _thread_client(threads, theirs.run, inputs.arrays)
                rows.append(await measure(sizes, ours, other, load, lambda: progress.advance(task)))
    document = {
        "model": str(model),
        "asyncrt": __version__,
        "onnxruntime": theirs and theirs.version,
        **o.document_of(infos),
        "cores": cores(),
        "concurrency": load.concurrency,
        "seed": wanted.seed,
        "inputs": filled[0][1].sources,
    }
    return document, rows


def _asyncrt_client(infer: Callable[[Mapping[str, Array]], Awaitable[Any]], inputs: Mapping[str, Array]) -> Client:
    async def client(budget: Budget) -> list[float]:
        latencies: list[float] = []
        while budget.take():
            start = time.perf_counter()
            await infer(inputs)
            latencies.append(time.perf_counter() - start)
        return latencies

    return client


def _thread_client(
    threads: ThreadPoolExecutor, run: Callable[[Mapping[str, Array]], Any], inputs: Mapping[str, Array]
) -> Client:
    def on_thread(budget: Budget) -> list[float]:
        latencies: list[float] = []
        while budget.take():
            start = time.perf_counter()
            run(inputs)
            latencies.append(time.perf_counter() - start)
        return latencies

    async def client(budget: Budget) -> list[float]:
        return await asyncio.get_running_loop().run_in_executor(threads, on_thread, budget)

    return client


async def measure(sizes: Sizes, ours: Client, theirs: Client | None, load: Load, advance: Callable[[], None]) -> Row:
    """Let one runtime, or two in turns, answer a row's requests.

    Args:
        theirs: ONNX Runtime; None leaves it out.
        advance: Called after every block of both.
    """
    clients = [ours] if theirs is None else [ours, theirs]
    blocks: list[list[Turn]] = [[] for _ in clients]
    for client in clients:  # plans, kernels and thread pools are made here, first for one request and then for many
        await client(Budget(1, None))
        await _block(client, Budget(2 * load.concurrency, None), load.concurrency)
    for requests, seconds in load.blocks():
        for client, done in zip(clients, blocks, strict=True):
            if theirs is not None:
                await asyncio.sleep(_SETTLE_S)
            done.append(await _block(client, Budget(requests, seconds), load.concurrency))
        advance()
    measured = [Measured.of(done) for done in blocks]
    if theirs is None:
        return Row(dict(sizes), measured[0], None, None)
    return Row(dict(sizes), measured[0], measured[1], Ratio.of(*blocks))


async def _block(client: Client, budget: Budget, concurrency: int) -> Turn:
    start = time.perf_counter()
    try:
        latencies = await asyncio.gather(*(client(budget) for _ in range(concurrency)))
    finally:
        budget.stop()  # one client failed, or Ctrl-C: threads are not cancelled, they end here
    return Turn(list(itertools.chain(*latencies)), time.perf_counter() - start)


def _median(blocks: list[Turn]) -> float:
    return float(np.median(np.concatenate([b.latencies for b in blocks])))


def _show(sizes: Sizes) -> str:
    return " ".join(f"{dim}={size}" for dim, size in sizes.items()) or "-"


def _table(rows: list[Row], concurrency: int) -> Table:
    title = f"{concurrency} in flight; latencies in ms"
    if any(row.ratio for row in rows):
        title += "; ratio: ONNX Runtime's p50 over asyncrt's, with its spread"
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for heading in ("sizes", "runtime"):
        table.add_column(heading)
    for heading in ("requests", "p50", "p90", "p99", "requests/s", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        r = row.ratio
        ratio = "" if r is None else f"{r.medians:.2f} ({r.least:.2f} to {r.greatest:.2f})"
        table.add_row(escape(_show(row.sizes)), "asyncrt", *_cells(row.asyncrt), ratio)
        if row.onnxruntime is not None:
            table.add_row("", "ONNX Runtime", *_cells(row.onnxruntime), "")
    return table


def _cells(m: Measured) -> tuple[str, ...]:
    p99 = "-" if m.p99_ms is None else f"{m.p99_ms:.3f}"
    return str(m.requests), f"{m.p50_ms:.3f}", f"{m.p90_ms:.3f}", p99, f"{m.requests_per_s:.1f}"
