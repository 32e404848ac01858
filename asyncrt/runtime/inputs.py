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
from asyncrt.layout import Array, Layout, Shape, show_shape

_FITTING = 4096  # sets of shapes that are remembered


def check_inputs(
    program: Program, given: Mapping[str, Any], kept: Mapping[int, Layout] = {}, optional: frozenset[int] = frozenset()
) -> dict[int, Array]:
    """Return the inputs as contiguous arrays, by value id.

    Args:
        kept: Inputs that are on the device already; their dims must agree with the others'.
        optional: Inputs that may be missing.

    Raises:
        InputError: Says which input, what was expected and what came.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"inputs are a mapping of name to array, not a {type(given).__name__}")
    names = {program.values[i].name: i for i in program.inputs}
    unknown = sorted(given.keys() - names.keys())
    missing = sorted(name for name, i in names.items() if name not in given and i not in optional)
    if unknown or missing:
        parts = [f"missing: {', '.join(missing)}"] if missing else []
        parts += [f"unknown: {', '.join(map(str, unknown))}"] if unknown else []
        raise InputError("the inputs do not match the model's", detail="\n".join(parts), hint=signature(program))
    bound: dict[str, tuple[int, str]] = {}
    arrays: dict[int, Array] = {}
    for name, id in names.items():
        if id in kept:
            _check_shape(program.values[id], kept[id].shape, bound)
        elif name in given:
            arrays[id] = _check(program.values[id], given[name], bound)
    return arrays


class Checked:
    """Checks requests of one program. What has fitted once fits again: most requests have the shapes of one before."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._ids = {program.values[i].name: i for i in program.inputs}
        #: Dtypes and shapes that fit, in the order of the program's inputs.
        self._fitting: set[tuple[Any, ...]] = set()

    def check(self, given: Mapping[str, Any]) -> dict[int, Array]:
        """Return what `check_inputs()` does, or raise what it raises."""
        if given.__class__ is not dict or len(given) != len(self._ids):
            return check_inputs(self._program, given)
        arrays: dict[int, Array] = {}
        seen: list[Any] = []
        for name, id in self._ids.items():
            array: Any = given.get(name)
            if array.__class__ is not np.ndarray or not array.flags.c_contiguous:
                return check_inputs(self._program, given)
            arrays[id] = array
            seen += array.dtype, array.shape
        key = tuple(seen)
        if key not in self._fitting:
            check_inputs(self._program, given)
            if len(self._fitting) == _FITTING:
                self._fitting.clear()
            self._fitting.add(key)
        return arrays


def signature(program: Program) -> str:
    """Return what the model takes, e.g. ``input_ids int64[batch,seq], ...``."""
    return "it takes " + ", ".join(f"{program.values[i].name} {program.values[i].layout}" for i in program.inputs)


def layouts_of(program: Program, arrays: Mapping[int, Array], kept: Mapping[int, Layout] = {}) -> list[Layout]:
    """Return the inputs' layouts, in the program's order; of those that are *kept* on the device there is no array."""
    result = []
    for id in program.inputs:
        if id in kept:
            result.append(kept[id])
            continue
        dtype = program.values[id].layout.dtype
        assert dtype is not None
        result.append(Layout(dtype, arrays[id].shape))
    return result


def _check(value: Value, given: Any, bound: dict[str, tuple[int, str]]) -> Array:
    try:
        array: Array = np.asarray(given)
    except Exception as error:
        raise InputError(f"input '{value.name}' is not an array: {error}") from error
    wanted = value.layout.dtype
    if wanted is None or array.dtype != wanted.numpy:
        hint = "convert it with .astype()" if array.dtype.kind in "fiub" else ""
        raise InputError(
            f"input '{value.name}': expected {wanted}, got {array.dtype}{show_shape(array.shape)}", hint=hint
        )
    _check_shape(value, array.shape, bound)
    return np.ascontiguousarray(array).reshape(array.shape)


def _check_shape(value: Value, given: Shape, bound: dict[str, tuple[int, str]]) -> None:
    """Raise unless a shape is the model's, and its dims those of the same names that came before."""
    shape = value.layout.shape
    if shape is None:
        return
    if len(shape) != len(given):
        raise InputError(
            f"input '{value.name}': expected rank {len(shape)} {show_shape(shape)}, "
            f"got rank {len(given)} {show_shape(given)}"
        )
    for axis, (dim, size) in enumerate(zip(shape, given, strict=True)):
        if not isinstance(dim, Dim):
            if dim != size:
                raise InputError(
                    f"input '{value.name}': axis {axis} is {dim} in the model {show_shape(shape)}, "
                    f"got {show_shape(given)}"
                )
        elif dim.name is not None:
            first, where = bound.setdefault(dim.name, (size, f"axis {axis} of '{value.name}'"))
            if first != size:
                raise InputError(
                    f"input '{value.name}': axis {axis} is '{dim.name}', which is {first} by {where}, got {size}"
                )
