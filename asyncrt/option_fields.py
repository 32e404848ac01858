"""Fields of records of options: each checks what a caller sets, when the record is made."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import attrs

from .arguments import MOST_COUNT, MOST_SECONDS, check_path, each_of, real, shown, whole
from .errors import ArgumentError

_MOST_INTEGERS = 10_000


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
