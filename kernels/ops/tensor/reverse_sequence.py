"""ReverseSequence: each batch entry's first `sequence_lens` steps in reverse.  Source: ONNX ReverseSequence-10."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import BITS, materialise
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import check, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape, row_major
from asyncrt.memory.view import View


def _axes(call: Call) -> tuple[int, int]:
    """The time axis and the batch axis."""
    rank = len(call.shape(0))
    time = normal_axis(call, call.attributes.get("time_axis", 0), rank)
    batch = normal_axis(call, call.attributes.get("batch_axis", 1), rank)
    check(call, time != batch, "the time axis is the batch axis")
    return time, batch


def infer(call: Call) -> tuple[Shape]:
    shape, (_, batch), entries = call.shape(0), _axes(call), call.shape(1)
    check(call, len(entries) == 1, "sequence_lens must have one axis")
    if isinstance(shape[batch], int) and isinstance(entries[0], int):
        check(call, shape[batch] == entries[0], f"{entries[0]} sequence_lens for {shape[batch]} batch entries")
    return (shape,)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    lengths: Any = inputs[1]
    time, batch = attributes.get("time_axis", 0), attributes.get("batch_axis", 1)
    result = x.copy()
    source, target = np.moveaxis(x, (batch, time), (0, 1)), np.moveaxis(result, (batch, time), (0, 1))
    for entry, length in enumerate(lengths.tolist()):
        target[entry, :length] = source[entry, :length][::-1]
    return (result,)


def indices(call: Call) -> Indices:
    return Indices(1, ((0, call.shape(0)[_axes(call)[0]]),))


def views(call: Call) -> tuple[ViewOf] | None:
    shape, (time, _) = call.shape(0), _axes(call)
    same = call.value(1) is not None and all(n <= 1 for n in call.ints(1))
    same = same or shape[time] == 1
    return (ViewOf(0, View.dense(shape)),) if same else None


def why_not(call: Call) -> str:
    return "the lengths are not known on the host" if call.value(1) is None else "a sequence is longer than one step"


def implement(call: Call, traits: DeviceTraits) -> Impl:
    moved = views(call)
    if moved is not None:
        return materialise(call, moved, traits)
    shape, (time, batch) = call.shape(0), _axes(call)
    strides = row_major(shape)
    bits = BITS[call.dtype(0).itemsize]
    launch = walk(
        "reverse_sequence",
        "const int n = (int)clamp((long)lengths[b], 0L, (long)steps); y[i] = x[p + (t < n ? n - 1 - t : t) * step];",
        shape,
        (WalkedBuffer("x", inp(0), bits, "r"), WalkedBuffer("lengths", inp(1), call.dtype(1), "r"), WalkedBuffer("y", out(0), bits, "w")),
        traits,
        offsets=(
            ("p", [0 if a == time else s for a, s in enumerate(strides)]),
            ("t", [1 if a == time else 0 for a in range(len(shape))]),
            ("b", [1 if a == batch else 0 for a in range(len(shape))]),
        ),
        ints=(("steps", shape[time]), ("step", strides[time])),
    )
    return Impl("gather", () if launch is None else (launch,))


_I64 = np.int64
OPERATOR = Operator(
    name="ReverseSequence",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    indices=indices,
    why="no sequence is longer than one step",
    why_not=why_not,
    value_hints=(1,),
    examples=(
        Example(("f32[4,4]", np.array([4, 3, 2, 1], _I64)), {"time_axis": 0, "batch_axis": 1}),
        Example(("f32[4,5,3]", np.array([1, 2, 3, 5], _I64)), {"time_axis": 1, "batch_axis": 0}),
        Example(("i64[3,2]", np.array([1, 1], _I64))),
        Example(("f16[1,2,3]", np.array([1, 1], _I64))),
    ),
)
