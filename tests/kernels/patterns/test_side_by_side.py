"""Inputs of a Concat go to their places in as few launches as their layouts allow, and each byte goes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.ops.tensor.concat import OPERATOR, implement
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, layout_of
from asyncrt.memory.view import View

from ...ops.run import run_impl

DEVICES = [DeviceTraits("cpu", 2), DeviceTraits("cpu", 64), DeviceTraits("gpu", 8)]
on_every_device = pytest.mark.parametrize("traits", DEVICES, ids=["cpu", "many cores", "gpu"])


def concat(memories: list[Array], axis: int, traits: DeviceTraits, views: list[View] | None = None) -> int:
    """Check what a Concat makes of memories that are read through views; return in how many launches."""
    views = views or [View.dense(memory.shape) for memory in memories]
    seen = [
        as_strided(memory.ravel()[view.offset :], view.shape, [s * memory.itemsize for s in view.strides])
        for memory, view in zip(memories, views, strict=True)
    ]
    dtype = layout_of(memories[0]).dtype
    layouts = tuple(Layout(dtype, view.shape) for view in views)
    call = Call("node", Attributes({"axis": axis}), layouts, (None,) * len(views), (), (dtype,), strided=tuple(views))
    expected = np.concatenate(seen, axis)
    call = call._replace(outputs=(Layout(dtype, expected.shape),))
    assert [tuple(s) for s in OPERATOR.infer(call)] == [expected.shape]

    impl = implement(call, traits)
    (got,) = run_impl(impl, call, memories)

    assert got.tobytes() == expected.tobytes()
    return len(impl.launches)


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).integers(0, 120, shape).astype(dtype)


@on_every_device
@pytest.mark.parametrize(("inputs", "launches"), [(1, 1), (2, 1), (8, 1), (9, 2), (12, 2), (16, 2), (17, 3)])
def test_eight_inputs_are_one_launch(inputs: int, launches: int, traits: DeviceTraits) -> None:
    """One that is left over is a copy."""
    assert concat([numbers(3, 1 + i % 5, 4, seed=i) for i in range(inputs)], 1, traits) == launches


@on_every_device
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.int32, np.float64, np.int64])
def test_elements_of_every_size_are_copied(dtype: Any, traits: DeviceTraits) -> None:
    """As bytes: also in rows of one element, of a few, of a vector and of more."""
    assert concat([numbers(5, n, dtype=dtype) for n in (1, 3, 4, 16, 37)], 1, traits) == 1


@on_every_device
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_any_axis_may_be_the_one_along_which_they_lie(axis: int, traits: DeviceTraits) -> None:
    """With one row, with many, and with rows of one element of each."""
    shapes = [[3, 4, 5], [3, 4, 5], [3, 4, 5]]
    for shape, dim in zip(shapes, (1, 6, 1), strict=True):
        shape[axis] = dim

    assert concat([numbers(*shape) for shape in shapes], axis, traits) == 1


@on_every_device
@pytest.mark.parametrize(("rows", "widths"), [(1, (9000, 70_001, 5)), (3, (40_000, 30_000)), (9001, (1, 2, 30, 3))])
def test_large_inputs_are_cut_into_pieces(rows: int, widths: tuple[int, ...], traits: DeviceTraits) -> None:
    """Of rows and of columns, whichever there are more of; nothing between two pieces is forgotten."""
    assert concat([numbers(rows, width) for width in widths], 1, traits) == 1


@on_every_device
def test_inputs_without_elements_are_passed_over(traits: DeviceTraits) -> None:
    """They take no place in a launch, and nothing is launched for them alone."""
    assert concat([numbers(2, n) for n in (0, 3, 0, 0, 4, 0)], 1, traits) == 1
    assert concat([numbers(2, n) for n in (0, 3, 0)], 1, traits) == 1
    assert concat([numbers(2, 0), numbers(2, 0)], 1, traits) == 0
    assert concat([numbers(0, 2), numbers(0, 3)], 1, traits) == 0


@on_every_device
def test_slices_broadcasts_and_reversed_rows_share_the_launch(traits: DeviceTraits) -> None:
    """What has one stride from row to row and one within: also 0, also negative."""
    memories = [numbers(4, 20), numbers(4, 20, seed=1), numbers(4, 1), numbers(1, 18), numbers(4, 18)]
    views = [
        View((4, 18), (20, 1), 2), View((4, 5), (-20, 4), 61), View((4, 17), (1, 0)), View((4, 18), (0, 1)),
        View.dense((4, 18)),
    ]  # fmt: skip

    assert concat(memories, 1, traits, views) == 1


@on_every_device
def test_an_input_of_more_strides_is_a_launch_of_its_own(traits: DeviceTraits) -> None:
    """Its neighbours on either side share one each: what is between two of them is not theirs."""
    dense, turned = numbers(3, 4, 5), numbers(3, 5, 4)
    views = [View.dense((3, 4, 5)), View.dense((3, 4, 5)), View((3, 4, 5), (20, 1, 4)), View.dense((3, 4, 5))]

    assert concat([dense, dense, turned, dense], 1, traits, views) == 3
    assert concat([dense, dense, turned, dense, dense], 1, traits, [*views, views[0]]) == 3
