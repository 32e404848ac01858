"""Scaled dot-product attention, written out in pieces as exporters do where ONNX's operator is newer than the opset.

The scale stands before or behind the product of queries and keys, the heads may be folded into the batch while the keys
are transposed, and the softmax may be looked through for NaN before it is used (``Where(IsNaN(w), 0, w)``).
"""

from __future__ import annotations

from typing import Any

from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.fusion.attention import fused_attention

from .base import FusionGroup, Pattern, Surroundings
from .text import Text

_ATTENTION = Text("""
    folded = Reshape(key, folding)
    turned = Transpose(folded)
    flipped = Reshape(turned, unfolding) | Transpose(key)
    queries = Mul(query, QUERY_FACTOR) | query
    keys = Mul(flipped, KEY_FACTOR) | flipped
    product = MatMul(queries, keys)
    scores = Div(product, DIVISOR) | Mul(product, FACTOR) | product
    biased = Add(scores, mask) | scores
    shares = Softmax(biased)
    once = Cast(shares) | shares
    weights = Cast(once) | once
    wrong = IsNaN(weights)
    checked = Where(wrong, 0, weights) | weights
    mixed = MatMul(checked, value)
    result = Transpose(mixed) | mixed
""")


def find(last: ProgramNode, around: Surroundings) -> FusionGroup | None:
    found = _ATTENTION.match(last, around)
    if found is None:
        return None
    values, nodes = found
    keys = _order(nodes["turned" if "turned" in nodes else "flipped"], around)
    if "turned" in nodes:  # the heads are folded into the batch: [batch * heads, rows, size]
        if keys != (0, 2, 1):
            return None
        keys = (0, 1, 3, 2)
    rank = len(keys)
    if rank not in (3, 4) or nodes["shares"].attributes.get("axis", -1) not in (-1, rank - 1):
        return None
    if around.dtype(values["shares"]) is not around.dtype(values["weights"]):
        return None
    scale = 1.0
    for name in ("QUERY_FACTOR", "KEY_FACTOR", "FACTOR", "DIVISOR"):
        if name in values:
            constant = around.constant(values[name])
            assert constant is not None
            number = float(constant.reshape(-1)[0])
            if not number:
                return None
            scale = scale / number if name == "DIVISOR" else scale * number
    attributes: dict[str, Any] = {
        "scale": scale,
        "masked": "mask" in values,
        "checked": "wrong" in values,
        "keys": keys,
        "result": _order(nodes["result"], around) if "result" in nodes else tuple(range(rank)),
    }
    first = [values[name] for name in ("query", "key", "value", "mask") if name in values]
    return FusionGroup(nodes.values(), first, fused_attention, attributes)


def _order(node: ProgramNode, around: Surroundings) -> tuple[int, ...]:
    """Return the order of a Transpose; empty where that is not known while loading."""
    return tuple(node.attributes.get("perm") or reversed(range(len(around.shape(node.uses[0]) or ()))))


ATTENTION = Pattern("attention", find)
