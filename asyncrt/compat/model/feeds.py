"""Does what a program feeds fit the model, by ONNX Runtime's rules and in its words?

Only asked of feeds that asyncrt does not take as they are: those that are wrong, and those that ONNX Runtime takes all
the same, such as lists of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from asyncrt.compat.errors import InvalidArgument, Refused, WrongValue, error
from asyncrt.compat.types import STRING, dtype_named, dtype_of, number_of, tensor_type
from asyncrt.compat.values import OrtValue

from .interface import Interface, NodeArg

_ADVICE = "Please fix either the inputs/outputs or the model."


def check_present(feed: Mapping[str, Any], inputs: Iterable[NodeArg]) -> None:
    """Raise unless there is something for each input that is not optional.

    Raises:
        WrongValue: There is not; it is a `ValueError`.
    """
    given = feed.keys()
    missing = [arg.name for arg in inputs if arg.name not in given and not arg.type.startswith("optional")]
    if missing:
        raise WrongValue(f"Required inputs ({missing}) are missing from input feed ({list(given)}).")


def fit(feed: Mapping[str, Any], interface: Interface) -> dict[str, Any]:
    """Return what asyncrt is given for a feed.

    Raises:
        WrongValue: An input is missing; it is a `ValueError`.
        InvalidArgument: There is no such input, or it has another dtype, rank or size.
        Refused: It is nothing that can be an input; it is a `RuntimeError`.
    """
    check_present(feed, interface.inputs)
    args = interface.args
    fitted: dict[str, Any] = {}
    for name, value in feed.items():
        if name not in args:
            raise error(InvalidArgument, f"Invalid input name: {name}")
        fitted[name] = _fit(args[name], value)
    return fitted


def is_loose(fitted: Mapping[str, Any], interface: Interface) -> bool:
    """Whether dims of one name differ, or an input has a rank although the model says none."""
    sizes: dict[str, int] = {}
    for name, arg in interface.args.items():
        value = fitted.get(name)
        if not isinstance(value, np.ndarray):
            continue
        if not arg.shape and value.ndim:
            return True
        for dim, size in zip(arg.shape, value.shape, strict=False):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                return True
    return False


def _fit(arg: NodeArg, value: Any) -> Any:
    if isinstance(value, OrtValue):
        value = value.to_python()
    if value is None or not arg.type.startswith("tensor("):
        return value  # asyncrt says what it takes
    array = value if isinstance(value, np.ndarray) else _from_list(arg, value)
    number = number_of(array.dtype)
    if tensor_type(number) != arg.type:
        raise error(
            InvalidArgument,
            f"Unexpected input data type. Actual: ({tensor_type(number)}) , expected: ({arg.type})",
        )
    _check_shape(arg, array.shape)
    return array.astype(dtype_of(number), copy=False) if number != STRING else _texts(array)


def _from_list(arg: NodeArg, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, str | bytes | tuple):
        raise Refused(f"Input must be a list of dictionaries or a single numpy array for input '{arg.name}'.")
    if not isinstance(value, list):
        raise Refused(f"Unable to handle object of type {type(value)}")
    try:
        return np.array(value, dtype_named(arg.type))
    except (ValueError, TypeError, OverflowError) as cause:
        raise Refused(f"Could not create tensor from given input list for input '{arg.name}': {cause}") from cause


def _texts(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of texts, as ONNX Runtime gives them out."""
    texts = np.empty(array.shape, object)
    for index, value in np.ndenumerate(array):
        texts[index] = value.decode() if isinstance(value, bytes) else str(value)
    return texts


def _check_shape(arg: NodeArg, shape: tuple[int, ...]) -> None:
    if not arg.shape:
        return
    if len(arg.shape) != len(shape):
        raise error(
            InvalidArgument,
            f"Invalid rank for input: {arg.name} Got: {len(shape)} Expected: {len(arg.shape)} {_ADVICE}",
        )
    wrong = [
        f" index: {index} Got: {got} Expected: {expected}\n"
        for index, (got, expected) in enumerate(zip(shape, arg.shape, strict=True))
        if isinstance(expected, int) and got != expected
    ]
    if wrong:
        raise error(
            InvalidArgument,
            f"Got invalid dimensions for input: {arg.name} for the following indices\n{''.join(wrong)} {_ADVICE}",
        )
