"""Is what a program assigns to an option of the kind that ONNX Runtime takes? Otherwise it is a `TypeError` there."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .errors import WrongType

_T = TypeVar("_T")


def flag(value: Any) -> bool:
    """Return a bool; numbers and None are taken as well."""
    if value is None or isinstance(value, bool | np.bool_ | int | float):
        return bool(value)
    raise WrongType(f"expected a bool, got a {type(value).__name__}")


def number(value: Any) -> int:
    """Return an integer; of floats there is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise WrongType(f"expected an integer, got a {type(value).__name__}") from None


def text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise WrongType(f"expected a text, got a {type(value).__name__}")
    return value


def of(kind: type[_T]) -> Callable[[Any], _T]:
    """Return what takes values of one class alone."""

    def check(value: Any) -> _T:
        if not isinstance(value, kind):
            raise WrongType(f"expected a {kind.__name__}, got a {type(value).__name__}")
        return value

    return check
