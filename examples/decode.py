"""Greedy decoding with a model that takes and gives a cache of keys and values.

    python examples/decode.py decoder.onnx --tokens 32

The cache stays on the device between the steps; see docs/sequences.md. Inputs called `attention_mask` and
`position_ids` are filled in where the model has them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import asyncrt


def inputs_of(model: asyncrt.Model, ids: np.ndarray[Any, Any], past: int) -> dict[str, np.ndarray[Any, Any]]:
    """What a step takes beside the cache: the new tokens, and what tells where they stand."""
    batch, new = ids.shape
    filled = {
        "input_ids": ids,
        "attention_mask": np.ones((batch, past + new), np.int64),
        "position_ids": np.broadcast_to(np.arange(past, past + new), (batch, new)),
    }
    return {name: np.ascontiguousarray(array) for name, array in filled.items() if name in model.inputs}


async def decode(file: Path, prompt: list[int], count: int, device: str | None) -> list[int]:
    """Return the tokens that the model likes best, one after the other."""
    async with asyncrt.Runtime(device) as rt:
        model = await rt.load(file)
        ids, past = np.array([prompt], np.int64), 0
        tokens: list[int] = []
        async with model.sequence() as sequence:
            for _ in range(count):
                out = await sequence.infer(inputs_of(model, ids, past))
                past += ids.shape[1]
                tokens.append(int(out["logits"][0, -1].argmax()))
                ids = np.array([tokens[-1:]], np.int64)
            print(sequence)
        return tokens


def main(
    file: Annotated[Path, typer.Argument(help="A decoder as ONNX, with `input_ids`, `logits` and a cache.")],
    prompt: Annotated[str, typer.Option(help="Ids of the tokens to begin with.")] = "1 2 3",
    tokens: Annotated[int, typer.Option(min=1, help="How many to decode.")] = 16,
    device: Annotated[str | None, typer.Option(help="As `asyncrt devices` lists; else the best.")] = None,
) -> None:
    """Decode greedily, with the cache on the device."""
    found = asyncio.run(decode(file, [int(t) for t in prompt.split()], tokens, device))
    print(*found)


if __name__ == "__main__":
    typer.run(main)
