"""Operators that stand for several nodes, and what each of them needs to be carried out as one kernel.

A node that stands for several takes what its parts take from outside, and makes what the last of them makes. Its call
has the parts' calls in it (`Call.parts`). Whether the shapes at hand allow one kernel is the operator's `fits`; where
they do not, the parts are carried out one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncrt.layout import Array, Layout, Shape
from asyncrt.memory.view import View

from .elementwise import elementwise
from .epilogue import Epilogue, Operand
from .expression import Part, Wiring, function
from .impl import Impl, inp
from .operator import Attributes, Call, DeviceTraits, Operator, Reference

MAX_OPERANDS = 12  # their offsets and strides must fit a kernel's argument record


def fused_elementwise(operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes]) -> Operator:
    """Return the operator that does what element-wise *operators* do one after the other."""

    def parts_of(call: Call) -> list[Part] | str:
        return _parts(operators, wiring, call, None)

    def fits(call: Call, traits: DeviceTraits) -> str:
        parts = parts_of(call)
        return parts if isinstance(parts, str) else _forbidden(parts, call.outputs[0].shape, traits)

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        parts = parts_of(call)
        assert not isinstance(parts, str), parts
        whole = function(parts)
        layouts = [_operand(call, k) for k in whole.operands]
        impl = elementwise(
            "fused", whole.call(), layouts, call.outputs[0], traits,
            sources=whole.operands, vector=whole.vector, helpers=whole.text,
            views=[call.strided[k] if call.strided and layouts[i].shape else None for i, k in enumerate(whole.operands)],
        )  # fmt: skip
        return impl._replace(name="one kernel")

    def takes_view(call: Call, index: int, view: View) -> bool:
        """Functions may differ in the last bits between vectors and single elements, which strides decide about."""
        parts = parts_of(call)
        return not isinstance(parts, str) and all(p.expression.cheap for p in parts)

    return whole_operator(operators, wiring, attributes, fits, implement, takes_view)


def fused_product(
    operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes], product: int
) -> Operator:
    """Return the operator that calculates on from a product's results before it stores them.

    Args:
        operators: All element-wise, but for the one at index *product*, whose inputs are the first of the whole.
    """
    with_epilogue = operators[product].with_epilogue
    assert with_epilogue is not None

    def parts_of(call: Call) -> list[Part] | str:
        return _parts(operators, wiring, call, product)

    def fits(call: Call, traits: DeviceTraits) -> str:
        parts, made, wanted = parts_of(call), call.parts[product].outputs[0], call.outputs[0]
        if isinstance(parts, str):
            return parts
        if min(len(call.shape(0)), len(call.shape(1))) < 2:
            return f"'{call.parts[product].name}' multiplies by a vector"
        if made.shape != wanted.shape:
            return f"the result is larger than the product of '{call.parts[product].name}'"
        if made.dtype is not wanted.dtype:
            return f"the result is {wanted.dtype}, the product {made.dtype}"
        return _forbidden(parts, wanted.shape, traits)

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        parts = parts_of(call)
        assert not isinstance(parts, str), parts
        output = call.outputs[0]
        whole = function(parts, start=(product, output.dtype))
        operands: list[Operand] = []
        for k in whole.operands:
            dtype, shape = _operand(call, k)
            view = call.view(k) if shape else View.dense(shape)
            operands.append(Operand(inp(k), dtype, view.expand(output.shape)))
        epilogue = Epilogue(whole.call("v"), tuple(operands), whole.vector, whole.text)
        impl = with_epilogue(call.parts[product], traits, epilogue)
        return impl._replace(name=f"{impl.name}, with epilogue")

    def takes_view(call: Call, index: int, view: View) -> bool:
        """The product's operands as it takes them, all others through any strides."""
        if index >= len(wiring[product]):
            return True
        asked = operators[product].takes_view
        return asked is not None and asked(call.parts[product], index, view)

    return whole_operator(operators, wiring, attributes, fits, implement, takes_view)


