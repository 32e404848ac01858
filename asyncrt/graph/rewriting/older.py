"""Operators of older opsets, in the words of newer ones.

Most versions differ in nothing but the dtypes that they allow, or in an attribute that says nothing of the result
(`consumed_inputs`, `output_sequence`): these nodes stay as they are. The others have a rule here, which holds for
all opsets before the one beside it.

Source: onnx/docs/Changelog.md, and for what it leaves open (Upsample, Resize-10) what ONNX Runtime does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from asyncrt.layout import INT64, Array

from .draft import Draft, Rule


def find(op: str, opset: int) -> Rule | None:
    """Return the rule for a node of that opset, or None if it stays as it is."""
    before, rule = RULES.get(op, (0, None))
    return rule if opset < before else None


def _along(draft: Draft, name: str, of: str, axis: int) -> str:
    """Return *name* with as many axes of 1 behind it as put its first axis at *axis* of another value."""
    start = draft.constant([axis]) if axis >= 0 else draft.add("Add", draft.rank(of), draft.constant([axis]))
    behind = draft.add("Sub", draft.add("Sub", draft.rank(of), start), draft.rank(name))
    none = draft.constant([0])
    ones = draft.add("Expand", draft.constant([1]), draft.add("Max", behind, none))
    return draft.shaped(name, draft.dims(name), ones)


def _broadcast(draft: Draft) -> str:
    """Before opset 7 the second operand was spread along the axes from `axis` on, where `broadcast` says so."""
    a, b = draft.inputs
    axis = draft.attributes.get("axis")
    if draft.attributes.get("broadcast", 0) and axis is not None:
        b = _along(draft, b, a, axis)
    return draft.add(draft.op, a, b)


def _prelu(draft: Draft) -> str:
    """Before opset 7 a slope was one number, or one for each channel."""
    x, slope = draft.inputs
    known = draft.constant_input(1)
    if known is None:
        draft.refuse(True, "before opset 7 its slope must be a constant of the model")
    elif known.size != 1 and known.ndim == 1:
        slope = _along(draft, slope, x, 1)
    return draft.add("PRelu", x, slope)


def _batch_normalization(draft: Draft) -> str:
    x, scale, bias, mean, var = draft.inputs
    attributes = draft.attributes
    draft.refuse(attributes.opset < 7 and not attributes.get("is_test", 0), "in training mode, before opset 7")
    draft.refuse(len(draft.outputs) > 1, "in training mode, before opset 9")
    epsilon = attributes.get("epsilon", 1e-5)
    if attributes.get("spatial", 1):
        return draft.add("BatchNormalization", x, scale, bias, mean, var, epsilon=epsilon)
    root = draft.add("Sqrt", draft.add("Add", var, draft.number(epsilon, 4)))
    centred = draft.add("Div", draft.add("Sub", x, mean), root)
    return draft.add("Add", draft.add("Mul", centred, scale), bias)


def _cast(draft: Draft) -> str:
    name = str(draft.attributes["to"]).upper()
    numbers = dict(onnx.TensorProto.DataType.items())
    draft.refuse(name not in numbers, f"'{name}' is no dtype")
    return draft.add("Cast", draft.inputs[0], to=numbers[name])


def _clip(draft: Draft) -> str:
    limit = float(np.finfo(np.float32).max)
    low, high = draft.attributes.get("min", -limit), draft.attributes.get("max", limit)
    least = draft.number(low) if low > -limit else ""
    most = draft.number(high) if high < limit else ""
    return draft.add("Clip", draft.inputs[0], least, most)


def _concat(draft: Draft) -> str:
    return draft.add("Concat", *draft.inputs, axis=draft.attributes.get("axis", 1))


def _dropout(draft: Draft) -> tuple[str, str]:
    """Models are run to infer: nothing is dropped, whatever `is_test` says, as from opset 7 on."""
    x = draft.inputs[0]
    return x, draft.add("Expand", draft.number(1), draft.dims(x)) if draft.wants(1) else ""


def _group_normalization(draft: Draft) -> str:
    """Before opset 21 a group had one scale and one bias, and not each of its channels."""
    x, *by_group = draft.inputs
    groups = draft.constant([draft.attributes["num_groups"]])
    each = draft.add("Div", draft.dims(x, 1, 2), groups)
    by_channel = (
        draft.shaped(draft.add("Expand", draft.unsqueezed(v, 1), draft.concat(groups, each)), -1) for v in by_group
    )
    return draft.add("GroupNormalization", x, *by_channel, **draft.attributes)


def _lp_pool(draft: Draft) -> str:
    """The order of the norm was a float."""
    given = dict(draft.attributes)
    order = given.pop("p", 2.0)
    draft.refuse(order != int(order) or not 0 < order < 1 << 31, f"p={order} is no positive integer")
    return draft.add(draft.op, draft.inputs[0], p=int(order), **given)


def _pad(draft: Draft) -> str:
    attributes = draft.attributes
    pads = attributes["pads"] if "pads" in attributes else attributes["paddings"]
    value = draft.number(attributes.get("value", 0.0))
    return draft.add("Pad", draft.inputs[0], draft.constant(pads), value, mode=attributes.get("mode", "constant"))


def _reshape(draft: Draft) -> str:
    draft.refuse("shape" not in draft.attributes, "it has no shape")
    return draft.shaped(draft.inputs[0], *draft.attributes["shape"])


def _resized(draft: Draft, scales: str, known: Array | None) -> str:
    """Return input 0 in other sizes. Nearest takes the element above where an axis shrinks, else that below."""
    mode = draft.attributes.get("mode", "nearest")
    x, common = draft.inputs[0], {"coordinate_transformation_mode": "asymmetric"}
    if mode != "nearest":
        return draft.add("Resize", x, "", scales, mode="linear", **common)
    one = draft.constant(1, np.float32)
    if known is None or (known > 1).any() or not (known < 1).any():
        grow = scales if known is not None and not (known < 1).any() else draft.add("Max", scales, one)
        x = draft.add("Resize", x, "", grow, mode="nearest", nearest_mode="floor", **common)
    if known is None or (known < 1).any():
        shrink = draft.add("Min", scales, one)
        x = draft.add("Resize", x, "", shrink, mode="nearest", nearest_mode="ceil", **common)
    return x


def _resize(draft: Draft) -> str:
    return _resized(draft, draft.inputs[1], draft.constant_input(1))


def _upsample(draft: Draft) -> str:
    if len(draft.inputs) > 1:
        return _resize(draft)
    given = draft.attributes
    scales = given["scales"] if "scales" in given else (1, 1, given["height_scale"], given["width_scale"])
    return _resized(draft, draft.constant(scales, np.float32), np.asarray(scales, np.float32))


def _scan(draft: Draft) -> tuple[str, ...]:
    """Version 8 scans each element of a batch: a Scan along the batch whose body is the Scan of one."""
    draft.refuse(draft.has(0), "sequence_lens, which only opset 8 has")
    given, inputs = draft.attributes, draft.inputs[1:]
    outside = [draft.name(f"in_{i}") for i in range(len(inputs))]
    inside = [draft.name(f"out_{i}") for i in range(len(draft.outputs))]
    each = helper.make_node(
        "Scan", outside, inside, "Scan", num_scan_inputs=given["num_scan_inputs"], body=given["body"],
        **({"scan_input_directions": given["directions"]} if "directions" in given else {}),
    )  # fmt: skip
    taken, made = ([onnx.ValueInfoProto(name=name) for name in names] for names in (outside, inside))
    body = helper.make_graph([each], "each of the batch", taken, made)
    return draft.several(len(draft.outputs), "Scan", *inputs, num_scan_inputs=len(inputs), body=body)


def _scatter(draft: Draft) -> str:
    return draft.add("ScatterElements", *draft.inputs, axis=draft.attributes.get("axis", 0))


def _slice(draft: Draft) -> str:
    given = draft.attributes
    starts, ends = given["starts"], given["ends"]
    axes = given.get("axes") or range(len(starts))
    draft.refuse(not len(starts) == len(ends) == len(axes), "starts, ends and axes differ in number")
    return draft.add("Slice", draft.inputs[0], *[draft.constant(list(v)) for v in (starts, ends, axes)])


def _split(draft: Draft) -> tuple[str, ...]:
    """Only version 1 takes the sizes as an input, of the dtype of what is split."""
    axis, sizes = draft.attributes.get("axis", 0), draft.attributes.get("split")
    given = draft.constant(sizes) if sizes else draft.cast(draft.inputs[1], INT64) if draft.has(1) else ""
    count = None if given else len(draft.outputs)
    inputs = (draft.inputs[0], given) if given else (draft.inputs[0],)
    return draft.several(len(draft.outputs), "Split", *inputs, axis=axis, num_outputs=count)


def _tile(draft: Draft) -> str:
    """Version 1 repeats along one axis; both the number and the axis are inputs of the dtype of what is repeated."""
    x = draft.inputs[0]
    tiles, axis = (draft.shaped(draft.cast(name, INT64), 1) for name in draft.inputs[1:])
    ones = draft.add("Expand", draft.constant([1]), draft.rank(x))
    return draft.add("Tile", x, draft.add("ScatterElements", ones, axis, tiles))


def _top_k(draft: Draft) -> tuple[str, ...]:
    count = draft.constant([draft.attributes["k"]])
    return draft.several(2, "TopK", draft.inputs[0], count, axis=draft.attributes.get("axis", -1))


_SPREAD = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")

RULES: Mapping[str, tuple[int, Rule]] = {
    **dict.fromkeys(_SPREAD, (7, _broadcast)),
    "BatchNormalization": (9, _batch_normalization),
    "Cast": (6, _cast),
    "Clip": (11, _clip),
    "Concat": (4, _concat),
    "Dropout": (10, _dropout),
    "GlobalLpPool": (2, _lp_pool),
    "GroupNormalization": (21, _group_normalization),
    "LpPool": (2, _lp_pool),
    "PRelu": (7, _prelu),
    "Pad": (11, _pad),
    "Reshape": (5, _reshape),
    "Resize": (11, _resize),
    "Scan": (9, _scan),
    "Scatter": (11, _scatter),
    "Slice": (10, _slice),
    "Split": (2, _split),
    "Tile": (6, _tile),
    "TopK": (10, _top_k),
    "Upsample": (10, _upsample),
}
"""For each operator with rules: the first opset in which its nodes stay as they are, and what to write before it."""
