"""How long does a decoder take for the next token, while its cache of keys and values grows?

A decoder shaped as GPT-2 with six layers of 384, random weights, float32, one token at a time. asyncrt keeps the cache
on the device (`model.sequence()`), or takes it back and forth (`infer`); ONNX Runtime keeps it in its own memory
(I/O binding), or takes it back and forth; OpenVINO takes it back and forth. Every step has a length of its own, so all
shapes are new in the first pass.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np
import onnx

import asyncrt

from . import command, networks, peers
from . import measure as m

FIRST, LAST = 16, 512
QUICK_LAST = 48
BLOCKS = 10  # a turn is a whole text


class Decoder(Protocol):
    """A text under way."""

    async def begin(self, past: m.Inputs) -> None:
        """Forget the text, and begin with a cache."""

    async def step(self, inputs: m.Inputs) -> m.Array:
        """Take the next token and return its logits."""


async def bench(
    settings: m.Settings, network: onnx.ModelProto | None = None, first: int = FIRST, last: int | None = None
) -> m.Report:
    """Measure *network* on the tokens behind the *first* ones, up to *last* in all."""
    last = last or (QUICK_LAST if settings.quick else LAST)
    settings = attrs.evolve(settings, blocks=min(settings.blocks, BLOCKS))
    model = network or networks.decoder()
    past, steps = networks.cache(model, first), [networks.next_token(length) for length in range(first, last)]
    source = model.SerializeToString()
    with tempfile.TemporaryDirectory() as folder:
        async with asyncrt.Runtime(settings.device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
            loaded = await rt.load(source)
            kept = Kept(loaded)
            decoders: dict[str, Decoder] = {"asyncrt, sequence()": kept, "asyncrt, infer()": FedBack(loaded.infer)}
            theirs, notes = others(source)
            decoders |= theirs
            texts = {name: Text(decoder, past, steps) for name, decoder in decoders.items()}
            new = {name: await text.seconds() for name, text in texts.items()}
            check(texts)
            samples = await m.interleave({name: text.block for name, text in texts.items()}, settings)
            await kept.close()
            info = rt.info
    ours = samples["asyncrt, sequence()"]
    bounds = [first, *(1 << n for n in range(20) if first < 1 << n < last), last]
    turns = {name: np.array(text.turns[-settings.blocks :]) for name, text in texts.items()}
    return m.Report(
        name="decode",
        command=f"python -m benchmarks.decode{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "runtime": name,
                "ms, every length new": float(np.median(new[name])) * 1e3,
                **{
                    f"ms at {a} to {b - 1}": float(np.median(turns[name][:, a - first : b - first])) * 1e3
                    for a, b in itertools.pairwise(bounds)
                },
                "tokens/s": 1 / float(np.median(samples[name])),
                "sequence() over it": None if samples[name] is ours else m.Ratio.of(samples[name], ours),
            }
            for name in texts
        ],
        summary={
            f"times as fast as {name}": m.Ratio.of(seconds, ours)
            for name, seconds in samples.items()
            if not name.startswith("asyncrt")
        },
        notes=[
            f"Medians of the steps from {first} tokens in the cache to {last - 1}, in {settings.blocks} turns of a "
            "whole text each. Over a peer: its time per token over asyncrt's; above 1, asyncrt is faster.",
            *notes,
        ],
    )


def others(model: bytes) -> tuple[dict[str, Decoder], list[str]]:
    """Return the ways of decoding in the peers that are there, and a sentence for each that is not."""
    loaded = peers.load(model)
    decoders: dict[str, Decoder] = {}
    if peers.ONNX_RUNTIME.name in loaded.runs:
        decoders["ONNX Runtime, I/O binding"] = Bound(peers.onnx_runtime_session(model, m.cores()))
    for name, run in loaded.runs.items():
        decoders[f"{name}, back and forth"] = FedBack(named(run, networks.outputs(model)))
    return decoders, list(loaded.notes)


def named(run: peers.Run, names: Sequence[str]) -> Callable[[m.Inputs], Awaitable[Mapping[str, m.Array]]]:
    """Return a peer's model as a coroutine function whose outputs have names."""

    async def infer(inputs: m.Inputs) -> Mapping[str, m.Array]:
        return dict(zip(names, run(inputs), strict=True))

    return infer


# --- one text ---------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Text:
    """The same tokens again and again in one decoder.

    Attributes:
        turns: Seconds of every step, by turn.
        logits: Of the first turn, by step.
    """

    decoder: Decoder
    past: m.Inputs
    steps: Sequence[m.Inputs]
    turns: list[list[float]] = attrs.field(factory=list)
    logits: list[m.Array] = attrs.field(factory=list)

    async def seconds(self) -> list[float]:
        """Decode the text once; returns the seconds of each step."""
        await self.decoder.begin(self.past)
        seconds: list[float] = []
        for inputs in self.steps:
            start = time.perf_counter()
            logits = await self.decoder.step(inputs)
            seconds.append(time.perf_counter() - start)
            if not self.turns:
                self.logits.append(logits)
        self.turns.append(seconds)
        return seconds

    async def block(self) -> float:
        """Decode the text once; returns the mean seconds of a step."""
        return float(np.mean(await self.seconds()))


def check(texts: Mapping[str, Text]) -> None:
    """Compare the logits of every step of all decoders.

    Raises:
        BenchmarkError: They differ.
    """
    (name, one), *rest = texts.items()
    for other, text in rest:
        for step, (ours, theirs) in enumerate(zip(one.logits, text.logits, strict=True)):
            m.check_equal(f"step {step} in {name} and {other}", [ours], [theirs])
    for text in texts.values():
        text.logits.clear()


# --- the ways of decoding ---------------------------------------------------------------------------------------------


class Kept:
    """asyncrt, with the cache on the device."""

    def __init__(self, model: asyncrt.Model) -> None:
        self._model = model
        self._sequence: asyncrt.Sequence | None = None
        self._past: m.Inputs = {}

    async def begin(self, past: m.Inputs) -> None:
        await self.close()
        self._sequence, self._past = self._model.sequence(), past

    async def step(self, inputs: m.Inputs) -> m.Array:
        assert self._sequence is not None
        given, self._past = {**inputs, **self._past}, {}  # only the first step takes the cache that there was before
        return (await self._sequence.infer(given))["logits"]

    async def close(self) -> None:
        """Give the cache's memory back."""
        if self._sequence is not None:
            await self._sequence.close()


class FedBack:
    """A runtime that gives the cache to the host, which gives it back with the next token."""

    def __init__(self, infer: Callable[[m.Inputs], Awaitable[Mapping[str, m.Array]]]) -> None:
        self._infer = infer
        self._past: m.Inputs = {}

    async def begin(self, past: m.Inputs) -> None:
        self._past = past

    async def step(self, inputs: m.Inputs) -> m.Array:
        results = await self._infer({**inputs, **self._past})
        self._past = {name: results[output] for name, output in networks.state(self._past).items()}
        return results["logits"]


class Bound:
    """ONNX Runtime, with the cache in tensors of its own."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self._past: dict[str, Any] = {}

    async def begin(self, past: m.Inputs) -> None:
        import onnxruntime

        self._past = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in past.items()}

    async def step(self, inputs: m.Inputs) -> m.Array:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name, tensor in self._past.items():
            binding.bind_ortvalue_input(name, tensor)
        for name in self._names:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        results = dict(zip(self._names, binding.get_outputs(), strict=True))
        self._past = {name: results[output] for name, output in networks.state(self._past).items()}
        logits: m.Array = results["logits"].numpy()
        return logits


if __name__ == "__main__":
    command.run(bench)
