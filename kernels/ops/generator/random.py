"""Random numbers: RandomNormal, RandomUniform, those like an input, and Multinomial. They run on the host.

The numbers are a function of the seed, which every node has (`graph/rewriting/special.py`): NumPy's Mersenne Twister, as
in onnx's reference, so that they are the same on every device and in every request.

Source: ONNX RandomNormal-1, RandomNormalLike-1, RandomUniform-1, RandomUniformLike-1, Multinomial-7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from asyncrt.errors import ModelTypeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.shapes import check, same_shape
from asyncrt.layout import FLOAT32, INT32, INT64, Array, DataType, Shape, dtype_from_onnx


def _generator(attributes: Attributes) -> np.random.RandomState:
    seed = float(attributes.get("seed", 0.0))
    # A seed may be any float; NumPy takes 32 bits.
    return np.random.RandomState(int(seed) % (1 << 32) if math.isfinite(seed) else 0)


def _dtype(attributes: Attributes, first: DataType | None, otherwise: DataType | None) -> DataType:
    number = attributes.get("dtype")
    found = otherwise if number is None else dtype_from_onnx(number)
    found = first if found is None and number is None else found
    if found is None:
        raise ModelTypeError(f"random numbers of the ONNX type {number}, which asyncrt does not have")
    return found


def _float_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    first = inputs[0] if inputs else None
    return (_dtype(attributes, first, None if inputs else FLOAT32),)


def _drawn(attributes: Attributes, normal: bool, shape: Shape, dtype: DataType) -> Array:
    random = _generator(attributes)
    if normal:
        drawn = random.normal(0.0, 1.0, shape)
        drawn = drawn * attributes.get("scale", 1.0) + attributes.get("mean", 0.0)
    else:
        low, high = attributes.get("low", 0.0), attributes.get("high", 1.0)
        drawn = random.uniform(0.0, 1.0, shape) * (high - low) + low
    with np.errstate(all="ignore"):
        return np.asarray(drawn).astype(dtype.numpy)


def _operator(normal: bool, like: bool) -> Operator:
    def infer(call: Call) -> tuple[Shape]:
        if like:
            return same_shape(call)
        shape = tuple(call.attributes.get("shape", ()))
        check(call, all(d >= 0 for d in shape), f"its shape {shape} has a negative dim")
        return (shape,)

    def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
        x = inputs[0] if inputs else None
        shape = tuple(attributes.get("shape", ())) if x is None else x.shape
        first = None if x is None else next(t for t in _ALL if t.numpy == x.dtype)
        return (_drawn(attributes, normal, shape, _dtype(attributes, first, None if like else FLOAT32)),)

    def host_nbytes(call: Call) -> int:
        (shape,) = infer(call)
        return 40 * math.prod(shape)

    kind = {"mean": 1.5, "scale": 0.5} if normal else {"low": -1.0, "high": 3.0}
    given = {"seed": 7.0, **kind}
    examples = (
        (Example(("f32[3,5]",), given), Example(("i32[4]",), {**given, "dtype": 11}))
        if like
        else (Example((), {**given, "shape": (3, 5)}), Example((), {**given, "shape": (2, 0), "dtype": 10}))
    )
    return Operator(
        name=("RandomNormal" if normal else "RandomUniform") + ("Like" if like else ""),
        infer=infer,
        reference=reference,
        types=_float_types,
        host_nbytes=host_nbytes,
        examples=examples,
    )


def _multinomial_infer(call: Call) -> tuple[Shape]:
    shape, size = call.shape(0), call.attributes.get("sample_size", 1)
    check(call, len(shape) == 2, "its input must have two axes")
    check(call, size >= 0, f"sample_size is {size}")
    return ((shape[0], size),)


def _multinomial_types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    wanted = _dtype(attributes, INT32, INT32)
    if wanted not in (INT32, INT64):
        raise ModelTypeError(f"Multinomial gives int32 or int64, not {wanted}")
    return (wanted,)


def _multinomial(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    """The class of each sample is the first whose share of the sum is beyond a number drawn from 0 to 1."""
    x = inputs[0]
    assert x is not None
    size, random = attributes.get("sample_size", 1), _generator(attributes)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        shares = np.exp(wide - wide.max(axis=1, keepdims=True, initial=-np.inf)).cumsum(axis=1)
    drawn = random.uniform(0.0, 1.0, (len(x), size))
    chosen = np.zeros((len(x), size), _dtype(attributes, INT32, INT32).numpy)
    for row, (share, chance) in enumerate(zip(shares, drawn, strict=True)):
        if share.size:
            chosen[row] = np.minimum(np.searchsorted(share, chance * share[-1], "right"), share.size - 1)
    return (chosen,)


def _multinomial_nbytes(call: Call) -> int:
    (rows, size) = _multinomial_infer(call)[0]
    return 32 * math.prod(call.shape(0)) + 128 * rows + 48 * rows * size


_ALL = tuple(t for number in range(1, 17) if (t := dtype_from_onnx(number)) is not None)

OPERATORS = (
    *(_operator(normal, like) for normal in (True, False) for like in (True, False)),
    Operator(
        name="Multinomial",
        infer=_multinomial_infer,
        reference=_multinomial,
        types=_multinomial_types,
        host_nbytes=_multinomial_nbytes,
        examples=(
            # What is sure is the same with every generator.
            Example((np.array([[0, -900, -900], [-900, -900, 0]], np.float32),), {"sample_size": 7, "seed": 3.0}),
            Example((np.array([[-900.0, 5.0]]),), {"sample_size": 3, "seed": 3.0, "dtype": 7}),
        ),
    ),
)
