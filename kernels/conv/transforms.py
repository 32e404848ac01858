"""The transforms of Winograd's F(4 × 4, 3 × 3), whatever lies in a vector, and the filter's.

    Y = Aᵀ [ Σ (G g Gᵀ) ⊙ (Bᵀ d B) ] A

A tile of 4 × 4 results sees 6 × 6 elements. Both they and the filter are transformed; then 36 numbers are multiplied for a
tile and a channel where a plain convolution multiplies 144, and the sums over the channels are transformed back.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015, with the points 0, ±1, ±2 and ∞.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.layout import Array

TILE, SEEN = 4, 6
"""Results of a tile along an axis, and elements that it sees."""

POINTS = SEEN * SEEN

_FILTER = np.array(
    [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
)  # fmt: skip
_BOTH = np.kron(_FILTER, _FILTER)
_AT_ONCE = 1024  # filters that are transformed at a time: what that takes in between is small enough to stay in a cache


def transform(filters: Array, into: Array) -> None:
    """Store filters ``[M, C, 3, 3]`` as ``[36, C, M]``: ``G g Gᵀ``, by way of float64, some channels at a time."""
    m, c = filters.shape[:2]
    each = max(_AT_ONCE // max(m, 1), 1)
    for at in range(0, c, each):
        part = filters[:, at : at + each].reshape(m, -1, 9).astype(np.float64)
        into[:, at : at + each] = np.tensordot(_BOTH, part, (1, 2)).swapaxes(1, 2)


def seen(d: Sequence[str], t: Sequence[str]) -> str:
    """Return statements that transform six vectors of what tiles see along an axis: ``Bᵀ d``."""
    return f"""{{
    const float16 a = fma({d[2]}, -4.0f, {d[4]}), b = fma({d[1]}, -4.0f, {d[3]});
    const float16 c = {d[4]} - {d[2]}, e = 2.0f * ({d[3]} - {d[1]});
    {t[0]} = fma({d[0]}, 4.0f, fma({d[2]}, -5.0f, {d[4]})); {t[1]} = a + b; {t[2]} = a - b;
    {t[5]} = fma({d[1]}, 4.0f, fma({d[3]}, -5.0f, {d[5]})); {t[3]} = c + e; {t[4]} = c - e;
  }}"""


def made(d: Sequence[str], t: Sequence[str]) -> str:
    """Return statements that transform six vectors of sums along an axis to four results: ``Aᵀ d``."""
    return f"""{{
    const float16 a = {d[1]} + {d[2]}, b = {d[1]} - {d[2]}, c = {d[3]} + {d[4]}, e = {d[3]} - {d[4]};
    {t[0]} = {d[0]} + a + c; {t[1]} = fma(e, 2.0f, b); {t[2]} = fma(c, 4.0f, a); {t[3]} = fma(e, 8.0f, b) + {d[5]};
  }}"""


def numbered(letter: str, first: int, second: int) -> list[list[str]]:
    """Return names of *first* × *second* variables."""
    return [[f"{letter}{i}{j}" for j in range(second)] for i in range(first)]
