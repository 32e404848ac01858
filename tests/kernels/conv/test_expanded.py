"""A convolution of one cell with the depthwise one behind it: against one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt.devices.base import Registers
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.constants import read
from asyncrt.kernels.codegen.epilogue import Epilogue, Operand
from asyncrt.kernels.conv.expanded import expanded, why_not_expanded
from asyncrt.kernels.conv.interface import Convolution
from asyncrt.kernels.impl import inp
from asyncrt.kernels.patterns.window import Window
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array, Layout, layout_of
from asyncrt.memory.view import View, broadcast_strides

from ...ops.run import run_impl
from .test_conv_epilogue import CPU, Case, convolved, filled

MANY_CORES = DeviceTraits("cpu", 16)
AVX2 = DeviceTraits("cpu", 2, registers=Registers(8, 16))
HALF = Epilogue(f"v * {read(0)}", vector=True, numbers=(0.5,))


def window(high: int, wide: int, size: int, stride: int = 1, dilation: int = 1) -> Window:
    """Return a square window whose borders leave as many positions as there are elements, by stride."""
    pad = (size - 1) * dilation // 2
    outs = tuple((n + 2 * pad - (size - 1) * dilation - 1) // stride + 1 for n in (high, wide))
    by, apart, pads = (1, stride, stride), (1, dilation, dilation), (0, pad, pad)
    return Window((1, size, size), by, apart, pads, pads, (1, high, wide), (1, *outs))


def pair(x: tuple[int, ...], made: int, seen: Window, *, biases: bool = True) -> tuple[Convolution, Convolution]:
    spot = Window((1,) * 3, (1,) * 3, (1,) * 3, (0,) * 3, (0,) * 3, seen.spatial, seen.spatial)
    first = Convolution(FLOAT32, x[0], 1, x[1], made, spot, bias=biases)
    return first, Convolution(FLOAT32, x[0], made, 1, 1, seen, bias=biases)


def together(
    x: Array, made: int, seen: Window, traits: DeviceTraits, *, biases: bool = True, after: Epilogue | None = None
) -> tuple[str, bytes]:
    """Return the kernel of both convolutions, with halves of the first one's results, and what it made."""
    first, second = pair(x.shape, made, seen, biases=biases)
    inputs = [x, filled(made, x.shape[1], 1, 1), filled(made), filled(made, 1, *seen.size[1:]), filled(made) + 1]
    inputs += [] if after is None else [filled(made, 1, 1)]
    assert why_not_expanded(first, second, HALF, after, traits) == ""
    refs = (inp(2), inp(4)) if biases else (None, None)
    impl = expanded(first, second, HALF, after, refs, traits)
    output = Layout(FLOAT32, (x.shape[0], made, *seen.outs[1:]))
    layouts = tuple(layout_of(i) for i in inputs)
    (got,) = run_impl(impl, Call("", Attributes(), layouts, (None,) * len(inputs), (output,)), inputs)
    return impl.name, got.tobytes()


def apart(
    x: Array, made: int, seen: Window, traits: DeviceTraits, *, biases: bool = True, factor: bool = False
) -> bytes:
    """Return what the two make one after the other."""
    _, between = convolved(
        Case("", traits, x.shape, (made, x.shape[1], 1, 1)),
        [x, filled(made, x.shape[1], 1, 1), filled(made) * biases], HALF,
    )  # fmt: skip
    attributes = {
        "group": made, "pads": 2 * seen.before[1:], "strides": seen.strides[1:], "dilations": seen.dilations[1:],
    }  # fmt: skip
    filters = filled(made, 1, *seen.size[1:])
    case = Case("", traits, between.shape, filters.shape, attributes)
    _, result = convolved(case, [between, filters, (filled(made) + 1) * biases], None)
    return (result * filled(made, 1, 1) * 4 if factor else result).tobytes()


SIZES = {
    "a block, and whole rows": ((1, 16, 28, 28), 64, window(28, 28, 3)),
    "channels left over": ((2, 5, 20, 31), 37, window(20, 31, 3)),
    "short rows in wide blocks": ((2, 24, 14, 14), 96, window(14, 14, 5)),
    "seven of them, channels left over": ((3, 9, 7, 7), 41, window(7, 7, 5)),
    "every second position": ((1, 8, 30, 31), 32, window(30, 31, 3, stride=2)),
    "every second position of short rows": ((1, 8, 14, 14), 70, window(14, 14, 5, stride=2)),
    "rows that no window sees": ((1, 4, 18, 28), 16, window(18, 28, 1, stride=2)),
    "a column that no window sees": ((1, 4, 9, 16), 16, window(9, 16, 1, stride=2)),
    "cells apart from each other": ((1, 7, 17, 15), 20, window(17, 15, 3, dilation=2)),
    "fewer positions than a vector": ((1, 6, 2, 7), 33, window(2, 7, 3)),
    "rows in parts": ((1, 3, 9, 450), 35, window(9, 450, 3)),
    "rows in parts, every second position": ((1, 3, 11, 701), 19, window(11, 701, 5, stride=2)),
    "rows in parts of few columns": ((1, 3, 20, 168), 16, window(20, 168, 7, dilation=2)),
    "one row": ((1, 6, 1, 40), 33, window(1, 40, 3)),
}


