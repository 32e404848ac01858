"""How many tokens a second does a decoder give, to one caller and to many, while its cache grows?

PyTorch's CUDA graph is recorded once, with a static cache that has room for all tokens from the start. asyncrt's grows
by what is said: one caller has a sequence, many have a group of them. The logits of each token go to the host.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Protocol

import attrs
import numpy as np
import onnx

import asyncrt

from .. import decode, networks
from .. import measure as m
from ..sequences import inputs as step_inputs
from .bench import TOLERANCES, Bench
from .findings import EAGER, GRAPH, OURS, TOKENS, Aim, Finding


@attrs.frozen
class Text:
    """Who decodes what.

    Attributes:
        layers, hidden, heads, vocabulary: Of the decoder.
        dtype: Of its weights.
        spans: Tokens in the cache at the beginning and at the end, of one text after the other.
        callers: Who decode at once.
        aim: What is promised.
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    dtype: type[np.floating[Any]]
    spans: tuple[tuple[int, int], ...]
    callers: int = 1
    aim: Aim | None = None

    def case(self, first: int, last: int) -> str:
        """What the table calls it."""
        who = "" if self.callers == 1 else f", {self.callers} in a group"
        return f"{self.dtype.__name__} {self.layers} x {self.hidden}, cache {first} to {last}{who}"

    @property
    def total(self) -> int:
        """Tokens for which a static cache has to have room."""
        return max(networks.POSITIONS, *(last for _, last in self.spans))

    def network(self) -> onnx.ModelProto:
        """Return the decoder."""
        return networks.decoder(self.layers, self.hidden, self.heads, self.vocabulary, self.dtype)


_SMALLER, _GPT2 = (networks.LAYERS, networks.HIDDEN, networks.HEADS), (12, 768, 12)
_GROUP = 2000  # words of the vocabulary: so that what takes time is the decoder, and not the way of logits to the host
ONE = [
    Text(*_SMALLER, networks.VOCABULARY, np.float32, ((16, 1000),), aim=Aim(1.0)),
    Text(*_GPT2, networks.VOCABULARY, np.float32, ((16, 1000),), aim=Aim(1.0)),
    Text(*_GPT2, networks.VOCABULARY, np.float16, ((16, 1000),), aim=Aim(1.0)),
]
GROUPS = [Text(*_GPT2, _GROUP, np.float32, ((16, 64), (500, 548)), callers=64, aim=Aim(0.7))]
SMALL_ONE = [Text(1, 16, 2, 60, dtype, ((3, 9),)) for dtype in TOLERANCES]
SMALL_GROUPS = [Text(1, 16, 2, 60, np.float32, ((3, 7),), callers=3)]
_KNOWN = 50  # tokens that each decoder knows
TURNS = 3
CHECKED = 4
"""Steps whose logits are compared."""


async def measure(bench: Bench) -> AsyncIterator[Finding]:
    """Measure `ONE` caller and `GROUPS` of them."""
    settings = attrs.evolve(bench.settings, blocks=min(bench.settings.blocks, TURNS))
    few = attrs.evolve(bench, settings=settings)
    async with bench.runtime() as rt:
        for text in bench.pick(ONE, SMALL_ONE):
            async for finding in _one(few, rt, text):
                yield finding
        for text in bench.pick(GROUPS, SMALL_GROUPS):
            async for finding in _group(few, rt, text):
                yield finding


class Decoder(Protocol):
    """One text, or several at once, under way."""

    async def begin(self, past: m.Inputs) -> None:
        """Forget the text, and begin with a cache."""

    async def step(self, inputs: m.Inputs) -> m.Array:
        """Take the next token and return its logits."""


class Static:
    """PyTorch, with a static cache; a batch of texts takes the same token in each step."""

    def __init__(self, bench: Bench, network: onnx.ModelProto, text: Text) -> None:
        assert bench.torch is not None
        self._batch = text.callers
        self._module = bench.torch.Decoder(network, text.callers, text.total)
        runs = bench.runs(self._module, self._given(networks.next_token(0)))
        #: CUDA graph, where there is CUDA.
        self.name = GRAPH if GRAPH in runs else EAGER
        self._run = runs[self.name]

    def _given(self, inputs: m.Inputs) -> m.Inputs:
        ids = np.repeat(inputs["input_ids"], self._batch, axis=0)
        return {"input_ids": ids, "position": inputs["position_ids"][0]}

    async def begin(self, past: m.Inputs) -> None:
        self._module.fill(past)

    async def step(self, inputs: m.Inputs) -> m.Array:
        logits: m.Array = self._run(self._given(inputs))
        return logits


