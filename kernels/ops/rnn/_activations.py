"""The activation functions that LSTM, GRU and RNN know by name: as OpenCL C, and in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_Wide = npt.NDArray[np.float64]


class Activation(NamedTuple):
    """An activation function: OpenCL C over ``x``, ``A`` and ``B``, the same in NumPy, and the defaults of A and B.

    The text also holds for vectors; ``T`` is their type. NaN stays NaN.
    """

    c: str
    numpy: Callable[[_Wide, float, float], _Wide]
    alpha: float | None = None
    beta: float | None = None


ACTIVATIONS = {
    "relu": Activation("x < 0 ? (T)0 : x", lambda x, a, b: np.maximum(x, 0)),
    "tanh": Activation("tanh(x)", lambda x, a, b: np.tanh(x)),
    "sigmoid": Activation("1 / (1 + asyncrt_exp_beside_1(-x))", lambda x, a, b: 1 / (1 + np.exp(-x))),
    "affine": Activation("A * x + B", lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": Activation("x < 0 ? A * x : x", lambda x, a, b: np.where(x < 0, a * x, x), 0.01),
    "thresholdedrelu": Activation("x > A ? x : (T)0", lambda x, a, b: np.where(x > a, x, 0), 1.0),
    "scaledtanh": Activation("A * tanh(B * x)", lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": Activation(
        "A * x + B < 0 ? (T)0 : A * x + B > 1 ? (T)1 : A * x + B", lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5
    ),
    "elu": Activation("x < 0 ? A * expm1(x) : x", lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 1.0),
    "softsign": Activation("x / (1 + fabs(x))", lambda x, a, b: x / (1 + np.abs(x))),
    "softplus": Activation("log1p(asyncrt_exp(-fabs(x))) + fmax(x, (T)0)", lambda x, a, b: np.logaddexp(x, 0)),
}


class Chosen(NamedTuple):
    """An activation with its parameters."""

    name: str
    alpha: float
    beta: float

    def __call__(self, x: _Wide) -> _Wide:
        return ACTIVATIONS[self.name].numpy(x, self.alpha, self.beta)