@pytest.mark.parametrize(("x", "made", "seen"), SIZES.values(), ids=SIZES)
def test_both_give_the_bytes_of_one_after_the_other(x: tuple[int, ...], made: int, seen: Window) -> None:
    """However many cores share the rows."""
    data = filled(*x)
    want = apart(data, made, seen, CPU)

    got = [together(data, made, seen, traits) for traits in (CPU, MANY_CORES)]

    assert all(name.startswith("expanded") for name, _ in got)
    assert all(result == want for _, result in got)


@pytest.mark.parametrize("wide", [14, 40])
def test_biases_may_be_missing_and_a_factor_of_each_channel_may_follow(wide: int) -> None:
    """What has no bias begins at zero; what follows is calculated before results are stored."""
    data, seen = filled(2, 6, 15, wide), window(15, wide, 3)
    shape = (2, 50, 15, wide)
    factor = Operand(inp(5), FLOAT32, View(shape, broadcast_strides((50, 1, 1), shape)))

    _, plain = together(data, 50, seen, CPU, biases=False)
    after = Epilogue(f"v * a0 * {read(0)}", (factor,), vector=True, numbers=(4.0,))
    _, times = together(data, 50, seen, CPU, after=after)

    assert plain == apart(data, 50, seen, CPU, biases=False)
    assert times == apart(data, 50, seen, CPU, factor=True)


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_what_is_not_finite_concerns_those_who_see_it(odd: float) -> None:
    """Positions of a vector's neighbours, and results that see nothing of it, stay finite."""
    data, seen = filled(1, 4, 24, 24), window(24, 24, 3)
    data[0, 1, 9, 17] = odd

    _, got = together(data, 32, seen, CPU)

    strange = np.argwhere(~np.isfinite(np.frombuffer(got, np.float32).reshape(1, 32, 24, 24)))
    assert {tuple(p[2:]) for p in strange} == {(r, c) for r in (8, 9, 10) for c in (16, 17, 18)}


@pytest.mark.parametrize(
    ("x", "made", "seen", "traits"),
    [
        ((1, 8, 28, 28), 32, window(28, 28, 3), AVX2),
        ((1, 8, 28, 28), 32, window(28, 28, 3), DeviceTraits("gpu", 8)),
        ((1, 512, 14, 14), 512, window(14, 14, 3), CPU),
        ((1, 64, 112, 112), 128, window(112, 112, 3), CPU),
        ((1, 8, 28, 28), 32, window(28, 28, 3, dilation=3), CPU),
        ((1, 8, 28, 28), 8, window(28, 28, 3), CPU),
        ((1, 8, 20, 20), 32, window(20, 20, 3), CPU),
        ((1, 8, 12, 12), 32, window(12, 12, 3), CPU),
        ((1, 8, 8, 8), 32, window(8, 8, 3, stride=2), CPU),
    ],
    ids=["registers", "gpu", "deep", "large picture", "far cells", "few channels", "no tile", "no half tile", "short"],
)
def test_what_would_take_longer_so_is_left_to_two_kernels(
    x: tuple[int, ...], made: int, seen: Window, traits: DeviceTraits
) -> None:
    """A reason is given where a kernel of both does not pay."""
    first, second = pair(x, made, seen)

    assert why_not_expanded(first, second, HALF, None, traits)


def test_layers_of_a_network_stop_being_together_at_the_same_sizes_of_its_picture() -> None:
    """Layers have more channels and half the sides of those before: there are few sizes at which any of them changes.

    Else each of a stream of pictures has plans of its own.
    """
    layers = [(32, 4), (40, 4), (48, 8), (80, 16), (112, 16), (160, 32), (192, 32)]  # channels, and what cuts a side
    sides = range(96, 673, 32)

    def answers(high: int, wide: int) -> tuple[bool, ...]:
        cut = [(channels, high // by, wide // by) for channels, by in layers]
        pairs = [pair((1, c, *plane), 6 * c, window(*plane, 3)) for c, *plane in cut]
        return tuple("large picture" in why_not_expanded(*both, HALF, None, CPU) for both in pairs)

    assert len({answers(high, wide) for high in sides for wide in sides}) <= 4
