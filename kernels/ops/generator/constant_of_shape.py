"""ConstantOfShape: a tensor of the shape that its input's values are, filled with one value.

Source: ONNX ConstantOfShape-21.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import UnsupportedOperatorError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.ops._values import known
from asyncrt.kernels.patterns.fill import fill_launch
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, DataType, Shape, dtype_of


def infer(call: Call) -> tuple[Shape]:
    shape = tuple(call.ints(0))
    check(call, all(isinstance(d, Dim) or d >= 0 for d in shape), f"the shape {list(shape)} has a negative dim")
    return (shape,)


def _value(attributes: Attributes) -> Array:
    """The one element of the attribute, or float32 zero."""
    value = attributes.get("value")
    return np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    shape, value = inputs[0], _value(attributes)
    assert shape is not None
    return (np.full(known(shape).tolist(), value, value.dtype),)


def types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    value = _value(attributes)
    dtype = dtype_of(value.dtype)
    if dtype is None:
        raise UnsupportedOperatorError(f"a ConstantOfShape of dtype {value.dtype}, which asyncrt does not have")
    return (dtype,)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    launch = fill_launch(out(0), call.outputs[0].count, _value(call.attributes), traits)
    return Impl("fill", () if launch is None else (launch,))


_SHAPE = np.array([3, 1, 37], np.int64)

OPERATOR = Operator(
    name="ConstantOfShape",
    infer=infer,
    reference=reference,
    implement=implement,
    shape_infer_dependencies=(0,),
    types=types,
    examples=(
        Example((_SHAPE,)),
        Example((_SHAPE,), {"value": np.array([2.5], np.float32)}),
        Example((_SHAPE,), {"value": np.array([-(2**40) - 3], np.int64)}),
        Example((_SHAPE,), {"value": np.array([-7], np.int32)}),
        Example((_SHAPE,), {"value": np.array([1.5], np.float16)}),
        Example((_SHAPE,), {"value": np.array([True])}),
        Example((_SHAPE,), {"value": np.array([-3], np.int8)}),
        Example((np.array([5000, 3], np.int64),), {"value": np.array([-1], np.int64)}),
        Example((np.array([], np.int64),), {"value": np.array([9], np.int64)}),
        Example((np.array([2, 0], np.int64),)),
    ),
)
