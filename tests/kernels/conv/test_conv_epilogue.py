"""Convolutions with an epilogue, in every kernel that has one, against the convolution alone and NumPy after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue, Operand
from asyncrt.kernels.conv import packed as conv_packed
from asyncrt.kernels.impl import inp
from asyncrt.kernels.registry import find_operator
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, layout_of
from asyncrt.memory.view import View, broadcast_strides

from ...ops.run import run_impl

CPU, GPU, SMALL_GPU = DeviceTraits("cpu", 2), DeviceTraits("gpu", 8), DeviceTraits("gpu", 8, max_group=64)


class Case(NamedTuple):
    """A convolution of random data: its kernel's name, and for which device it is that kernel."""

    kernel: str
    traits: DeviceTraits
    x: tuple[int, ...]
    w: tuple[int, ...]
    attributes: Mapping[str, Any] = {}
    constant: bool = True
    operator: str = "Conv"
    dtype: type = np.float32


CASES = {
    "strips": Case("strips 8x32", CPU, (2, 3, 9, 83), (19, 3, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "packed": Case("packed 32x", CPU, (2, 5, 9, 11), (40, 5, 3, 3), {"pads": (1, 1, 1, 1)}),
    "packed blocks of 16": Case("packed 16x", CPU, (1, 6, 7, 19), (24, 3, 3, 3), {"group": 2, "strides": (2, 2)}),
    "packed, one long row": Case("packed", CPU, (2, 16, 5, 7), (32, 8, 1, 1), {"group": 2}),
    "packed, whole tiles of 8": Case("packed 32x8", CPU, (2, 3, 4, 16), (64, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "packed, whole tiles of 7": Case("packed 32x7", CPU, (1, 3, 16, 16), (32, 3, 5, 3), {"strides": (2, 2)}),
    "packed, whole tiles of 6": Case("packed 32x6", CPU, (1, 3, 5, 7), (32, 3, 2, 2)),
    "packed, whole tiles of 5": Case("packed 32x5", CPU, (1, 3, 4, 7), (32, 3, 2, 3)),
    "packed, several rows": Case("packed 32x2x4", CPU, (2, 3, 7, 6), (64, 3, 3, 3)),
    "packed, rows of 3": Case("packed 32x2x3", CPU, (1, 3, 7, 3), (33, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "packed, rows of 2": Case("packed 32x4x2", CPU, (1, 3, 11, 4), (32, 3, 3, 3), {"strides": (2, 1)}),
    "packed, rows of 1": Case("packed 32x8x1", CPU, (1, 3, 21, 3), (32, 3, 3, 3)),
    "packed, runs of 16": Case("packed 32x8", CPU, (1, 5, 3, 42), (64, 5, 3, 3)),
    "packed, far cells": Case("packed 32x5", CPU, (1, 3, 9, 9), (32, 3, 3, 3), {"dilations": (2, 2)}),
    "packed, wide windows": Case("packed 32x", CPU, (1, 3, 12, 24), (32, 3, 9, 9)),
    "packed, three axes": Case("packed", CPU, (1, 3, 4, 5, 6), (20, 3, 2, 2, 2)),
    "packed, one axis": Case("packed", CPU, (2, 3, 21), (20, 3, 4)),
    "positions": Case("positions 8x32", CPU, (2, 16, 12, 15), (24, 8, 1, 1), {"group": 2}),
    "positions, half a tile left": Case("positions 8x32", CPU, (1, 5, 13, 13), (37, 5, 1, 1)),
    "winograd": Case("winograd 8x32", CPU, (2, 16, 13, 30), (17, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    "winograd, short rows": Case("winograd 8x32", CPU, (1, 32, 40, 14), (32, 16, 3, 3), {"group": 2}),
    "transposed": Case(
        "transposed, packed", CPU, (1, 3, 5, 16), (3, 17, 2, 3), {"strides": (2, 2)}, True, "ConvTranspose"
    ),
    "transposed, strides of 1 and 3": Case(
        "transposed, packed", CPU, (2, 4, 5, 7), (4, 2, 3, 4), {"strides": (1, 3)}, True, "ConvTranspose"
    ),
    "depthwise": Case("depthwise 4x16", CPU, (2, 6, 9, 23), (6, 1, 3, 3), {"group": 6}, False),
    "depthwise, short rows": Case("depthwise 4x16", CPU, (2, 5, 7, 7), (5, 1, 5, 5), {"group": 5, "pads": (2,) * 4}),
    "depthwise, vectors of channels": Case(
        "depthwise channels 7", CPU, (2, 35, 7, 7), (35, 1, 5, 5), {"group": 35, "pads": (2,) * 4}
    ),
    "depthwise, every second position": Case(
        "depthwise 4x16", CPU, (2, 6, 13, 35), (12, 1, 3, 3), {"group": 6, "strides": (2, 2), "pads": (1,) * 4}
    ),
    "depthwise, one axis": Case("depthwise 1x64", CPU, (2, 3, 75), (3, 1, 9), {"group": 3, "pads": (4, 4)}),
    "depthwise, three axes": Case(
        "depthwise 4x16", CPU, (1, 4, 3, 3, 9), (4, 1, 2, 2, 3), {"group": 4, "pads": (1,) * 6, "strides": (2, 1, 1)}
    ),
    "depthwise, wide windows": Case(
        "depthwise 4x16", CPU, (1, 3, 14, 21), (3, 1, 9, 9), {"group": 3, "pads": (4,) * 4}
    ),
    "depthwise, several channels": Case(
        "depthwise 2x16", CPU, (3, 6, 5, 9), (4, 3, 3, 3), {"group": 2, "strides": (2, 1)}
    ),
    "planes of 16": Case("planes 4x16", CPU, (2, 6, 9, 67), (6, 1, 3, 3), {"group": 6, "strides": (1, 3)}, False),
    "planes of 1": Case("planes 1x1", CPU, (3, 4, 3, 3), (6, 4, 3, 3), {"strides": (3, 3)}, False),
    "planes of 4": Case("planes 2x4", CPU, (2, 4, 5, 15), (8, 2, 3, 3), {"group": 2, "strides": (1, 3)}, False),
    "product": Case("tiles 8x32", CPU, (3, 9, 6, 8), (20, 9, 1, 1), {}, False),
    "generic": Case("generic", SMALL_GPU, (2, 3, 7, 9), (6, 3, 3, 3), {"pads": (1, 0, 1, 2)}),
    "generic on a cpu": Case("generic", CPU, (2, 3, 7, 9), (6, 3, 3, 3), dtype=np.float64),
    "generic, transposed": Case("generic", CPU, (1, 3, 5, 6), (3, 4, 2, 2), {}, False, "ConvTranspose"),
    "shared": Case("shared 64x64", GPU, (2, 4, 9, 10), (70, 2, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    "shared product": Case("shared 64x64", GPU, (2, 9, 6, 8), (20, 9, 1, 1)),
}
OPERANDS: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "as the result": lambda s: s,
    "one for each channel": lambda s: (s[1], *(1 for _ in s[2:])),
    "one for each column": lambda s: s[-1:],
    "one for each row and image": lambda s: (s[0], 1, *s[2:-1], 1),
}


def filled(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def convolved(case: Case, inputs: Sequence[Array], epilogue: Epilogue | None) -> tuple[str, Array]:
    """Return the name of the kernel, and what it made of the first three of *inputs*: data, filter and bias."""
    operator = find_operator("", case.operator)
    assert operator is not None
    assert operator.with_epilogue is not None
    layouts = tuple(layout_of(x) for x in inputs)
    constants = (False, case.constant, case.constant, *(False for _ in inputs[3:]))
    attributes = Attributes(case.attributes, 22)
    call = Call(case.kernel, attributes, layouts[:3], (None,) * 3, (), (layouts[0].dtype,), constants)
    (shape,) = operator.infer(call)
    call = call._replace(outputs=(Layout(layouts[0].dtype, tuple(shape)),))
    impl = operator.with_epilogue(call, case.traits, epilogue) if epilogue else None
    if impl is None:
        assert operator.implement is not None
        impl = operator.implement(call, case.traits)
    (result,) = run_impl(impl, call._replace(inputs=layouts, values=(None,) * len(inputs)), inputs)
    return impl.name, result


def data(case: Case) -> list[Array]:
    filters = case.w[0] if case.operator == "Conv" else case.w[1]
    return [filled(*shape, dtype=case.dtype) for shape in (case.x, case.w, (filters,))]


def operands_of(case: Case, shape: tuple[int, ...]) -> tuple[list[Array], list[Operand]]:
    """Return operands of a result of *shape*, as they lie in memory and as they are read: the last in any order."""
    extras = [filled(*of(shape), dtype=case.dtype) for of in OPERANDS.values()]
    views = [View(shape, broadcast_strides(x.shape, shape)) for x in extras]
    extras.append(filled(*reversed(shape), dtype=case.dtype))
    views.append(View.dense(extras[-1].shape).permute(range(len(shape) - 1, -1, -1)))
    dtype = layout_of(extras[0]).dtype
    return extras, [Operand(inp(3 + i), dtype, view) for i, view in enumerate(views)]


@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items()])
def test_each_element_meets_its_own_of_every_operand(case: Case) -> None:
    """Operands of one element for each channel, column, row or result, and one whose columns are far apart."""
    inputs = data(case)
    kernel, plain = convolved(case, inputs, None)
    extras, operands = operands_of(case, plain.shape)
    read = [*extras[:-1], extras[-1].transpose()]

    def check(vector: bool, *chosen: int) -> str:
        """Return the name of the kernel that meets the operands of these numbers."""
        expression = "fmax(v, a0)" + "".join(f" + a{i}" for i in range(1, len(chosen)))
        epilogue = Epilogue(expression, tuple(operands[i] for i in chosen), vector)
        name, got = convolved(case, [*inputs, *extras], epilogue)
        want = np.maximum(plain, read[chosen[0]])
        for i in chosen[1:]:
            want = want + read[i]
        # Another kernel, where an operand forbids the first one, adds the bias first.
        np.testing.assert_allclose(got, want, rtol=0, atol=0 if name == kernel else 5e-6)
        return name

    assert kernel.startswith(case.kernel)
    others = {check(vector, 0, 1, 2, 3, 4) for vector in (False, True)} - {kernel}
    if others:
        check(False, 0, 1)
        check(True, 0, 1)
    if kernel.startswith("depthwise"):
        check(True, 1)  # tiles are stored twice where no operand may be the result


@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items()])
def test_an_activation_needs_no_operand(case: Case) -> None:
    """What is calculated from the element alone, after the bias."""
    inputs = data(case)
    _, plain = convolved(case, inputs, None)

    _, got = convolved(case, inputs, Epilogue("fmax(v, 0) - 1", (), True))

    assert (plain < 0).any()
    np.testing.assert_array_equal(got, np.maximum(plain, 0) - 1)


@pytest.mark.parametrize("name", {c.kernel.split()[0]: name for name, c in reversed(CASES.items())}.values())
def test_an_activation_may_compare(name: str) -> None:
    """What holds for elements and not for vectors, once in each kind of kernel."""
    case = CASES[name]
    inputs = data(case)
    _, plain = convolved(case, inputs, None)

    _, got = convolved(case, inputs, Epilogue("v > 0 ? v : v - 1"))

    assert (plain < 0).any()
    np.testing.assert_array_equal(got, np.where(plain > 0, plain, plain - 1))


@pytest.mark.parametrize("name", {c.kernel.split()[0]: name for name, c in reversed(CASES.items())}.values())
def test_an_operand_may_be_of_a_dtype_that_has_no_vectors(name: str) -> None:
    """Results are chosen by 64-bit integers, once in each kind of kernel."""
    case = CASES[name]
    inputs = data(case)
    _, plain = convolved(case, inputs, None)
    extra = np.arange(plain.shape[-1]) % 3
    chosen = Operand(inp(3), layout_of(extra).dtype, View(plain.shape, broadcast_strides(extra.shape, plain.shape)))

    _, got = convolved(case, [*inputs, extra], Epilogue("a0 == 1 ? v : 0", (chosen,)))

    np.testing.assert_allclose(got, np.where(extra == 1, plain, 0), rtol=0, atol=5e-6)


def test_rows_that_an_operand_does_not_walk_as_one_are_not_joined() -> None:
    """A window of one cell is a matrix product only where every operand has one stride over an image."""
    case = CASES["product"]
    inputs = data(case)
    extra = filled(8)
    view = View((3, 20, 6, 8), (0, 0, 0, 1))

    kernel, _ = convolved(case, [*inputs, extra], Epilogue("v + a0", (Operand(inp(3), layout_of(extra).dtype, view),)))

    assert kernel.startswith("planes")


@pytest.mark.parametrize(
    "name", ["packed", "packed blocks of 16", "packed, several rows", "packed, one long row", "packed, far cells"]
)
def test_weights_walked_in_pieces_give_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tile alone, several of a work-item, and pieces of which the last is shorter: no sum changes its order."""
    case = CASES[name]
    inputs = data(case)
    _, whole = convolved(case, inputs, None)
    activated = Epilogue("v > 0.0f ? v : 0.5f * v")

    short = conv_packed.Pieces(0, 2 * case.w[2] * case.w[3] * 32)
    cut = conv_packed.blocks_of(case.traits.registers)._replace(pieces=short)
    monkeypatch.setattr(conv_packed, "_SECOND", short)
    monkeypatch.setattr(conv_packed, "blocks_of", lambda _: cut)
    kernel, pieces = convolved(case, inputs, None)
    _, after = convolved(case, inputs, activated)

    assert kernel.startswith(case.kernel)
    assert whole.tobytes() == pieces.tobytes()
    np.testing.assert_array_equal(after, np.where(whole > 0, whole, np.float32(0.5) * whole))
