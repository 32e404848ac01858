"""PickClasses: of each element's classes, on axis 1, the one that its target says. asyncrt's own operator.

It is GatherElements along axis 1 with targets of one axis less, which count from the front only. An element whose
target is `ignore_index` gives 0. ONNX's losses of classes are made of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.indices import Indices, clamped
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.copy import BITS
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT64, Array, Shape, row_major


def infer(call: Call) -> tuple[Shape]:
    shape, target = call.shape(0), call.shape(1)
    check(call, len(shape) >= 2, "its input must have a batch and a class axis")
    expected = (shape[0], *shape[2:])
    known = not any(isinstance(d, Dim) for d in (*expected, *target))
    check(call, len(target) == len(expected) and (not known or target == expected), f"targets must have shape {expected}")
    check(call, isinstance(shape[1], Dim) or shape[1] > 0, "its input has no classes")
    return (target,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, target = inputs[0], inputs[1]
    assert x is not None
    assert target is not None
    ignored = attributes.get("ignore_index")
    counts = np.ones(target.shape, np.bool_) if ignored is None else target != ignored
    chosen = np.where(counts, target, 0).astype(np.intp)
    picked = np.take_along_axis(x, chosen[:, None], axis=1)[:, 0]
    return (np.where(counts, picked, x.dtype.type(0)),)


def indices(call: Call) -> Indices:
    return Indices(1, ((0, call.shape(0)[1] - 1),), call.attributes.get("ignore_index"))


def implement(call: Call, traits: DeviceTraits) -> Impl:
    shape, ignored = call.shape(0), call.attributes.get("ignore_index")
    strides = row_major(shape)
    bits, known = BITS[call.dtype(0).itemsize], call.value(1) is not None
    counts = "1" if ignored is None else f"index[i] != {literal(ignored, INT64)}"
    launch = walk(
        "pick_classes",
        f"const int counts = {counts}; long v = counts ? index[i] : 0; "
        f"{clamped('v', 'extent', 'i', known=known)} y[i] = counts ? x[p + (int)v * step] : 0;",
        call.shape(1),
        (WalkedBuffer("x", inp(0), bits, "r"), WalkedBuffer("index", inp(1), call.dtype(1), "r"), WalkedBuffer("y", out(0), bits, "w")),
        traits,
        looks=not known,
        offsets=(("p", (strides[0], *strides[2:])),),
        ints=(("extent", shape[1]), ("step", strides[1])),
    )
    return Impl("pick classes", () if launch is None else (launch,))


_TARGETS = np.array([1, 0, 4], np.int64)
_GRID = np.array([[[0, 1], [2, 3]], [[4, 4], [1, 0]]], np.int64)

OPERATOR = Operator(
    name="PickClasses",
    domain="asyncrt",
    infer=infer,
    reference=reference,
    implement=implement,
    indices=indices,
    value_hints=(1,),
    examples=(
        Example(("f32[3,5]", _TARGETS)),
        Example(("f64[3,5]", _TARGETS.astype(np.int32))),
        Example(("f32[2,5,2,2]", _GRID)),
        Example(("f16[2,5,2,2]", _GRID), {"ignore_index": 4}),
        Example(("f32[3,5]", np.array([-100, 2, 0], np.int32)), {"ignore_index": -100}),
    ),
)
