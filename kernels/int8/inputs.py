"""Which inputs of a product or convolution of 8-bit integers are its zero points and scales, and what follows of them?"""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.kernels.call import Call
from asyncrt.kernels.impl import Ref, inp
from asyncrt.kernels.shapes import count
from asyncrt.layout import INT8

from .product import Scales


class Places(NamedTuple):
    """Which input is what; None where the operator has no such input. The left-hand side, x, is the first one."""

    w: int
    x_zero: int
    w_zero: int
    x_scale: int | None = None
    w_scale: int | None = None
    y_scale: int | None = None
    y_zero: int | None = None
    bias: int | None = None


class Zeros(NamedTuple):
    """The zero points of the left-hand side and of the weights.

    Attributes:
        refs: Where they are; None for those that are known to be 0.
        per_column: The weights have one for each column.
        neutral: That of the weights is known to be 0, or 128 if they are unsigned.
    """

    refs: tuple[Ref | None, Ref | None]
    per_column: bool
    neutral: bool


def zeros_of(places: Places, call: Call) -> Zeros:
    """Return a node's zero points."""
    left, right = (inp(i) if call.has(i) else None for i in (places.x_zero, places.w_zero))
    known, plain = call.value(places.w_zero), 0 if call.dtype(places.w) is INT8 else 128
    neutral = bool((known == plain).all()) if known is not None else right is None and plain == 0
    per_column = right is not None and count(call.shape(places.w_zero)) > 1
    return Zeros((left, None if neutral and plain == 0 else right), per_column, neutral)


def scales_of(places: Places, call: Call) -> Scales | None:
    """Return a node's scales; None where sums stay integers."""
    if places.x_scale is None or places.w_scale is None:
        return None
    result = None
    if places.y_scale is not None and places.y_zero is not None:
        result = inp(places.y_scale), inp(places.y_zero)
    return Scales(inp(places.x_scale), inp(places.w_scale), count(call.shape(places.w_scale)) > 1, result)
