"""LRN: each element over ``(bias + alpha / size * sum of squares)`` to the power beta, summed over nearby channels.

Source: ONNX LRN-13.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, over_rows, round_up
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape


def infer(call: Call) -> tuple[Shape]:
    shape, size = call.shape(0), call.attributes.get("size", 0)
    check(call, len(shape) >= 2, f"the data must have at least two axes, it has {len(shape)}")
    check(call, size >= 1, f"size {size} is less than 1")
    return (shape,)


def _constants(attributes: Attributes) -> tuple[float, float, float]:
    """Return alpha / size, beta and bias."""
    alpha = float(attributes.get("alpha", 1e-4)) / attributes["size"]
    return alpha, float(attributes.get("beta", 0.75)), float(attributes.get("bias", 1.0))


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    size = attributes["size"]
    alpha, beta, bias = _constants(attributes)
    wide = x.astype(np.float64)
    channels = x.shape[1]
    sums = np.zeros_like(wide)
    for c in range(channels):
        window = slice(max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1))
        sums[:, c] = np.sum(wide[:, window] ** 2, axis=1)
    return ((wide / (bias + alpha * sums) ** beta).astype(x.dtype),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape, size = call.shape(0), call.attributes["size"]
    rows, n = count(shape[:2]), count(shape[2:])
    alpha, beta, bias = (literal(c, call.dtype(0)) for c in _constants(call.attributes))
    k = _kernel(call.dtype(0), alpha, beta, bias, traits.is_cpu)
    ints = (rows, n, shape[1], min((size - 1) // 2, shape[1]), min(size // 2, shape[1]))
    if not traits.is_cpu:
        grid = (round_up(rows * n, GPU_GROUP),)
        return Impl("elements", (Launch(k, (inp(0), out(0)), (*ints, 1, 1), grid, (GPU_GROUP,)),))
    cut = cut_rows(rows, n, traits)
    return Impl("rows", (Launch(k, (inp(0), out(0)), (*ints, cut.chunk, cut.rows_per_item), cut.grid, (1, 1)),))


@functools.cache
def _kernel(dtype: DataType, alpha: str, beta: str, bias: str, cpu: bool) -> KernelSource:
    acc, t = compute_type(dtype), dtype.name
    row = "const int ch = r % channels, first = max(ch - before, 0) - ch, last = min(ch + after, channels - 1) - ch;"
    one = f"""
      {acc} sum = 0;
      for (int k = first; k <= last; k++) {{ const {acc} v = LOAD({t}, x, (r + k) * n + c); sum += v * v; }}
      const {acc} v = LOAD({t}, x, r * n + c) / pow({bias} + {alpha} * sum, {beta});
      STORE({t}, y, r * n + c, v);"""
    body = over_rows(row, one, cpu)
    ints = ("rows", "n", "channels", "before", "after", "chunk", "per_item")
    return kernel("lrn", (("x", dtype, "r"), ("y", dtype, "w")), ints, body)


OPERATOR = Operator(
    name="LRN",
    infer=infer,
    reference=reference,
    implement=implement,
    examples=(
        Example(("f32[7,7,5,6]",), {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
        Example(("f32[6,6,3,3]",), {"size": 4}),
        Example(("f16[5,5,3,3]",), {"size": 5, "alpha": 0.1}),
    ),
)
