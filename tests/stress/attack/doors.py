"""Every public function and method that takes arguments, each with arguments that are right.

A hostile call is one of these with one argument exchanged. `test_attack.py` compares the list with what is public, so
that no argument is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import onnx

import asyncrt
from asyncrt import Batched, BatchOptions, GroupedSequence, Model, Runtime, RuntimeOptions, Sequence, SequenceGroup
from asyncrt.layout import Array

from ...builders import model, node
from ..batching import request
from .values import theirs

STATE = {"past": "present", "sum": "next_sum"}


def keeping() -> onnx.ModelProto:
    """Gives all that its sequence has seen, twice over, and a sum: a state that grows, and one that does not."""
    nodes = [
        node("present = Concat(past, x)", axis=1),
        node("y = Add(present, present)"),
        node("next_sum = Add(sum, x)"),
        node("z = Neg(next_sum)"),
    ]
    inputs = ["x f32[batch,1,2]", "past f32[batch,past,2]", "sum f32[batch,1,2]"]
    return model(nodes, inputs, ["y", "z", "present", "next_sum"])


@attrs.define
class Stage:
    """What hostile calls are made on: things of their own, of the same models and the same runtime as others'.

    Attributes:
        canary, keeping: Models: each element by itself, and `keeping`.
        folder: For files.
    """

    rt: Runtime
    canary: Model
    keeping: Model
    batched: Batched
    sequence: Sequence
    group: SequenceGroup
    grouped: GroupedSequence
    folder: Path
    source: bytes
    numbers: Any = attrs.field(factory=lambda: itertools.count(8_000))

    def inputs(self) -> dict[str, Array]:
        """Return inputs of the canary that are right, and nobody else's."""
        return request(next(self.numbers), 2, 1, 3)

    def step(self) -> dict[str, Array]:
        """Return inputs of a step."""
        return {"x": np.full((1, 1, 2), next(self.numbers), np.float32)}


Call = Callable[..., Awaitable[Any]]
_OWN = object()  # in the place of a model that is loaded to be unloaded


@attrs.frozen
class Door:
    """Something to call.

    Attributes:
        call: Calls it with one argument exchanged, and does with what comes of it what a user would.
        target: What is called; its signature says which arguments there are.
        right: Its arguments, as far as they must be given.
        files: Whether it may raise what Python raises for files.
    """

    call: Call
    target: Callable[..., Any]
    right: Callable[[Stage], dict[str, Any]] = lambda stage: {}
    files: bool = False

    @property
    def parameters(self) -> list[str]:
        """Names of its arguments."""
        return [n for n in inspect.signature(self.target).parameters if n not in ("self", "cls")]


async def _open_runtime(stage: Stage, **given: Any) -> None:
    async with Runtime(**{"device": "simulated", **given}) as rt:
        await rt.load(keeping())


async def _options(stage: Stage, **given: Any) -> None:
    await _open_runtime(stage, options=RuntimeOptions(**{"without": {"disk_cache"}, **given}))


async def _load(stage: Stage, **given: Any) -> None:
    loaded = await stage.rt.load(**given)
    await loaded.infer(stage.inputs())


async def _unload(stage: Stage, **given: Any) -> None:
    if given["model"] is _OWN:
        given["model"] = await stage.rt.load(stage.source)
    await stage.rt.unload(**given)


async def _trace(stage: Stage, **given: Any) -> None:
    async with stage.rt.trace(**given):
        await stage.canary.infer(stage.inputs())


async def _infer(stage: Stage, **given: Any) -> Any:
    return await stage.canary.infer(**given)


async def _infer_on_device(stage: Stage, **given: Any) -> Any:
    tensors = await stage.canary.infer_on_device(**given)
    with contextlib.ExitStack() as there:
        for tensor in tensors.values():
            there.callback(tensor.close)
        return {name: await tensor.numpy() for name, tensor in tensors.items()}


async def _infer_sync(stage: Stage, **given: Any) -> Any:
    return await asyncio.to_thread(stage.canary.infer_sync, **given)


async def _ready(stage: Stage, **given: Any) -> None:
    await stage.canary.ready(**given)


async def _sync_ready(stage: Stage, **given: Any) -> None:
    def work() -> None:
        with asyncrt.load_sync(stage.source, "simulated") as loaded:
            loaded.ready(**given)

    await asyncio.to_thread(work)


async def _profile(stage: Stage, **given: Any) -> None:
    (await stage.canary.profile(**given)).to_json()


async def _sequence(stage: Stage, **given: Any) -> None:
    async with stage.keeping.sequence(**given) as sequence:
        await sequence.infer(stage.step())


async def _sequences(stage: Stage, **given: Any) -> None:
    async with stage.keeping.sequences(**given) as group, group.sequence() as a, group.sequence() as b:
        await asyncio.gather(a.infer(stage.step()), b.infer(stage.step()))


async def _batched(stage: Stage, **given: Any) -> None:
    async with stage.canary.batched(**given) as batched:
        await asyncio.gather(*(batched.infer(stage.inputs()) for _ in range(3)))


