"""`asyncrt run`: what does a model give for these inputs?"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from asyncrt.arguments import shown
from asyncrt.layout import BFLOAT16, Array, layout_of
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.runtime import Runtime
from asyncrt.writing import written_whole

from . import options as o
from .compare import OnnxRuntime, compare
from .inputs import Filled, InputOptions
from .terminal import note, reporting, run_to_end, stdout

if TYPE_CHECKING:
    from asyncrt.runtime.explain.explain import Explanation


@reporting
def run(
    model: o.Model,
    inputs: o.Inputs = None,
    shape: o.Shapes = None,
    ranges: o.Ranges = None,
    device: o.Device = None,
    streams: o.Streams = None,
    seed: o.Seed = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Run this many times, and say how long it took.")] = 1,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", file_okay=False, help="Save the outputs there, as .npy files.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with ONNX Runtime; exit with 1 if they differ.")
    ] = False,
    without: o.Without = None,
    precision: o.Precision = "fp32",
) -> None:
    """Run a model on given or random inputs, and summarise its outputs.

    Sizes of dynamic dims come from --shape, or from inputs whose shape or file is given.

    \b
    Examples:
      asyncrt run bert.onnx -s batch=2 -s seq=16 --range input_ids=0:100 --check
      asyncrt run resnet.onnx --input image=photo.npy --save outputs
    """
    wanted = InputOptions.parse(inputs, shape, ranges, seed)
    options = RuntimeOptions(without=without or (), precision=precision)
    filled, outputs, explanation, seconds = run_to_end(_infer(model, wanted, device, streams, options, repeat))
    _show_inputs(filled)
    _show_outputs(outputs)
    stdout().print(escape(explanation.summary()), soft_wrap=True)
    stdout().print(_timing(seconds), soft_wrap=True)
    if save is not None:
        _save(outputs, save)
    if check and not _check(OnnxRuntime(model).run(filled.arrays), outputs):
        raise typer.Exit(1)


async def _infer(
    model: Path, wanted: InputOptions, device: str | None, streams: int | None, options: RuntimeOptions, repeat: int
) -> tuple[Filled, dict[str, Array], Explanation, list[float]]:
    async with Runtime(device, streams=streams, options=options) as runtime:
        loaded = await runtime.load(model)
        (sizes,) = wanted.combinations()
        filled = wanted.fill(loaded.inputs, sizes)
        note(f"on {o.shown_devices(runtime.infos)}")
        outputs: dict[str, Array] = {}
        seconds: list[float] = []
        for _ in range(repeat):
            start = time.perf_counter()
            outputs = await loaded.infer(filled.arrays)
            seconds.append(time.perf_counter() - start)
        return filled, outputs, loaded.explain(), seconds


def _show_inputs(filled: Filled) -> None:
    table = Table("input", "layout", "values", box=None, header_style="bold")
    for name, array in filled.arrays.items():
        table.add_row(*map(escape, (name, str(layout_of(array)), filled.sources[name])))
    stdout().print(table)


def _show_outputs(outputs: Mapping[str, Array]) -> None:
    table = Table("output", "layout", "least", "mean", "greatest", "not finite", box=None, header_style="bold")
    for name, array in outputs.items():
        if not _is_numbers(array):
            table.add_row(escape(name), escape(f"{type(array).__name__} {shown(array)}"), *["-"] * 4)
            continue
        values = array.astype(np.float64).reshape(-1)
        finite = values[np.isfinite(values)]
        summary = (finite.min(), finite.mean(), finite.max()) if finite.size else ()
        said = [f"{v:.6g}" for v in summary] or ["-"] * 3
        table.add_row(escape(name), escape(str(layout_of(array))), *said, str(values.size - finite.size))
    stdout().print(table)


def _is_numbers(output: Any) -> bool:
    """Whether it is an array of numbers; texts, lists, dicts and None are not."""
    return isinstance(output, np.ndarray) and output.dtype != object


def _timing(seconds: list[float]) -> str:
    first, *more = (s * 1e3 for s in seconds)
    if not more:
        return f"took {first:.2f} ms"
    return f"took {first:.2f} ms at first, {statistics.median(more):.2f} ms in the median of {len(more)} more"


def _save(outputs: Mapping[str, Array], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for position, (name, array) in enumerate(outputs.items()):
        if not _is_numbers(array):
            note(f"did not save {name}, which is no array of numbers")
            continue
        stem = re.sub(r"[^\w.-]", "_", name)
        if stem.lower() in taken:
            stem += f"_{position}"
        taken.add(stem.lower())
        dtype_note = ""
        if array.dtype == BFLOAT16.numpy:  # .npy has no bfloat16; float32 holds each of its values
            array, dtype_note = array.astype(np.float32), " as float32"
        with written_whole(folder / f"{stem}.npy") as file:
            np.save(file, array, allow_pickle=False)
        note(f"saved {name}{dtype_note} to {folder / stem}.npy")


def _check(expected: Mapping[str, Array], outputs: Mapping[str, Array]) -> bool:
    table = Table("output", "largest difference", "allowed", "as ONNX Runtime", box=None, header_style="bold")
    arrays = {name: array for name, array in outputs.items() if _is_numbers(array)}
    for name in sorted(outputs.keys() - arrays.keys()):
        note(f"did not compare {name}, which is no array of numbers")
    differences = {name: compare(np.asarray(expected[name]), array) for name, array in arrays.items()}
    for name, d in differences.items():
        verdict = "[green]yes" if d.fits else f"[red]no[/] {escape(d.mismatch)}"
        table.add_row(escape(name), f"{d.largest:.3g}", f"{d.allowed:.3g}", verdict)
    stdout().print(table)
    return all(d.fits for d in differences.values())
