"""Whatever is handed over at a public door, what comes out is an answer or an error of asyncrt's, and soon.

Numbers, such as priorities and sizes of queues, are in `test_arguments.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import asyncrt
from asyncrt import AsyncrtError, BatchOptions, Model, Runtime, RuntimeOptions, onnx_backend

from ..builders import model, node

X = np.ones((2, 3), np.float32)
RIGHT = {"x": X}
PATIENCE_S = 20


def recursive_list() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def recursive_dict() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["x"] = found
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


class Refuses:
    """Raises whatever NumPy or a comparison asks of it."""

    def __array__(self, *given: object, **more: object) -> Any:
        raise ZeroDivisionError("not with me")

    __len__ = __iter__ = __bool__ = __fspath__ = __index__ = __float__ = __array__


class Lies:
    """Says that it is an array, and gives another one."""

    shape, dtype, ndim, nbytes = (2, 3), np.dtype(np.float32), 2, 24

    def __array__(self, *given: object, **more: object) -> Any:
        return np.array(["what", "else"])


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None, "True": lambda: True, "-1": lambda: -1, "2**63": lambda: 2**63, "10**400": lambda: 10**400,
    "nan": lambda: float("nan"), "inf": lambda: float("inf"), "complex": lambda: 1j, "empty text": lambda: "",
    "a text": lambda: "a", "a text with a zero": lambda: "a\0b", "a lone surrogate": lambda: "a\udc80",
    "a long text": lambda: "x" * 100_000, "bytes": lambda: b"\xff\x00", "no bytes": lambda: b"",
    "a bytearray": lambda: bytearray(5), "an object": object, "a type": lambda: int, "a function": lambda: len,
    "a list": lambda: [1, "a", None], "no list": list, "ragged": lambda: [[1.0], [1.0, 2.0]], "deep": deep,
    "a tuple": lambda: (1, 2), "a set": lambda: {1, "a"}, "no end": itertools.count,
    "a generator": lambda: (i for i in range(3)),
    "an array": lambda: np.ones(3), "an array of objects": lambda: np.array([None, object()]),
    "an array of text": lambda: np.array(["a", "b"]), "an array of dates": lambda: np.array(["2020"], "M8[s]"),
    "a huge broadcast": lambda: np.broadcast_to(np.float32(1), (2**40, 3)), "a record": lambda: np.zeros(2, "f4,i4"),
    "keys of all kinds": lambda: {"x": X, 1: X, None: X, (): X, b"x": X}, "a key that is no text": lambda: {3: "y"},
    "a dict of oddities": lambda: {"x": object(), "past": object()}, "an empty dict": dict,
    "a list in itself": recursive_list, "a dict in itself": recursive_dict, "refuses": Refuses, "lies": Lies,
    "a model": onnx.ModelProto, "a path that is not there": lambda: Path("/nothing/there"), "a folder": lambda: "/",
}  # fmt: skip
Door = Callable[[Any, "Place"], Awaitable[Any]]


class Place:
    """What doors lead to."""

    def __init__(self, rt: Runtime, plain: Model, keeping: Model, folder: Path) -> None:
        self.rt, self.plain, self.keeping, self.folder = rt, plain, keeping, folder


async def opened(value: Any, place: Place) -> None:
    async with Runtime(value):
        pass


async def traced(value: Any, place: Place) -> None:
    async with place.rt.trace(value):
        pass


async def sequence(value: Any, place: Place) -> None:
    async with place.keeping.sequence(value) as one:
        await one.infer({"x": X})


async def sequences(value: Any, place: Place) -> None:
    async with place.keeping.sequences(value) as several, several.sequence() as one:
        await one.infer({"x": X})


async def step(value: Any, place: Place) -> None:
    async with place.keeping.sequence() as one:
        await one.infer(value)


async def grouped_step(value: Any, place: Place) -> None:
    async with place.keeping.sequences() as several, several.sequence() as one:
        await one.infer(value)


async def steps(value: Any, place: Place, following: Any = lambda _: None) -> None:
    async with place.keeping.sequence() as one, contextlib.aclosing(one.steps(value, following)) as outputs:
        async for _ in outputs:
            pass


async def next_steps(value: Any, place: Place) -> None:
    def following(outputs: Mapping[str, Any]) -> Any:
        return value

    async with place.keeping.sequence() as one, contextlib.aclosing(one.steps({"x": X}, following)) as outputs:
        for _ in range(3):
            await anext(outputs, None)


async def batched_request(value: Any, place: Place) -> None:
    async with place.plain.batched() as batched:
        await batched.infer(value)


def batched(argument: str) -> Door:
    async def door(value: Any, place: Place) -> None:
        async with place.plain.batched(**{argument: value}) as batch:
            await asyncio.gather(batch.infer({"x": X}), batch.infer({"x": X}))

    return door


def blocking(function: Callable[[Any, Place], Any]) -> Door:
    return lambda value, place: asyncio.to_thread(function, value, place)


def prepared(source: Any, device: Any, inputs: Any) -> None:
    rep = onnx_backend.prepare(source, device)
    try:
        rep.run(inputs)
    finally:
        rep.close()


def loaded_sync(source: Any, inputs: Any) -> None:
    with asyncrt.load_sync(source, "host") as loaded:
        loaded.infer_sync(inputs)


def submitted(source: Any, inputs: Any) -> None:
    with asyncrt.load_sync(source, "host") as loaded:
        loaded.submit(inputs).result()


ADD = node("y = Add(a, b)")
DOORS: dict[str, Door] = {
    "Runtime(device)": opened,
    "Runtime.load(source)": lambda v, p: p.rt.load(v),
    "Runtime.trace(path)": traced,
    "Model.infer(inputs)": lambda v, p: p.plain.infer(v),
    "Model.infer(an input)": lambda v, p: p.plain.infer({"x": v}),
    "Model.infer_sync(inputs)": blocking(lambda v, p: p.plain.infer_sync(v)),
    "Model.profile(inputs)": lambda v, p: p.plain.profile(v),
    "Model.sequence(state)": sequence,
    "Model.sequence(an output)": lambda v, p: sequence({"past": v}, p),
    "Model.sequences(state)": sequences,
    "Sequence.infer(inputs)": step,
    "Sequence.infer(an input)": lambda v, p: step({"x": v}, p),
    "Sequence.steps(first)": steps,
    "Sequence.steps(following)": next_steps,
    # What a caller's own function raises is the caller's.
    "Sequence.steps(what follows)": lambda v, p: steps({"x": X}, p, None if callable(v) else v),
    "GroupedSequence.infer(inputs)": grouped_step,
    "GroupedSequence.infer(an input)": lambda v, p: grouped_step({"x": v}, p),
    "Model.batched(config)": batched("config"),
    "Model.batched(pad_values)": batched("pad_values"),
    "Model.batched(a pad value)": lambda v, p: batched("pad_values")({"x": v}, p),
    "Model.batched(mask)": batched("mask"),
    "Model.batched(batch)": batched("batch"),
    "Model.batched(samples)": batched("samples"),
    "Model.batched(a sample)": lambda v, p: batched("samples")([v], p),
    "Batched.infer(inputs)": batched_request,
    "Batched.infer(an input)": lambda v, p: batched_request({"x": v}, p),
    "BatchOptions(buckets)": blocking(lambda v, p: BatchOptions(buckets=v)),
    "RuntimeOptions(cache_dir)": blocking(lambda v, p: RuntimeOptions(cache_dir=v)),
    "BatchOptions.read(path)": blocking(lambda v, p: BatchOptions.read(v)),
    "BatchOptions.write(path)": blocking(lambda v, p: BatchOptions().write(v)),
    "load_sync(source)": blocking(lambda v, p: loaded_sync(v, RIGHT)),
    "SyncModel.infer_sync(inputs)": blocking(lambda v, p: loaded_sync(plain(), v)),
    "SyncModel.submit(inputs)": blocking(lambda v, p: submitted(plain(), v)),
    "onnx_backend.prepare(model)": blocking(lambda v, p: prepared(v, "host", [X])),
    "onnx_backend.prepare(device)": blocking(lambda v, p: prepared(plain(), v, [X])),
    "onnx_backend.run(inputs)": blocking(lambda v, p: prepared(plain(), "host", v)),
    "onnx_backend.run(an input)": blocking(lambda v, p: prepared(plain(), "host", [v])),
    "onnx_backend.run_node(node)": blocking(lambda v, p: onnx_backend.run_node(v, [X, X], "host")),
    "onnx_backend.run_node(inputs)": blocking(lambda v, p: onnx_backend.run_node(ADD, v, "host")),
    "onnx_backend.run_node(an input)": blocking(lambda v, p: onnx_backend.run_node(ADD, [X, v], "host")),
    "onnx_backend.run_node(opset_version)": blocking(
        lambda v, p: onnx_backend.run_node(ADD, [X, X], "host", opset_version=v)
    ),
    "onnx_backend.supports_device(device)": blocking(lambda v, p: onnx_backend.supports_device(v)),
    "Explanation.to_json(only)": blocking(lambda v, p: p.plain.explain().to_json(only=v)),
}
FILES = ("source", "path", "model", "config", "load")


def plain() -> onnx.ModelProto:
    return model([node("y = Neg(x)")], ["x f32[n,3]"], ["y"])


def keeping() -> onnx.ModelProto:
    return model(
        [node("present = Concat(past, x)", axis=0), node("y = Neg(present)")], ["x f32[n,3]", "past f32[p,3]"],
        ["y", "present"],
    )  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("name", DOORS)
async def test_what_comes_out_is_an_answer_or_an_error_of_asyncrt(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what Python raises for files, where one is named; and whoever asks for something right next has it."""
    monkeypatch.chdir(tmp_path)
    wrong: list[str] = []
    async with Runtime("host") as rt:
        place = Place(rt, await rt.load(plain()), await rt.load(keeping()), tmp_path)
        await place.plain.infer(RIGHT)
        for odd, make in ODD.items():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await DOORS[name](make(), place)
            except AsyncrtError as error:
                if not 0 < len(str(error)) < 5000:
                    wrong.append(f"{odd}: a message of {len(str(error))} characters")
            except OSError as error:
                if isinstance(error, TimeoutError) or not any(word in name for word in FILES):
                    wrong.append(f"{odd}: {error!r}")
            except Exception as error:
                wrong.append(f"{odd}: {type(error).__name__}: {str(error)[:150]}")
            answer = await place.plain.infer(RIGHT)
            np.testing.assert_array_equal(-X, answer["y"])

    assert wrong == []
