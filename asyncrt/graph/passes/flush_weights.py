"""Give products and convolutions zeros in place of weights that are subnormal: below 1.2e-38, the least normal float32.

Training leaves such numbers in channels that it has given up, up to a tenth of all weights. A processor takes a hundred
times as long for a product with one of them as for any other. Beside weights as usual ones are it is nothing to a sum;
where there are no such weights, the subnormal ones stay.
"""

from __future__ import annotations

import numpy as np

from asyncrt.graph.ir import Graph
from asyncrt.layout import Array

from .exchange_weights import exchange_weights

_WEIGHTS = {"MatMul": (0, 1), "Gemm": (0, 1, 2), "Conv": (1, 2), "ConvTranspose": (1, 2)}
_LEAST = np.finfo(np.float32).smallest_normal
_USUAL = _LEAST * 2**48  # twice as many bits as a float32 has above what is subnormal
_PIECE = 1 << 20  # elements that are looked at together


def flush_weights(graph: Graph) -> None:
    """Give products and convolutions weights without subnormal numbers. Changes *graph*, and those inside its nodes."""
    exchange_weights(graph, _WEIGHTS, flushed, "flushed")


def flushed(array: Array) -> Array | None:
    """Return float32 *array* with zeros in place of subnormal numbers; None if it has none, or none that is usual."""
    flat = array.reshape(-1)
    pieces = [flat[i : i + _PIECE] for i in range(0, flat.size, _PIECE)]
    if not any(_subnormal(piece).any() for piece in pieces):
        return None
    if not any((np.abs(piece) >= _USUAL).any() for piece in pieces):
        return None
    return np.concatenate([np.where(_subnormal(piece), np.float32(0), piece) for piece in pieces]).reshape(array.shape)


def _subnormal(array: Array) -> Array:
    return np.asarray((np.abs(array) < _LEAST) & (array != 0))
