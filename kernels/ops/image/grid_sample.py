"""GridSample: each position of a grid takes its value from an image, at coordinates between -1 and 1.

A coordinate outside the image reads zeros, the border, or the reflected image (`padding_mode`). NaN reads zeros, and so
does infinity where the padding gives it no place in the image.

Source: ONNX GridSample-22. Volumes, of three spatial axes, are sampled on the host.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from asyncrt.dims import Dim
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.conversion import cast
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator, spread
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT64, Array, DataType, Shape

_MODES = {"linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic", "nearest": "nearest"}
_FAR = 4  # elements from the image, beyond the reach of what is interpolated
_PADDINGS = ("zeros", "border", "reflection")
_Wide = npt.NDArray[np.float64]


def _settings(name: str, attributes: Attributes) -> tuple[str, str, bool]:
    mode, padding = attributes.get("mode", "linear"), attributes.get("padding_mode", "zeros")
    if mode not in _MODES or padding not in _PADDINGS:
        raise ShapeError(f"'{name}': mode {mode!r} with padding_mode {padding!r} is not known")
    return _MODES[mode], padding, bool(attributes.get("align_corners", 0))


def infer(call: Call) -> tuple[Shape]:
    _settings(call.name, call.attributes)
    x, grid = call.shape(0), call.shape(1)
    check(call, len(x) == 4 and len(grid) == 4, "only images [N, C, H, W] and grids [N, H, W, 2] are supported")
    check(call, isinstance(grid[3], Dim) or grid[3] == 2, f"the grid's last axis is {grid[3]}, it must be 2")
    check(call, all(isinstance(d, Dim) or d > 0 for d in x[2:]), f"there is nothing to sample in {list(x)}")
    if not isinstance(x[0], Dim) and not isinstance(grid[0], Dim):
        check(call, x[0] == grid[0], f"{x[0]} images and {grid[0]} grids")
    return ((x[0], x[1], grid[1], grid[2]),)


def infer_volume(call: Call) -> tuple[Shape]:
    mode, _, _ = _settings(call.name, call.attributes)
    x, grid = call.shape(0), call.shape(1)
    check(call, len(x) == 5 and len(grid) == 5, "it takes volumes [N, C, D, H, W] and grids [N, D, H, W, 3]")
    check(call, mode != "cubic", "mode 'cubic' is for images, not for volumes")
    check(call, isinstance(grid[4], Dim) or grid[4] == 3, f"the grid's last axis is {grid[4]}, it must be 3")
    check(call, all(isinstance(d, Dim) or d > 0 for d in x[2:]), f"there is nothing to sample in {list(x)}")
    if not isinstance(x[0], Dim) and not isinstance(grid[0], Dim):
        check(call, x[0] == grid[0], f"{x[0]} volumes and {grid[0]} grids")
    return ((x[0], x[1], *grid[1:4]),)


def _coordinate(v: _Wide, size: int, align: bool) -> _Wide:
    return (v + 1) / 2 * (size - 1) if align else ((v + 1) * size - 1) / 2


def _reflect(v: _Wide, size: int, align: bool) -> _Wide:
    low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
    if span == 0:
        return np.zeros_like(v)
    distance = np.abs(v - low)
    turns = np.floor(distance / span)
    rest = distance - turns * span
    return np.where(turns % 2 == 0, low + rest, low + span - rest)


def _cubic(t: _Wide) -> _Wide:
    t = np.abs(t)
    a = -0.75
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, far)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, grid = inputs[0], inputs[1]
    assert x is not None
    assert grid is not None
    mode, padding, align = _settings("GridSample", attributes)
    sizes = x.shape[2:]
    batch = np.arange(x.shape[0]).reshape(-1, *(1 for _ in sizes))

    def place(v: _Wide, size: int) -> _Wide:
        """Bring indices into the image, unless padding is zeros."""
        if padding == "border":
            return np.clip(v, 0, size - 1)
        if padding == "reflection":
            v = _reflect(v, size, align)
            return np.clip(v, 0, size - 1)
        return v

    def pixel(at: Sequence[_Wide], weight: _Wide) -> _Wide:
        """The image at whole indices times a weight, as [N, H, W, C]; nothing where there is no image."""
        at = [place(v, size) for v, size in zip(at, sizes, strict=True)]
        inside = functools.reduce(np.logical_and, [(v >= 0) & (v < size) for v, size in zip(at, sizes, strict=True)])
        where: tuple[Any, ...] = (batch, slice(None), *(np.where(inside, v, 0).astype(np.intp) for v in at))
        seen = x[where]
        return np.where(inside[..., None], weight[..., None] * seen.astype(np.float64), 0.0)

    wide = grid.astype(np.float64)
    # A grid names the last axis of the image first.
    found = [_coordinate(wide[..., len(sizes) - 1 - i], size, align) for i, size in enumerate(sizes)]
    if mode != "cubic":
        found = [place(v, size) for v, size in zip(found, sizes, strict=True)]
    elif padding == "border":  # coordinates beyond this read the border as well
        found = [np.clip(v, -_FAR, size + _FAR) for v, size in zip(found, sizes, strict=True)]
    if mode == "nearest":
        y = pixel([np.rint(v) for v in found], np.ones_like(found[0]))
    else:
        first = [np.floor(v) for v in found]
        y = np.zeros((*grid.shape[:-1], x.shape[1]), np.float64)
        for taps in itertools.product((0, 1) if mode == "linear" else (-1, 0, 1, 2), repeat=len(sizes)):
            at = [f + tap for f, tap in zip(first, taps, strict=True)]
            far = [v - a for v, a in zip(found, at, strict=True)]
            weights = [1 - np.abs(d) if mode == "linear" else _cubic(d) for d in far]
            y += pixel(at, functools.reduce(np.multiply, weights))
    return (cast(np.moveaxis(y, -1, 1), x.dtype),)


def host_nbytes(call: Call) -> int:
    """Bytes of the weighted elements and sums of each position, in float64, with its coordinates and weights."""
    x, grid = call.shape(0), call.shape(1)
    return 8 * x[0] * math.prod(grid[1:-1]) * (5 * x[1] + 20)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    x, grid = call.shape(0), call.shape(1)
    mode, padding, align = _settings(call.name, call.attributes)
    k = _kernel(_SampleForm(call.dtype(0), call.dtype(1), mode, padding, align, traits.is_cpu))
    positions = grid[1] * grid[2]
    items = x[0] * positions
    ints = (*x[1:], positions, items)
    refs = (inp(0), inp(1), out(0))
    if not traits.is_cpu:
        return Impl("positions", (Launch(k, refs, (*ints, 1), (round_up(items, GPU_GROUP),), (GPU_GROUP,)),))
    per_item = cut_rows(items, 16 * x[1], traits).rows_per_item
    return Impl("positions", (Launch(k, refs, (*ints, per_item), (-(-items // per_item),), (1,)),))


class _SampleForm(NamedTuple):
    """What the source of the kernel depends on."""

    dtype: DataType
    grid: DataType
    mode: str
    padding: str
    align: bool
    cpu: bool

    @property
    def real(self) -> str:
        """The type of coordinates and weights."""
        return "double" if FLOAT64 in (self.dtype, self.grid) else "float"

    @property
    def suffix(self) -> str:
        return "" if self.real == "double" else "f"


@functools.cache
def _kernel(form: _SampleForm) -> KernelSource:
    if form.cpu:
        body = f"""
  const int q0 = (int)get_global_id(0) * per_item, q1 = min(q0 + per_item, items);
  for (int q = q0; q < q1; q++) {{ {_position(form)} }}"""
    else:
        body = f"""
  const int q = (int)get_global_id(0);
  if (q >= items) return;
  {_position(form)}"""
    buffers = (("x", form.dtype, "r"), ("grid", form.grid, "r"), ("y", form.dtype, "w"))
    sizes = ("C", "H", "W", "P", "items", "per_item")
    return kernel(f"grid_sample_{form.mode}", buffers, sizes, body, helpers=_helpers(form))


def _position(form: _SampleForm) -> str:
    """Return statements that calculate all channels of position q."""
    real, t = form.real, form.dtype.name
    adjust = "ax = $_place(ax, W); ay = $_place(ay, H);"
    if form.mode == "cubic":
        far = f"ax = $_kept(ax, -{_FAR}, W + {_FAR}); ay = $_kept(ay, -{_FAR}, H + {_FAR});"
        adjust = far if form.padding == "border" else ""
    setup, value = _taps(form)
    result = compute_type(form.dtype)
    return f"""
    const int n = q / P, p = q - n * P;
    {real} ax = $_at(({real})LOAD({form.grid.name}, grid, 2 * q), W);
    {real} ay = $_at(({real})LOAD({form.grid.name}, grid, 2 * q + 1), H);
    {adjust}
    {setup}
    for (int c = 0; c < C; c++) {{
      const int base = (n * C + c) * H * W;
      {real} a = 0;
      {value}
      const {result} v_ = ({result})a;
      STORE({t}, y, (n * C + c) * P + p, v_);
    }}"""


def _taps(form: _SampleForm) -> tuple[str, str]:
    """Return statements that find which elements a position sees, with their weights; and those that add them up."""
    real, t = form.real, form.dtype.name
    if form.mode == "nearest":
        setup = "const int iy = $_index(rint(ay), H), ix = $_index(rint(ax), W);"
        return setup, f"a = iy < 0 || ix < 0 ? 0 : ({real})LOAD({t}, x, base + iy * W + ix);"
    taps, first = (2, 0) if form.mode == "linear" else (4, -1)
    setup = f"""
    {real} wy[{taps}], wx[{taps}]; int iy[{taps}], ix[{taps}];
    for (int k = 0; k < {taps}; k++) {{
      const {real} y_ = floor(ay) + k + {first}, x_ = floor(ax) + k + {first};
      wy[k] = $_weight(ay - y_); wx[k] = $_weight(ax - x_); iy[k] = $_index(y_, H); ix[k] = $_index(x_, W);
    }}"""
    value = f"""for (int i = 0; i < {taps}; i++) for (int j = 0; j < {taps}; j++)
        if (iy[i] >= 0 && ix[j] >= 0) a += wy[i] * wx[j] * ({real})LOAD({t}, x, base + iy[i] * W + ix[j]);"""
    return setup, value


def _helpers(form: _SampleForm) -> str:
    """Return functions: where a coordinate of the grid is in the image, what padding makes of it, and weights."""
    real, f = form.real, form.suffix
    low, span = ("0", "(size - 1)") if form.align else (f"-0.5{f}", "size")
    place = {
        "zeros": "v",
        "border": "$_kept(v, 0, size - 1)",
        "reflection": "$_kept($_reflect(v, size), 0, size - 1)",
    }[form.padding]
    coordinate = "(v + 1) / 2 * (size - 1)" if form.align else "((v + 1) * size - 1) / 2"
    weight = "return 1 - t;"
    if form.mode == "cubic":
        weight = f"""const {real} a = -0.75{f};
  return t <= 1 ? ((a + 2) * t - (a + 3)) * t * t + 1 : ((a * t - 5 * a) * t + 8 * a) * t - 4 * a;"""
    return f"""
