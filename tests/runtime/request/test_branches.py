"""An If whose condition the host knows when it plans: its branch is part of the plan, and nothing is read back."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt import Runtime, RuntimeOptions, SequenceError, ShapeError
from asyncrt.layout import Array

from ...builders import i64, model, node
from ...paths import EXACT, on_path
from .test_control_flow import agrees, body, branch, f32, graph, truth

OPTIONS = RuntimeOptions(warm=False, without=frozenset({"stand_in"}))
DEVICES = (None, "host", "simulated")


def rate(hertz: int) -> Array:
    return np.array(hertz, np.int64)


def voice() -> onnx.ModelProto:
    """Branches by a rate that comes with the request, and within one of them by the rank of a value and by a size."""
    flat = node(
        "f = If(is_flat)",
        then_branch=branch("u = Unsqueeze(h, first)", outputs="u", constants={"first": i64(0)}),
        else_branch=branch(outputs="h"),
    )
    single = node(
        "s = If(is_single)",
        then_branch=branch("q = Squeeze(x, axis)", outputs="q", constants={"axis": i64(0)}),
        else_branch=branch(outputs="x"),
    )
    fast = [
        node("shape = Shape(x)"), node("rows = Gather(shape, zero)"), node("is_single = Equal(rows, one)"), single,
        node("h = Tanh(s)"), node("rank = Shape(h)"), node("axes = Size(rank)"), node("is_flat = Equal(axes, one)"),
        flat, node("r = Mul(f, gain)"),
    ]  # fmt: skip
    constants = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64), "gain": f32(1)}
    choose = node(
        "y = If(is_fast)",
        then_branch=graph(fast, [], ["r"], constants),
        else_branch=branch("n = Neg(x)", "e = Exp(n)", outputs="e"),
    )
    choose.name = "choose"
    return model(
        [node("is_fast = Greater(sr, limit)"), choose, node("out = Add(y, bias)")],
        ["x f32[n,m]", "sr i64[]"], ["out"], {"limit": np.array(9000, np.int64), "bias": np.array([1], np.float32)},
    )  # fmt: skip


VOICES: list[dict[str, Any]] = [
    {"x": f32(*shape), "sr": rate(hertz)} for hertz in (16000, 8000) for shape in ((1, 5), (3, 5), (1, 2))
]


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_ifs_that_the_host_decides_are_part_of_one_plan(either_path: str, device: str | None) -> None:
    """Whatever is decided by a rate, a size or a rank: one chunk, ONNX Runtime's values, and no plan for the same
    again."""
    async with Runtime(device, options=on_path(OPTIONS)) as rt:
        await agrees(rt, voice(), *VOICES)
        loaded = await rt.load(voice())
        for request in VOICES:
            await loaded.infer(request)
        before = rt.statistics().plans
        for request in VOICES:
            await loaded.infer(request)

        assert len(loaded.network.program.chunks) == 1
        assert rt.statistics().plans == before


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_what_a_branch_gives_may_be_a_constant_of_one_element(device: str | None) -> None:
    """It is what joins the branches that has it as its first input then, and that chooses nothing."""
    for one in (f32(1), f32(), np.array([[-3]], np.float32)):
        choose = node(
            "y = If(c)",
            then_branch=branch(outputs="k", constants={"k": one}),
            else_branch=branch("n = Neg(x)", outputs="n"),
        )
        async with Runtime(device, options=OPTIONS) as rt:
            await agrees(
                rt, model([choose], ["c bool[]", "x f32"], ["y"]),
                *({"c": np.array(c), "x": one} for c in (True, False)),
            )  # fmt: skip


@pytest.mark.asyncio
async def test_such_a_request_goes_the_direct_way(users_path: None) -> None:
    """It is brief, and nothing of it has to be read before the rest is known."""
    async with Runtime(options=on_path(OPTIONS)) as rt:
        loaded = await rt.load(voice())
        direct = loaded.network.direct
        assert direct is not None
        expected = truth(voice(), VOICES[0])["out"]
        for _ in range(20):
            out = (await loaded.infer(VOICES[0]))["out"]
            np.testing.assert_allclose(out, expected, rtol=1e-5)

        assert len(direct._usual) == 1  # noqa: SLF001


@pytest.mark.asyncio
@pytest.mark.parametrize("mechanism", EXACT)
async def test_every_mechanism_leaves_its_bits(either_path: str, mechanism: Any) -> None:
    """With and without it, one after the other and at once."""
    async with Runtime(options=on_path(OPTIONS)) as rt:
        loaded = await rt.load(voice())
        expected = [(await loaded.infer(r))["out"].tobytes() for r in VOICES]
    async with Runtime(options=RuntimeOptions(warm=False, without=frozenset({mechanism, "stand_in"}))) as rt:
        loaded = await rt.load(voice())
        alone = [(await loaded.infer(r))["out"].tobytes() for r in VOICES]
        together = await asyncio.gather(*(loaded.infer(r) for r in VOICES))

    assert expected == alone == [t["out"].tobytes() for t in together]


@pytest.mark.asyncio
async def test_explain_says_which_branch_was_taken() -> None:
    """Its nodes are listed by their own names, the other's are not, and the If is no copy."""
    async with Runtime("simulated", options=OPTIONS) as rt:
        loaded = await rt.load(voice())
        await loaded.infer(VOICES[0])
        fast = {n.node: n for n in loaded.explain()}
        await loaded.infer(VOICES[3])
        slow = {n.node: n for n in loaded.explain()}

    assert (fast["choose"].decision, fast["choose"].why) == ("skipped", "the then branch")
    assert (slow["choose"].decision, slow["choose"].why) == ("skipped", "the else branch")
    assert [k for k in slow if k.startswith("choose/")] == ["choose/else/Neg_0", "choose/else/Exp_1"]
    assert not any(k.startswith("choose/else") for k in fast)