def fused_as(
    operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes], target: Operator, inputs: int
) -> Operator:
    """Return the operator that does what *operators* do as another one.

    Args:
        target: That one; gives a result of its first input's shape and dtype.
        inputs: How many inputs it has: the first of the whole.
    """

    def fits(call: Call, traits: DeviceTraits) -> str:
        if call.inputs[0] != call.outputs[0]:
            return f"the result is {call.outputs[0]}, what is normalised {call.inputs[0]}"
        if target.device_types is not None and call.dtype(0) not in target.device_types:
            return f"{target.name} takes no {call.dtype(0)}"
        return ""

    def mine(call: Call) -> Call:
        return call._replace(
            inputs=call.inputs[:inputs],
            values=call.values[:inputs],
            constants=call.constants[:inputs],
            strided=call.strided[:inputs],
            parts=(),
        )

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        assert target.implement is not None
        impl = target.implement(mine(call), traits)
        return impl._replace(name=f"{target.name}, {impl.name}")

    def takes_view(call: Call, index: int, view: View) -> bool:
        """As the operator does; what it is not given, it does not read."""
        return index >= inputs or (target.takes_view is not None and target.takes_view(mine(call), index, view))

    return whole_operator(operators, wiring, attributes, fits, implement, takes_view)


def whole_operator(
    operators: Sequence[Operator],
    wiring: Wiring,
    attributes: Sequence[Attributes],
    fits: Callable[[Call, DeviceTraits], str],
    implement: Callable[[Call, DeviceTraits], Impl],
    takes_view: Callable[[Call, int, View], bool],
) -> Operator:
    """Return the operator that stands for *operators*, carried out by *implement* where it fits."""
    # What its parts declare, it declares: `question` compares no other values.
    declared = dict.fromkeys(
        source
        for operator, sources in zip(operators, wiring, strict=True)
        for position, source in enumerate(sources)
        if source is not None and source >= 0 and position in operator.declared
    )
    return Operator(
        name=", ".join(o.name for o in operators),
        infer=_last_shape,
        reference=composed(operators, wiring, attributes),
        implement=implement,
        fits=fits,
        takes_view=takes_view,
        value_hints=tuple(declared),
        asks_hints=all(o.asks_hints or not o.value_hints for o in operators),
    )


def composed(operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes]) -> Reference:
    """Return the reference of what stands for several nodes: theirs, one after the other."""

    def reference(_: Attributes, inputs: Sequence[Array | None]) -> Sequence[Array]:
        made: list[Array] = []
        for operator, sources, own in zip(operators, wiring, attributes, strict=True):
            given = [None if s is None else inputs[s] if s >= 0 else made[~s] for s in sources]
            made.append(operator.reference(own, given)[0])
        return (made[-1],)

    return reference


def _last_shape(call: Call) -> Sequence[Shape]:
    return (call.parts[-1].outputs[0].shape,)


def _parts(operators: Sequence[Operator], wiring: Wiring, call: Call, leave: int | None) -> list[Part] | str:
    """Return the parts of *call* but number *leave*, or why one of them is no expression here."""
    parts: list[Part] = []
    for number, (operator, sources, part) in enumerate(zip(operators, wiring, call.parts, strict=True)):
        if number == leave:
            continue
        found = None if operator.expression is None else operator.expression(part)
        if found is None:
            return f"'{part.name}' has no expression for these values"
        parts.append(Part(number, part, found, sources))
    return parts


def _forbidden(parts: Sequence[Part], shape: Shape, traits: DeviceTraits) -> str:
    """Return why *parts* should not be calculated for each element of *shape*; "" if they may be."""
    for part in parts:
        if part.call.outputs[0].shape != shape and not part.expression.cheap:
            return f"'{part.call.name}' has fewer elements than the result and would be calculated again for each"
    whole = function(parts)
    if len(whole.operands) > MAX_OPERANDS:
        return f"it would take {len(whole.operands)} operands, more than {MAX_OPERANDS}"
    if traits.is_cpu and not whole.vector and any(p.expression.vector and not p.expression.cheap for p in parts):
        slow = next((p for p in parts if not p.expression.vector), parts[0])
        return f"'{slow.call.name}' has no vector form here, and the others would lose theirs"
    return ""


def _operand(call: Call, index: int) -> Layout:
    """Return the layout of an operand as something to broadcast: one element is a scalar, whatever its rank."""
    shape = call.shape(index)
    return Layout(call.dtype(index), () if all(d == 1 for d in shape) else shape)