/* What is no number stays so. */
{real} $_kept({real} v, {real} low, {real} high) {{ return v < low ? low : v > high ? high : v; }}
{real} $_reflect({real} v, int size) {{
  const {real} span = {span}, distance = fabs(v - ({low}));
  if (span == 0) return 0;
  const {real} turns = floor(distance / span), rest = distance - turns * span;
  return fmod(turns, ({real})2) == 0 ? ({low}) + rest : ({low}) + span - rest;
}}
{real} $_place({real} v, int size) {{ return {place}; }}
{real} $_at({real} v, int size) {{ return {coordinate}; }}
{real} $_weight({real} d) {{
  const {real} t = fabs(d);
  {weight}
}}
/* The place of index v in an axis, or -1 for a zero. */
int $_index({real} v, int size) {{
  const {real} i = $_place(v, size);
  return i >= 0 && i < size ? (int)i : -1;
}}"""


def _grid(*shape: int) -> Array:
    """Coordinates in and somewhat outside the image, none of them halfway between two elements."""
    return (spread(*shape) * 2.8 - 1.4).astype(np.float32)


_IMAGES = Operator(
    name="GridSample",
    infer=infer,
    reference=reference,
    implement=implement,
    host_nbytes=host_nbytes,
    examples=(
        *(
            Example(("f32[2,3,5,7]", _grid(2, 4, 6, 2)), {"mode": m, "padding_mode": p, "align_corners": a}, opset=20)
            for m in ("linear", "nearest", "cubic")
            for p in _PADDINGS
            for a in (0, 1)
            if (m, p) != ("cubic", "border")
        ),
        Example(("f16[1,2,4,4]", _grid(1, 3, 3, 2)), {"mode": "linear"}, opset=20),
    ),
)
_SOME_IMAGES = attrs.evolve(
    _IMAGES, name="ImageSample", domain="asyncrt", examples=(Example(("f32[1,2,4,4]", _grid(1, 3, 3, 2))),)
)
"""GridSample where a request has told that it is of two spatial axes."""

_VOLUMES = Operator(
    name="VolumeSample",
    domain="asyncrt",
    infer=infer_volume,
    reference=reference,
    host_nbytes=host_nbytes,
    examples=(Example(("f32[2,3,3,5,7]", _grid(2, 2, 4, 6, 3)), {"mode": "linear"}),),
)
"""GridSample of three spatial axes, which has no kernel."""

OPERATORS = (_IMAGES, _SOME_IMAGES, _VOLUMES)
