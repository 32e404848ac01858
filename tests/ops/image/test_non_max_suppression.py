"""Which boxes are selected: the same ones in C as by NumPy, however many there are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncrt.kernels.ops.image import non_max_suppression as nms


def drawn(count: int, *, apart: float) -> tuple[Any, Any]:
    """Return boxes on a plane of that width, some alike, empty, turned round or no numbers, and their scores."""
    rng = np.random.default_rng(count)
    corner, size = rng.random((count, 2)) * apart, rng.random((count, 2)) * 20 - 1
    corners = np.concatenate([corner, corner + size], axis=1).astype(np.float32)
    corners[1::7] = corners[::7][: len(corners[1::7])]
    corners[2::17, 2] = corners[2::17, 0]
    corners[3::29] = np.nan
    corners[4::31, 3] = np.inf
    return corners, (rng.random(count) * 16).astype(np.int64).astype(np.float32) / 16


@pytest.mark.parametrize("count", [0, 1, 5, 33, 300, 2000])
@pytest.mark.parametrize("apart", [10.0, 300.0])
@pytest.mark.parametrize("center", [False, True])
def test_c_selects_what_numpy_does(
    boxes: ModuleType, monkeypatch: pytest.MonkeyPatch, count: int, apart: float, center: bool
) -> None:
    """With few and many to be selected, with and without a least score."""
    corners, scores = drawn(count, apart=apart)
    for most, overlap, least in ((count, 0.5, None), (3, 0.45, 0.25), (count, 0.0, 0.0), (count, 1.0, 2.0)):
        limits = (most, np.float32(overlap), None if least is None else np.float32(least), center)
        found = []
        for select in (boxes.select, None):
            monkeypatch.setattr(nms, "native_select", lambda select=select: select)
            with np.errstate(all="ignore"):
                found.append(nms.select(corners, scores, *limits))

        assert found[0] == found[1]


def test_numbers_of_boxes_that_are_not_there_are_refused(boxes: ModuleType) -> None:
    """And room for fewer than may be selected."""
    four, room = np.ones((4, 5), np.float32), np.empty((5, 4), np.float32)
    for order, where in (([0, 4], room), ([-1], room), ([0, 1, 2], room[:, :2].copy())):
        with pytest.raises(ValueError, match="numbers of 4 boxes"):
            boxes.select(four, np.array(order), 4, 0.5, where)
