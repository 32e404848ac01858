"""NonMaxSuppression: for each batch and class the best boxes, none of which overlaps a better one too much.

Where there was a compiler, boxes are compared in C: from Python each that is selected takes 20 microseconds.

Source: ONNX NonMaxSuppression-11.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kernels.shapes import check
from asyncrt.layout import Array, Shape


def infer(call: Call) -> tuple[Shape]:
    boxes, scores = call.shape(0), call.shape(1)
    check(call, len(boxes) == 3 and len(scores) == 3, "boxes and scores must have three axes")
    pairs = ((boxes[2], 4, "coordinates"), (scores[0], boxes[0], "batches"), (scores[2], boxes[1], "boxes"))
    for have, want, what in pairs:
        if isinstance(have, int) and isinstance(want, int):
            check(call, have == want, f"{have} {what}, expected {want}")
    raise ValueUnknown(f"'{call.name}': how many boxes are selected is known when they are")


def _corners(boxes: Any, center: bool) -> tuple[Any, Any, Any, Any]:
    """The least and greatest coordinates on both axes."""
    a, b, c, d = (boxes[:, k] for k in range(4))
    if center:  # x, y, width, height
        w, h = c / np.float32(2), d / np.float32(2)
        return a - w, b - h, a + w, b + h
    return np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d)


@functools.cache
def native_select() -> Callable[[Any, Any, int, float, Any], int] | None:
    """Return what selects boxes in C; None where it was not built."""
    try:
        from . import _boxes
    except ImportError:
        return None
    return _boxes.select


def select(boxes: Any, scores: Any, most: int, overlap: Any, least: Any, center: bool) -> list[int]:
    u0, v0, u1, v1 = _corners(boxes, center)
    areas = (u1 - u0) * (v1 - v0)
    candidates = np.arange(len(scores)) if least is None else np.flatnonzero(scores > least)
    left = candidates[np.argsort(-scores[candidates], kind="stable")]
    native = native_select()
    if native is not None:
        order, known = left.astype(np.int64), np.stack([u0, v0, u1, v1, areas], axis=1, dtype=np.float32)
        room = np.empty((5, len(order)), np.float32)
        return [int(number) for number in order[: native(known, order, most, float(overlap), room)]]
    selected: list[int] = []
    while len(left) and len(selected) < most:
        best, left = int(left[0]), left[1:]
        selected.append(best)
        width = np.minimum(u1[best], u1[left]) - np.maximum(u0[best], u0[left])
        height = np.minimum(v1[best], v1[left]) - np.maximum(v0[best], v0[left])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        union = areas[best] + areas[left] - shared
        real = (areas[best] > 0) & (areas[left] > 0) & (union > 0) & (shared > 0)
        ratio = np.divide(shared, union, out=np.zeros_like(shared), where=real)
        left = left[~(real & (ratio > overlap))]
    return selected


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    boxes: Any = inputs[0]
    scores: Any = inputs[1]

    def scalar(index: int, default: Any) -> Any:
        value = inputs[index] if index < len(inputs) else None
        return default if value is None or value.size == 0 else value.reshape(-1)[0]

    most = int(scalar(2, 0))
    overlap, least = scalar(3, np.float32(0)), scalar(4, None)
    center = bool(attributes.get("center_point_box", 0))
    rows = [
        (batch, kind, box)
        for batch in range(scores.shape[0])
        for kind in range(scores.shape[1])
        for box in select(boxes[batch], scores[batch, kind], most, overlap, least, center)
    ]
    return (np.array(rows, np.int64).reshape(-1, 3),)


def host_nbytes(call: Call) -> int:
    """What comparing one box with all others takes, and as many rows as may be selected."""
    check(call, len(call.shape(1)) == 3, "scores must have three axes")
    batches, classes, boxes = call.shape(1)
    wanted = call.value(2)
    most = 0 if wanted is None or not wanted.size else max(0, int(wanted.reshape(-1)[0]))
    rows = batches * classes * (1 + min(most, boxes))
    return 8 * 16 * boxes + (3 * TURN + 24) * rows


_BOXES = np.array(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101]]],
    np.float32,
)
_SCORES = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5, 0.3]]], np.float32)


def _example(boxes: Array, scores: Array, most: int, overlap: float, least: float, **attributes: int) -> Example:
    limits = (np.array([most], np.int64), np.array([overlap], np.float32), np.array([least], np.float32))
    return Example((boxes, scores, *limits), attributes)


OPERATOR = Operator(
    name="NonMaxSuppression",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    shape_infer_dependencies=(0, 1, 2, 3, 4),
    examples=(
        _example(_BOXES, _SCORES, 3, 0.5, 0.0),
        _example(_BOXES, _SCORES, 2, 0.5, 0.4),
        _example(_BOXES[:, :, [2, 3, 0, 1]], _SCORES, 3, 0.5, 0.0),
        _example(np.tile(_BOXES, (2, 1, 1)), np.tile(_SCORES, (2, 2, 1)), 2, 0.5, 0.0),
        _example(
            np.array([[[0.5, 0.5, 1, 1], [0.5, 0.6, 1, 1], [0.5, 10.5, 1, 1]]], np.float32),
            np.array([[[0.9, 0.75, 0.6]]], np.float32), 3, 0.5, 0.0, center_point_box=1,
        ),
    ),
)  # fmt: skip
