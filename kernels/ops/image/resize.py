"""Resize: interpolation to other sizes, axis after axis.

An output index is mapped to a coordinate of the input; the output is a weighted sum of the input's elements around it
(one for nearest, two for linear, four for cubic, more if antialiasing). What lies outside repeats the edge, or is left
out (`exclude_outside`), or makes the output `extrapolation_value` (``tf_crop_and_resize``).

Scales are given as float32. Where such a scale is the rounded quotient of the output's and the input's size, the
quotient itself is used, so that e.g. a scale of ⅓ hits every third element exactly. With any other scale, and with a
region, coordinates are rounded to float32 as in exporters and other runtimes: 17 / 1.7 is 10 only then, and nearest
takes another element.

Source: ONNX Resize-19, and tf_half_pixel_for_nn of Resize-11.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrt.dims import Dim, Undetermined
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.codegen.conversion import cast, saturated
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, Ref, inp, out, scratch
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import BITS
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.shapes import check, count, normal_axis, reference_call
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, FLOAT64, INT32, Array, DataType, Shape, dtype_of, show_shape
from asyncrt.memory.view import View

_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip
_EXACT = 1 << 24  # products below it have no more bits than float32
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


class _ResizeSettings(NamedTuple):
    """Attributes that every axis shares."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude: bool
    antialias: bool
    extrapolation: float


