"""Operators of fused nodes, and what each of them needs to be carried out as one kernel.

A fused node takes the inputs that its parts take from outside, and makes the output of the last part. Its call holds the
parts' calls (`Call.parts`). The operator's `fits` says whether the shapes at hand allow one kernel; where they do not,
the parts are carried out one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue, Operand
from asyncrt.kernels.decide import Skip, decide
from asyncrt.kernels.impl import Impl, inp
from asyncrt.kernels.operator import Expression, Operator, Reference
from asyncrt.kernels.patterns.elementwise import elementwise
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, Shape
from asyncrt.memory.view import View

from .expression import Part, Wiring, function
from .result_views import lying_under

MAX_OPERANDS = 12  # their offsets and strides must fit a kernel's argument record


def fused_elementwise(operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes]) -> Operator:
    """Return the operator that does what *operators* do one after the other.

    Args:
        operators: Element-wise, or such that only move data: where they move none, they are passed by.
    """

    def found(call: Call) -> list[Part] | str:
        return parts_of(operators, wiring, call, ())

    def fits(call: Call, traits: DeviceTraits) -> str:
        parts = found(call)
        return parts if isinstance(parts, str) else forbidden(parts, call, traits)

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        parts = found(call)
        assert not isinstance(parts, str), parts
        output = call.outputs[0]
        whole = function(parts)
        if moved := _lying(parts, call):
            layouts = [Layout(call.dtype(k), output.shape) for k in whole.operands]
            views: list[View | None] = [moved[k] for k in whole.operands]
        else:
            layouts = [operand(call, k) for k in whole.operands]
            views = [call.strided[k] if call.strided and layouts[i].shape else None for i, k in enumerate(whole.operands)]
        impl = elementwise(
            "fused", whole.call(), layouts, output, traits,
            sources=whole.operands, vector=whole.vector, integers=whole.integers,
            helpers=whole.text, views=views, numbers=whole.numbers,
        )  # fmt: skip
        return impl._replace(name="one kernel")

    def takes_view(call: Call, index: int, view: View) -> bool:
        """Functions may differ in the last bits between vectors and single elements, which strides decide about."""
        parts = found(call)
        return not isinstance(parts, str) and all(p.expression.cheap for p in parts)

    return whole_operator(operators, wiring, attributes, fits, implement, takes_view)


def fused_product(
    operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes], product: int
) -> Operator:
    """Return the operator that calculates on from a product's results before it stores them.

    Args:
        operators: All as in `fused_elementwise`, but for the one at index *product*, whose inputs are the first of
            the whole.
    """
    with_epilogue = operators[product].with_epilogue
    assert with_epilogue is not None

    def found(call: Call) -> list[Part] | str:
        return parts_of(operators, wiring, call, (product,))

    def fits(call: Call, traits: DeviceTraits) -> str:
        parts = found(call)
        return parts if isinstance(parts, str) else why_no_product(operators[product], parts, call, product, traits)

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        parts = found(call)
        assert not isinstance(parts, str), parts
        impl = with_epilogue(call.parts[product], traits, fused_epilogue(parts, call, product))
        return impl._replace(name=f"{impl.name}, with epilogue")

    def takes_view(call: Call, index: int, view: View) -> bool:
        """The product's operands in the views that the product takes, all others through any strides."""
        if index >= len(wiring[product]):
            return True
        asked = operators[product].takes_view
        return asked is not None and asked(call.parts[product], index, view)

    return whole_operator(operators, wiring, attributes, fits, implement, takes_view)


def why_no_product(operator: Operator, parts: Sequence[Part], call: Call, product: int, traits: DeviceTraits) -> str:
    """Return why *parts* should not be calculated from the results of the part at index *product*; "" if they may."""
    made, wanted = call.parts[product].outputs[0], call.outputs[0]
    if min(len(call.shape(0)), len(call.shape(1))) < 2:
        return f"'{call.parts[product].name}' multiplies by a vector"
    if made.shape != wanted.shape and made.count != wanted.count:
        return f"the result is larger than the product of '{call.parts[product].name}'"
    if made.dtype is not wanted.dtype and not operator.converts:
        return f"the result is {wanted.dtype}, the product {made.dtype}"
    if why := forbidden(parts, call, traits):
        return why
    if None in _under_product(parts, call, made.shape).values():
        return f"no strides say where a result of '{call.parts[product].name}' finds what is calculated with it"
    return ""


def fused_epilogue(parts: Sequence[Part], call: Call, product: int) -> Epilogue:
    """Return *parts* as what becomes of each result of the part at index *product*."""
    made = call.parts[product].outputs[0]
    whole = function(parts, start=(product, made.dtype))
    moved = _under_product(parts, call, made.shape)
    operands: list[Operand] = []
    for k in whole.operands:
        dtype, shape = operand(call, k)
        if moved:
            view = moved[k]
            assert view is not None, "it fits"
        else:
            view = (call.view(k) if shape else View.dense(shape)).expand(made.shape)
        operands.append(Operand(inp(k), dtype, view))
    return Epilogue(whole.call("v"), tuple(operands), whole.vector, whole.text, call.outputs[0].dtype, whole.numbers)


