"""Inputs that fit what a model says of itself, and are at the edges of what it does not say."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrt.kinds import ValueType, is_plain
from asyncrt.layout import FLOAT32, STRING, Array, DataType, PartialLayout

MOST = 1 << 14
"""Elements of an input that is made; what must be larger is one element seen many times."""

SIZES = (0, 1, 1, 2, 3, 4, 5, 8, 17)
EDGES = {
    "f": (0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, 2.0**31, 2.0**63),
    "i": (0, 1, -1, 2, 3, 7, 100, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63)),
    "b": (0, 1),
}
"""Values by the kind of the dtype."""

TEXTS = ("", "a", "1", "-7.5e3", "nan", "naïve café", "\0", "\U0001f600", " a  b ", "x" * 5000)


def fitting(
    layouts: Mapping[str, PartialLayout], natural: Mapping[str, Any], chance: random.Random
) -> dict[str, Any]:
    """Return an input for each of *layouts*: those of *natural* where they fit and chance will have it, else others."""
    sizes: dict[str, int] = {}
    keep = chance.random() < 0.7
    inputs = {}
    for name, layout in layouts.items():
        known = natural.get(name)
        if keep and known is not None and _fits(layout, known):
            inputs[name] = known
        else:
            inputs[name] = made(layout, sizes, chance)
    return inputs


def _fits(layout: PartialLayout, array: Any) -> bool:
    if not is_plain(layout.dtype) or not isinstance(array, np.ndarray) or array.dtype.kind == "O":
        return not is_plain(layout.dtype)  # of what is in it, or its dims, nothing is known
    if layout.dtype is not None and layout.dtype.numpy != array.dtype:
        return False
    shape = layout.shape
    return shape is None or (
        len(shape) == array.ndim and all(d == a for d, a in zip(shape, array.shape, strict=True) if isinstance(d, int))
    )


def made(layout: PartialLayout, sizes: dict[str, int], chance: random.Random) -> Any:
    """Return a value of *layout*; *sizes* are those of dims that have one already."""
    dtype: DataType = layout.dtype or FLOAT32
    if isinstance(dtype, ValueType):
        return _held(dtype, sizes, chance)
    dims: tuple[Any, ...] = tuple(chance.choice(SIZES) for _ in range(chance.randrange(4)))
    if layout.shape is not None:
        dims = layout.shape
    shape = [d if isinstance(d, int) else _size(d, sizes, chance) for d in dims]
    count = 1
    for d in shape:
        count *= d
    if count > MOST or any(not 0 <= d <= MOST for d in shape):
        return huge(dtype, shape)
    if dtype is STRING:
        texts = np.empty(shape, object)
        texts.reshape(-1)[:] = [chance.choice(TEXTS) for _ in range(count)]
        return texts
    return filled(dtype.numpy, tuple(shape), chance)


def _held(dtype: ValueType, sizes: dict[str, int], chance: random.Random) -> Any:
    def one(kind: DataType, shape: tuple[int, ...] | None) -> Any:
        return made(PartialLayout(kind, shape), sizes, chance)

    match dtype.kind:
        case "seq":
            return [one(dtype.element, None) for _ in range(chance.randrange(4))]
        case "optional":
            return one(dtype.element, None) if chance.random() < 0.7 else None
    assert dtype.key is not None
    return {one(dtype.key, ()).item(): one(dtype.element, ()).item() for _ in range(chance.randrange(4))}


def _size(dim: Any, sizes: dict[str, int], chance: random.Random) -> int:
    for name in sorted({n for term in dim.terms for n in term if isinstance(n, str)}):
        sizes.setdefault(name, chance.choice(SIZES))
    try:
        return int(dim.evaluate(sizes))
    except (ArithmeticError, KeyError):
        return 1


def huge(dtype: DataType, shape: list[int]) -> Array:
    """Return one element seen as a tensor of *shape*, or of the largest that NumPy can think of."""
    one = np.zeros((), dtype.numpy) if dtype is not STRING else np.array("a", object)
    for least in (2**40, 2**31, 2**16, 8, 2):
        try:
            return np.broadcast_to(one, [min(abs(d), least) for d in shape])
        except ValueError:  # more bytes than an address has
            continue
    return np.broadcast_to(one, [1 for _ in shape])


def filled(dtype: np.dtype[Any], shape: tuple[int, ...], chance: random.Random) -> Array:
    """Return an array of small numbers, or of edges."""
    numbers = np.random.default_rng(chance.randrange(1 << 30))
    what = chance.random()
    if what < 0.5:
        low = 0 if dtype.kind in "ub" else -3
        array = numbers.integers(low, 4, shape)
    elif what < 0.7:
        array = np.full(shape, chance.choice((0, 1, 2)))
    else:
        kind = "i" if dtype.kind in "iu" else "b" if dtype.kind == "b" else "f"
        drawn = [chance.choice(EDGES[kind]) for _ in range(5)]
        array = np.array(drawn, object if kind == "i" else None)[numbers.integers(0, 5, shape)]
        if kind == "i":
            info = np.iinfo(dtype)
            array = np.clip(array, int(info.min), int(info.max))
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype)
