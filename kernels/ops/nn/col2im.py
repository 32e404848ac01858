"""Col2Im: columns of blocks, as a convolution reads them, are added back into an image. Runs on the host.

Source: ONNX Col2Im-18.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kernels.patterns.window import window
from asyncrt.kernels.shapes import check, count
from asyncrt.layout import Array, Shape


def infer(call: Call) -> tuple[Shape]:
    x, image, block = call.shape(0), call.ints(1), call.ints(2)
    check(call, len(x) == 3, f"the columns must have three axes, they have {len(x)}")
    check(call, len(image) == len(block), f"the image has {len(image)} axes, the block {len(block)}")
    cells = count(block)
    check(call, isinstance(cells, Dim) or cells > 0, f"the block {block} has no cells")
    if not any(isinstance(d, Dim) for d in (*x[1:], *image, *block)):
        check(call, x[1] % cells == 0, f"{x[1]} rows are not whole blocks of {cells}")
        positions = count(window(call.name, call.attributes, image, block).outs)
        check(call, positions == x[2], f"{x[2]} columns for {positions} positions of the block")
    return ((x[0], x[1] // cells, *image),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, image, block = (i for i in inputs if i is not None)
    w = window("Col2Im", attributes, [int(d) for d in image], [int(d) for d in block])
    wide = x.astype(np.float64) if x.dtype.kind in "fV" else x
    channels = x.shape[1] // math.prod(w.size)
    blocks = wide.reshape(x.shape[0], channels, *w.size, *w.outs)
    room = [d + b + a for d, b, a in zip(w.spatial, w.before, w.after, strict=True)]
    y = np.zeros((x.shape[0], channels, *room), wide.dtype)
    for cell in np.ndindex(*w.size):
        at: tuple[Any, ...] = tuple(
            slice(c * d, c * d + (o - 1) * s + 1, s)
            for c, d, o, s in zip(cell, w.dilations, w.outs, w.strides, strict=True)
        )
        y[(slice(None), slice(None), *at)] += blocks[(slice(None), slice(None), *cell)]
    inside: tuple[Any, ...] = tuple(slice(b, b + d) for b, d in zip(w.before, w.spatial, strict=True))
    return (np.ascontiguousarray(y[(slice(None), slice(None), *inside)]).astype(x.dtype),)


def host_nbytes(call: Call) -> int:
    """The columns in float64, and the image with its padding; they are added cell by cell."""
    x, image, block = call.shape(0), call.ints(1), call.ints(2)
    w = window(call.name, call.attributes, image, block)
    room = math.prod(d + b + a for d, b, a in zip(w.spatial, w.before, w.after, strict=True))
    cells = math.prod(block)
    return 8 * math.prod(x) + 24 * x[0] * (x[1] // max(cells, 1)) * room + TURN * cells


def _i(*values: int) -> Array:
    return np.array(values, np.int64)


OPERATOR = Operator(
    name="Col2Im",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    shape_infer_dependencies=(1, 2),
    examples=(
        Example(("f32[1,5,5]", _i(5, 5), _i(1, 5))),
        Example(("f32[2,8,9]", _i(4, 4), _i(2, 2))),
        Example(("f32[1,9,4]", _i(5, 5), _i(3, 3)), {"strides": (2, 2)}),
        Example(("f32[1,4,25]", _i(4, 4), _i(2, 2)), {"pads": (1, 1, 1, 1)}),
        Example(("f32[1,4,5]", _i(6, 6), _i(2, 2)), {"dilations": (1, 5)}),
        Example(("f32[1,10,12]", _i(3, 4, 5), _i(1, 1, 5))),
    ),
)
