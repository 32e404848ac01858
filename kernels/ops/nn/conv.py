"""Conv: convolution over one to three spatial axes, with groups, strides, dilations and padding.

Source: ONNX Conv-22.
"""

# pyright: reportGeneralTypeIssues=false
# A dim may be symbolic while loading.

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue, join
from asyncrt.kernels.conv.convolution import convolution
from asyncrt.kernels.conv.gpu import suits as suits_patches
from asyncrt.kernels.conv.interface import Convolution
from asyncrt.kernels.conv.packed import packs
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.matmul.product import Bias, Operand, matmul
from asyncrt.kernels.matmul.tensor_cores import takes
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.window import Window, output_dims, patch_elements, patches, window
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array, Shape
from asyncrt.memory.view import View


def _kernel_shape(call: Call) -> tuple[int, ...]:
    """The attribute, if given, repeats the filter's sizes."""
    size, given = call.shape(1)[2:], call.attributes.get("kernel_shape")
    if given:
        check(call, len(given) == len(size), f"kernel_shape {list(given)} is not the filter's {list(size)}")
        for a, b in zip(given, size, strict=True):
            check(call, isinstance(b, Dim) or a == b, f"kernel_shape {list(given)} is not the filter's {list(size)}")
        return tuple(given)
    return size


def infer(call: Call) -> tuple[Shape]:
    x, w = call.shape(0), call.shape(1)
    check(call, len(x) >= 3 and len(x) == len(w), f"data of rank {len(x)} and a filter of rank {len(w)} do not fit")
    group = call.attributes.get("group", 1)
    check(call, group >= 1, f"group {group} is less than 1")
    check(call, isinstance(w[0], Dim) or w[0] % group == 0, f"{w[0]} filters are not {group} equal groups")
    if not isinstance(x[1], Dim) and not isinstance(w[1], Dim):
        check(call, x[1] == w[1] * group, f"the data has {x[1]} channels, the filter {w[1]} × {group} groups")
    if call.has(2) and not any(isinstance(d, Dim) for d in (*call.shape(2), w[0])):
        check(call, call.shape(2) == (w[0],), f"the bias must have {w[0]} elements")
    return ((x[0], w[0], *output_dims(call.name, call.attributes, x[2:], _kernel_shape(call))),)


