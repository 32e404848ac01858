"""What is done to the rows of a product's left-hand side before they are multiplied."""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.kernels.impl import Ref


class Normalisation(NamedTuple):
    """Each row is normalised, scaled and shifted.

    Attributes:
        statistics: As for `patterns/normalize.py:normalize_rows`.
        epsilon: Of the operator.
        scale, bias: Of each column, in the rows' dtype; a bias may be absent.
    """

    statistics: str
    epsilon: float
    scale: Ref
    bias: Ref | None

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Its buffers."""
        return (self.scale,) if self.bias is None else (self.scale, self.bias)
