"""Which requests is batching tried out with, before any request has come?

Two of each shape, one behind the other, because rows of equal contents would not show that one sees the other. Floats
and booleans are drawn at random, integers are 0 and 1, which are indices of most tables. Of each two the first has
masks of ones; the second has some zeros in them, and all along a padded dim numbers that are above zero in one row and
below it in the other, because the largest or the smallest of them would hide zeros otherwise. Where a model does not
take integers below zero, it is tried without.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from asyncrt.dims import Dim
from asyncrt.layout import Array
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.cooperative import off_loop

from .batch_axes import BatchAxes, TensorAxes

Arrays: TypeAlias = "dict[int, Array]"
#: Runs two requests alone, and keeps what they gave; "" or why that cannot be.
Add: TypeAlias = "Callable[[Arrays, Arrays], Awaitable[str]]"

#: Sizes that are tried, in this order; the first that the model takes for all its dims is the one to begin with.
SIZES = (8, 5, 13, 24, 32, 64, 96, 128)
_FAR = 6.0  # standard deviations
_DRAWING = 96  # bytes for each element while it is drawn
_OTHERS = 2  # sizes that each dim is tried with beside that


async def take_samples(axes: BatchAxes, samples: list[Arrays], add: Add) -> str:
    """Try what the user gave, each with another request of its shape; "" or why that cannot be."""
    random = np.random.default_rng(0)
    for sample in samples:
        if why := await add(sample, _shuffled(axes, sample, random)):
            return f"a sample does not run: {why}"
    return "" if samples else "there are no samples"


def _shuffled(axes: BatchAxes, arrays: Arrays, random: np.random.Generator) -> Arrays:
    """A request of the same shape with the same elements elsewhere; masks stay as they are."""
    return {
        t.id: arrays[t.id] if t.rows is None or t.id in axes.masks
        else random.permutation(arrays[t.id].reshape(-1)).reshape(arrays[t.id].shape)
        for t in axes.inputs
    }  # fmt: skip


async def draw_samples(axes: BatchAxes, add: Add, budget: HostBudget) -> str:
    """Try requests of one shape, and of others that differ in one dim, or in all; "" or why that cannot be.

    Args:
        budget: What they may take together.
    """
    if any(t.dims is None or any(isinstance(d, Dim) and d.name is None for d in t.dims) for t in axes.inputs):
        return "the model does not say what shapes it takes; give samples"
    random = np.random.default_rng(0)
    names = sorted({n for t in axes.inputs for n in t.names()} - {axes.batch})

    async def two(sizes: Mapping[str, int]) -> str:
        most = {**sizes, axes.batch: 2}
        counts = [math.prod(_shape(t, most)) for t in axes.inputs]
        kept = 2 * sum([n * t.dtype.itemsize for n, t in zip(counts, axes.inputs, strict=True) if t.dtype is not None])
        drawing = _DRAWING * max(counts, default=0)
        if not budget.fits(kept + drawing):
            return "requests of its sizes are too large to be drawn"
        budget.take(kept, "requests")

        def drawn(sizes: Mapping[str, int], far: bool = False) -> Awaitable[Arrays]:
            return off_loop(drawing, lambda: _drawn(axes, sizes, random, far=far))

        first = await drawn(sizes)
        if why := await add(first, await drawn(most, True)):
            why = await add(first, await drawn(sizes))
        return why

    why = ""
    for size in SIZES:
        base = {**dict.fromkeys(names, size), axes.batch: 1}
        if not (why := await two(base)):
            break
    else:
        return f"it takes none of the sizes that were tried; give samples ({why})"
    taken: dict[str, list[int]] = {}
    for name in axes.padded:
        taken[name] = []
        for i, other in enumerate(s for s in SIZES if s != size):
            if not await two({**base, axes.batch: 1 + i % 2, name: other}):
                taken[name].append(other)
            if len(taken[name]) == _OTHERS:
                break
    if len(taken) > 1 and all(taken.values()):
        await two({**base, **{name: sizes[0] for name, sizes in taken.items()}})
    if not axes.padded and (why := await two({**base, axes.batch: 2})):
        return f"it does not take two rows: {why}"
    return ""


def _drawn(axes: BatchAxes, sizes: Mapping[str, int], random: np.random.Generator, *, far: bool = False) -> Arrays:
    """Draw a request; an input without a batch axis is the same in all of them."""
    return {
        t.id: _mask(t, sizes, random, far) if t.id in axes.masks else _tensor(t, sizes, random, far)
        for t in axes.inputs
    }


def _shape(tensor: TensorAxes, sizes: Mapping[str, int]) -> list[int]:
    return [sizes[d.name or ""] if isinstance(d, Dim) else d or 0 for d in tensor.dims or ()]


def _mask(tensor: TensorAxes, sizes: Mapping[str, int], random: np.random.Generator, holes: bool) -> Array:
    assert tensor.dtype is not None
    shape = _shape(tensor, sizes)
    drawn = np.ones(shape, np.int64)
    if holes and drawn.size:
        drawn = random.integers(0, 2, shape)
        drawn[..., 0] = 0
        drawn[..., shape[-1] // 2] = 1  # something is left of each row
    return drawn.astype(tensor.dtype.numpy)


def _tensor(tensor: TensorAxes, sizes: Mapping[str, int], random: np.random.Generator, far: bool) -> Array:
    assert tensor.dtype is not None
    shape = _shape(tensor, sizes)
    source = np.random.default_rng(tensor.id) if tensor.rows is None else random
    along = [isinstance(d, Dim) and axis != tensor.rows for axis, d in enumerate(tensor.dims or ())]
    sign = 1 - 2 * (np.indices([1 if one else s for one, s in zip(along, shape, strict=True)]).sum(0) % 2)
    drawn: Any
    if tensor.dtype.is_float:
        drawn = source.standard_normal(shape) + (_FAR * sign if far else 0.0)
    elif far and tensor.dtype.numpy.kind == "i":
        drawn = np.broadcast_to(sign, shape)
    else:
        drawn = source.integers(0, 2, shape)
    return np.asarray(drawn).astype(tensor.dtype.numpy)