class _ResizedAxis(NamedTuple):
    """One axis and its scale: ``numerator / denominator``, or `given` where it is not 0."""

    axis: int
    size: int
    out: int
    numerator: int
    denominator: int
    given: float = 0.0

    @property
    def scale(self) -> float:
        return self.given or self.numerator / self.denominator

    def taps(self, settings: _ResizeSettings) -> int:
        """Elements that an output index looks at."""
        taps = _TAPS[settings.mode]
        if not settings.antialias or taps == 1:
            return taps
        return 2 - 2 * (math.floor(-(taps // 2) / min(self.scale, 1.0)) + 1)


def _settings(name: str, attributes: Attributes) -> _ResizeSettings:
    def choice(attribute: str, default: str, choices: Sequence[str]) -> str:
        value: str = attributes.get(attribute, default)
        if value not in choices:
            raise ShapeError(f"'{name}': {attribute} {value!r} is not known")
        return value

    return _ResizeSettings(
        choice("mode", "nearest", tuple(_TAPS)),
        choice("coordinate_transformation_mode", "half_pixel", _COORDINATES),
        choice("nearest_mode", "round_prefer_floor", _NEAREST),
        float(attributes.get("cubic_coeff_a", -0.75)),
        bool(attributes.get("exclude_outside", 0)),
        bool(attributes.get("antialias", 0)),
        float(attributes.get("extrapolation_value", 0.0)),
    )


def _known(call: Call, index: int) -> list[float] | list[int] | None:
    """Return the value of scales or sizes; None if the input is absent or empty."""
    if not call.has(index) or call.shape(index) == (0,):
        return None
    value = call.value(index)
    if value is None:
        raise ValueUnknown(f"'{call.name}': the value of input {index} is not known while loading")
    if index == 3 or value.dtype == object:
        return call.ints(index)
    return [float(v) for v in value.reshape(-1).tolist()]


def _axes(call: Call) -> list[int]:
    rank = len(call.shape(0))
    axes = call.attributes.get("axes")
    return list(range(rank)) if not axes else [normal_axis(call, a, rank) for a in axes]


def _scaled(dim: int, scale: float) -> int:
    """Return ``floor(dim * scale)``, multiplied in float32 as exporters and runtimes do."""
    if isinstance(dim, Dim):
        exact = Fraction(scale)
        if max(exact.numerator, exact.denominator) > 1024:
            raise Undetermined(f"how large is {dim!r} times {scale}?")
        return (dim * exact.numerator) // exact.denominator
    exact = Fraction(scale)
    if dim * exact.numerator < _EXACT:
        return dim * exact.numerator // exact.denominator
    return math.floor(np.float32(dim) * np.float32(scale))


def _policy_axis(call: Call, axes: Sequence[int], sizes: Sequence[int]) -> tuple[int, int]:
    """Return numerator and denominator of the one scale that keeps the aspect ratio."""
    policy = call.attributes.get("keep_aspect_ratio_policy", "stretch")
    check(call, policy in ("not_larger", "not_smaller"), f"keep_aspect_ratio_policy {policy!r} is not known")
    shape = call.shape(0)
    if any(isinstance(d, Dim) for d in (*(shape[a] for a in axes), *sizes)):
        raise Undetermined("which axis decides the scale?")
    check(call, all(shape[a] > 0 for a in axes), "an axis of no elements has no aspect ratio")
    ratios = [Fraction(s, shape[a]) for a, s in zip(axes, sizes, strict=True)]
    best = min(ratios) if policy == "not_larger" else max(ratios)
    return best.numerator, best.denominator


def _outputs(call: Call) -> tuple[list[int], list[float] | None, tuple[int, int] | None]:
    """Return the output size of each axis in `_axes`, the scales if given, and the common scale if there is one."""
    shape, axes = call.shape(0), _axes(call)
    scales = _known(call, 2)
    if scales is not None:
        check(call, len(scales) == len(axes), f"{len(scales)} scales for {len(axes)} axes")
        check(call, all(0 < s < math.inf for s in scales), f"scales {scales} are not all above 0 and finite")
        return [_scaled(shape[a], s) for a, s in zip(axes, scales, strict=True)], [*scales], None
    sizes = _known(call, 3)
    if sizes is None:
        raise ShapeError(f"'{call.name}': neither scales nor sizes are given")
    dims = [d if isinstance(d, Dim | int) else int(d) for d in sizes]
    check(call, len(dims) == len(axes), f"{len(dims)} sizes for {len(axes)} axes")
    check(call, all(isinstance(d, Dim) or d >= 0 for d in dims), f"sizes {dims} are not all at least 0")
    if call.attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch":
        return dims, None, None  # pyright: ignore[reportReturnType]
    num, den = _policy_axis(call, axes, dims)  # pyright: ignore[reportArgumentType]
    return [(2 * num * shape[a] + den) // (2 * den) for a in axes], None, (num, den)


def infer(call: Call) -> tuple[Shape]:
    crop = _settings(call.name, call.attributes).coordinates == "tf_crop_and_resize"
    if crop and call.has(1) and not any(isinstance(d, Dim) for d in call.shape(1)):
        bounds = 2 * len(_axes(call))
        check(call, call.shape(1) == (bounds,), f"roi must have {bounds} elements, it is {show_shape(call.shape(1))}")
    result = list(call.shape(0))
    for axis, size in zip(_axes(call), _outputs(call)[0], strict=True):
        if not isinstance(result[axis], Dim) and result[axis] == 0 and not isinstance(size, Dim):
            check(call, size == 0, f"axis {axis} has no elements to interpolate")
        result[axis] = size
    return (tuple(result),)


def _is_quotient(scale: float, size: int, dim: int) -> bool:
    """Whether *scale* is ``size / dim`` rounded to float32."""
    if isinstance(size, Dim) or isinstance(dim, Dim) or dim == 0:
        return False
    exact = Fraction(scale)
    if size * exact.denominator == dim * exact.numerator:
        return True
    return bool(np.float32(size / dim) == np.float32(scale))


def _plan(call: Call) -> list[_ResizedAxis]:
    """Return the axes that are interpolated."""
    shape, axes = call.shape(0), _axes(call)
    sizes, scales, common = _outputs(call)
    settings = _settings(call.name, call.attributes)
    crop = settings.coordinates == "tf_crop_and_resize"
    plan: list[_ResizedAxis] = []
    for position, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        dim, given = shape[axis], 0.0
        num, den = common or (size, dim)
        if scales is not None and not _is_quotient(scales[position], size, dim):
            given = scales[position]
        if not crop and (scales[position] == 1.0 if scales is not None else num == den):
            continue
        alone = isinstance(dim, int) and isinstance(size, int) and dim == size == 1
        if crop or settings.exclude or not alone:  # an only element is its own interpolation
            plan.append(_ResizedAxis(axis, dim, size, num, den, given))
    return plan


def _coordinates(settings: _ResizeSettings, axis: _ResizedAxis, roi: tuple[float, float]) -> npt.NDArray[np.float64]:
    y = np.arange(axis.out, dtype=np.float64)
    n, scale = axis.size, axis.scale

    def single(value: Any) -> Any:
        return np.float64(np.float32(value)) if axis.given or settings.coordinates == "tf_crop_and_resize" else value

    match settings.coordinates:
        case "align_corners":
            return y * (n - 1) / (axis.out - 1) if axis.out > 1 else y * 0.0
        case "asymmetric":
            return np.asarray(single(y / scale))
        case "tf_half_pixel_for_nn":
            return np.asarray(single((y + 0.5) / scale))
        case "pytorch_half_pixel":
            return np.asarray(single(single((y + 0.5) / scale) - 0.5)) if axis.out > 1 else y * 0.0
        case "half_pixel_symmetric":
            return (n * 0.5) * (1 - axis.out / (scale * n)) + (y + 0.5) / scale - 0.5
        case "tf_crop_and_resize":
            start, end = roi
            if axis.out > 1:
                steps = single(single(y * single(end - start)) * (n - 1))
                return np.asarray(single(single(start * (n - 1)) + single(steps / (axis.out - 1))))
            return np.full(axis.out, single(single(0.5 * single(start + end)) * (n - 1)))
    return np.asarray(single(single((y + 0.5) / scale) - 0.5))


def _round(nearest: str, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    match nearest:
        case "round_prefer_floor":
            return np.ceil(x - 0.5)
        case "round_prefer_ceil":
            return np.floor(x + 0.5)
        case "floor":
            return np.floor(x)
    return np.ceil(x)


def _weights(settings: _ResizeSettings, distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    t, a = np.abs(distance), settings.cubic
    if settings.mode == "linear":
        return np.maximum(0.0, 1.0 - t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _interpolate(
    x: npt.NDArray[Any], settings: _ResizeSettings, axis: _ResizedAxis, roi: tuple[float, float], extrapolation: Any
) -> Array:
    at, last, outside = _coordinates(settings, axis, roi), axis.size - 1, None
    if settings.coordinates == "tf_crop_and_resize":  # what is no number is nowhere
        outside = ~((at >= 0) & (at <= last))
        at = np.where(outside, 0.0, at)
    if settings.mode == "nearest":
        index = np.clip(_round(settings.nearest, at), 0, last).astype(np.intp)
        y = np.take(x, index, axis=axis.axis)
    else:
        taps = axis.taps(settings)
        around = np.floor(at)[:, None] + np.arange(1 - taps // 2, 1 + taps // 2)
        squeezed = min(axis.scale, 1.0) if settings.antialias else 1.0
        weight = _weights(settings, np.asarray((around - at[:, None]) * squeezed, np.float64))
        if settings.exclude:
            weight = np.where((around < 0) | (around > last), 0.0, weight)
        if settings.exclude or settings.antialias:
            total = np.sum(weight, axis=1, keepdims=True)
            weight = weight / np.where(total == 0, 1.0, total)
        seen = np.moveaxis(np.take(x, np.clip(around, 0, last).astype(np.intp), axis=axis.axis), axis.axis + 1, -1)
        y = np.sum(seen * weight.reshape((-1,) + (1,) * (x.ndim - 1 - axis.axis) + (weight.shape[1],)), axis=-1)
    if outside is not None:
        y = np.where(outside.reshape((-1,) + (1,) * (x.ndim - 1 - axis.axis)), extrapolation, y)
    return y


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[0]
    assert x is not None
    call = reference_call("Resize", attributes, inputs)
    settings, axes = _settings("Resize", attributes), _axes(call)
    given = inputs[1] if len(inputs) > 1 else None
    roi = np.zeros(0) if given is None else given.astype(np.float64).reshape(-1)
    dtype = dtype_of(x.dtype)
    assert dtype is not None
    moves = settings.mode == "nearest"
    y: Array = x if moves else x.astype(np.float64)
    outside = saturated(settings.extrapolation, dtype) if dtype.is_integer else cast(settings.extrapolation, x.dtype)
    for axis in _plan(call):
        position = axes.index(axis.axis)
        bounds = (0.0, 1.0)
        if roi.size and settings.coordinates == "tf_crop_and_resize":
            bounds = (float(roi[position]), float(roi[position + len(axes)]))
        y = _interpolate(y, settings, axis, bounds, outside if moves else settings.extrapolation)
    if moves:
        return (y.copy(),)
    return (saturated(y, dtype) if dtype.is_integer else cast(y, x.dtype),)


def host_nbytes(call: Call) -> int:
    """The largest axis's sums: what each output sees, weighted, with indices and weights; operand and result in float64."""
    settings, shape, most = _settings(call.name, call.attributes), list(call.shape(0)), 0
    operand = widened = 8 * count(shape)
    for axis in _plan(call):
        shape[axis.axis] = axis.out
        result, taps = 8 * count(shape), axis.taps(settings)
        seen = 0 if settings.mode == "nearest" else 2 * taps * result
        most = max(most, operand + seen + 3 * result + 8 * (6 * taps + 8) * axis.out)
        operand = result
    return widened + max(most, 3 * operand)


def views(call: Call) -> tuple[ViewOf] | None:
    same = (ViewOf(0, View.dense(call.shape(0))),)
    plan = _plan(call)
    if not plan:
        return same
    roi = call.value(1)
    if _settings(call.name, call.attributes).coordinates != "tf_crop_and_resize" or roi is None:
        return None
    starts, ends = np.split(np.asarray(roi, np.float64).reshape(-1), 2)
    whole = bool(np.all(starts == 0) and np.all(ends == 1)) and all(a.size == a.out for a in plan)
    return same if whole and all(a.size > 1 for a in plan) else None


def implement(call: Call, traits: DeviceTraits) -> Impl:
    """Each axis is two launches: its table of indices and weights, then the weighted sums; planes are picked at once."""
    settings, axes, plan = _settings(call.name, call.attributes), _axes(call), _plan(call)
    dtype, shape = call.dtype(0), list(call.shape(0))
    crop = settings.coordinates == "tf_crop_and_resize"
    real = FLOAT64 if "fp64" in traits.features else FLOAT32
    wide = real if dtype is FLOAT64 or not dtype.is_float else FLOAT32
    if settings.mode == "nearest":
        wide = dtype
    launches: list[Launch] = []
    sizes: list[int] = []

    def allocate(nbytes: int) -> Ref:
        sizes.append(nbytes)
        return scratch(len(sizes) - 1)

    if not plan:  # nothing changes, yet the node is run
        plan = [_ResizedAxis(axes[0], shape[axes[0]], shape[axes[0]], 1, 1)] if axes else []
        settings = settings._replace(mode="nearest", coordinates="asymmetric")
        wide, crop = dtype, False
    if all(axis.size <= axis.out for axis in plan):
        plan = plan[::-1]  # the last axis is read element by element: first, while there are few

    def tabulate(axis: _ResizedAxis) -> tuple[Ref, Ref]:
        """Launch what finds the indices and weights of *axis*, and return where they are."""
        taps, position, roi = axis.taps(settings), axes.index(axis.axis), crop and call.has(1)
        index, weight = allocate(4 * axis.out * taps), allocate(wide.itemsize * axis.out * taps)
        flags = settings._replace(cubic=0.0, extrapolation=0.0)  # in the text: NaN does not compare
        table = _table_kernel(flags, _cubic(settings.cubic, real), real, wide, call.dtype(1) if roi else None)
        bits = int(np.float32(axis.given).view(np.int32))
        ints = (axis.size, axis.out, axis.numerator, axis.denominator, bits, taps, position, position + len(axes))
        refs = (index, weight) + ((inp(1),) if roi else ())
        launches.append(Launch(table, refs, ints, (round_up(axis.out, 64),), (64,)))
        return index, weight

    if traits.is_cpu and settings.mode == "nearest" and not crop and _are_planes(plan, len(shape)):
        columns, rows = sorted(plan, key=lambda axis: -axis.axis)
        refs = (inp(0), tabulate(rows)[0], tabulate(columns)[0], out(0))
        launches.append(_planes(rows, columns, count(shape[:-2]), refs, dtype, traits))
        return Impl("nearest of planes", tuple(launches), tuple(sizes))
    source, source_type = inp(0), dtype
    for step, axis in enumerate(plan):
        index, weight = tabulate(axis)
        last = step == len(plan) - 1
        outer, inner = count(shape[: axis.axis]), count(shape[axis.axis + 1 :])
        shape[axis.axis] = axis.out
        target_type = dtype if last else wide
        target = out(0) if last else allocate(wide.itemsize * count(shape))
        buffers, types = (source, index, weight, target), (source_type, target_type)
        launches.append(_pass(settings, axis, outer, inner, buffers, types, wide, traits))
        source, source_type = target, target_type
    return Impl(settings.mode, tuple(launches), tuple(sizes))


def _are_planes(plan: Sequence[_ResizedAxis], rank: int) -> bool:
    """Whether the axes are the last two."""
    return sorted(axis.axis for axis in plan) == [rank - 2, rank - 1]


def _planes(
    rows: _ResizedAxis, columns: _ResizedAxis, planes: int, refs: tuple[Ref, ...], dtype: DataType, traits: DeviceTraits
) -> Launch:
    """Return the launch that picks elements along both axes of each plane; the second and third of *refs* are tables."""
    cut = cut_rows(planes * rows.out, columns.out, traits)
    ints = (planes * rows.out, columns.out, rows.size, columns.size, rows.out, cut.chunk, cut.rows_per_item)
    return Launch(_planes_kernel(BITS[dtype.itemsize]), refs, ints, cut.grid, (1, 1))


def _pass(
    settings: _ResizeSettings,
    axis: _ResizedAxis,
    outer: int,
    inner: int,
    refs: tuple[Ref, Ref, Ref, Ref],
    types: tuple[DataType, DataType],
    wide: DataType,
    traits: DeviceTraits,
) -> Launch:
    extrapolation = None
    if settings.coordinates == "tf_crop_and_resize":
        target = types[1] if settings.mode == "nearest" else wide
        value = settings.extrapolation if target.is_float else saturated(settings.extrapolation, target).item()
        extrapolation = literal(value, target)
    if settings.mode == "nearest" and extrapolation is None:
        types = (BITS[types[0].itemsize], BITS[types[0].itemsize])  # only bytes move
        wide = types[0]
    k = _pass_kernel(settings.mode == "nearest", types, wide, extrapolation, traits.is_cpu, inner == 1)
    # a row is what is walked in the inner loop: the positions of the axis if nothing is behind it
    rows, n = (outer, axis.out) if inner == 1 else (outer * axis.out, inner)
    ints = (rows, n, axis.size, axis.out, axis.taps(settings))
    if not traits.is_cpu:
        return Launch(k, refs, (*ints, 1, 1), (round_up(rows * n, GPU_GROUP),), (GPU_GROUP,))
    cut = cut_rows(rows, n, traits)
    return Launch(k, refs, (*ints, cut.chunk, cut.rows_per_item), cut.grid, (1, 1))


def _cubic(a: float, real: DataType) -> tuple[str, ...]:
    """Return the coefficients of cubic weights as literals: a + 2, a + 3, a, 5 a, 8 a, 4 a."""
    return tuple(literal(c, real) for c in (a + 2, a + 3, a, 5 * a, 8 * a, 4 * a))


@functools.cache
def _table_kernel(
    settings: _ResizeSettings, cubic: tuple[str, ...], dtype: DataType, wide: DataType, roi: DataType | None
) -> KernelSource:
    """For each output index the input's indices (-1: extrapolate) and their weights: of all outputs, tap after tap."""
    real, half = compute_type(dtype), literal(0.5, dtype)
    whole = f"F(F((j + {half}) / scale) - {half})"
    at = {
        "half_pixel": whole,
        "asymmetric": "F(j / scale)",
        "tf_half_pixel_for_nn": f"F((j + {half}) / scale)",
        "pytorch_half_pixel": f"OUT > 1 ? {whole} : 0",
        "align_corners": "OUT > 1 ? j * (N - 1) / (OUT - 1) : 0",
        "half_pixel_symmetric": f"(N * {half}) * (1 - OUT / (scale * N)) + (j + {half}) / scale - {half}",
        "tf_crop_and_resize": "OUT > 1 ? F(F(start * (N - 1)) + F(F(F(j * F(end - start)) * (N - 1)) / (OUT - 1))) "
        f": F(F({half} * F(start + end)) * (N - 1))",
    }[settings.coordinates]
    rounds = "1" if settings.coordinates == "tf_crop_and_resize" else "bits"
    at = re.sub(r"\bF\(", f"$_single({rounds}, ", at)
    single = f"inline {real} $_single(int rounds, {real} v) {{ return rounds ? ({real})(float)v : v; }}"
    bounds = f"const {real} start = 0, end = 1;"
    if roi is not None:
        bounds = f"const {real} start = LOAD({roi.name}, roi, r0), end = LOAD({roi.name}, roi, r1);"
    outside = "!(at >= 0 && at <= N - 1)" if settings.coordinates == "tf_crop_and_resize" else "0"
    if settings.mode == "nearest":
        rounded = {
            "round_prefer_floor": f"ceil(at - {half})",
            "round_prefer_ceil": f"floor(at + {half})",
            "floor": "floor(at)",
            "ceil": "ceil(at)",
        }[settings.nearest]
        fill = f"index[id] = {outside} ? -1 : clamp((int)({rounded}), 0, N - 1);"
    else:
        if settings.mode == "linear":
            weight = f"fmax(1 - t, ({real})0)"
        else:
            a2, a3, a, a5, a8, a4 = cubic
            weight = f"t <= 1 ? ({a2} * t - {a3}) * t * t + 1 : t < 2 ? (({a} * t - {a5}) * t + {a8}) * t - {a4} : 0"
        shrink = f"fmin(scale, ({real})1)" if settings.antialias else "1"
        exclude = "if (i < 0 || i >= N) w = 0;" if settings.exclude else ""
        normal = "total == 0 ? 1 : total" if settings.exclude or settings.antialias else "1"
        tap = (
            f"const int i = (int)floor(at) + 1 - taps / 2 + k; const {real} t = fabs(i - at) * {shrink}; "
            f"{real} w = {weight}; {exclude}"
        )
        fill = f"""
  {real} total = 0;
  for (int k = 0; k < taps; k++) {{ {tap} total += w; }}
  for (int k = 0; k < taps; k++) {{
    {tap}
    index[k * OUT + id] = {outside} ? -1 : clamp(i, 0, N - 1);
    STORE({wide.name}, weight, k * OUT + id, w / ({normal}));
  }}"""
    body = f"""
  const int id = (int)get_global_id(0);
  if (id >= OUT) return;
  const {real} j = id, scale = bits ? ({real})as_float(bits) : ({real})num / ({real})den;
  {bounds}
  const {real} at = {at};
  {fill}"""
    buffers: tuple[tuple[str, DataType, str], ...] = (("index", INT32, "w"), ("weight", wide, "w"))
    if roi is not None:
        buffers = (*buffers, ("roi", roi, "r"))
    sizes = ("N", "OUT", "num", "den", "bits", "taps", "r0", "r1")
    return kernel("resize_table", buffers, sizes, body, helpers=single)


@functools.cache
def _pass_kernel(
    nearest: bool,
    types: tuple[DataType, DataType],
    wide: DataType,
    extrapolation: str | None,
    cpu: bool,
    last: bool,
) -> KernelSource:
    source, target = types
    acc = compute_type(wide)
    position = "c" if last else "r % OUT"
    element = "r * N + i" if last else "((r / OUT) * N + i) * n + c"
    result = compute_type(target)
    if nearest:
        value = f"const int i = index[{position}]; "
        read = f"LOAD({source.name}, x, {element})"
        if extrapolation is not None:
            read = f"i < 0 ? ({result}){extrapolation} : {read}"
        value += f"const {result} v = {read};"
    else:
        cast = f"({result})a" if target.is_float else f"convert_{target.c}_sat_rte(a)"
        outside = "" if extrapolation is None else f"if (index[{position}] < 0) a = {extrapolation}; else"
        value = f"""
      {acc} a = 0;
      {outside} for (int k = 0, at = {position}; k < taps; k++, at += OUT) {{
        const int i = index[at];
        a = fma(LOAD({wide.name}, weight, at), ({acc})LOAD({source.name}, x, {element}), a);
      }}
      const {result} v = {cast};"""
    one = f"{value} STORE({target.name}, y, r * n + c, v);"
    if cpu:
        row = ""
        if extrapolation is None and nearest:
            start = "r * N" if last else "(r / OUT * N + index[r % OUT]) * n"
            row = f"__global const {source.c}* const from = x + {start}; {_picked(source.c) if last else _COPIED}"
        elif extrapolation is None and source is target is wide is FLOAT32:
            row = _mixed(last=last)
        body = f"""
  const int r1 = min(((int)get_global_id(1) + 1) * per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int r = (int)get_global_id(1) * per_item; r < r1; r++) {{
    int c = c0;
    {row}
    for (; c < c1; c++) {{ {one} }}
  }}"""
    else:
        body = f"""
  const int id = (int)get_global_id(0);
  if (id >= rows * n) return;
  const int r = id / n, c = id - r * n;
  {one}"""
    buffers = (("x", source, "r"), ("index", INT32, "r"), ("weight", wide, "r"), ("y", target, "w"))
    return kernel("resize", buffers, ("rows", "n", "N", "OUT", "taps", "chunk", "per_item"), body)


def _mixed(*, last: bool) -> str:
    """Return statements that make a row of weighted sums in vectors, of rows or of elements of a row.

    The last vector is moved back to end with the row, so that only rows shorter than one are left.
    """
    if last:
        sixteen = ", ".join(f"x[r * N + i.s{j:x}]" for j in range(16))
        tap = f"const int16 i = vload16(0, index + k * OUT + at); const float16 v = (float16)({sixteen});"
        weight = "vload16(0, weight + k * OUT + at)"
    else:
        tap = "const float16 v = vload16(0, x + (r / OUT * N + index[k * OUT + r % OUT]) * n + at);"
        weight = "(float16)(weight[k * OUT + r % OUT])"
    return f"""for (; c < c1 && c1 - c0 >= 16; c += 16) {{
      const int at = min(c, c1 - 16);
      float16 a = 0.0f;
      for (int k = 0; k < taps; k++) {{ {tap} a = fma({weight}, v, a); }}
      vstore16(a, 0, y + r * n + at);
    }}"""


# Columns c0 to c1 of a row in vectors. The last one is moved back to end with them, so that only fewer than 16 are left.
_COPIED = """for (; c < c1 && c1 - c0 >= 16; c += 16) {
      const int at = min(c, c1 - 16);
      vstore16(vload16(0, from + at), 0, y + r * n + at);
    }"""


def _picked(c: str) -> str:
    """Return statements that do the same with elements picked from a row.

    Where every element is picked twice, as of a picture that becomes twice as large, one vector makes two.
    """
    return f"""for (; c < c1 && c1 - c0 >= 16; c += 16) {{
      const int at = min(c, c1 - 16), i = index[at];
      if (all(vload16(0, index + at) == (int16)(i) + (int16)(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7))) {{
        const {c}8 v = vload8(0, from + i);
        vstore16(({c}16)(v.s00112233, v.s44556677), 0, y + r * n + at);
      }} else {{
        for (int k = at; k < at + 16; k++) y[r * n + k] = from[index[k]];
      }}
    }}"""


@functools.cache
def _planes_kernel(dtype: DataType) -> KernelSource:
    """Elements picked along both axes of planes; a row that is picked like the one before is a copy of it."""
    body = f"""
  const int first = (int)get_global_id(1) * per_item, r1 = min(first + per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int r = first; r < r1; r++) {{
    const int plane = r / OUT, o = r - plane * OUT;
    int c = c0;
    if (r > first && o > 0 && row[o] == row[o - 1]) {{
      __global const {dtype.c}* const from = y + (r - 1) * n;
      {_COPIED}
      for (; c < c1; c++) y[r * n + c] = from[c];
    }} else {{
      __global const {dtype.c}* const from = x + (plane * H + row[o]) * W;
      {_picked(dtype.c)}
      for (; c < c1; c++) y[r * n + c] = from[index[c]];
    }}
  }}"""
    buffers = (("x", dtype, "r"), ("row", INT32, "r"), ("index", INT32, "r"), ("y", dtype, "w"))
    return kernel("resize_planes", buffers, ("rows", "n", "H", "W", "OUT", "chunk", "per_item"), body)


def _f(*values: float) -> Array:
    return np.array(values, np.float32)


def _i(*values: int) -> Array:
    return np.array(values, np.int64)


def _example(
    x: str, scales: Array | None, sizes: Array | None = None, roi: Array | None = None, **attributes: object
) -> Example:
    inputs = (x, roi, scales) if sizes is None else (x, roi, scales, sizes)
    return Example(inputs, attributes, opset=19)


_MODES: tuple[Callable[[str], Example], ...] = (
    lambda c: _example("f32[1,2,5,7]", _f(1, 1, 2, 2), mode="nearest", coordinate_transformation_mode=c),
    lambda c: _example("f32[2,1,5,6]", None, _i(2, 1, 9, 4), mode="linear", coordinate_transformation_mode=c),
    lambda c: _example("f32[1,2,6,6]", None, _i(1, 2, 4, 13), mode="cubic", coordinate_transformation_mode=c),
)

OPERATOR = Operator(
    name="Resize",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    host_nbytes=host_nbytes,
    why="no axis changes its size",
    shape_infer_dependencies=(2, 3),
    value_hints=(1,),
    examples=(
        *(make(c) for make in _MODES for c in _COORDINATES if c != "tf_crop_and_resize"),
        *(
            _example("f32[1,1,7,10]", None, _i(1, 1, 4, 6), mode="nearest", nearest_mode=m)
            for m in _NEAREST
        ),
        *(
            _example(
                "f32[1,1,6,8]", None, _i(1, 1, 4, 5), _f(0, 0, 0.31, -0.1, 1, 1, 0.8, 1.2), mode=m,
                coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=10.0,
            )
            for m in _TAPS
        ),
        _example("f32[1,1,6,8]", _f(1, 1, 0.8, 0.7), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
        _example("f32[1,1,16,12]", None, _i(1, 1, 5, 4), mode="linear", antialias=1),
        _example("f32[1,1,16,12]", None, _i(1, 1, 5, 20), mode="cubic", antialias=1),
        _example("f32[1,2,5,7]", _f(2, 3), mode="linear", axes=(2, 3)),
        _example("f32[1,2,5,7]", None, _i(9, 9), mode="nearest", axes=(2, 3), keep_aspect_ratio_policy="not_larger"),
        _example("f32[1,2,5,7]", None, _i(9, 9), mode="linear", axes=(2, 3), keep_aspect_ratio_policy="not_smaller"),
        _example("f32[3,4]", _f(1, 1), mode="linear"),
        _example("f32[2,9]", _f(1, 1.7), mode="linear"),
        _example("f16[1,2,5,7]", _f(1, 1, 2, 2), mode="linear"),
        _example("u8[1,2,5,7]", _f(1, 1, 2, 3), mode="nearest"),
        _example("u8[1,2,5,7]", _f(1, 1, 2, 2), mode="linear"),
        _example("i32[1,2,5,7]", None, _i(1, 2, 3, 7), mode="nearest"),
        _example("f32[2,3,4,37]", _f(1, 1, 2, 2), mode="nearest", coordinate_transformation_mode="asymmetric"),
        _example("f32[1,2,5,41]", _f(1, 1, 2, 2), mode="nearest"),
        _example("f32[1,2,3,40]", _f(1, 1, 3, 1.5), mode="nearest"),
        _example("f32[2,2,3,39]", _f(1, 1, 2, 1), mode="linear"),
        _example("f32[1,2,5,20]", _f(1, 1, 0.6, 2), mode="cubic"),
        _example("u8[1,2,3,50]", _f(1, 1, 2, 2), mode="nearest", nearest_mode="ceil"),
        _example("f16[1,2,3,50]", _f(1, 1, 0.7, 2), mode="nearest"),
        _example("i64[1,2,3,4,20]", _f(1, 1, 2, 1, 2), mode="nearest"),
        _example("f32[1,1,4,5,6]", _f(1, 1, 2, 2, 2), mode="linear"),
        Example(("f32[1,2,4,4]", np.zeros(0, np.float32), _f(1, 1, 2, 2)), {"mode": "nearest"}, opset=11),
        Example(
            ("f32[1,2,4,4]", np.zeros(0, np.float32), np.zeros(0, np.float32), _i(1, 2, 3, 9)),
            {"mode": "linear"},
            opset=13,
        ),
    ),
)  # fmt: skip
