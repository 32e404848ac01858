"""What a model was asked for first is planned first when it is loaded again; a note that is wrong changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.graph.build import build_program
from asyncrt.graph.ir import Program
from asyncrt.kernels.resident.store import BinaryStore
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Layout
from asyncrt.runtime.plan.plan_cache import Plans
from asyncrt.runtime.request.asked import Asked
from asyncrt.runtime.request.inputs import layouts_of, of_shapes

from ...builders import model, node

LINES = model([node("y = Softmax(x)")], ["x f32[n,48,w]"], ["y"])
X = np.random.default_rng(0).standard_normal((1, 48, 5)).astype(np.float32)


def compiled(source: Any) -> Program:
    return build_program(source, DeviceTraits("cpu", 2, 4096, frozenset({"fp64"})), RuntimeOptions())


def test_a_note_is_of_its_model_and_says_what_was_asked_last(tmp_path: Path) -> None:
    """Of a model without a note nothing is known."""
    store, program = BinaryStore(tmp_path), compiled(LINES)
    first, last = (of_shapes(program, {"x": (1, 48, width)}) for width in (7, 9))

    Asked(store, "lines").note(program, first)
    Asked(store, "lines").note(program, last)

    assert layouts_of(program, last) == Asked(store, "lines").layouts(program)
    assert Asked(store, "other").layouts(program) is None


@pytest.mark.parametrize("said", [b"", b"[1]", b"{}", b'{"x": [1, 47, 5]}', b'{"x": "wide"}', b'{"x": [1, 48, -5]}'])
def test_a_note_that_does_not_fit_the_model_is_none(tmp_path: Path, said: bytes) -> None:
    """Two models may be alike, and a note may be damaged."""
    store, program = BinaryStore(tmp_path), compiled(LINES)
    asked = Asked(store, "lines")
    asked.note(program, of_shapes(program, {"x": (1, 48, 7)}))
    (entry,) = tmp_path.iterdir()
    key = entry.read_bytes().split(b"\n")[1].decode()
    assert entry == store.path_of(key)

    store.put(key, said)

    assert Asked(store, "lines").layouts(program) is None


def test_the_next_process_plans_what_was_asked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the request has it, which no guess at likely sizes is; the answer is the same."""
    monkeypatch.setenv("ASYNCRT_WITHOUT", "")
    planned: list[list[Layout] | None] = []
    likely = Plans.likely

    def noting(self: Plans, *given: Any, asked: list[Layout] | None = None, **others: Any) -> Any:
        planned.append(asked)
        return likely(self, *given, asked=asked, **others)

    async def answer() -> Any:
        async with Runtime(options=RuntimeOptions(cache_dir=tmp_path)) as rt:
            loaded = await rt.load(LINES.SerializeToString())
            await loaded.ready()
            return (await loaded.infer({"x": X}))["y"]

    monkeypatch.setattr(Plans, "likely", noting)
    before, now = asyncio.run(answer()), asyncio.run(answer())  # which end when the note is written

    program = compiled(LINES)
    assert planned == [None, layouts_of(program, of_shapes(program, {"x": X.shape}))]
    np.testing.assert_array_equal(before, now)
