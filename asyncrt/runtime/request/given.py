"""Texts, sequences, optionals and maps that callers give: how are they held?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrt.arguments import shown
from asyncrt.errors import InputError, OutOfHostMemory
from asyncrt.kinds import ValueType, held, nbytes_of
from asyncrt.layout import STRING, Array, DataType, show_shape
from asyncrt.memory.host import HostBudget


def given(dtype: DataType, value: Any, what: str, budget: HostBudget) -> Array:
    """Return what a caller gives as values are held; texts of NumPy's own dtype as they lie.

    Args:
        what: What it is, for messages: "input 'x'".
        budget: What is copied or converted is taken of it.

    Raises:
        InputError: It is of another kind, or what is in it is.
        OutOfHostMemory: What would be made is too large; a broadcast view has more elements than memory.
    """
    if isinstance(dtype, ValueType):
        match dtype.kind:
            case "seq":
                return held(_sequence(dtype, value, what, budget))
            case "optional":
                return held([] if value is None else [_inside(dtype.element, value, what, budget)])
        return held(_map(dtype, value, what))
    if dtype is STRING:
        return _texts(value, what, budget)
    try:
        array: Array = np.asarray(value)
    except Exception as error:  # a caller's own object may raise anything
        raise InputError(f"{what} is not an array: {error}") from error
    if array.dtype != dtype.numpy:
        raise InputError(f"{what}: expected {dtype}, got {array.dtype}{show_shape(array.shape)}")
    return array


def take_copy(array: Array, what: str, budget: HostBudget) -> None:
    """Take of a budget what a contiguous copy of a tensor needs; nothing if it is contiguous.

    Args:
        what: As for `given()`.

    Raises:
        OutOfHostMemory: The copy would be too large.
    """
    if not array.flags.c_contiguous:
        budget.check(array.nbytes, f"a dense copy of {what}")  # only so many elements are looked at
        budget.take(nbytes_of(array), f"a dense copy of {what}")


def _inside(dtype: DataType, value: Any, what: str, budget: HostBudget) -> Any:
    """Return an element of a sequence or an optional: arrays as they are, other kinds as what they hold."""
    array = given(dtype, value, what, budget)
    if isinstance(dtype, ValueType):
        return array.item()
    take_copy(array, what, budget)
    return np.asarray(array, order="C")


def _sequence(dtype: ValueType, value: Any, what: str, budget: HostBudget) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{what}: expected {dtype}, a list, got {shown(value)}")
    return tuple([_inside(dtype.element, each, f"{what}[{i}]", budget) for i, each in enumerate(value)])


def _map(dtype: ValueType, value: Any, what: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{what}: expected {dtype}, a dict, got {shown(value)}")
    assert dtype.key is not None
    return {_scalar(dtype.key, k, f"a key of {what}"): _scalar(dtype.element, v, what) for k, v in value.items()}


def _scalar(dtype: DataType, value: Any, what: str) -> Any:
    kinds: tuple[type, ...] = (str, np.str_)
    if dtype is not STRING:
        kinds = (float, int, np.floating, np.integer) if dtype.is_float else (int, np.integer)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise InputError(f"{what}: expected {dtype}, got {shown(value)}")
    try:
        return str(value) if dtype is STRING else dtype.numpy.type(value).item()
    except OverflowError as error:
        raise InputError(f"{what}: expected {dtype}, got {shown(value)}") from error


def _texts(value: Any, what: str, budget: HostBudget) -> Array:
    try:
        array: Array = np.asarray(value)
        if array.dtype.kind not in "OTU" and array.size:
            raise TypeError(f"it is {array.dtype}{show_shape(array.shape)}")
    except Exception as error:  # a caller's own object may raise anything
        raise _no_texts(what, error) from error
    if array.dtype == STRING.numpy:
        return array
    budget.take(array.size * STRING.numpy.itemsize + array.nbytes, f"the texts of {what}")
    try:
        if array.dtype.kind == "O":
            if not all(isinstance(text, str) for text in array.flat):
                raise TypeError("some elements are no str")
            budget.take(sum(map(len, array.flat)), f"the texts of {what}")
        return array.astype(STRING.numpy, order="C")
    except OutOfHostMemory:
        raise
    except Exception as error:
        raise _no_texts(what, error) from error


def _no_texts(what: str, error: Exception) -> InputError:
    return InputError(f"{what}: expected {STRING}, an array of str: {error}")
