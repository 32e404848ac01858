"""Do a caller's inputs fit the model? Checked before anything is enqueued.

Names, dtypes, ranks and static dims are checked, and that dims of the same name are equal.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from asyncrt.arguments import shown
from asyncrt.dims import Dim
from asyncrt.errors import InputError
from asyncrt.graph.ir import Program, Value
from asyncrt.kinds import is_plain
from asyncrt.layout import Array, Layout, Shape, show_shape
from asyncrt.memory.host import HostBudget, allocating
from asyncrt.runtime.cooperative import off_loop

from .given import given as as_held
from .given import take_copy

_NOTHING: Mapping[int, Layout] = MappingProxyType({})
_TOLD, _LONG = 10, 100  # names that are unknown, and characters of one


def check_inputs(
    program: Program,
    given: Mapping[str, Any],
    kept: Mapping[int, Layout] = {},
    optional: frozenset[int] = frozenset(),
    *,
    limit: int,
) -> dict[int, Array]:
    """Return the inputs as contiguous arrays, by value id.

    Args:
        kept: Inputs that are on the device already; their dims must agree with the others'.
        optional: Inputs that may be missing.
        limit: Bytes of copies that may be made of those that are not contiguous, and of texts.

    Raises:
        InputError: Says which input, what was expected and what came.
        OutOfHostMemory: The copies would be too large; a broadcast view has more elements than memory.
    """
    budget = HostBudget(limit)
    return _contiguous(program, _fitting(program, given, kept, optional, budget), budget)


async def take_inputs(
    program: Program,
    given: Mapping[str, Any],
    kept: Mapping[int, Layout] = {},
    optional: frozenset[int] = frozenset(),
    *,
    limit: int,
) -> dict[int, Array]:
    """Return what `check_inputs()` does; large copies are made off the event loop."""
    budget = HostBudget(limit)
    arrays = _fitting(program, given, kept, optional, budget)
    copied = sum([a.nbytes for a in arrays.values() if not a.flags.c_contiguous])
    return await off_loop(copied, functools.partial(_contiguous, program, arrays, budget))


def _contiguous(program: Program, arrays: dict[int, Array], budget: HostBudget) -> dict[int, Array]:
    for id, array in arrays.items():
        take_copy(array, f"input '{program.values[id].name}'", budget)
    with allocating("dense copies of inputs"):
        return {id: np.asarray(a, order="C") for id, a in arrays.items()}


def _fitting(
    program: Program, given: Mapping[str, Any], kept: Mapping[int, Layout], optional: frozenset[int], budget: HostBudget
) -> dict[int, Array]:
    """Return the inputs as they lie, by value id."""
    given = as_dict(given)
    names = {program.values[i].name: i for i in program.inputs}
    unknown = sorted(_name(name) for name in given if name not in names)
    missing = sorted(name for name, i in names.items() if name not in given and i not in optional)
    if unknown or missing:
        parts = [f"missing: {', '.join(missing)}"] if missing else []
        parts += [f"unknown: {', '.join(unknown[:_TOLD])}{', ...' if len(unknown) > _TOLD else ''}"] if unknown else []
        raise InputError("the inputs do not match the model's", detail="\n".join(parts), hint=signature(program))
    bound: dict[str, tuple[int, str]] = {}
    arrays: dict[int, Array] = {}
    for name, id in names.items():
        if id in kept:
            _check_shape(program.values[id], kept[id].shape, bound)
        elif name in given:
            arrays[id] = _check(program.values[id], given[name], bound, budget)
    return arrays


def _name(given: Any) -> str:
    return given if isinstance(given, str) and len(given) <= _LONG else shown(given)


def as_dict(given: Any) -> dict[Any, Any]:
    """Return what a caller gave as inputs as a dict; raises `InputError` if it is no mapping."""
    if given.__class__ is dict:
        return given
    if not isinstance(given, Mapping):
        raise InputError(f"inputs are a mapping of name to array, not {shown(given)}")
    try:
        return dict(given)
    except Exception as error:  # a caller's own mapping may raise anything
        raise InputError(f"inputs are a mapping of name to array, and this one raises: {error!r}") from error


class _Wanted(NamedTuple):
    """What an input has to be.

    Attributes:
        dims: Of each dim its size, its name, or None if any size will do; no dims allow any shape.
        form: Inputs of the same dims have the same number.
    """

    name: str
    id: int
    dtype: Any
    dims: tuple[int | str | None, ...] | None
    form: int


class Checked:
    """Checks requests of one program. Those that fit as they are, which most do, are told in a few microseconds.

    Args:
        limit: As for `check_inputs()`.
    """

    def __init__(self, program: Program, limit: int) -> None:
        self._program, self._limit = program, limit
        forms: dict[Any, int] = {}
        self._wanted = tuple([_wanted(i, program.values[i], forms) for i in program.inputs])
        #: The shapes that fitted last, where nothing was kept.
        self._fitted: list[Shape] | None = None
        #: What was kept last, and what is wanted beside it: sequences of a group that a step left alike keep the same.
        self._kept: tuple[Mapping[int, Layout], tuple[tuple[_Wanted, ...], dict[Any, int]] | None] = (
            _NOTHING, (self._wanted, {})
        )  # fmt: skip

    def check(self, given: Mapping[str, Any]) -> dict[int, Array]:
        """Return what `check_inputs()` does, or raise what it raises."""
        arrays = self.fitting(given)
        return check_inputs(self._program, given, limit=self._limit) if arrays is None else arrays

    async def take(self, given: Mapping[str, Any]) -> dict[int, Array]:
        """Return what `check()` does; large copies are made off the event loop."""
        arrays = self.fitting(given)
        return await take_inputs(self._program, given, limit=self._limit) if arrays is None else arrays

    def fitting(self, given: Mapping[str, Any], kept: Mapping[int, Layout] = _NOTHING) -> dict[int, Array] | None:
        """Return what `check_inputs()` does; None if only that can say what does not fit, or has to copy an input.

        Args:
            kept: Inputs that are on the device already, and not among those given.
        """
        if given.__class__ is not dict or len(given) + len(kept) != len(self._wanted):
            return None
        known = self._kept
        if known[0] is not kept:
            known = self._kept = kept, self._beside(kept)
        if known[1] is None:
            return None
        wanted, sizes = known[1]
        arrays: dict[int, Array] = {}
        shapes: list[Shape] = []
        for name, id, dtype, _, _ in wanted:
            array: Any = given.get(name)
            if array.__class__ is not np.ndarray or not array.flags.c_contiguous:
                return None
            if dtype is None or (array.dtype is not dtype and array.dtype != dtype):
                return None
            arrays[id] = array
            shapes.append(array.shape)
        if kept or shapes != self._fitted:
            if not _all_fit(wanted, shapes, sizes.copy()):
                return None
            self._fitted = None if kept else shapes
        return arrays

    def _beside(self, kept: Mapping[int, Layout]) -> tuple[tuple[_Wanted, ...], dict[Any, int]] | None:
        """Return what is wanted beside inputs that are kept, and the sizes that those have, by name; None if they do
        not fit."""
        sizes: dict[Any, int] = {}
        fit: dict[int, Shape] = {}
        for _, id, _, dims, form in self._wanted:
            layout = kept.get(id)
            if layout is None or dims is None or fit.get(form) == layout.shape:
                continue
            if not _fits(dims, layout.shape, sizes):
                return None
            fit[form] = layout.shape
        return tuple([wanted for wanted in self._wanted if wanted.id not in kept]), sizes


def _all_fit(wanted: Iterable[_Wanted], shapes: Iterable[Shape], sizes: dict[Any, int]) -> bool:
    """Whether shapes are what is wanted, and sizes of the same names the same; those of other names are noted."""
    fit: dict[int, Shape] = {}  # by form: most models have several inputs of the same dims
    for (_, _, _, dims, form), shape in zip(wanted, shapes):  # noqa: B905  # as many
        if dims is None or fit.get(form) == shape:
            continue
        if not _fits(dims, shape, sizes):
            return False
        fit[form] = shape
    return True


def _fits(dims: Sequence[int | str | None], shape: Shape, sizes: dict[Any, int]) -> bool:
    """Whether a shape is what is wanted, and its sizes those of the same names; those of other names are noted."""
    if len(dims) != len(shape):
        return False
    for dim, size in zip(dims, shape):  # noqa: B905  # of the same length
        if dim.__class__ is str:
            dim = sizes.setdefault(dim, size)
        if dim != size and dim is not None:
            return False
    return True


def _wanted(id: int, value: Value, forms: dict[Any, int]) -> _Wanted:
    dtype, shape = value.layout
    dims = None if shape is None else tuple([d.name if isinstance(d, Dim) else d for d in shape])
    # What is no array of numbers is looked at in full: as what it is held, and what is in it.
    numpy = dtype.numpy if dtype is not None and is_plain(dtype) else None
    return _Wanted(value.name, id, numpy, dims, forms.setdefault(dims, len(forms)))


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


def renamed(arrays: Mapping[int, Array], program: Program, other: Program) -> dict[int, Array]:
    """Return a program's inputs or outputs by the value ids of *other*, which is compiled of the same model."""
    ids = {other.values[id].name: id for id in (*other.inputs, *other.outputs)}
    return {ids[program.values[id].name]: array for id, array in arrays.items()}