@pytest.mark.asyncio
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d or "opencl")
async def test_a_branch_that_is_not_taken_may_hold_what_could_not_run(either_path: str, device: str | None) -> None:
    """A Loop, a value that has to be read back, a Squeeze that does not fit: they matter where they are taken."""
    turn = node("w = Loop(two,, x)", body=body(["v2 = Neg(v)", "c2 = Identity(c)"], ["v f32[k]"], "c2 v2"))
    loops = graph([turn, node("a = Abs(w)")], [], ["a"], {"two": np.array(2, np.int64)})
    finds = branch("z = NonZero(x)", "g = GatherND(x, t)", outputs="g")
    finds.node.insert(1, node("t = Transpose(z)", perm=[1, 0]))
    last = node(
        "r = If(third)",
        then_branch=branch("s = Squeeze(x, no)", outputs="s", constants={"no": i64(0)}),
        else_branch=branch("q = Sqrt(x)", outputs="q"),
    )
    inner = node("i = If(second)", then_branch=finds, else_branch=graph([last], [], ["r"]))
    choose = node("y = If(first)", then_branch=loops, else_branch=graph([inner], [], ["i"]))
    names = ("first", "second", "third")
    source = model([choose, node("out = Exp(y)")], ["x f32[k]", *(f"{n} bool[]" for n in names)], ["out"])
    x = np.array([0, 2, 0, 3], np.float32)
    ways = [{n: np.array(n == way) for n in names} for way in ("first", "second", "none", "first")]

    async with Runtime(device, options=on_path(OPTIONS)) as rt:
        await agrees(rt, source, *({"x": x, **way} for way in ways))
        loaded = await rt.load(source)
        with pytest.raises(ShapeError, match="Squeeze_0"):
            await loaded.infer({"x": x, **{n: np.array(n == "third") for n in names}})


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [0, 2])
async def test_a_condition_is_one_element(size: int) -> None:
    """Whatever else is refused, with the name of the If."""
    choose = node("y = If(c)", then_branch=branch(outputs="x"), else_branch=branch("n = Neg(x)", outputs="n"))
    choose.name = "choose"
    async with Runtime("simulated", options=OPTIONS) as rt:
        loaded = await rt.load(model([choose], ["x f32[3]", f"c bool[{size}]"], ["y"]))

        with pytest.raises(ShapeError, match=rf"'choose': its condition is one element, got \[{size}\]"):
            await loaded.infer({"x": f32(3), "c": np.zeros(size, bool)})


@pytest.mark.asyncio
async def test_floats_of_a_request_make_no_plan_each() -> None:
    """A threshold that each request sets anew decides on the host, and the plans stay as many as there are branches."""
    choose = node("y = If(c)", then_branch=branch("e = Exp(x)", outputs="e"), else_branch=branch(outputs="x"))
    half = {"half": np.array(0.5, np.float32)}
    source = model([node("c = Greater(t, half)"), choose], ["x f32[n]", "t f32[]"], ["y"], half)
    async with Runtime("simulated", options=OPTIONS) as rt:
        loaded = await rt.load(source)
        chunks = loaded.network.program.chunks
        await agrees(rt, source, *({"x": f32(3), "t": np.array(t, np.float32)} for t in (0.1, 0.7, 0.3)))

    assert any(chunk.control is not None for chunk in chunks)


@pytest.mark.asyncio
async def test_state_in_a_branch_cannot_stay_on_the_device() -> None:
    """Which steps make it is not known before; the error says what to do."""
    choose = node("p2 = If(c)", then_branch=branch("a = Add(p, x)", outputs="a"), else_branch=branch(outputs="p"))
    source = model([choose, node("y = Neg(p2)")], ["x f32[3]", "p f32[3]", "c bool[]"], ["y", "p2"])
    async with Runtime("simulated", options=OPTIONS) as rt:
        loaded = await rt.load(source)

        with pytest.raises(SequenceError, match="'p' cannot stay on the device"):
            loaded.sequence({"p": "p2"})
