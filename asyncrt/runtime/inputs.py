"""Do a caller's inputs fit the model? Asked before anything is enqueued.

Checked are names, dtypes, ranks, static dims, and that dims of the same name are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import InputError
from asyncrt.graph.node import Value
from asyncrt.graph.program import Program
from asyncrt.layout import Array, Layout, show_shape


def check_inputs(program: Program, given: Mapping[str, Any]) -> dict[int, Array]:
    """Return the inputs as contiguous arrays, by value id.

    Raises:
        InputError: Says which input, what was expected and what came.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"inputs are a mapping of name to array, not a {type(given).__name__}")
    names = {program.values[i].name: i for i in program.inputs}
    unknown, missing = sorted(given.keys() - names.keys()), sorted(names.keys() - given.keys())
    if unknown or missing:
        parts = [f"missing: {', '.join(missing)}"] if missing else []
        parts += [f"unknown: {', '.join(map(str, unknown))}"] if unknown else []
        raise InputError("the inputs do not match the model's", detail="\n".join(parts), hint=signature(program))
    bound: dict[str, tuple[int, str]] = {}
    arrays: dict[int, Array] = {}
    for name, id in names.items():
        arrays[id] = _check(program.values[id], given[name], bound)
    return arrays


def signature(program: Program) -> str:
    """Return what the model takes, e.g. ``input_ids int64[batch,seq], ...``."""
    return "it takes " + ", ".join(f"{program.values[i].name} {program.values[i].layout}" for i in program.inputs)


def layouts_of(program: Program, arrays: Mapping[int, Array]) -> list[Layout]:
    """Return the inputs' layouts, in the program's order."""
    result = []
    for id in program.inputs:
        dtype = program.values[id].layout.dtype
        assert dtype is not None
        result.append(Layout(dtype, arrays[id].shape))
    return result


def _check(value: Value, given: Any, bound: dict[str, tuple[int, str]]) -> Array:
    try:
        array: Array = np.asarray(given)
    except Exception as error:
        raise InputError(f"input '{value.name}' is not an array: {error}") from error
    wanted, shape = value.layout
    if wanted is None or array.dtype != wanted.numpy:
        hint = "convert it with .astype()" if array.dtype.kind in "fiub" else ""
        raise InputError(
            f"input '{value.name}': expected {wanted}, got {array.dtype}{show_shape(array.shape)}", hint=hint
        )
    if shape is not None:
        if len(shape) != array.ndim:
            raise InputError(
                f"input '{value.name}': expected rank {len(shape)} {show_shape(shape)}, "
                f"got rank {array.ndim} {show_shape(array.shape)}"
            )
        for axis, (dim, size) in enumerate(zip(shape, array.shape, strict=True)):
            if not isinstance(dim, Dim):
                if dim != size:
                    raise InputError(
                        f"input '{value.name}': axis {axis} is {dim} in the model {show_shape(shape)}, "
                        f"got {show_shape(array.shape)}"
                    )
            elif dim.name is not None:
                first, where = bound.setdefault(dim.name, (size, f"axis {axis} of '{value.name}'"))
                if first != size:
                    raise InputError(
                        f"input '{value.name}': axis {axis} is '{dim.name}', which is {first} by {where}, got {size}"
                    )
    return np.ascontiguousarray(array).reshape(array.shape)