# --- one caller -------------------------------------------------------------------------------------------------------


async def _one(bench: Bench, rt: asyncrt.Runtime, text: Text) -> AsyncIterator[Finding]:
    """Measure one caller: when every length is new, and when all are known."""
    network = text.network()
    loaded = await bench.load(rt, f"decoder of {text.layers} x {text.hidden} in {text.dtype.__name__}", network)
    kept = decode.Kept(loaded)
    decoders: dict[str, Decoder] = {OURS: kept}
    if bench.torch is not None:
        static = Static(bench, network, text)
        decoders[static.name] = static
    for first, last in text.spans:
        past, steps = networks.cache(network, first), _steps(first, last)
        samples = {OURS: [await _rate(kept, past, steps)]}
        case = text.case(first, last)
        yield Finding(part="decoder", case=f"{case}, all new", unit=TOKENS, samples=samples)
        await _check(decoders, past, steps[:CHECKED], TOLERANCES[text.dtype])
        turns = {name: partial(_rate, decoder, past, steps) for name, decoder in decoders.items()}
        yield Finding(
            part="decoder", case=case, unit=TOKENS, samples=await m.interleave(turns, bench.settings), aim=text.aim
        )  # fmt: skip
    await kept.close()


def _steps(first: int, last: int) -> list[m.Inputs]:
    return [networks.next_token(length) for length in range(first, last)]


async def _rate(decoder: Decoder, past: m.Inputs, steps: Sequence[m.Inputs]) -> float:
    """Decode a text; returns tokens per second."""
    await decoder.begin(past)
    start = time.perf_counter()
    for inputs in steps:
        await decoder.step(inputs)
    return len(steps) / (time.perf_counter() - start)


async def _check(decoders: dict[str, Decoder], past: m.Inputs, steps: Sequence[m.Inputs], tolerance: float) -> None:
    """Compare the logits of some steps.

    Raises:
        BenchmarkError: They differ.
    """
    found: dict[str, list[m.Array]] = {}
    for name, decoder in decoders.items():
        await decoder.begin(past)
        found[name] = [await decoder.step(inputs) for inputs in steps]
    for name, theirs in found.items():
        m.check_equal(f"logits of asyncrt and of {name}", found[OURS], theirs, tolerance)


# --- many callers -----------------------------------------------------------------------------------------------------


async def _group(bench: Bench, rt: asyncrt.Runtime, text: Text) -> AsyncIterator[Finding]:
    """Measure callers whose texts are equally long, beside PyTorch's batch of as many."""
    network = text.network()
    loaded = await bench.load(rt, f"decoder of {text.vocabulary} words in {text.dtype.__name__}", network)
    static = None if bench.torch is None else Static(bench, network, text)
    for first, last in text.spans:
        steps = _steps(first, last)
        turns: dict[str, m.Block] = {OURS: partial(_rate_of_group, loaded, text.callers, first, steps)}
        if static is not None:
            turns[static.name] = partial(_rate_of_batch, static, text.callers, steps)
        samples = await m.interleave(turns, bench.settings)
        yield Finding(part="decoder", case=text.case(first, last), unit=TOKENS, samples=samples, aim=text.aim)


async def _rate_of_batch(static: Static, callers: int, steps: Sequence[m.Inputs]) -> float:
    return callers * await _rate(static, {}, steps)


async def _rate_of_group(loaded: asyncrt.Model, callers: int, first: int, steps: Sequence[m.Inputs]) -> float:
    """Let each caller go on with a text of its own, behind *first* tokens; returns tokens per second."""
    random = np.random.default_rng(0)
    async with loaded.sequences(max_batch=callers) as group:
        sequences = [group.sequence() for _ in range(callers)]
        begin = step_inputs(random.integers(0, _KNOWN, first).tolist(), 0)
        await asyncio.gather(*(sequence.infer(begin) for sequence in sequences))

        async def caller(sequence: Any) -> None:
            for inputs in steps:
                await sequence.infer(inputs)

        start = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for sequence in sequences:
                tasks.create_task(caller(sequence))
        return callers * len(steps) / (time.perf_counter() - start)