_CELLS = 64  # of a window: with more, a product of all of them at once is faster


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, w = inputs[0], inputs[1]
    assert x is not None
    assert w is not None
    group = attributes.get("group", 1)
    view = window("Conv", attributes, x.shape[2:], w.shape[2:])
    n, outs = x.shape[0], view.outs
    filters = w.astype(np.float64).reshape(group, w.shape[0] // group, *w.shape[1:])
    wide = x.astype(np.float64).reshape(n, group, w.shape[1], *view.spatial)
    y = (_by_cells if math.prod(view.size) <= _CELLS else _by_groups)(wide, filters, view)
    y = y.reshape(n, w.shape[0], *outs)
    if len(inputs) > 2 and inputs[2] is not None:
        y = y + inputs[2].astype(np.float64).reshape(1, -1, *(1,) * len(outs))
    return (y.astype(x.dtype),)


def _by_cells(x: Array, filters: Array, view: Window) -> Array:
    """What each cell of the windows sees, times its weights, one cell after the other."""
    n, group, channels = x.shape[:3]
    padded = np.pad(x, [(0, 0)] * 3 + view.pads())
    y = np.zeros((n, group, filters.shape[1], math.prod(view.outs)))
    for cell in np.ndindex(*view.size):
        seen = padded[:, :, :, *view.seen_by(cell)].reshape(n, group, channels, -1)
        weights = filters[:, :, :, *cell]
        y += seen * weights if channels == 1 else weights @ seen
    return y


def _by_groups(x: Array, filters: Array, view: Window) -> Array:
    """What all windows see, times all weights, one group after the other."""
    n, group, channels = x.shape[:3]
    seen = patches(x.reshape(n, group * channels, *view.spatial), view, 0.0)
    seen = seen.reshape(n, group, channels, *view.outs, *view.size)
    axes = len(view.outs)
    y = np.empty((n, group, filters.shape[1], *view.outs), np.float64)
    for g in range(group):
        cells = list(range(2 + axes, 2 + 2 * axes))
        product = np.tensordot(seen[:, g], filters[g], ([1, *cells], list(range(1, 2 + axes))))
        y[:, g] = np.moveaxis(product, -1, 1)
    return y


def host_nbytes(call: Call) -> int:
    """What all windows see, once more in the order of the product; the filters and the sums; all in float64."""
    x, w, (result,) = call.shape(0), call.shape(1), infer(call)
    view = window(call.name, call.attributes, x[2:], w[2:])
    return 8 * (2 * patch_elements(x[0] * x[1], view) + 2 * count(w) + 3 * count(result))


def _is_product(view: Window) -> bool:
    return view.is_identity and all(d == 1 for d in view.size)


def _product(call: Call, positions: int, traits: DeviceTraits, epilogue: Epilogue | None) -> Impl:
    """A window of one cell: for each image the filter matrix times its channels."""
    n, channels = call.shape(0)[:2]
    filters = call.shape(1)[0]
    bias = Bias(inp(2), call.dtype(2), 1, 0) if call.has(2) else None
    return matmul(
        "conv1x1",
        Operand(inp(1), call.dtype(1), View.dense((filters, channels)).expand((n, filters, channels))),
        Operand(inp(0), call.dtype(0), View.dense((n, channels, positions))),
        out(0),
        (n,),
        traits,
        bias=bias,
        epilogue=epilogue,
    )


def _is_better_as_product(conv: Convolution, positions: int, traits: DeviceTraits) -> bool:
    """Whether a window of one cell has better kernels as a matrix product: those whose operands are copied by rows.

    Those of convolutions read single elements, of any image.
    """
    left, right = (0, conv.inputs, 1, 0), (conv.inputs * positions, positions, 1, 0)
    return takes((conv.dtype, conv.dtype), left, right, traits)


def implement(call: Call, traits: DeviceTraits, epilogue: Epilogue | None = None) -> Impl:
    x, w = call.shape(0), call.shape(1)
    group = call.attributes.get("group", 1)
    view = window(call.name, call.attributes, x[2:], w[2:])
    fast = not traits.is_cpu or call.dtype(0) is FLOAT32
    joins, joined = join(epilogue, 2)
    conv = Convolution(call.dtype(0), x[0], group, w[1], w[0] // group, view.as_3d(call.name), bias=call.has(2))
    if group == 1 and _is_product(view) and x[1] > 0 and fast and joins:
        packed = packs(call.dtype(0), w[0], traits, constant=call.constants[1])
        positions = count(view.outs)
        if not packed and (not suits_patches(conv, traits) or _is_better_as_product(conv, positions, traits)):
            return _product(call, positions, traits, joined)
    return convolution(conv, traits, constant=call.constants[1], after=epilogue)


OPERATOR = Operator(
    name="Conv",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    implement=implement,
    with_epilogue=implement,
    examples=(
        Example(("f32[2,3,9,11]", "f32[18,3,3,3]", "f32[18]"), {"pads": (1, 1, 1, 1)}),
        Example(("f32[1,4,15,17]", "f32[16,4,3,3]"), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        Example(("f32[1,5,12]", "f32[9,5,3]", "f32[9]"), {"dilations": (2,), "pads": (2, 2)}),
        Example(("f32[1,2,5,6,7]", "f32[8,2,2,3,3]", "f32[8]"), {"pads": (0, 1, 1, 1, 1, 1), "strides": (1, 2, 1)}),
        Example(("f32[2,6,8,19]", "f32[6,1,3,3]", "f32[6]"), {"group": 6, "pads": (1, 1, 1, 1)}),
        Example(("f32[1,6,9,21]", "f32[12,1,3,3]"), {"group": 6, "strides": (2, 2), "pads": (1, 1, 1, 1)}),
        Example(("f32[1,6,7,7]", "f32[40,3,3,3]", "f32[40]"), {"group": 2, "pads": (1, 1, 1, 1)}),
        Example(("f32[2,7,5,9]", "f32[20,7,1,1]", "f32[20]")),
        Example(("f32[1,8,6,6]", "f32[16,8,1,1]"), {"strides": (2, 2)}),
        Example(("f32[1,3,10,10]", "f32[8,3,3,3]"), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
        Example(("f32[1,3,10,7]", "f32[8,3,4,2]"), {"auto_pad": "SAME_LOWER"}),
        Example(("f32[1,3,10,7]", "f32[8,3,3,3]"), {"auto_pad": "VALID", "strides": (3, 1)}),
        Example(("f32[1,1,3,3]", "f32[33,1,3,3]")),
        Example(("f32[1,3,9,20]", "f32[70,3,3,3]", "f32[70]"), {"pads": (1, 1, 1, 1)}),
        Example(("f32[2,4,9,9]", "f32[96,2,3,2]"), {"group": 2, "strides": (1, 2)}),
        Example(("f32[3,33,6,8]", "f32[40,33,1,1]", "f32[40]")),
        Example(("f32[1,3,7,5]", "f32[40,3,3,3]", "f32[40]")),
        Example(("f32[2,4,9,3]", "f32[32,2,2,2]"), {"group": 2, "strides": (2, 1)}),
        Example(("f32[1,3,19,5]", "f32[33,3,3,3]"), {"pads": (1, 0, 1, 0), "strides": (1, 3)}),
        Example(("f32[1,3,11,3]", "f32[32,3,3,3]", "f32[32]")),
        Example(("f16[1,3,8,8]", "f16[4,3,3,3]", "f16[4]"), {"pads": (1, 0, 1, 2)}),
        Example(("f16[1,4,5,5]", "f16[6,4,1,1]")),
        Example(("f64[1,3,6,6]", "f64[4,3,3,3]"), {"pads": (1, 1, 1, 1)}),
    ),
)
