"""The inputs of several requests as those of one: rows behind each other, each padded to the same sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncrt.arguments import check_names, shown
from asyncrt.dims import Dim
from asyncrt.errors import BatchingError, InputError
from asyncrt.layout import Array, DataType, dtype_of, show_shape
from asyncrt.memory.host import HostBudget

from .batch_axes import BatchAxes, TensorAxes, sizes_of


def check_pad_values(axes: BatchAxes, given: Mapping[str, Any]) -> dict[int, Any]:
    """Return what each input is padded with, by its id: what was given, and 0 otherwise.

    Raises:
        BatchingError: There is no such input, its dtype has no such value, or it is a mask.
    """
    values: dict[int, Any] = {}
    named = {t.name: t for t in axes.inputs}
    for name, value in check_names("pad_values", given).items():
        tensor = named.get(name)
        if tensor is None or tensor.id in axes.masks:
            why = "there is no such input" if tensor is None else "it is a mask, which is 0 there"
            raise BatchingError(f"{shown(name)} cannot be padded: {why}")
        assert tensor.dtype is not None
        cast = _cast(value, tensor.dtype)
        if cast is None:
            raise BatchingError(f"input '{name}' cannot be padded with {shown(value)}: it is {tensor.dtype}")
        values[tensor.id] = cast
    return values


def _cast(value: Any, dtype: DataType) -> Array | None:
    """Return a number of that dtype; None if it has no such."""
    try:
        number = np.asarray(value)
        if number.ndim or dtype_of(number.dtype) is None:
            return None
        with np.errstate(all="ignore"):
            cast: Array = number.astype(dtype.numpy)
        held = bool(cast == number) or dtype.is_float
    except Exception:  # an object's own way to be an array may raise anything
        return None
    return cast if held else None


def join(
    axes: BatchAxes, requests: Sequence[Mapping[int, Array]], sizes: Mapping[str, int], values: Mapping[int, Any]
) -> dict[int, Array]:
    """Return the inputs of one inference for all *requests*, in their order.

    Args:
        sizes: What the dims that may differ are padded to.
        values: What each input is padded with, by its id, if not with 0.
    """
    return {t.id: _joined(t, [r[t.id] for r in requests], sizes, values.get(t.id)) for t in axes.inputs}


def joined_nbytes(axes: BatchAxes, first: Mapping[int, Array], rows: int, sizes: Mapping[str, int]) -> int:
    """Return how many bytes `join()` makes of requests of so many rows, the *first* of them among them."""
    total = 0
    for tensor in axes.inputs:
        shape = _joined_shape(tensor, first[tensor.id], rows, sizes)
        total += 0 if shape is None else math.prod(shape) * first[tensor.id].itemsize
    return total


def _joined_shape(tensor: TensorAxes, first: Array, rows: int, sizes: Mapping[str, int]) -> list[int] | None:
    """The shape of an input of all requests; None if they have it in common."""
    if tensor.rows is None or tensor.dims is None:
        return None
    dims = zip(tensor.dims, first.shape, strict=True)
    shape = [sizes.get(d.name or "", s) if isinstance(d, Dim) else s for d, s in dims]
    shape[tensor.rows] = rows
    return shape


def _joined(tensor: TensorAxes, arrays: list[Array], sizes: Mapping[str, int], value: Any) -> Array:
    rows, first = tensor.rows, arrays[0]
    shape = None if rows is None else _joined_shape(tensor, first, sum([a.shape[rows] for a in arrays]), sizes)
    if rows is None or shape is None:
        return first
    rest = (*shape[:rows], *shape[rows + 1 :])
    if all((*a.shape[:rows], *a.shape[rows + 1 :]) == rest for a in arrays):
        return np.concatenate(arrays, axis=rows) if len(arrays) > 1 else first
    joined: Array = np.zeros(shape, first.dtype) if value is None else np.full(shape, value, first.dtype)
    padded = [axis for axis, d in enumerate(tensor.dims or ()) if isinstance(d, Dim) and d.name in sizes]
    place, begin = [slice(None)] * first.ndim, 0
    for array in arrays:
        own = array.shape
        place[rows] = slice(begin, begin := begin + own[rows])
        for axis in padded:
            place[axis] = slice(own[axis])
        joined[tuple(place)] = array
    return joined


def with_masks(axes: BatchAxes, given: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
    """Return the inputs of a request with masks of ones in place of those that it left out.

    Args:
        limit: Bytes that these may have.
    """
    if not isinstance(given, Mapping):
        return given
    left_out = [t for t in axes.inputs if t.id in axes.masks and t.name not in given]
    if not left_out:
        return given
    known = {t.id: t for t in axes.inputs if t.name in given and t.dims is not None}
    shapes = {i: a for i, t in known.items() if (a := np.asarray(given[t.name])).ndim == len(t.dims or ())}
    sizes = sizes_of(axes.inputs, shapes)
    masks: dict[str, Array] = {}
    budget = HostBudget(limit)
    for tensor in left_out:
        assert tensor.dims is not None
        assert tensor.dtype is not None
        unknown = [d for d in tensor.dims if not isinstance(d, Dim) or d.name not in sizes]
        if unknown:
            raise InputError(
                f"mask '{tensor.name}' was left out, and no other input tells its dim '{unknown[0]}'",
                hint=f"give it; it is {show_shape(tensor.dims)}",
            )
        shape = [sizes[d.name or ""] for d in tensor.dims if isinstance(d, Dim)]
        budget.take(math.prod(shape) * tensor.dtype.itemsize, f"ones for the mask '{tensor.name}'")
        masks[tensor.name] = np.ones(shape, tensor.dtype.numpy)
    return {**given, **masks}
