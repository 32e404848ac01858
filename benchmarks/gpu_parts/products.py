"""How fast are products alone: large ones beside cuBLAS, those of few rows beside the memory's rate?

A model of many products one behind the other, its input and its output on the device, less a model of one: so nothing
of the host and no transfer is in the figure, and nothing of the device is left out. The weights of products of few
rows are more than caches hold. PyTorch plays the same products as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import onnx

import asyncrt

from .. import measure as m
from .. import models
from .bench import TOLERANCES, Bench
from .findings import BANDWIDTH, OURS, TFLOPS, Aim, Finding, Unit

MATMUL, MEMORY = "torch.matmul", "the memory's rate"


@attrs.frozen
class Chain:
    """Products one behind the other, of rows × *size* and *size* × *size*.

    Attributes:
        dtype: Of all of them.
        rows: How many rows, in one case after the other.
        size: Terms of a sum, and columns.
        terms: Products.
        weights: Right-hand sides that are not the same; products take them in turn.
        few: Whether their time is that of reading the weights.
        aim: What is promised.
    """

    dtype: type[np.floating[Any]]
    rows: tuple[int, ...]
    size: int
    terms: int
    weights: int = 1
    few: bool = False
    aim: Aim | None = None

    @property
    def unit(self) -> Unit:
        """What its rate is told in."""
        return BANDWIDTH if self.few else TFLOPS

    def case(self, rows: int) -> str:
        """What the table calls it."""
        return f"{self.dtype.__name__} {rows} x {self.size} x {self.size}"

    def work(self, rows: int) -> float:
        """Bytes of a product's weights if rows are few, else its operations."""
        square = float(self.size * self.size)
        return square * np.dtype(self.dtype).itemsize if self.few else 2 * rows * square

    def right_hand_sides(self) -> list[m.Array]:
        """Return the weights; a row keeps about its length, however many products it goes through."""
        random = np.random.default_rng(0)
        one = (random.standard_normal((self.size, self.size), np.float32) * self.size**-0.5).astype(self.dtype)
        return [np.roll(one, 37 * i, axis=0) for i in range(self.weights)]

    def network(self) -> onnx.ModelProto:
        """Return the products as a model from ``x``."""
        g = models.Graph(self.dtype)
        names = [g.constant(w) for w in self.right_hand_sides()]
        x = "x"
        for term in range(self.terms):
            x = g.add("MatMul", x, names[term % self.weights])
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        ends = [models.value(name, "rows", self.size, dtype=kind) for name in ("x", x)]
        return g.model(ends[:1], ends[1:])

    def left_hand_side(self, rows: int) -> m.Array:
        """Return what the first product takes."""
        return np.random.default_rng(1).standard_normal((rows, self.size), np.float32).astype(self.dtype)


LARGE = [Chain(np.float16, (4096,), 4096, 17, aim=Aim(0.6)), Chain(np.float32, (4096,), 4096, 5)]
FEW = [Chain(np.float16, (1, 8, 32), 4096, 97, weights=12, few=True, aim=Aim(0.7))]
SMALL = [Chain(np.float32, (32,), 64, 65), Chain(np.float16, (1, 2), 64, 65, weights=2, few=True)]


async def measure(bench: Bench) -> AsyncIterator[Finding]:
    """Measure `LARGE` and `FEW`."""
    size = bench.pick(1 << 30, 1 << 20)
    memory = [] if bench.torch is None else [bench.torch.memory_rate(size) for _ in range(bench.settings.blocks)]
    async with bench.runtime() as rt:
        for chain in bench.pick(LARGE + FEW, SMALL):
            peers = await Peers.of(bench, rt, chain)
            for rows in chain.rows:
                samples = await peers.rates(rows)
                found = partial(Finding, part="products", case=chain.case(rows), unit=chain.unit)
                if chain.few:
                    beside = samples | ({MEMORY: memory} if memory else {})
                    yield found(samples=beside, against=MEMORY, aim=chain.aim)
                if MATMUL in samples or not chain.few:
                    yield found(samples=samples, against=MATMUL, aim=None if chain.few else chain.aim)


@attrs.frozen
class Peers:
    """Who carries a chain out: as a model of all its products, and as one of a single product."""

    bench: Bench
    chain: Chain
    models: list[asyncrt.Model]
    modules: list[Any]

    @classmethod
    async def of(cls, bench: Bench, rt: asyncrt.Runtime, chain: Chain) -> Peers:
        """Load both, for asyncrt and for PyTorch, if it is there."""
        both = (chain, attrs.evolve(chain, terms=1, weights=1))
        loaded = [await rt.load(c.network()) for c in both]
        for model in loaded:
            await model.ready()
        torch = bench.torch
        return cls(bench, chain, loaded, [torch.Products(c.right_hand_sides(), c.terms) for c in both if torch])

    async def rates(self, rows: int) -> dict[str, list[float]]:
        """Return each peer's rates for so many rows, of operations or bytes a second."""
        chain, bench, inputs = self.chain, self.bench, {"x": self.chain.left_hand_side(rows)}
        long, one = self.models
        once = await one.infer(inputs)
        (there,) = (await one.infer_on_device(inputs)).values()
        seconds = bench.settings.block_s
        calls = [m.awaited(partial(model.infer_on_device, {"x": there}), seconds) for model in self.models]
        blocks = {OURS: each(calls, chain.terms)}
        if bench.torch is not None:
            theirs = bench.torch.eager(self.modules[1])(inputs)
            m.check_equal(chain.case(rows), once.values(), [theirs], TOLERANCES[chain.dtype])
            played = [m.called(bench.torch.played(module, inputs), seconds) for module in self.modules]
            blocks[MATMUL] = each(played, chain.terms)
        samples = await m.interleave(blocks, bench.settings)
        work = chain.work(rows)
        await long.infer(inputs)  # so that its plan is made
        if (alone := (await long.profile(inputs)).device_us) is not None:
            rate = m.show(work * chain.terms / alone * 1e6 * chain.unit.scale)
            bench.notes.append(f"{chain.case(rows)}: kernels alone, by the device's clock, {rate} {chain.unit.name}.")
        return {name: [work / s for s in found] for name, found in samples.items()}


def each(blocks: Sequence[m.Block], terms: int) -> m.Block:
    """Return a block that gives the seconds of a product: of a model of *terms* less those of a model of one."""
    long, one = blocks

    async def block() -> float:
        found = (await long() - await one()) / (terms - 1)
        if found <= 0:
            raise m.BenchmarkError(f"{terms} products took no longer than one: others used the machine")
        return found

    return block
