"""Is what a caller passed a path, a text, a list or a mapping by name? Asked at every door, before anything happens.

Whatever a caller's own object raises when it is looked at, what comes out says which argument it was.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ArgumentError

_SHOWN, _BITS = 60, 63  # characters of what came, and bits of an integer


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
