"""Many callers, requests of different lengths, one model: batches form by themselves.

    python examples/batching.py                       # a small text encoder, made here
    python examples/batching.py --device host --callers 500

A plain asyncio program: callers come at random times, some with a deadline, some give up. See docs/batching.md.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Annotated

import numpy as np
import onnx
import typer

import asyncrt

# Embeds tokens, lets each attend to those that the mask lets through, and takes the mean of them.
MODEL = """<ir_version: 8, opset_import: ["" : 18]>
encoder (int64[batch, seq] tokens, float[batch, seq] mask) => (float[batch, 64] y)
<float[1000, 64] table, float[64, 64] turn>
{
    x = Gather (table, tokens)
    q = MatMul (x, turn)
    k = Transpose <perm = [0, 2, 1]> (x)
    s = MatMul (q, k)
    one = Constant <value_float = 1.0> ()
    far = Constant <value_float = -10000.0> ()
    hidden = Sub (one, mask)
    away = Mul (hidden, far)
    middle = Constant <value_ints = [1]> ()
    bias = Unsqueeze (away, middle)
    biased = Add (s, bias)
    p = Softmax <axis = -1> (biased)
    z = MatMul (p, x)
    last = Constant <value_ints = [-1]> ()
    wide = Unsqueeze (mask, last)
    kept = Mul (z, wide)
    total = ReduceSum <keepdims = 0> (kept, middle)
    count = ReduceSum <keepdims = 1> (mask, middle)
    y = Div (total, count)
}"""


def encoder() -> onnx.ModelProto:
    """Return the model with random weights."""
    model = onnx.parser.parse_model(MODEL)
    draw = np.random.default_rng(0)
    del model.graph.initializer[:]
    for name, shape in {"table": (1000, 64), "turn": (64, 64)}.items():
        weights = (draw.standard_normal(shape) / 8).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


async def caller(batched: asyncrt.Batched, chance: random.Random, became: Counter[str]) -> None:
    """Come at some time with a text of some length, and see what becomes of it."""
    await asyncio.sleep(chance.random() * 0.5)
    length = min(max(int(chance.lognormvariate(3.5, 0.7)), 4), 256)
    tokens = np.array([[chance.randrange(1000) for _ in range(length)]])
    deadline = 0.25 if chance.random() < 0.5 else None
    try:
        async with asyncio.timeout(0.001 if chance.random() < 0.05 else None):  # some are in a hurry
            answer = await batched.infer({"tokens": tokens}, deadline=deadline)
    except asyncrt.Overloaded:
        became["refused"] += 1
    except TimeoutError:
        became["out of time"] += 1
    else:
        assert answer["y"].shape == (1, 64)
        became["answered"] += 1


async def serve(callers: int, device: str | None) -> None:
    """Serve them all, and print what was batched."""
    async with asyncrt.Runtime(device) as rt:
        model = await rt.load(encoder())
        async with model.batched(max_batch=16) as batched:
            print(batched.pad_safety)
            chance, became = random.Random(0), Counter[str]()
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(callers):
                    group.create_task(caller(batched, chance, became))
            print(f"{callers} callers in {time.perf_counter() - began:.2f} s: {dict(became)}")
            statistics = batched.statistics()
            print(batched)
            print({reason: count for reason, count in statistics.reasons.items() if count})


def main(
    callers: Annotated[int, typer.Option(min=1, help="How many come within half a second.")] = 300,
    device: Annotated[str | None, typer.Option(help="As `asyncrt devices` lists; else the best.")] = None,
) -> None:
    """Let callers come at random, and batch what they bring."""
    asyncio.run(serve(callers, device))


if __name__ == "__main__":
    typer.run(main)
