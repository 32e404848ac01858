"""Two copies that are alike are one launch, and each byte goes where the copies would bring it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.patterns.copy import copy_launch, copy_two_launch
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, layout_of
from asyncrt.memory.view import View

from ...ops.run import run_impl

DEVICES = [DeviceTraits("cpu", 2), DeviceTraits("cpu", 64), DeviceTraits("gpu", 8)]
on_every_device = pytest.mark.parametrize("traits", DEVICES, ids=["cpu", "many cores", "gpu"])


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).integers(0, 120, shape).astype(dtype)


def seen(memory: Array, view: View) -> Array:
    return as_strided(memory.ravel()[view.offset :], view.shape, [s * memory.itemsize for s in view.strides])


@on_every_device
@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "axes", "start", "room"),
    [
        ((2, 3, 5, 40), (0, 2, 1, 3), 0, 3),  # heads of keys, as a product makes them
        ((1, 1, 4, 64), (0, 2, 1, 3), 6, 9),  # one token behind six
        ((7,), (0,), 2, 11),
        ((4, 6), (1, 0), 1, 8),  # elements that do not lie side by side
    ],
)
def test_two_tensors_go_to_their_places(
    shape: tuple[int, ...], axes: tuple[int, ...], start: int, room: int, dtype: Any, traits: DeviceTraits
) -> None:
    """From views of other places in memory each; what is beside the places is left alone."""
    memories = [numbers(3, *shape, dtype=dtype, seed=seed) for seed in (1, 2)]
    whole = View.dense((3, *shape))
    views = [View(shape, whole.strides[1:], seed * whole.strides[0]) for seed in (2, 0)]
    views = [View(tuple(shape[a] for a in axes), tuple(v.strides[a] for a in axes), v.offset) for v in views]
    axis = min(2, len(shape) - 1)
    capacity = tuple(room if a == axis else n for a, n in enumerate(views[0].shape))
    part = View.dense(capacity).slice(axis, start, views[0].shape[axis])
    launch = copy_two_launch(
        (inp(0), inp(1)), (views[0], views[1]), (out(0), out(1)), (part, part), memories[0].itemsize, traits
    )
    assert launch is not None
    layouts = tuple(layout_of(m) for m in memories)
    outputs = (layout_of(np.empty(capacity, dtype)),) * 2
    call = Call("node", Attributes({}), layouts, (None, None), outputs)

    got = run_impl(Impl("copy", (launch,)), call, memories)

    for memory, view, result in zip(memories, views, got, strict=True):
        assert seen(result, part).tobytes() == seen(memory, view).tobytes()


@on_every_device
def test_what_differs_is_no_pair(traits: DeviceTraits) -> None:
    """In its shape or in how it lies: then there are two launches."""
    dense, turned = View.dense((4, 4)), View((4, 4), (1, 4), 0)

    for other, place in ((View.dense((4, 3)), View.dense((4, 3))), (turned, dense), (dense, turned)):
        assert copy_two_launch((inp(0), inp(1)), (dense, other), (out(0), out(1)), (dense, place), 4, traits) is None


@on_every_device
def test_more_than_a_kernel_counts_is_no_pair(traits: DeviceTraits) -> None:
    """Each of them can be counted, but not both."""
    large = View.dense((1 << 30, 1))

    assert copy_launch(inp(0), large, out(0), large, 1, traits) is not None
    assert copy_two_launch((inp(0), inp(1)), (large, large), (out(0), out(1)), (large, large), 1, traits) is None
