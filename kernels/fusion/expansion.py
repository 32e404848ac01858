"""A convolution of one cell and the depthwise one that alone reads it, each with what is calculated behind it, as one kernel.

The kernel is `asyncrt.kernels.conv.expanded`; where it does not suit, both are carried out one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue, Operand
from asyncrt.kernels.conv.expanded import expanded, why_not_expanded
from asyncrt.kernels.conv.interface import Convolution
from asyncrt.kernels.impl import Impl, inp
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.patterns.window import window
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32
from asyncrt.memory.view import View

from .expression import Part, Wiring, function
from .groups import forbidden, operand, parts_of, whole_operator

_X, _FIRST, _FIRST_BIAS, _SECOND, _SECOND_BIAS = range(5)


class Pair(NamedTuple):
    """Which parts of a group are what.

    Attributes:
        first: The number of the convolution of one cell.
        between: Those of what is calculated from its results.
        second: That of the depthwise one; what is left is calculated from its results.
    """

    first: int
    between: frozenset[int]
    second: int


class _Found(NamedTuple):
    first: Convolution
    second: Convolution
    between: Epilogue | None
    after: Epilogue | None


def fused_expansion(
    operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes], pair: Pair
) -> Operator:
    """Return the operator whose first inputs are the first convolution's, then the filter and the bias of the second."""

    def found(call: Call, traits: DeviceTraits) -> _Found | str:
        parts = parts_of(operators, wiring, call, {pair.first, pair.second})
        if isinstance(parts, str):
            return parts
        if not (call.constants[_FIRST] and call.constants[_SECOND]):
            return "a filter is no constant"
        inner, outer = call.parts[pair.first], call.parts[pair.second]
        between = [p for p in parts if p.number in pair.between]
        behind = [p for p in parts if p.number not in pair.between]
        if call.dtype(_X) is not FLOAT32 or outer.outputs[0] != call.outputs[0] or outer.inputs[0] != inner.outputs[0]:
            return f"'{inner.name}' and '{outer.name}' do not make floats of one shape each"
        if any(p.call.outputs[0] != inner.outputs[0] for p in between):
            return f"what is calculated from '{inner.name}' is of another shape"
        if behind and (why := forbidden(behind, call, traits)):
            return why
        whole = _Found(
            _convolution(inner),
            _convolution(outer),
            _epilogue(between, inner, pair.first, call),
            _epilogue(behind, outer, pair.second, call),
        )
        return why_not_expanded(*whole, traits) or whole

    def fits(call: Call, traits: DeviceTraits) -> str:
        why = found(call, traits)
        return why if isinstance(why, str) else ""

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        whole = found(call, traits)
        assert not isinstance(whole, str), whole
        first, second = (inp(i) if call.has(i) else None for i in (_FIRST_BIAS, _SECOND_BIAS))
        impl = expanded(*whole, (first, second), traits)
        return impl._replace(name=f"{impl.name}, both convolutions", walks_parts=False)

    def takes_view(call: Call, index: int, view: View) -> bool:
        """What is added or multiplied by through any strides, the convolutions' own inputs as they lie."""
        return index > _SECOND_BIAS

    return whole_operator(operators, wiring, attributes, fits, implement, takes_view)


def _convolution(call: Call) -> Convolution:
    x, w = call.shape(0), call.shape(1)
    group = call.attributes.get("group", 1)
    view = window(call.name, call.attributes, x[2:], w[2:])
    return Convolution(call.dtype(0), x[0], group, w[1], w[0] // group, view.as_3d(call.name), bias=call.has(2))


def _epilogue(parts: Sequence[Part], made: Call, number: int, call: Call) -> Epilogue | None:
    """Return *parts* as what becomes of what a convolution has made."""
    if not parts:
        return None
    result = made.outputs[0]
    whole = function(parts, start=(number, result.dtype))
    operands = []
    for k in whole.operands:
        dtype, shape = operand(call, k)
        view = (call.view(k) if shape else View.dense(shape)).expand(result.shape)
        operands.append(Operand(inp(k), dtype, view))
    return Epilogue(whole.call("v"), tuple(operands), whole.vector, whole.text, result.dtype, whole.numbers)
