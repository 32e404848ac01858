"""PairwiseShares: how likely each class is, from how likely it is against each other one. asyncrt's own operator.

Inputs have a column for each pair of classes, in the order (0, 1), (0, 2), ..., (1, 2), ...: how likely the first is of
the two. What comes out is nearest to all pairs at once, and found as libsvm finds it, which support vector machines of
scikit-learn are from.

Source: Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling", 2004, method 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import check
from asyncrt.layout import Array, Shape

_LEAST = 1e-7  # no pair is surer than this
_ROUNDS = 100
_ERROR = 0.005


def _classes(pairs: int) -> int:
    return (1 + math.isqrt(1 + 8 * pairs)) // 2


def infer(call: Call) -> tuple[Shape]:
    shape = call.shape(0)
    check(call, len(shape) == 2 and not isinstance(shape[1], Dim), "it takes rows of pairs")
    classes = _classes(shape[1])
    check(call, classes * (classes - 1) // 2 == shape[1], f"{shape[1]} are not the pairs of any number of classes")
    return ((shape[0], classes),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    classes = _classes(x.shape[1])
    pairs = np.clip(x.astype(np.float64), _LEAST, 1 - _LEAST)
    against = np.zeros((len(x), classes, classes))
    for pair, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        against[:, i, j], against[:, j, i] = pairs[:, pair], 1 - pairs[:, pair]
    turned = against.transpose(0, 2, 1)
    q = -turned * against
    place = np.arange(classes)
    q[:, place, place] = (turned**2).sum(2)
    shares = np.full((len(x), classes), 1.0 / classes)
    for _ in range(max(_ROUNDS, classes)):
        slopes = np.einsum("nij,nj->ni", q, shares)
        whole = (shares * slopes).sum(1)
        going = np.abs(slopes - whole[:, None]).max(1, initial=0) >= _ERROR / classes
        if not going.any():
            break
        shares[going] = _round(q[going], shares[going], slopes[going], whole[going])
    return (shares.astype(np.float32),)


def _round(q: Array, shares: Array, slopes: Array, whole: Array) -> Array:
    """One class after the other gets the share that is best if the others keep theirs."""
    for t in range(shares.shape[1]):
        own = q[:, t, t]
        step = (whole - slopes[:, t]) / own
        shares[:, t] += step
        whole = (whole + step * (step * own + 2 * slopes[:, t])) / (1 + step) ** 2
        slopes = (slopes + step[:, None] * q[:, t]) / (1 + step)[:, None]
        shares = shares / (1 + step)[:, None]
    return shares


def host_nbytes(call: Call) -> int:
    """Matrices of the classes in float64, several at once."""
    rows, pairs = call.shape(0)
    return 8 * rows * (6 * _classes(pairs) ** 2 + 64)


OPERATOR = Operator(
    name="PairwiseShares",
    domain="asyncrt",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    examples=(Example((np.array([[0.25], [0.75]], np.float32),)), Example((np.full((2, 3), 0.5, np.float32),))),
)
