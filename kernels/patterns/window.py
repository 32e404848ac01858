"""Windows that slide over the spatial axes of a tensor ``[N, C, ...]``: what convolutions and pools share.

Output sizes are arithmetic only, so that they work on symbolic dims; a `Window` is made in requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrt.dims import Dim
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.reach import check_extent
from asyncrt.layout import Array

MAX_SPATIAL = 3  # axes that kernels walk
MAX_CELLS = 1 << 24  # of a window: kernels walk all of them for each position, also those in the padding


class Window(NamedTuple):
    """A window at one set of shapes; every field has one entry per spatial axis.

    Attributes:
        size: Cells of the window.
        strides: Elements from one position to the next.
        dilations: Elements from one cell to the next.
        before, after: Padding on both sides.
        spatial: Input size.
        outs: Positions.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    spatial: tuple[int, ...]
    outs: tuple[int, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements that the window spans, per axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.size, self.dilations, strict=True))

    @property
    def is_identity(self) -> bool:
        """Whether each position sees one element, its own."""
        units = all(k == s == 1 for k, s in zip(self.size, self.strides, strict=True))
        return units and not any(self.before) and self.outs == self.spatial

    def pads(self) -> list[tuple[int, int]]:
        """Return how many elements each axis needs before and behind it, so that every position's window is inside."""
        reaches = [(o - 1) * s + e for o, s, e in zip(self.outs, self.strides, self.extents, strict=True)]
        places = zip(reaches, self.before, self.spatial, strict=True)
        return [(before, max(0, reach - dim - before)) for reach, before, dim in places]

    def seen_by(self, cell: Sequence[int]) -> tuple[slice, ...]:
        """Return which elements of the padded input a cell of the windows sees, one for each position."""
        places = zip(cell, self.dilations, self.strides, self.outs, strict=True)
        return tuple([slice(c * d, c * d + (out - 1) * s + 1 if out else c * d, s) for c, d, s, out in places])

    def as_3d(self, name: str) -> Window:
        """Return the window with unit axes in front, so that there are three spatial axes: for kernels.

        Args:
            name: The node's.

        Raises:
            SizeLimitError: The window reaches further than kernels can count; its tensors need not be as large.
        """
        for axis, (dim, before, after) in enumerate(zip(self.spatial, self.before, self.after, strict=True)):
            extent, stride = self.extents[axis], self.strides[axis]
            check_extent(name, f"spatial axis {axis} with its padding", dim + abs(before) + abs(after))
            check_extent(name, f"what windows reach on spatial axis {axis}", (self.outs[axis] - 1) * stride + extent)
            check_extent(name, f"a step on spatial axis {axis}", stride * math.prod(self.spatial[axis + 1 :]))
        n = MAX_SPATIAL - len(self.size)
        ones, zeros = (1,) * n, (0,) * n
        return Window(
            ones + self.size, ones + self.strides, ones + self.dilations, zeros + self.before, zeros + self.after,
            ones + self.spatial, ones + self.outs,
        )  # fmt: skip


class _WindowSettings(NamedTuple):
    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str


def _settings(name: str, attributes: Attributes, axes: int, size: Sequence[int]) -> _WindowSettings:
    if not 1 <= axes <= MAX_SPATIAL:
        raise ShapeError(f"'{name}': {axes} spatial axes; 1 to {MAX_SPATIAL} are supported")

    def per_axis(attribute: str, default: int, count: int, least: int) -> tuple[int, ...]:
        values = tuple(attributes.get(attribute) or (default,) * count)
        if len(values) != count or any(v < least for v in values):
            raise ShapeError(f"'{name}': {attribute} {list(values)} does not fit {axes} spatial axes")
        return values

    if not any(isinstance(k, Dim) for k in size) and math.prod(size) > MAX_CELLS:
        raise ShapeError(f"'{name}': a window of {list(size)} has more than {MAX_CELLS} cells")
    if len(size) != axes or any(not isinstance(k, Dim) and k < 1 for k in size):
        raise ShapeError(f"'{name}': kernel_shape {list(size)} does not fit {axes} spatial axes")
    auto_pad = attributes.get("auto_pad", "NOTSET") or "NOTSET"
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ShapeError(f"'{name}': auto_pad {auto_pad!r} is not known")
    pads = per_axis("pads", 0, 2 * axes, 0) if auto_pad == "NOTSET" else (0,) * (2 * axes)
    strides, dilations = per_axis("strides", 1, axes, 1), per_axis("dilations", 1, axes, 1)
    return _WindowSettings(tuple(size), strides, dilations, pads, auto_pad)


