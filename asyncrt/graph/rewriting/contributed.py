"""Operators that ONNX does not define, or no longer defines: what they take, and what to write in their place.

Three groups: ONNX Runtime's own domain, those that its optimiser writes into ONNX's domain, and the experimental ones
that ONNX dropped. A group is a list of `Contributed`; one without a rule is an operator of its own, in `kernels/ops`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from onnx import defs

from . import attention, dense, experimental, quantized
from .draft import MICROSOFT, Rule
from .signatures import FLOAT, FLOATS, INT, REQUIRED_INT, REQUIRED_TEXT, STRINGS, TEXT, signature

OWN = "asyncrt"
"""The domain of operators that rules write and no file should."""

DOMAINS: Mapping[str, int] = {MICROSOFT: 1, "ai.onnx.ml": 5, OWN: 1}
"""The opset of a domain where a model does not say it: ONNX Runtime's optimiser does not."""


_TEXT_OPERATORS = (
    (
        signature(
            "Tokenizer", "x:s", "y:s", domain=MICROSOFT, mark=REQUIRED_INT, pad_value=REQUIRED_TEXT,
            mincharnum=REQUIRED_INT, separators=STRINGS, tokenexp=TEXT, stopwords=STRINGS,
        ),
        None,
    ),
)  # fmt: skip

_OWN_OPERATORS = (
    (
        signature(
            "RoundedStateLSTM", "XW:f R_scale:f R:c B:f? sequence_lens:i? initial_h:f? initial_c:f? P:f? R_zero:f",
            "Y:f? Y_h:f? Y_c:f?", domain=OWN, activation_alpha=FLOATS, activation_beta=FLOATS, activations=STRINGS,
            clip=FLOAT, direction="forward", hidden_size=INT, input_forget=0,
        ),
        None,
    ),
    (signature("PickClasses", "x:F target:I", "y:F", domain=OWN, ignore_index=INT), None),
    (signature("PairwiseShares", "x:f", "y:f", domain=OWN), None),
    (
        signature("TreeScores", "x:f nodes:i roots:i targets:i weights:f base:f", "y:f", domain=OWN, aggregate="SUM"),
        None,
    ),
    *(
        (
            signature(name, "x:A grid:F", "y:A", domain=OWN, mode="linear", padding_mode="zeros", align_corners=0),
            None,
        )
        for name in ("ImageSample", "VolumeSample")
    ),
)  # fmt: skip


@functools.cache
def _contributed() -> dict[tuple[str, str], tuple[defs.OpSchema, Rule | None]]:
    found: dict[tuple[str, str], tuple[defs.OpSchema, Rule | None]] = {}
    theirs = (experimental.OPERATORS, dense.OPERATORS, attention.OPERATORS, quantized.OPERATORS, _TEXT_OPERATORS)
    for group in (*theirs, _OWN_OPERATORS):
        for schema, rule in group:
            found[schema.domain, schema.name] = (schema, rule)
    return found


def contributed_schema(domain: str, op: str) -> defs.OpSchema | None:
    """Return the schema of an operator that ONNX lacks, or None if asyncrt lacks it too."""
    return _contributed().get((domain, op), (None, None))[0]


def contributed_schemas() -> list[defs.OpSchema]:
    """Return the schemas of all operators that ONNX lacks."""
    return [schema for schema, _ in _contributed().values()]


def find(schema: defs.OpSchema) -> Rule | None:
    """Return the rule for nodes of a schema, or None if it is one of ONNX's, or an operator of its own."""
    known, rule = _contributed().get((schema.domain, schema.name), (None, None))
    return rule if known is schema else None
