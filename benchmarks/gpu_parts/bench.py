"""On what does a part measure, for how long, and beside which peers?"""

from __future__ import annotations

import functools
import time
from types import ModuleType
from typing import Any, TypeVar

import attrs
import numpy as np
import onnx

import asyncrt

from .. import measure as m
from .findings import COMPILED, EAGER, GRAPH, MS, OURS, Aim, Finding

TOLERANCES: dict[type[np.floating[Any]], float] = {np.float32: 2e-3, np.float16: 5e-2}
"""How far results may be apart, of the largest value, by the dtype of a network."""

Size = TypeVar("Size")


@attrs.frozen
class Bench:
    """What all parts share.

    Attributes:
        settings: How long and on what to measure.
        torch: `benchmarks.torch_peers`; None where PyTorch is not installed.
        compile: Whether `torch.compile` is a peer, which takes a minute to compile.
        notes: Sentences for below the table; parts add theirs.
    """

    settings: m.Settings
    torch: ModuleType | None = None
    compile: bool = False
    notes: list[str] = attrs.field(factory=list)

    @property
    def device(self) -> str:
        """The device of those parts that need one: the first that is named."""
        return (self.settings.device or "gpu").split(",", maxsplit=1)[0]

    def pick(self, full: Size, small: Size) -> Size:
        """Return the sizes to publish, or those of a quick look."""
        return small if self.settings.quick else full

    def runtime(self) -> asyncrt.Runtime:
        """Return a runtime to open, of one device."""
        return asyncrt.Runtime(self.device)

    async def load(self, rt: asyncrt.Runtime, name: str, network: onnx.ModelProto) -> asyncrt.Model:
        """Load a network, wait for its kernels, and note how long that took."""
        start = time.perf_counter()
        loaded = await rt.load(network)
        await loaded.ready()
        self.notes.append(f"{name}: {time.perf_counter() - start:.1f} s to load, with all kernels.")
        return loaded

    def runs(self, module: Any, inputs: m.Inputs) -> dict[str, Any]:
        """Return how PyTorch runs a module on inputs of these shapes, by name; CUDA graphs only where CUDA is."""
        if self.torch is None:
            return {}
        runs = {EAGER: self.torch.eager(module)}
        if self.torch.CUDA:
            runs[GRAPH] = self.torch.recorded(module, inputs)
        if self.compile:
            runs[COMPILED] = self.torch.compiled(module)
        return runs

    async def compare(
        self, part: str, case: str, loaded: asyncrt.Model, module: Any, inputs: m.Inputs, tolerance: float, aim: Aim
    ) -> list[Finding]:
        """Measure one request beside PyTorch, from arrays of the host to an array of the host.

        Raises:
            BenchmarkError: The results differ by more than *tolerance* of the largest value.
        """
        start = time.perf_counter()
        mine = await loaded.infer(inputs)
        first = time.perf_counter() - start
        runs = self.runs(module, inputs)
        for name, run in runs.items():
            m.check_equal(f"{part}, {case}, {name}", mine.values(), [run(inputs)], tolerance)
        blocks = {OURS: m.awaited(functools.partial(loaded.infer, inputs), self.settings.block_s)}
        blocks |= {n: m.called(functools.partial(run, inputs), self.settings.block_s) for n, run in runs.items()}
        samples = await m.interleave(blocks, self.settings)
        found = [Finding(part=part, case=case, unit=MS, samples=samples, aim=aim, first_s=first)]
        if self.compile:
            found.append(Finding(part=part, case=case, unit=MS, samples=samples, against=COMPILED))
        return found