def output_dims(
    name: str, attributes: Attributes, spatial: Sequence[int], size: Sequence[int], *, ceil: bool = False, short: bool = False
) -> tuple[int, ...]:
    """Return the number of positions per axis; dims may be symbolic.

    Args:
        name: The node's name, for messages.
        spatial: Input sizes.
        size: Cells of the window.
        ceil: Round up (`ceil_mode`), except for a window that would begin in the padding behind the input.
        short: A window that is too large by less than a stride still has one position, and reads the cells that are
            inside, as ONNX Runtime does for pools; one that is too large by less than two has none.
    """
    s = _settings(name, attributes, len(spatial), size)
    result: list[int] = []
    for axis, dim in enumerate(spatial):
        stride = s.strides[axis]
        if s.auto_pad.startswith("SAME"):
            result.append((dim + stride - 1) // stride)
            continue
        extent = (s.size[axis] - 1) * s.dilations[axis] + 1
        before, after = s.pads[axis], s.pads[axis + len(spatial)]
        room = dim + before + after - extent
        out = (room + (stride - 1 if ceil else 0)) // stride + 1
        if ceil and after + stride > extent and (out - 1) * stride >= dim + before:
            out = out - 1
        if not isinstance(room, Dim) and room < 0:
            if short and dim > 0 and room > -2 * stride:
                result.append(int(room > -stride))
                continue
            if dim > 0:
                padded = f"{dim} + {before} + {after}"
                raise ShapeError(f"'{name}': a window of {extent} does not fit axis {axis} of {padded}")
            out = 0
        result.append(out)
    return tuple(result)


def window(
    name: str, attributes: Attributes, spatial: Sequence[int], size: Sequence[int], *, ceil: bool = False, short: bool = False
) -> Window:
    """Return the window at known shapes. Arguments as in `output_dims`."""
    axes = len(spatial)
    s = _settings(name, attributes, axes, size)
    outs = output_dims(name, attributes, spatial, size, ceil=ceil, short=short)
    before, after = list(s.pads[:axes]), list(s.pads[axes:])
    if s.auto_pad.startswith("SAME"):
        for axis in range(axes):
            extent = (s.size[axis] - 1) * s.dilations[axis] + 1
            total = max((outs[axis] - 1) * s.strides[axis] + extent - spatial[axis], 0)
            small, large = total // 2, total - total // 2
            before[axis], after[axis] = (small, large) if s.auto_pad == "SAME_UPPER" else (large, small)
    return Window(s.size, s.strides, s.dilations, tuple(before), tuple(after), tuple(spatial), outs)


def patch_elements(lines: int, w: Window) -> int:
    """Return how many elements `patches()` allocates for so many lines (N × C): the padded input and the patches."""
    reach = [(o - 1) * s + e for o, s, e in zip(w.outs, w.strides, w.extents, strict=True)]
    padded = math.prod(max(b + d, r) for b, d, r in zip(w.before, w.spatial, reach, strict=True))
    return lines * (padded + 2 * math.prod(w.outs) * math.prod(w.size))


def patches(x: Array, w: Window, fill: Any) -> Array:
    """Return ``[N, C, *outs, *size]``: what each position's window sees, with *fill* outside the input."""
    padded = np.pad(x, [(0, 0), (0, 0), *w.pads()], constant_values=fill)
    for axis in range(len(w.spatial)):
        index: npt.NDArray[np.intp] = (
            np.arange(w.outs[axis])[:, None] * w.strides[axis] + np.arange(w.size[axis]) * w.dilations[axis]
        )
        padded = np.moveaxis(np.take(padded, index, axis=2 + axis), 3 + axis, -1)
    return padded
