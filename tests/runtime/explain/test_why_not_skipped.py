"""Why a node that could have been skipped was run, in words that name the axis, the step or the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.layout import Array

from ...builders import i64, model, node


def f32(*shape: int) -> Array:
    return np.ones(shape, np.float32)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("call", "attributes", "inputs", "given", "why"),
    [
        ("Transpose(x)", {"perm": [0, 2, 1]}, ["x f32[a,b,c]"], {"x": f32(2, 3, 4)}, "moves axis 1 past axis 2"),
        (
            "Slice(x, s, e, a)",
            {},
            ["x f32[n,m]", "s i64[1]", "e i64[1]", "a i64[1]"],
            {"x": f32(2, 3), "s": i64(1), "e": i64(9), "a": i64(1)},
            "starts at 1 on axis 1, once for each index of the axes before it",
        ),
        (
            "Slice(x, s, e, a, t)",
            {},
            ["x f32[n]", "s i64[1]", "e i64[1]", "a i64[1]", "t i64[1]"],
            {"x": f32(4), "s": i64(9), "e": i64(-9), "a": i64(0), "t": i64(-1)},
            "step -1 on axis 0",
        ),
        ("Tile(x, t)", {}, ["x f32[n,m]", "t i64[2]"], {"x": f32(2, 3), "t": i64(2, 1)}, "the tile repeats axis 0"),
        ("Expand(x, t)", {}, ["x f32[n,m]", "t i64[2]"], {"x": f32(1, 3), "t": i64(4, 3)}, "axis 0 grows from 1 to 4"),
        (
            "Gather(x, i)",
            {},
            ["x f32[n]", "i i64[k,j]"],
            {"x": f32(5), "i": np.array([[3, 1]])},
            "the indices are not known on the host",
        ),
        (
            "Gather(x, i)",
            {},
            ["x f32[n]", "i i64[k]"],
            {"x": f32(5), "i": i64(3, 1, 2)},
            "the indices are no dense range",
        ),
        ("Gather(x, i)", {}, ["x f32[n]", "i i64[k]"], {"x": f32(5), "i": i64(3, 1)}, "walks axis 0 backwards"),
        (
            "Concat(x, t)",
            {"axis": 0},
            ["x f32[n]", "t f32[m]"],
            {"x": f32(2), "t": f32(1)},
            "2 of its inputs have elements",
        ),
        ("Pad(x, p)", {}, ["x f32[n]", "p i64[2]"], {"x": f32(3), "p": i64(1, 2)}, "adds 3 elements to axis 0"),
        ("GlobalMaxPool(x)", {}, ["x f32[a,b,c]"], {"x": f32(1, 2, 3)}, "changes data for these shapes"),
        (
            "ReduceSum(x)",
            {"keepdims": 0},
            ["x f32[n,m]"],
            {"x": f32(2, 3)},
            "reduces axis 0, which has 2 elements",
        ),
        ("Add(x, x)", {}, ["x f32[n]"], {"x": f32(3)}, ""),
    ],
)
async def test_explain_says_why_a_node_was_not_skipped(
    call: str, attributes: Mapping[str, Any], inputs: list[str], given: Mapping[str, Array], why: str
) -> None:
    """The reason is asked of the operator when somebody wants it, not while planning."""
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(model([node(f"y = {call}", **attributes)], inputs, ["y"]))
        await loaded.infer(given)

        (found,) = loaded.explain()

        assert (why, "ran") == (found.why, found.decision)


@pytest.mark.asyncio
async def test_explain_says_that_skips_are_off() -> None:
    """Without `skip` nothing else is said."""
    async with Runtime("simulated", options=RuntimeOptions(without={"skip"}, warm=False)) as rt:
        loaded = await rt.load(model([node("y = Transpose(x)")], ["x f32[n,m]"], ["y"]))
        await loaded.infer({"x": f32(1, 3)})

        assert [n.why for n in loaded.explain()] == ["skip is off"]


@pytest.mark.asyncio
@pytest.mark.parametrize("call", ["Transpose(turned)", "Squeeze(turned)"])
async def test_a_node_that_moves_nothing_but_writes_out_a_view_says_how_its_input_lies(call: str) -> None:
    """Its own attributes keep it from nothing: a permutation that passes axes of one index alone, say."""
    attributes = {"perm": [1, 0, 2]} if call.startswith("Transpose") else {}
    nodes = [
        node("turned = Transpose(x)", perm=[0, 2, 1]), node(f"y = {call}", **attributes), node("z = CumSum(y, zero)"),
    ]  # fmt: skip
    async with Runtime("simulated", options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(model(nodes, ["x f32[a,b,c]"], ["z"], {"zero": np.array(0)}))
        await loaded.infer({"x": f32(1, 3, 4)})

        found = next(n for n in loaded.explain() if n.output_names == ("y",))

        assert (found.decision, found.why) == ("ran", "its input is a view that moves axis 2 of the result past axis 1")
