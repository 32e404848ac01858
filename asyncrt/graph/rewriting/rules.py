"""Which rule rewrites a node, if one does, and for which opsets are the rules written?"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import defs

from . import classical, contributed, older, optimizers, special
from .draft import OPSET, Rule

#: The opsets of the nodes that rules write.
OPSETS: Mapping[str, int] = {"": min(OPSET, defs.onnx_opset_version()), **contributed.DOMAINS}


def find_rule(schema: defs.OpSchema, opset: int) -> Rule | None:
    """Return the rule that may rewrite a node of that schema, or None if the node stays as it is."""
    if schema.domain == classical.DOMAIN:
        return classical.find(schema.name)
    if schema.domain == optimizers.DOMAIN:
        return optimizers.find(schema.name)
    if schema.domain == "":
        rule = older.find(schema.name, opset) or special.find(schema.name, opset)
        if rule is not None:
            return rule
    return contributed.find(schema)