def fused_as(
    operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes], target: Operator, inputs: int
) -> Operator:
    """Return the operator that does what *operators* do together by carrying out *target*.

    Args:
        target: An operator whose result has its first input's shape and dtype.
        inputs: How many inputs it has: the first inputs of the whole.
    """

    def fits(call: Call, traits: DeviceTraits) -> str:
        if call.inputs[0] != call.outputs[0]:
            return f"the result is {call.outputs[0]}, what is normalised {call.inputs[0]}"
        if not target.has_kernel(call.dtype(0)):
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
        """As the target does; inputs that it is not given are not read."""
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
    # It declares what its parts declare: `question` compares no other values.
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
        asks_hints=True,  # not even that: its parts are asked, each with its own
    )


def composed(operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes]) -> Reference:
    """Return the reference of a fused node: its parts' references, one after the other."""

    def reference(_: Attributes, inputs: Sequence[Array | None]) -> Sequence[Array]:
        made: list[Array] = []
        for operator, sources, own in zip(operators, wiring, attributes, strict=True):
            given = [None if s is None else inputs[s] if s >= 0 else made[~s] for s in sources]
            made.append(operator.reference(own, given)[0])
        return (made[-1],)

    return reference


def _last_shape(call: Call) -> Sequence[Shape]:
    return (call.parts[-1].outputs[0].shape,)


def parts_of(operators: Sequence[Operator], wiring: Wiring, call: Call, leave: Collection[int]) -> list[Part] | str:
    """Return the parts of *call* except those whose numbers are in *leave*, or the reason why one of them is no expression here."""
    parts: list[Part] = []
    for number, (operator, sources, part) in enumerate(zip(operators, wiring, call.parts, strict=True)):
        if number in leave:
            continue
        found = _nothing_moved(operator, part) if operator.expression is None else operator.expression(part)
        if found is None:
            what = "moves data" if operator.expression is None else "has no expression"
            return f"'{part.name}' {what} for these shapes or values"
        parts.append(Part(number, part, found, sources, moves=operator.expression is None))
    return parts


def _nothing_moved(operator: Operator, call: Call) -> Expression | None:
    """Return the expression of a data-moving operator where it moves nothing: its input, in any shape."""
    decision = decide(operator, call._replace(strided=()))  # its input's strides are its readers' affair
    if not isinstance(decision, Skip) or decision.offsets[0]:
        return None
    source, made = decision.sources[0], call.outputs[0]
    same = Layout(call.dtype(source), call.shape(source))
    return Expression("a0", (source,), vector=True) if (same.dtype, same.count) == (made.dtype, made.count) else None


def _lying(parts: Sequence[Part], call: Call) -> dict[int, View]:
    """Return how the operands lie under the result where a part gives it another shape; nothing if none does."""
    if not any(p.moves for p in parts):
        return {}
    found = lying_under(parts, call)
    assert not isinstance(found, str), found
    return found


def _under_product(parts: Sequence[Part], call: Call, shape: Shape) -> dict[int, View | None]:
    """Return how the operands lie under a product of this shape where a part gives its result another one; None for
    those that lie so in no view, nothing if no part does."""
    return {k: View.dense(shape).through(view) for k, view in _lying(parts, call).items()}


def forbidden(parts: Sequence[Part], call: Call, traits: DeviceTraits) -> str:
    """Return why *parts* should not be calculated for each element of the result; "" if they may be."""
    result = call.outputs[0]
    for part in parts:
        made = part.call.outputs[0]
        if not part.expression.cheap and made.shape != result.shape and made.count != result.count:
            return f"'{part.call.name}' has fewer elements than the result and would be calculated again for each"
    if any(p.moves for p in parts) and isinstance(lying := lying_under(parts, call), str):
        return lying
    whole = function(parts)
    if len(whole.operands) > MAX_OPERANDS:
        return f"it would take {len(whole.operands)} operands, more than {MAX_OPERANDS}"
    if traits.is_cpu and not whole.vector and any(p.expression.vector and not p.expression.cheap for p in parts):
        slow = next((p for p in parts if not p.expression.vector), parts[0])
        return f"'{slow.call.name}' has no vector form here, and the others would lose theirs"
    return ""


def operand(call: Call, index: int) -> Layout:
    """Return the layout of an operand as something to broadcast: one element is a scalar, whatever its rank."""
    shape = call.shape(index)
    return Layout(call.dtype(index), () if all(d == 1 for d in shape) else shape)