async def _batch_options(stage: Stage, **given: Any) -> None:
    await _batched(stage, config=BatchOptions(**given))


async def _read(stage: Stage, **given: Any) -> None:
    BatchOptions.read(**given)


async def _write(stage: Stage, **given: Any) -> None:
    BatchOptions().write(**given)


async def _infer_batched(stage: Stage, **given: Any) -> Any:
    return await stage.batched.infer(**given)


async def _step(stage: Stage, **given: Any) -> None:
    await stage.sequence.infer(**given)


async def _steps(stage: Stage, **given: Any) -> None:
    following = given.get("following")
    if callable(following):  # what the caller's own function raises is the caller's to see
        given["following"] = lambda outputs: theirs(following, outputs)
    async with stage.keeping.sequence(STATE) as sequence:
        steps: Any = sequence.steps(**given)
        async with contextlib.aclosing(steps):
            for _ in range(4):
                if await anext(steps, None) is None:
                    break


async def _grouped_step(stage: Stage, **given: Any) -> None:
    await stage.grouped.infer(**given)


async def _load_sync(stage: Stage, **given: Any) -> None:
    def work() -> None:
        with asyncrt.load_sync(**{"device": "simulated", **given}) as loaded:
            loaded.infer_sync(stage.inputs())

    await asyncio.to_thread(work)


async def _sync_infer(stage: Stage, **given: Any) -> None:
    def work() -> None:
        with asyncrt.load_sync(stage.source, "simulated") as loaded:
            loaded.infer_sync(**given)

    await asyncio.to_thread(work)


async def _submit(stage: Stage, **given: Any) -> None:
    def work() -> None:
        with asyncrt.load_sync(stage.source, "simulated") as loaded:
            loaded.submit(**given).result()

    await asyncio.to_thread(work)


async def _to_json(stage: Stage, **given: Any) -> None:
    await stage.canary.infer(stage.inputs())
    stage.canary.explain().to_json(**given)


def _path(stage: Stage) -> dict[str, Any]:
    return {"path": stage.folder / "written"}


def _inputs(stage: Stage) -> dict[str, Any]:
    return {"inputs": stage.inputs()}


def _one_step(stage: Stage) -> dict[str, Any]:
    return {"inputs": stage.step()}


DOORS: Mapping[str, Door] = {
    "Runtime": Door(_open_runtime, Runtime),
    "RuntimeOptions": Door(_options, RuntimeOptions, files=True),
    "Runtime.load": Door(_load, Runtime.load, lambda s: {"source": s.source}, files=True),
    "Runtime.unload": Door(_unload, Runtime.unload, lambda s: {"model": _OWN}),
    "Runtime.trace": Door(_trace, Runtime.trace, _path, files=True),
    "Model.infer": Door(_infer, Model.infer, _inputs),
    "Model.infer_on_device": Door(_infer_on_device, Model.infer_on_device, _inputs),
    "Model.infer_sync": Door(_infer_sync, Model.infer_sync, _inputs),
    "Model.ready": Door(_ready, Model.ready),
    "Model.profile": Door(_profile, Model.profile, _inputs),
    "Model.sequence": Door(_sequence, Model.sequence, lambda s: {"state": STATE}),
    "Model.sequences": Door(_sequences, Model.sequences, lambda s: {"state": STATE}),
    "Model.batched": Door(_batched, Model.batched, files=True),
    "BatchOptions": Door(_batch_options, BatchOptions),
    "BatchOptions.read": Door(_read, BatchOptions.read, _path, files=True),
    "BatchOptions.write": Door(_write, BatchOptions.write, _path, files=True),
    "Batched.infer": Door(_infer_batched, Batched.infer, _inputs),
    "Sequence.infer": Door(_step, Sequence.infer, _one_step),
    "Sequence.steps": Door(_steps, Sequence.steps, lambda s: {"first": s.step(), "following": lambda o: s.step()}),
    "GroupedSequence.infer": Door(_grouped_step, GroupedSequence.infer, _one_step),
    "GroupedSequence.steps": Door(
        _steps, GroupedSequence.steps, lambda s: {"first": s.step(), "following": lambda o: None}
    ),
    "load_sync": Door(_load_sync, asyncrt.load_sync, lambda s: {"source": s.source}, files=True),
    "SyncModel.infer_sync": Door(_sync_infer, asyncrt.SyncModel.infer_sync, _inputs),
    "SyncModel.ready": Door(_sync_ready, asyncrt.SyncModel.ready),
    "SyncModel.submit": Door(_submit, asyncrt.SyncModel.submit, _inputs),
    "Explanation.to_json": Door(_to_json, asyncrt.Explanation.to_json),
}
"""By name."""

OFTEN = ("Model.infer", "Batched.infer", "Sequence.infer", "GroupedSequence.infer")
"""The doors of requests, among whom the innocent are."""


def some_door(chance: random.Random) -> str:
    """Draw a name of `DOORS`."""
    return chance.choice(OFTEN) if chance.random() < 0.6 else chance.choice(sorted(DOORS))
