"""Greedy decoding with a model that takes and gives a cache of keys and values.

    python examples/decode.py decoder.onnx "1 2 3" "4 5 6 7" --tokens 32

The caches stay on the device between the steps, and the texts' steps run together; see docs/sequences.md. Inputs called
`attention_mask` and `position_ids` are filled in where the model has them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import asyncrt


def inputs_of(model: asyncrt.Model, ids: list[int], past: int) -> dict[str, np.ndarray[Any, Any]]:
    """What a step takes beside the cache: the new tokens, and what tells where they stand."""
    filled = {
        "input_ids": np.array([ids]),
        "attention_mask": np.ones((1, past + len(ids)), np.int64),
        "position_ids": np.arange(past, past + len(ids))[None],
    }
    return {name: array for name, array in filled.items() if name in model.inputs}


async def decode(model: asyncrt.Model, sequence: asyncrt.Sequence, prompt: list[int], count: int) -> list[int]:
    """Return the tokens that the model likes best, one after the other."""
    tokens: list[int] = []

    def following(outputs: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]] | None:
        past = len(prompt) + len(tokens)
        tokens.append(int(outputs["logits"][0, -1].argmax()))
        return inputs_of(model, tokens[-1:], past) if len(tokens) < count else None

    async with sequence:
        async for _ in sequence.steps(inputs_of(model, prompt, 0), following):
            pass
    return tokens


async def decode_all(file: Path, prompts: list[list[int]], count: int, device: str | None) -> list[list[int]]:
    """Decode all prompts at once."""
    async with asyncrt.Runtime(device) as rt:
        model = await rt.load(file)
        async with model.sequences() as group:
            found = await asyncio.gather(*(decode(model, group.sequence(), prompt, count) for prompt in prompts))
            print(group)
    return found


def main(
    file: Annotated[Path, typer.Argument(help="A decoder as ONNX, with `input_ids`, `logits` and a cache.")],
    prompts: Annotated[list[str] | None, typer.Argument(help="Ids of the tokens that a text begins with.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="How many to decode.")] = 16,
    device: Annotated[str | None, typer.Option(help="As `asyncrt devices` lists; else the best.")] = None,
) -> None:
    """Decode greedily, with the caches on the device."""
    begun = [[int(t) for t in prompt.split()] for prompt in prompts or ["1 2 3"]]
    for found in asyncio.run(decode_all(file, begun, tokens, device)):
        print(*found)


if __name__ == "__main__":
    typer.run(main)
