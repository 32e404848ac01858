"""Which inputs' contents are part of what plans are kept by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from asyncrt.graph.build import build_program
from asyncrt.graph.ir import Program, ProgramNode
from asyncrt.kernels.decide import SkipMode
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array
from asyncrt.options import RuntimeOptions

from ...builders import i64, model, node


def program(nodes: Sequence[str], inputs: Sequence[str], constants: Mapping[str, Array] | None = None) -> Program:
    source = model([node(n) for n in nodes], inputs, ["y"], constants)
    return build_program(source, DeviceTraits(), RuntimeOptions())


def only(built: Program, operator: str) -> ProgramNode:
    (found,) = (n for n in built.nodes if n.operator.name == operator)
    return found


@pytest.mark.parametrize(
    ("call", "inputs", "compared"),
    [
        ("y = Gather(x, i)", ["x f32[n]", "i i64[k]"], ["i"]),
        ("y = Gather(x, i)", ["x f32[n]", "i i64[k,j]"], []),
        ("y = Add(x, i)", ["x i64[n]", "i i64[n]"], []),
        ("y = Where(c, x, i)", ["c bool[n]", "x f32[n]", "i f32[n]"], []),
        ("y = Clip(x, i)", ["x f32[n]", "i f32[]"], []),
        ("y = Expand(x, i)", ["x f32[n]", "i i64[2]"], ["i"]),
    ],
)
def test_only_short_indices_are_compared_for_the_sake_of_a_skip(
    call: str, inputs: list[str], compared: list[str]
) -> None:
    """Data that might happen to be neutral are not: there would be a plan for each of their values."""
    built = program([call], inputs)

    assert compared == [built.values[i].name for i in built.value_inputs]


def test_an_operand_that_shape_arithmetic_gives_may_be_neutral_in_a_request() -> None:
    """The size of a cache is added to positions: 0 in the first step, so that loading cannot tell."""
    nodes = ["s = Shape(cache)", "z = Gather(s, zero)", "p = Neg(x)", "y = Add(p, z)"]
    built = program(nodes, ["x i64[n]", "cache f32[m]"], {"zero": np.array(0, np.int64)})

    assert SkipMode.AT_RUNTIME is only(built, "Add").skip_mode


def test_an_operand_that_the_device_makes_is_never_neutral() -> None:
    """Nothing is known of it in any request."""
    built = program(["a = Neg(x)", "b = Exp(x)", "y = Add(a, b)"], ["x f32[n]"])

    assert SkipMode.NEVER is only(built, "Add").skip_mode


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
        ("Add(a, k)", 0.0, SkipMode.NEVER),
        ("Add(a, k)", -0.0, SkipMode.ALWAYS),
        ("Sub(a, k)", 0.0, SkipMode.ALWAYS),
        ("Sub(a, k)", -0.0, SkipMode.NEVER),
        ("Sub(k, a)", 0.0, SkipMode.NEVER),
        ("Mul(k, a)", 1.0, SkipMode.ALWAYS),
        ("Div(k, a)", 1.0, SkipMode.NEVER),
    ],
)
def test_the_sign_of_a_zero_decides_what_it_changes(call: str, number: float, expected: SkipMode) -> None:
    """``x + 0.0`` makes +0.0 of -0.0; ``x - 0.0`` and ``x + -0.0`` leave every bit."""
    built = program(["a = Neg(x)", f"y = {call}"], ["x f32[n,3]"], {"k": np.full(3, number, np.float32)})

    assert expected is only(built, call.split("(")[0]).skip_mode


def test_integers_have_one_zero() -> None:
    """And it may be added and taken away."""
    built = program(["a = Neg(x)", "b = Add(a, k)", "y = Sub(b, k)"], ["x i64[n]"], {"k": i64(0)})

    assert {SkipMode.ALWAYS} == {only(built, o).skip_mode for o in ("Add", "Sub")}
