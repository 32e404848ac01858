"""How many tokens a second do many decoding callers get, each with a cache of keys and values of its own?

As a group, whose steps run together with state side by side on the device; as sequences, each step a request of its
own; and with the cache fed back through the host.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

import asyncrt

from . import command, networks
from . import measure as m

CALLERS = 16
VOCABULARY = 2000
GROUP, SEQUENCES, HOST = "a group of sequences", "sequences", "fed back through the host"

Decode: TypeAlias = Callable[[list[int], int], Awaitable[list[int]]]
"""From a prompt to so many tokens, greedily."""


async def bench(
    settings: m.Settings, tokens: int | None = None, size: tuple[int, int, int] | None = None, callers: int = CALLERS
) -> m.Report:
    """Let each of *callers* decode *tokens* tokens, with a model of so many layers, that width and so many heads."""
    tokens = tokens or (32 if settings.quick else 128)
    layers, hidden, heads = size or ((4, 384, 6) if settings.quick else (6, 768, 12))
    random = np.random.default_rng(0)
    network = networks.decoder(layers, hidden, heads, VOCABULARY)
    prompts = [random.integers(0, VOCABULARY, random.integers(4, 9)).tolist() for _ in range(callers)]
    with tempfile.TemporaryDirectory() as folder:
        async with asyncrt.Runtime(settings.device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
            model = await rt.load(network)
            async with model.sequences(max_batch=callers) as group:
                ways: dict[str, Decode] = {
                    GROUP: lambda prompt, count: steps(model, group.sequence(), prompt, count),
                    SEQUENCES: lambda prompt, count: steps(model, model.sequence(), prompt, count),
                    HOST: partial(fed_back, model, networks.cache(network, 0)),
                }
                found = {name: await asyncio.gather(*(way(p, tokens) for p in prompts)) for name, way in ways.items()}
                for name, others in found.items():
                    if others != found[HOST]:
                        raise m.BenchmarkError(f"{name}: other tokens, so speeds are not compared")
                turns = {name: partial(rate, way, prompts, tokens) for name, way in ways.items()}
                samples = await m.interleave(turns, settings)
                sharing = str(group.sharing)
                done = group.statistics()
            info = rt.info
    rates = samples[GROUP]
    return m.Report(
        name="sequences",
        command=f"python -m benchmarks.sequences{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "state": name,
                "tokens/s": float(np.median(theirs)),
                "a group against it": None if name == GROUP else m.Ratio.of(rates, theirs),
            }
            for name, theirs in samples.items()
        ],
        summary={
            f"tokens per second of {callers} callers in a group over {name}": m.Ratio.of(rates, samples[name])
            for name in (SEQUENCES, HOST)
        },
        notes=[
            f"{callers} callers at once, prompts of 4 to 8 tokens, {tokens} tokens each, greedily; a decoder of "
            f"{layers} layers, {hidden} wide, {heads} heads, float32. All give the same tokens. In the group, "
            f"{sharing}; an inference had {done.steps / done.inferences:.1f} steps on average, and state was copied to "
            f"lie together {done.gathered} times in {done.inferences} inferences."
        ],
    )


async def rate(way: Decode, prompts: list[list[int]], tokens: int) -> float:
    """Return tokens per second of all callers together."""
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for prompt in prompts:
            group.create_task(_ignored(way, prompt, tokens))
    return len(prompts) * tokens / (time.perf_counter() - start)


async def _ignored(way: Decode, prompt: list[int], tokens: int) -> None:
    await way(prompt, tokens)


async def steps(model: asyncrt.Model, sequence: asyncrt.Sequence, prompt: list[int], count: int) -> list[int]:
    """Decode with the cache on the device."""
    ids, past = prompt, 0
    found: list[int] = []
    async with sequence:
        for _ in range(count):
            outputs = await sequence.infer(inputs(ids, past))
            past += len(ids)
            found.append(int(outputs["logits"][0, -1].argmax()))
            ids = found[-1:]
    return found


async def fed_back(model: asyncrt.Model, cache: m.Inputs, prompt: list[int], count: int) -> list[int]:
    """Decode with the cache as inputs and outputs."""
    ids, past = prompt, 0
    found: list[int] = []
    for _ in range(count):
        outputs = await model.infer({**inputs(ids, past), **cache})
        past += len(ids)
        found.append(int(outputs["logits"][0, -1].argmax()))
        ids = found[-1:]
        cache = {name: outputs[output] for name, output in networks.state(cache).items()}
    return found


def inputs(ids: list[int], past: int) -> dict[str, m.Array]:
    """The inputs of a step beside the cache."""
    return {
        "input_ids": np.array([ids]),
        "attention_mask": np.ones((1, past + len(ids)), np.int64),
        "position_ids": np.arange(past, past + len(ids))[None],
    }


if __name__ == "__main__":
    command.run(bench)
