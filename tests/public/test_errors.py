"""Errors cross from one process to another as they are."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from asyncrt import errors
from asyncrt.serve.errors import NotLoaded, Unavailable

MADE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Overloaded": (("too many",), {"retry_after_s": 1.5}),
    "Unavailable": (("not now",), {"retry_after_s": 1.5}),
    "IndexOutOfRange": (("Gather 'g'", 1, 3, 7, -2, 1), {}),
}
USUAL = (("expected one thing",), {"detail": "got another", "hint": "try"})
KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.AsyncrtError)]


def same(error: errors.AsyncrtError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


@pytest.mark.parametrize("kind", [*KINDS, Unavailable])
def test_each_kind_of_error_may_be_pickled(kind: type[errors.AsyncrtError]) -> None:
    """Its class, what it says and its attributes come back, whatever it is made of."""
    args, named = MADE.get(kind.__name__, USUAL)
    same(kind(*args, **named))


def test_an_error_made_of_another_may_be_pickled() -> None:
    """Although it is made by other arguments than its text."""
    same(NotLoaded(errors.InputError("no"), "model 'm' cannot be loaded: no"))
