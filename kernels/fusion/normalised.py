"""A product of few rows, with the normalisation of those rows that it alone reads, as one kernel.

Each work-group of such a product normalises the rows for itself (`asyncrt.kernels.matmul.product.takes_normalised`). Where
that does not suit, both are carried out one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, Normalisation, inp
from asyncrt.kernels.matmul.product import takes_normalised
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.memory.view import View

from .expression import Wiring
from .groups import fused_epilogue, parts_of, whole_operator, why_no_product

STATISTICS: Mapping[str, str] = MappingProxyType({"LayerNormalization": "layer", "RMSNormalization": "rms"})
"""The operators that normalise rows, and what each of them takes of a row."""


def fused_normalised(
    operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes], normal: int, product: int
) -> Operator:
    """Return the operator that normalises rows, multiplies them, and calculates on from the results.

    Args:
        operators: A normalisation at index *normal*, a product at index *product*, and element-wise ones.
        wiring: The first inputs of the whole are those of the product, with what is normalised in the place of its
            first; then come the factors.
    """
    with_normal = operators[product].with_normal
    assert with_normal is not None
    factors = wiring[normal][1:]

    def found(call: Call) -> Normalisation:
        made = call.parts[normal]
        scale, *bias = (None if source is None else inp(source) for source in factors)
        assert scale is not None
        epsilon = float(made.attributes.get("epsilon", 1e-5))
        return Normalisation(STATISTICS[operators[normal].name], epsilon, scale, bias[0] if bias else None)

    def fits(call: Call, traits: DeviceTraits) -> str:
        made, whole = call.parts[normal], call.parts[product]
        if traits.is_cpu:
            return "a processor's products read their rows several times"
        n = made.shape(0)[-1:]
        if any(made.shape(i) != n or made.dtype(i) is not made.dtype(0) for i in (1, 2) if made.has(i)):
            return f"'{made.name}' has other factors than one for each column"
        if not whole.constants[1] or whole.attributes.get("transA", 0) or len(whole.shape(0)) < 2:
            return f"'{whole.name}' multiplies no rows by a constant"
        left, right = whole.inputs[0], whole.inputs[1]
        if left is None or right is None or not takes_normalised(left, right, found(call), traits):
            return f"the rows of '{made.name}' are many, or long"
        parts = parts_of(operators, wiring, call, (normal, product))
        if isinstance(parts, str):
            return parts
        return why_no_product(operators[product], parts, call, product, traits) if parts else ""

    def implement(call: Call, traits: DeviceTraits) -> Impl:
        parts = parts_of(operators, wiring, call, (normal, product))
        assert not isinstance(parts, str), parts
        epilogue = fused_epilogue(parts, call, product) if parts else None
        impl = with_normal(call.parts[product], traits, epilogue, found(call))
        return impl._replace(name=f"{impl.name}, of normalised rows{', with epilogue' * bool(parts)}")

    def takes_view(call: Call, index: int, view: View) -> bool:
        """Rows and factors as they are, what is calculated behind the product through any strides."""
        return index not in (0, 1, *factors) and index >= len(wiring[product])

    return whole_operator(operators, wiring, attributes, fits, implement, takes_view)
