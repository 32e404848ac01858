"""Is what a caller passed something that there can be? Asked at every door, before anything has happened.

Further in, numbers are compared, added to times and sorted by: a NaN, a text or an array would be trouble of other
callers there, far from where it came from. So a number is a real and finite one, of Python's or of NumPy's, in a range
that the message tells. A bool is none: who passes one means something else. Whatever a caller's own object raises when
it is looked at, what comes out says which argument it was.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ArgumentError

MOST_SECONDS = 1e9  # thirty years; every event loop's clock takes it, and so do sums and products of a few of them
MOST_COUNT = (1 << 63) - 1
MOST_PRIORITY = 1_000_000_000
_SHOWN, _BITS = 60, 63  # characters of what came, and bits of an integer


def check_priority(priority: Any) -> int:
    """Return a priority, an integer."""
    if priority.__class__ is int and -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        checked: int = priority
        return checked
    return whole("priority", priority, -MOST_PRIORITY, MOST_PRIORITY)


def check_deadline(deadline: Any) -> float:
    """Return a deadline in seconds from now."""
    return real("deadline", deadline, -MOST_SECONDS, MOST_SECONDS, "seconds from now", "None is no deadline")


def whole(name: str, value: Any, least: int, most: int = MOST_COUNT, hint: str = "") -> int:
    """Return *value* as an int.

    Raises:
        ArgumentError: It is no integer from *least* to *most*.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and least <= value <= most:
        return int(value)
    which = f"of at least {least}" if most == MOST_COUNT else f"from {least} to {most}"
    raise ArgumentError(f"{name} must be an integer {which}, got {shown(value)}", hint=hint)


def real(
    name: str, value: Any, least: float, most: float, unit: str = "", hint: str = "", *, below: bool = False
) -> float:
    """Return *value* as a float.

    Args:
        below: It may not be *most* itself.

    Raises:
        ArgumentError: It is no real number from *least* to *most*.
    """
    # NaN compares with nothing, and integers of any size do with floats.
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if is_number and least <= value <= most:
        number = float(value)
        if not (below and number >= most):
            return number
    of = f" of {unit}" if unit else ""
    until = "below " if below else ""
    raise ArgumentError(
        f"{name} must be a number{of} from {least:.10g} to {until}{most:.10g}, got {shown(value)}", hint=hint
    )


def check_path(name: str, value: Any) -> Path:
    """Return *value* as a path.

    Raises:
        ArgumentError: It is none that a system could have.
    """
    try:
        text = os.fspath(value)
    except Exception:  # an object's own way to say what path it is may raise anything
        text = None
    if not isinstance(text, str) or "\0" in text:
        raise ArgumentError(f"{name} must be a path, got {shown(value)}")
    return Path(text)


def check_text(name: str, value: Any) -> str:
    """Return *value*, which is a text.

    Raises:
        ArgumentError: It is not.
    """
    if not isinstance(value, str):
        raise ArgumentError(f"{name} must be a text, got {shown(value)}")
    return value


def check_listener(name: str, value: Any) -> Any:
    """Return *value*, which is a function of one argument or None.

    Raises:
        ArgumentError: It cannot be called.
    """
    if value is None or callable(value):
        return value
    raise ArgumentError(f"{name} must be a function of one argument or None, got {shown(value)}")


def check_names(name: str, value: Any, texts: bool = False) -> dict[str, Any]:
    """Return a mapping by name as a dict.

    Args:
        texts: What the names stand for has to be texts as well.

    Raises:
        ArgumentError: It is no mapping, or has a key that is no text.
    """
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name} must be a mapping by name, got {shown(value)}")
    try:
        found = dict(value)
    except Exception as error:
        raise ArgumentError(f"{name} must be a mapping by name, and raises when it is read: {error!r}") from error
    for key, entry in found.items():
        for part in (key, entry) if texts else (key,):
            if not isinstance(part, str):
                what = "texts to texts" if texts else "texts to values"
                raise ArgumentError(f"{name} must be a mapping of {what}, got {shown(part)}")
    return found


def check_texts(name: str, value: Any, most: int) -> list[str]:
    """Return a text, or several of them, as a list of at most *most* and one more.

    Raises:
        ArgumentError: It is neither.
    """
    if isinstance(value, str):
        return [value]
    found = list(itertools.islice(each_of(name, value), most + 1))
    for part in found:
        if not isinstance(part, str):
            raise ArgumentError(f"{name} must be a text or texts, got {shown(part)} among them")
    return found


def each_of(name: str, value: Any) -> Iterator[Any]:
    """Yield what is in a list or the like, of which there may be no end.

    Raises:
        ArgumentError: It cannot be iterated over, or is a text.
    """
    more: Iterator[Any] | None = None
    while True:
        try:
            if more is None:
                more = iter(() if isinstance(value, str | bytes | Mapping) else value)
            found = next(more)
        except StopIteration:
            break
        except Exception:  # an object's own way to be iterated over may raise anything
            more = None
            break
        yield found
    if more is None or isinstance(value, str | bytes | Mapping):
        raise ArgumentError(f"{name} must be a list or the like, got {shown(value)}")


def shown(value: Any) -> str:
    """Return what came in a few words, whatever it is."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | bytes | int | float | np.number) or value is None:
        text = repr(value[:_SHOWN] if isinstance(value, str | bytes) else value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"a {type(value).__name__}"
