"""Tokenizer: texts cut into words, as many for each as the one with the most has; the rest are `pad_value`.

Words are what `tokenexp` finds, or what is between separators, which are regular expressions tried one after the other;
a separator that is empty makes each character a word.

Source: ONNX Runtime's docs/ContribOperators.md, Tokenizer of com.microsoft.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import numpy as np

from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kernels.ops._texts import example
from asyncrt.kernels.shapes import check
from asyncrt.kinds import nbytes_of
from asyncrt.layout import STRING, Array, Shape

_START, _END = "\x02", "\x03"


def infer(call: Call) -> tuple[Shape]:
    check(call, len(call.shape(0)) in (1, 2), "it takes texts [C] or [N, C]")
    raise ValueUnknown(f"'{call.name}': how many words there are is known when the texts are")


def _cut_by(attributes: Attributes) -> Callable[[str], list[str]]:
    separators, expression = attributes.get("separators", ()), attributes.get("tokenexp")
    if bool(separators) == bool(expression):
        raise ShapeError("a Tokenizer has either separators or tokenexp")
    try:
        if expression:
            found = re.compile(expression)
            return lambda text: [match.group() for match in found.finditer(text)]
        if tuple(separators) == ("",):
            return list
        return functools.partial(_between, [re.compile(separator) for separator in separators])
    except re.error as error:
        raise ShapeError(f"a Tokenizer's expression is none: {error}") from error


def _between(separators: Sequence[re.Pattern[str]], text: str) -> list[str]:
    parts = [text]
    for separator in separators:
        parts = [piece for part in parts for piece in _pieces(separator, part)]
    return parts


def _pieces(separator: re.Pattern[str], text: str) -> list[str]:
    spans = [match.span() for match in separator.finditer(text) if match.group()]
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    return [text[a:b] for a, b in zip(starts, ends, strict=True)]


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    cut, least = _cut_by(attributes), max(1, attributes["mincharnum"])
    stop = frozenset(attributes.get("stopwords", ()))
    rows = [[w for w in cut(text) if len(w) >= least and w not in stop] for text in x.reshape(-1).tolist()]
    if attributes["mark"]:
        rows = [[_START, *row, _END] for row in rows]
    most = max(map(len, rows), default=0)
    padded = [row + [attributes["pad_value"]] * (most - len(row)) for row in rows]
    return (np.array(padded, STRING.numpy).reshape(*x.shape, most),)


def host_nbytes(call: Call) -> int:
    """Were each character of the longest text a word, all rows would be as long."""
    texts = call.value(0)
    if texts is None or not texts.size:
        return 0
    longest = max(len(text) for text in texts.reshape(-1).tolist())
    return TURN * texts.size * (3 + longest) + nbytes_of(texts)


_TEXTS = example(["one two  three", "four", ""])
_PADDED = {"mark": 0, "pad_value": "#", "mincharnum": 1}

OPERATOR = Operator(
    name="Tokenizer",
    domain="com.microsoft",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    examples=(
        Example((_TEXTS,), {**_PADDED, "tokenexp": "[a-z]+"}, opset=1),
        Example((_TEXTS,), {**_PADDED, "mark": 1, "separators": (" ",)}, opset=1),
        Example((_TEXTS.reshape(3, 1),), {**_PADDED, "mincharnum": 4, "separators": (" ",)}, opset=1),
    ),
)
