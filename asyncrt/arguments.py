"""Is what a caller passed a number that there can be? Asked at every door, before anything has happened.

Further in, these numbers are compared, added to times and sorted by: a NaN, a text or an array would be trouble of
other callers there, far from where it came from. So a number is a real and finite one, of Python's or of NumPy's, in a
range that the message tells. A bool is none: who passes one means something else.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from .errors import ArgumentError
from .given import check_path, each_of, shown

MOST_SECONDS = 1e9  # thirty years; every event loop's clock takes it, and so do sums and products of a few of them
MOST_COUNT = (1 << 63) - 1
MOST_PRIORITY = 1_000_000_000
_MOST_INTEGERS = 10_000


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


# Options, which are fields of a record.


def counted(default: int | None, least: int = 1, most: int = MOST_COUNT) -> Any:
    """Return a field for an integer; where its default is None, for None as well."""

    def convert(value: Any, field: attrs.Attribute[Any]) -> int | None:
        return None if value is None and default is None else whole(field.name, value, least, most)

    return attrs.field(default=default, converter=attrs.Converter(convert, takes_field=True))


def measured(
    default: float | None, least: float, most: float = MOST_SECONDS, *, below: bool = False, optional: bool = False
) -> Any:
    """Return a field for a number; None is one as well if it is *optional*."""

    def convert(value: Any, field: attrs.Attribute[Any]) -> float | None:
        return None if value is None and optional else real(field.name, value, least, most, below=below)

    return attrs.field(default=default, converter=attrs.Converter(convert, takes_field=True))


def integers_or_none() -> Any:
    """Return a field for any number of integers, which come to be in order, or None."""

    def convert(value: Any, field: attrs.Attribute[Any]) -> tuple[int, ...] | None:
        if value is None:
            return None
        given = itertools.islice(each_of(field.name, value), _MOST_INTEGERS + 1)
        values = [whole(f"each of {field.name}", v, 0) for v in given]
        if not 0 < len(values) <= _MOST_INTEGERS:
            raise ArgumentError(f"{field.name} must be up to {_MOST_INTEGERS} integers or None, got {shown(value)}")
        return tuple(sorted(values))

    return attrs.field(default=None, converter=attrs.Converter(convert, takes_field=True))


def one_of(default: str, words: tuple[str, ...]) -> Any:
    """Return a field for one of these words."""

    def check(instance: object, field: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, str) or value not in words:
            raise ArgumentError(f"{field.name} must be one of {', '.join(words)}, got {shown(value)}")

    return attrs.field(default=default, validator=check)


def check_switch(instance: object, field: attrs.Attribute[Any], value: Any) -> None:
    """Raise unless *value* is True or False; where its default is None, that will do, too."""
    if not (value is True or value is False or (value is None and field.default is None)):
        states = "True, False or None" if field.default is None else "True or False"
        raise ArgumentError(f"{field.name} must be {states}, got {shown(value)}")


def switch(default: bool | None) -> Any:
    """Return a field for True or False; where its default is None, for None as well."""
    return attrs.field(default=default, validator=check_switch)


def path_or_none() -> Any:
    """Return a field for a path, or None."""

    def convert(value: Any, field: attrs.Attribute[Any]) -> Path | None:
        return None if value is None else check_path(field.name, value)

    return attrs.field(default=None, converter=attrs.Converter(convert, takes_field=True))