def of_shapes(program: Program, shapes: Mapping[str, Any]) -> dict[int, Array]:
    """Return inputs of these shapes, by name, that take no memory: ones, by value id.

    Raises:
        InputError: Says which shape, what was expected and what came.
    """
    given: dict[str, Any] = {}
    layouts = {program.values[i].name: program.values[i].layout for i in program.inputs}
    for name, shape in as_dict(shapes).items():
        dtype = layouts[name].dtype if name in layouts else None
        try:
            sizes = tuple(map(operator.index, shape))
            given[name] = np.broadcast_to(np.ones((), np.uint8 if dtype is None else dtype.numpy), sizes)
        except (TypeError, ValueError) as error:
            raise InputError(f"input '{_name(name)}': a shape is integers from 0 on, got {shown(shape)}") from error
    return _fitting(program, given, {}, frozenset(), HostBudget(0))


def _check(value: Value, given: Any, bound: dict[str, tuple[int, str]], budget: HostBudget) -> Array:
    wanted = value.layout.dtype
    if wanted is not None and not is_plain(wanted):
        held = as_held(wanted, given, f"input '{value.name}'", budget)
        _check_shape(value, held.shape, bound)
        return held
    try:
        array: Array = np.asarray(given)
    except Exception as error:
        raise InputError(f"input '{value.name}' is not an array: {error}") from error
    if wanted is None or array.dtype != wanted.numpy:
        hint = "convert it with .astype()" if array.dtype.kind in "fiub" else ""
        raise InputError(
            f"input '{value.name}': expected {wanted}, got {array.dtype}{show_shape(array.shape)}", hint=hint
        )
    _check_shape(value, array.shape, bound)
    return array


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
