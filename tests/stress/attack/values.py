"""What a caller may hand over, by mistake or on purpose: values of every type, inputs wrong in every way."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from asyncrt.layout import Array


class Their(Exception):
    """Raised by what the caller handed over, so it is theirs to see."""


def theirs(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function of the caller's; raises `Their` for whatever it raises."""
    try:
        return function(*given)
    except Exception as error:
        raise Their(repr(error)) from error


class Contrary:
    """Raises whatever is done with it."""

    def _refuse(self, *given: object) -> Any:
        raise Their("do not touch this")

    __array__ = __bool__ = __eq__ = __float__ = __fspath__ = __getitem__ = __hash__ = __index__ = _refuse
    __int__ = __iter__ = __len__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __str__ = _refuse


class Lies:
    """Is an array of two elements, or so it says; what it gives is something else."""

    shape, dtype, ndim, size, nbytes = (1, 2, 2), np.dtype(np.float32), 3, 4, 16

    def __array__(self, *given: object, **more: object) -> Array:
        return np.array(["what", "else"])


class Changes(Mapping[str, Any]):
    """A mapping that says something else each time."""

    def __init__(self, real: Mapping[str, Any]) -> None:
        self._real, self._asked = dict(real), 0

    def __getitem__(self, name: str) -> Any:
        self._asked += 1
        if self._asked % 2:
            return self._real[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._real, "more"])

    def __len__(self) -> int:
        return len(self._real)


NOT_A_NUMBER = float("nan")
ODD: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: 1, lambda: -1, lambda: 2**31, lambda: 2**63,
    lambda: -(2**63) - 1, lambda: 10**400, lambda: 0.0, lambda: -0.5, lambda: 1e308, lambda: float("inf"),
    lambda: float("-inf"), lambda: NOT_A_NUMBER, lambda: 1 + 2j, lambda: "", lambda: "a", lambda: "1", lambda: "\0",
    lambda: "x" * 10000, lambda: b"", lambda: b"1", lambda: bytearray(3), list, lambda: [1], lambda: ["a", None],
    lambda: (), dict, lambda: {"x": None}, lambda: {1: 2}, lambda: set(), lambda: object(), lambda: object,
    lambda: (i for i in range(3)), lambda: iter([{}]), lambda: print, lambda: np.float64("nan"), lambda: np.int64(3),
    lambda: np.float32(0.5), lambda: np.array(1), lambda: np.array([1, 2]), lambda: np.array([]),
    lambda: np.array([None]), lambda: np.array(["a"]), lambda: decimal.Decimal("NaN"), lambda: fractions.Fraction(1, 3),
    lambda: datetime.timedelta(seconds=1), lambda: pathlib.Path("nothing/there"), lambda: "/dev/null", lambda: "/",
    lambda: range(3), lambda: slice(3), lambda: Ellipsis, lambda: NotImplemented, lambda: ValueError("a value"),
    Contrary, Lies,
)  # fmt: skip
"""Each makes one, because some can be used only once."""


def odd(chance: random.Random) -> Any:
    """Draw one of `ODD`."""
    return chance.choice(ODD)()


def _other_dtype(chance: random.Random, x: Array) -> Any:
    names = ("f2", "f8", "i1", "i4", "u8", "c8", "O", "S3", "U3", "M8[s]", "m8[s]", "?", "V4", ">f4", "g")
    with np.errstate(all="ignore"):
        return np.zeros(x.shape, chance.choice(names))


def _other_rank(chance: random.Random, x: Array) -> Any:
    return chance.choice((x[None], x[..., None, None], x[0], x.reshape(-1), np.float32(1), x[:, :, None, None, None]))


def _giant(chance: random.Random, x: Array) -> Any:
    one = np.zeros((), x.dtype)
    return np.broadcast_to(one, chance.choice(((1, 2**40, 2), (2**31, 1, 2), (2**20, 2**20, 2), (60_000, 60_000, 2),
                                               (1, 2**23, 2), (3000, 2, 2**30), (0, 2**58, 2))))  # fmt: skip


def _elsewhere(chance: random.Random, x: Array) -> Any:
    """The right values, lying strangely."""
    strided = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)[..., 1::2][..., : x.shape[-1]]
    strided[...] = x
    packed = np.zeros(x.size, np.dtype([("pad", "u1"), ("it", x.dtype)]))["it"].reshape(x.shape)
    packed[...] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    return chance.choice((np.asfortranarray(x), x[::-1][::-1], strided, packed, frozen, x.view(np.recarray),
                          np.ma.masked_array(x), x.tolist(), memoryview(x.tobytes()), x.astype(">f4")))  # fmt: skip


def _no_array(chance: random.Random, x: Array) -> Any:
    return odd(chance)


def _not_numbers(chance: random.Random, x: Array) -> Any:
    return np.full_like(x, chance.choice((np.nan, np.inf, -np.inf)) if x.dtype.kind == "f" else 2**62)


def _other_size(chance: random.Random, x: Array) -> Any:
    shape = list(x.shape)
    shape[chance.randrange(len(shape))] = chance.choice((0, 3, 7))
    return np.zeros(shape, x.dtype)


_WRONG = (_other_dtype, _other_rank, _giant, _elsewhere, _elsewhere, _no_array, _not_numbers, _other_size)


def hostile_inputs(right: Mapping[str, Array], chance: random.Random) -> Any:
    """Return what is to be *right*, and is not, or only just."""
    what = chance.random()
    if what < 0.12:
        return odd(chance)
    given: dict[Any, Any] = dict(right)
    name = chance.choice(sorted(given))
    if what < 0.2:
        del given[name]
    elif what < 0.28:
        given[chance.choice(("more", 1, None, (), b"x"))] = given[name]
    elif what < 0.33:
        return Changes(given)
    elif what < 0.36:
        return list(given.items())
    else:
        given[name] = chance.choice(_WRONG)(chance, given[name])
    return given
