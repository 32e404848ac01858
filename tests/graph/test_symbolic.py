"""Shape arithmetic as formulas: the same values as the nodes, and noticed where a request breaks an assumption."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from asyncrt import Runtime
from asyncrt.graph.build import build_program
from asyncrt.graph.ir import Program
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Layout
from asyncrt.lru import LruCache
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.plan.chunk_plan import start_state
from asyncrt.runtime.plan.planner import prepare_chunk
from asyncrt.runtime.plan.tools import Tools

from ..builders import i64, model, node

TOOLS = Tools(DeviceTraits(), takes_source=True, pack=lambda offsets, ints: (tuple(offsets), ints))


def program(source: onnx.ModelProto) -> Program:
    return build_program(source, DeviceTraits(), RuntimeOptions())


def split_heads() -> onnx.ModelProto:
    """[b, s, 12] → [b, s, 3, 4], with the shape computed from the input's, as exporters write it."""
    nodes = [
        node("shape = Shape(x)"),
        node("b = Gather(shape, first)", axis=0),
        node("s = Gather(shape, second)", axis=0),
        node("bu = Unsqueeze(b, zero)"),
        node("su = Unsqueeze(s, zero)"),
        node("to = Concat(bu, su, heads)", axis=0),
        node("y = Reshape(x, to)"),
        node("z = Neg(y)"),
    ]
    scalars = {"first": np.array(0, np.int64), "second": np.array(1, np.int64)}
    return model(nodes, ["x f32[b,s,12]"], ["z"], {**scalars, "zero": i64(0), "heads": i64(3, 4)})


def test_host_nodes_are_replaced_by_formulas() -> None:
    """All of a model's shape arithmetic is known as expressions; a request runs none of its nodes."""
    loaded = program(split_heads())

    hosts = {n.id for n in loaded.nodes if n.place.value == "host"}

    assert loaded.symbolic.nodes == hosts
    assert len(hosts) == 6


def test_formulas_give_what_the_nodes_give() -> None:
    """For every size the formulas' values are those of running the nodes."""
    loaded = program(split_heads())
    to = next(v.id for v in loaded.values if v.name == "to")

    for b, s in ((1, 1), (2, 7), (5, 1), (3, 64)):
        values, _ = loaded.symbolic.evaluate([Layout(FLOAT32, (b, s, 12))])
        assert {id: value.reshape(-1).tolist() for id, _, value in values}[to] == [b, s, 3, 4]


def test_a_request_that_breaks_an_assumption_is_planned_node_by_node() -> None:
    """Loading takes ``table[:seq]`` to have seq rows; a request with more than the table has gets the right shape."""
    nodes = [
        node("shape = Shape(x)"),
        node("rows = Slice(table, zero, shape, zero)"),
        node("size = Shape(rows)"),
        node("y = Expand(one, size)"),
        node("z = Neg(y)"),
    ]
    constants = {"table": np.zeros((8, 2), np.float32), "zero": i64(0), "one": np.ones((1, 1), np.float32)}
    loaded = program(model(nodes, ["x f32[seq]"], ["z"], constants))
    (z,) = loaded.outputs

    shapes = []
    for seq in (3, 8, 20):
        state = start_state(loaded, [Layout(FLOAT32, (seq,))], {})
        layout = prepare_chunk(loaded, loaded.chunks[0], state, TOOLS).after.layouts[z]
        assert layout is not None
        shapes.append(layout.shape)

    assert shapes == [(3, 2), (8, 2), (8, 2)]


@pytest.mark.parametrize("first", [True, False])
def test_answers_are_remembered_without_changing_them(first: bool) -> None:
    """A plan is the same whether its answers were remembered from another request or not."""
    loaded = program(split_heads())
    layouts = [Layout(FLOAT32, (2, 5, 12))]
    fresh = Tools(DeviceTraits(), takes_source=True, pack=TOOLS.pack)
    if first:
        prepare_chunk(loaded, loaded.chunks[0], start_state(loaded, [Layout(FLOAT32, (2, 9, 12))], {}), fresh)
        prepare_chunk(loaded, loaded.chunks[0], start_state(loaded, layouts, {}), fresh)

    plan = prepare_chunk(loaded, loaded.chunks[0], start_state(loaded, layouts, {}), fresh)
    other = prepare_chunk(
        loaded, loaded.chunks[0], start_state(loaded, layouts, {}),
        Tools(DeviceTraits(), takes_source=True, pack=TOOLS.pack),
    )  # fmt: skip

    assert plan.steps == other.steps
    assert plan.arena_nbytes == other.arena_nbytes


def test_no_more_answers_are_remembered_than_there_is_room_for() -> None:
    """Those asked for longest ago leave, one for one; the plans are what they are without remembering any."""
    loaded = program(split_heads())
    tools = Tools(DeviceTraits(), takes_source=True, pack=TOOLS.pack, memo=LruCache(3))
    counts = []
    for rows in (2, 3, 4, 2):
        layouts = [Layout(FLOAT32, (rows, 5, 12))]

        plan = prepare_chunk(loaded, loaded.chunks[0], start_state(loaded, layouts, {}), tools)

        fresh = Tools(DeviceTraits(), takes_source=True, pack=TOOLS.pack)
        assert prepare_chunk(loaded, loaded.chunks[0], start_state(loaded, layouts, {}), fresh).steps == plan.steps
        counts.append(len(tools.memo))

    assert counts[1:] == [3, 3, 3]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [(0, 1, lambda n: min(n, 1)), (-1, 1 << 40, lambda n: min(n, 1)), (-2, 1 << 40, lambda n: min(n, 2))],
)
async def test_a_slice_of_one_row_of_none_is_none(start: int, end: int, rows: Callable[[int], int]) -> None:
    """Loading does not take a dim for long enough: what is made of the slice's shape is right for no rows, too.

    It was a constant, so that a request without rows got results of one row.
    """
    nodes = [node("s = Slice(x, start, end)"), node("shape = Shape(s)"), node("y = Expand(one, shape)")]
    constants = {"start": i64(start), "end": i64(end), "one": np.float32([1])}
    async with Runtime("simulated") as rt:
        loaded = await rt.load(model(nodes, ["x f32[n,4]"], ["y", "shape"], constants))

        for n in (3, 1, 0, 2, 0):
            out = await loaded.infer({"x": np.zeros((n, 4), np.float32)})
            assert (rows(n), 4) == out["y"].shape
            assert [rows(n), 4] == out["shape"].tolist()
