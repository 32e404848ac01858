"""ScatterND and ScatterElements: a copy of the data in which some rows, or elements, are replaced or added to.

Updates of the same place happen in their order, so the last one wins and sums are always the same. On CPU devices
a work-item walks all updates, for some columns or lines. On GPUs there is a work-item per update: it first enters its
number at its place, as the least and the greatest there, and then the first update of a place carries out all of them.
An update whose index is out of range is left out.

Source: ONNX ScatterND-18, ScatterElements-18.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import FOUND, Impl, KernelSource, Launch, inp, out, scratch
from asyncrt.kernels.indices import LOOK, NOTE, TELL, Indices, from_either_end, remembered
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import BITS, copy_launch, materialise
from asyncrt.kernels.patterns.grid import cut_rows
from asyncrt.kernels.patterns.indexing import known_ints, run_start
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import check, count, ints, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT32, Array, DataType, Shape, row_major
from asyncrt.memory.view import View, collapse

_COMBINE = {
    "none": "u",
    "add": "a + u",
    "mul": "a * u",
    "max": "(u > a || u != u) ? u : a",
    "min": "(u < a || u != u) ? u : a",
}
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _mode(call: Call) -> str:
    mode = str(call.attributes.get("reduction", "none"))
    check(call, mode in _COMBINE, f"reduction {mode!r} is none of {', '.join(_COMBINE)}")
    return mode


def _same(call: Call, have: Sequence[int], want: Sequence[int], what: str) -> None:
    """Raise `ShapeError` if two shapes differ in what is known of them."""
    fits = len(have) == len(want) and all(
        not isinstance(a, int) or not isinstance(b, int) or a == b for a, b in zip(have, want, strict=True)
    )
    check(call, fits, f"{what} must be {list(want)} and is {list(have)}")


def _depth(call: Call) -> int:
    """How many axes of the data an index tuple of ScatterND is for."""
    rank, indices = len(call.shape(0)), call.shape(1)
    check(call, len(indices) > 0, "indices must have an axis")
    depth = int(indices[-1])
    check(call, 1 <= depth <= rank, f"index tuples of {depth} do not fit {rank} axes")
    return depth


def _infer_nd(call: Call) -> tuple[Shape]:
    shape, depth = call.shape(0), _depth(call)
    _same(call, call.shape(2), (*call.shape(1)[:-1], *shape[depth:]), "the updates' shape")
    _mode(call)
    return (shape,)


def _axis(call: Call) -> int:
    return normal_axis(call, call.attributes.get("axis", 0), len(call.shape(0)))


def _infer_elements(call: Call) -> tuple[Shape]:
    shape, indices, axis = call.shape(0), call.shape(1), _axis(call)
    _same(call, call.shape(2), indices, "the updates' shape")
    check(call, len(shape) == len(indices), f"data has {len(shape)} axes and indices have {len(indices)}")
    for a, (have, want) in enumerate(zip(shape, indices, strict=True)):
        if a != axis and isinstance(have, int) and isinstance(want, int):
            check(call, want <= have, f"indices are longer than the data on axis {a}: {want} and {have}")
    _mode(call)
    return (shape,)


def _written(call: Call, places: Any, valid: Any, count_of_places: int, inner: int) -> tuple[ViewOf] | None:
    """The data if no update has a place; the updates if together they replace all of it, in order.

    Args:
        places: Of each update, flat; *valid* where it is in range. Each is of *inner* elements.
    """
    shape = call.shape(0)
    if not valid.any():
        return (ViewOf(0, View.dense(shape)),)
    if _mode(call) != "none" or len(places) < count_of_places:
        return None
    last = np.full(count_of_places, -1, np.int64)
    last[places[valid]] = np.flatnonzero(valid)
    start = run_start(last)
    return None if start is None or start < 0 else (ViewOf(2, View(shape, row_major(shape), start * inner)),)


def _no_updates(call: Call) -> bool:
    dims = call.shape(2)
    return any(not isinstance(d, Dim) and d == 0 for d in dims) or count(dims) == 0


def _views_nd(call: Call) -> tuple[ViewOf] | None:
    if _no_updates(call):
        return (ViewOf(0, View.dense(call.shape(0))),)
    at = known_ints(call, 1)
    if at is None:
        return None
    depth, shape = _depth(call), ints(call.shape(0))
    places, valid = _rows(at.reshape(-1, depth), shape[:depth])
    return _written(call, places, valid, count(shape[:depth]), count(shape[depth:]))


def _views_elements(call: Call) -> tuple[ViewOf] | None:
    if _no_updates(call):
        return (ViewOf(0, View.dense(call.shape(0))),)
    at = known_ints(call, 1)
    if at is None:
        return None
    shape = ints(call.shape(0))
    places, valid = _elements(at, shape, _axis(call))
    return _written(call, places, valid, count(shape), 1)


def _indices_nd(call: Call) -> Indices:
    return from_either_end(1, *call.shape(0)[: _depth(call)])


def _indices_elements(call: Call) -> Indices:
    return from_either_end(1, call.shape(0)[_axis(call)])


def _why_not(call: Call) -> str:
    return "the indices are not known on the host" if call.value(1) is None else "some elements are replaced"


def _rows(at: Any, dims: Sequence[int]) -> tuple[Any, Any]:
    """Places of the index tuples *at* among rows of *dims*, and which are in range."""
    extents = np.array(dims, np.int64)
    at = np.where(at < 0, at + extents, at)
    valid = ((at >= 0) & (at < extents)).all(axis=1)
    return (at * np.array(row_major(dims), np.int64)).sum(axis=1), valid


def _elements(at: Any, shape: Sequence[int], axis: int) -> tuple[Any, Any]:
    """Flat places of the indices *at* along *axis*, and which are in range."""
    at = np.where(at < 0, at + shape[axis], at)
    valid = (at >= 0) & (at < shape[axis])
    strides = row_major(shape)
    places = at * strides[axis]
    for a, dim in enumerate(at.shape):
        if a != axis:
            places = places + (np.arange(dim) * strides[a]).reshape((-1,) + (1,) * (at.ndim - 1 - a))
    return places.reshape(-1), valid.reshape(-1)


# References.


def _apply(mode: str, data: Any, places: Any, updates: Any) -> tuple[Array]:
    """Replace rows of *data*, ``[rows, n]``; NumPy too assigns in order."""
    if mode == "none":
        data[places] = updates
        return (data,)
    wide = data.astype(np.float64) if data.dtype.kind not in "iubO" else data
    with np.errstate(all="ignore"):
        _UFUNCS[mode].at(wide, places, updates.astype(wide.dtype))
        return (wide.astype(data.dtype),)


def _reference_nd(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    indices: Any = inputs[1]
    updates: Any = inputs[2]
    depth = indices.shape[-1]
    from_either_end(1, *x.shape[:depth]).check("", indices)
    places, _ = _rows(indices.reshape(-1, depth).astype(np.int64), x.shape[:depth])
    rows = math.prod(x.shape[:depth])
    data = x.copy().reshape(rows, -1) if x.size else x.copy().reshape(rows, 0)
    updates = updates.reshape(len(places), data.shape[1])
    (result,) = _apply(attributes.get("reduction", "none"), data, places, updates)
    return (result.reshape(x.shape),)


def _reference_elements(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    indices: Any = inputs[1]
    updates: Any = inputs[2]
    axis = attributes.get("axis", 0) % x.ndim
    from_either_end(1, x.shape[axis]).check("", indices)
    places, _ = _elements(indices.astype(np.int64), x.shape, axis)
    data = x.copy().reshape(-1)
    mode = attributes.get("reduction", "none")
    (result,) = _apply(mode, data, places, updates.reshape(-1))
    return (result.reshape(x.shape),)


# Kernels.


class _Target(NamedTuple):
    """How a kernel finds the place of update number ``u``: a function of the indices and some sizes.

    Attributes:
        body: OpenCL C that returns the place, or -1 if it is out of range.
        ints: Names and values of the sizes.
        outside: OpenCL C that returns the position of the index that is, then.
    """

    body: str
    ints: tuple[tuple[str, int], ...]
    outside: str

    def helper(self, index_type: DataType) -> str:
        sizes = "".join(f", const int {n}" for n, _ in self.ints)
        given = f"(__global const {index_type.c}* index, const int u{sizes})"
        return f"int $_place{given} {{ {self.body} }}\nint $_outside{given} {{ {self.outside} }}"

    def remembered(self, u: str) -> str:
        """OpenCL C for an update that has no place."""
        return remembered(self.call(u).replace("$_place", "$_outside"))

    def call(self, u: str) -> str:
        return f"$_place(index, {u}{''.join(f', {n}' for n, _ in self.ints)})"


def _rows_target(dims: Sequence[int]) -> _Target:
    steps = row_major(dims)
    levels = range(len(dims))
    body = "int place = 0; long v; " + " ".join(
        f"v = index[u * {len(dims)} + {k}]; if (v < 0) v += d{k}; "
        f"if (v < 0 || v >= d{k}) return -1; place += (int)v * s{k};"
        for k in levels
    )
    ints = tuple(x for k in levels for x in ((f"d{k}", dims[k]), (f"s{k}", steps[k])))
    outside = "long v; " + " ".join(
        f"v = index[u * {len(dims)} + {k}]; if (v < -(long)d{k} || v >= d{k}) return u * {len(dims)} + {k};" for k in levels
    )
    return _Target(f"{body} return place;", ints, f"{outside} return -1;")


def _elements_target(shape: Sequence[int], indices: Sequence[int], axis: int) -> _Target:
    strides = row_major(shape)
    dims, (steps,) = collapse(indices, [0 if a == axis else s for a, s in enumerate(strides)])
    body = "int rest = u, place = 0; " + " ".join(
        f"{{ const int q = rest / d{k}; place += (rest - q * d{k}) * s{k}; rest = q; }}" for k in range(len(dims))
    )
    body += " long v = index[u]; if (v < 0) v += extent; if (v < 0 || v >= extent) return -1;"
    ints = tuple(x for k, a in enumerate(reversed(range(len(dims)))) for x in ((f"d{k}", dims[a]), (f"s{k}", steps[a])))
    ints = (*ints, ("extent", shape[axis]), ("step", strides[axis]))
    return _Target(f"{body} return place + (int)v * step;", ints, "return u;")


def _copy(call: Call, traits: DeviceTraits) -> tuple[Launch, ...]:
    view = View.dense((call.outputs[0].count,))
    launch = copy_launch(inp(0), view, out(0), view, call.dtype(0).itemsize, traits)
    return () if launch is None else (launch,)


def _stored(call: Call, mode: str) -> DataType:
    """What the kernels take the data for: plain bits if nothing is calculated."""
    return BITS[call.dtype(0).itemsize] if mode == "none" else call.dtype(0)


def _by_updates(
    call: Call, traits: DeviceTraits, mode: str, target: _Target, updates: int, places: int, inner: int
) -> Impl:
    """A work-item per update and column."""
    dtype, index = _stored(call, mode), WalkedBuffer("index", inp(1), call.dtype(1), "r")
    helper = target.helper(call.dtype(1))
    first, last = (WalkedBuffer(n, scratch(k), INT32, "rw") for k, n in enumerate(("first", "last")))
    kind, known = compute_type(dtype), call.value(1) is not None
    missed = "" if known else f"else {target.remembered('i')}"
    if mode == "none":
        apply = f"const int here = {target.call('n')}; if (here >= 0 && last[here] == n) y[here * inner + c] = x[i];"
    else:
        apply = f"""const int here = {target.call("n")};
  if (here >= 0 && first[here] == n) {{
    const int end = last[here];
    {kind} a = LOAD({dtype.name}, y, here * inner + c);
    for (int m = n; m <= end; m++) {{
      if (m != n && m != end && {target.call("m")} != here) continue;
      const {kind} u = LOAD({dtype.name}, x, m * inner + c);
      a = {_COMBINE[mode]};
    }}
    STORE({dtype.name}, y, here * inner + c, a);
  }}"""
    launches = (
        *_copy(call, traits),
        walk("scatter_none", "first[i] = INT_MAX; last[i] = -1;", (places,), (first, last), traits),
        walk(
            "scatter_enter",
            f"const int here = {target.call('i')}; "
            f"if (here >= 0) {{ atomic_min(first + here, i); atomic_max(last + here, i); }} {missed}",
            (updates,),
            (index, first, last),
            traits,
            ints=target.ints,
            helpers=helper,
            looks=not known,
        ),
        walk(
            f"scatter_{mode}",
            apply,
            (updates, inner),
            (index, WalkedBuffer("x", inp(2), dtype, "r"), first, last, WalkedBuffer("y", out(0), dtype, "rw")),
            traits,
            offsets=(("n", (1, 0)), ("c", (0, 1))),
            ints=(*target.ints, ("inner", inner)),
            helpers=helper,
        ),
    )
    made = tuple(k for k in launches if k is not None)
    return Impl(f"{mode}, item per update", made, scratch=(4 * places, 4 * places))


def _implement_nd(call: Call, traits: DeviceTraits) -> Impl:
    same = _views_nd(call)
    if same is not None:
        return materialise(call, same, traits)
    shape, depth, mode = call.shape(0), _depth(call), _mode(call)
    updates, places, inner = count(call.shape(1)[:-1]), count(shape[:depth]), count(shape[depth:])
    target = _rows_target(shape[:depth])
    if not traits.is_cpu:
        return _by_updates(call, traits, mode, target, updates, places, inner)
    cut = cut_rows(1, inner * updates, traits, align=16 * updates)
    chunk = min(inner, cut.chunk // updates)
    ints = (inner, updates, chunk, *(v for _, v in target.ints))
    known = call.value(1) is not None
    source = _columns_kernel(mode, _stored(call, mode), call.dtype(1), depth, known)
    refs = (inp(1), inp(2), out(0)) if known else (inp(1), inp(2), out(0), FOUND)
    launch = Launch(source, refs, ints, (-(-inner // chunk),), (1,))
    return Impl(f"{mode}, columns", (*_copy(call, traits), launch))


@functools.cache
def _columns_kernel(mode: str, dtype: DataType, index_type: DataType, depth: int, known: bool) -> KernelSource:
    """One update after another, for some columns per work-item; on CPU devices."""
    target = _rows_target((1,) * depth)
    kind = compute_type(dtype)
    load = "" if mode == "none" else f"const {kind} a = LOAD({dtype.name}, y, here * n + c); "
    body = f"""
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  {"" if known else LOOK}
  for (int k = 0; k < updates; k++) {{
    const int here = {target.call("k")};
    if (here < 0) {{ {"" if known else target.remembered("k")} continue; }}
    for (int c = c0; c < c1; c++) {{
      {load}const {kind} u = LOAD({dtype.name}, x, k * n + c);
      const {kind} v = {_COMBINE[mode]};
      STORE({dtype.name}, y, here * n + c, v);
    }}
  }}
  {"" if known else TELL}"""
    buffers: tuple[tuple[str, DataType, str], ...] = (("index", index_type, "r"), ("x", dtype, "r"), ("y", dtype, "rw"))
    helpers = target.helper(index_type)
    if not known:
        buffers, helpers = (*buffers, ("found", INT32, "rw")), NOTE + helpers
    ints = ("n", "updates", "chunk", *(n for n, _ in target.ints))
    return kernel(f"scatter_{mode}", buffers, ints, body, helpers=helpers)


def _implement_elements(call: Call, traits: DeviceTraits) -> Impl:
    same = _views_elements(call)
    if same is not None:
        return materialise(call, same, traits)
    shape, indices, axis, mode = call.shape(0), call.shape(1), _axis(call), _mode(call)
    updates, length = count(indices), indices[axis]
    if not traits.is_cpu and length >= 64 and updates // length < 4096:
        target = _elements_target(shape, indices, axis)
        return _by_updates(call, traits, mode, target, updates, count(shape), 1)
    dtype = _stored(call, mode)
    kind = compute_type(dtype)
    strides, steps = row_major(shape), row_major(indices)
    others = [a for a in range(len(shape)) if a != axis]
    load = "" if mode == "none" else f"const {kind} a = LOAD({dtype.name}, y, p + (int)at * step);"
    known = call.value(1) is not None
    launch = walk(
        f"scatter_elements_{mode}",
        f"""for (int k = 0; k < length; k++) {{
        long at = index[q + k * stride];
        if (at < 0) at += extent;
        if (at < 0 || at >= extent) {{ {"" if known else remembered("q + k * stride")} continue; }}
        {load}
        const {kind} u = LOAD({dtype.name}, x, q + k * stride);
        const {kind} v = {_COMBINE[mode]};
        STORE({dtype.name}, y, p + (int)at * step, v);
      }}""",
        [indices[a] for a in others],
        (
            WalkedBuffer("index", inp(1), call.dtype(1), "r"),
            WalkedBuffer("x", inp(2), dtype, "r"),
            WalkedBuffer("y", out(0), dtype, "rw"),
        ),
        traits,
        offsets=(("p", [strides[a] for a in others]), ("q", [steps[a] for a in others])),
        ints=(("length", length), ("stride", steps[axis]), ("extent", shape[axis]), ("step", strides[axis])),
        work=length,
        looks=not known,
    )
    assert launch is not None
    return Impl(f"{mode}, lines", (*_copy(call, traits), launch))


_I64 = np.int64
_TWICE = np.array([[0], [2], [0], [-1], [2], [0]], _I64)
_WHY = "there are no updates, or they replace everything"
_MODES = ("none", "add", "mul", "max", "min")
_LONG = np.tile(np.array([3, 70, 3, 0, -5], _I64), 20)

OPERATORS = (
    Operator(
        name="ScatterND",
        infer=_infer_nd,
        reference=_reference_nd,
        implement=_implement_nd,
        views=_views_nd,
        indices=_indices_nd,
        why=_WHY,
        why_not=_why_not,
        value_hints=(1,),
        examples=(
            Example(("f32[3,4]", np.array([[0], [1], [2]], _I64), "f32[3,4]")),
            Example(("f32[2,4]", np.array([[1], [0], [-1]], _I64), "f32[3,4]")),
            Example(("f32[8]", np.array([[4], [3], [1], [-1]], _I64), "f32[4]")),
            Example(("f32[3,4,37]", np.array([[0, 1], [2, -1]], _I64), "f32[2,37]")),
            Example(("i64[4,3]", np.array([[[1], [0]]], _I64), "i64[1,2,3]")),
            Example(("bool[4,3]", np.array([[1, 2], [3, 0]], _I64), "bool[2]")),
            Example(("f16[4,5]", np.array([[1]], _I64), "f16[1,5]")),
            Example(("f32[4,5]", np.zeros((0, 1), _I64), "f32[0,5]")),
            *(Example(("f32[4,19]", _TWICE, "f32[6,19]"), {"reduction": m}) for m in _MODES),
            *(Example(("i32[4,2]", _TWICE, "i32[6,2]"), {"reduction": m}) for m in ("add", "max")),
            Example(("f16[4,3]", _TWICE, "f16[6,3]"), {"reduction": "add"}),
        ),
    ),
    Operator(
        name="ScatterElements",
        infer=_infer_elements,
        reference=_reference_elements,
        implement=_implement_elements,
        views=_views_elements,
        indices=_indices_elements,
        why=_WHY,
        why_not=_why_not,
        value_hints=(1,),
        examples=(
            Example(("f32[2,3]", np.array([[0, 0, 0], [1, 1, 1]], _I64), "f32[2,3]")),
            Example(("f32[1,3]", np.array([[0, 0, 0], [0, -1, 0]], _I64), "f32[2,3]")),
            Example(("f32[3,3]", np.array([[1, 0, 2], [0, 2, 1]], _I64), "f32[2,3]")),
            Example(("f32[2,5]", np.array([[1, -2]], _I64), "f32[1,2]"), {"axis": 1}),
            Example(("i64[2,3,4]", np.array([[[1], [0], [1]]], np.int32), "i64[1,3,1]"), {"axis": -2}),
            Example(("f16[5]", np.array([4, 0], _I64), "f16[2]")),
            Example(("f32[5]", np.array([], _I64), "f32[0]")),
            *(Example(("f32[2,5]", np.array([[1, 1, -4, 0]], _I64), "f32[1,4]"), {"axis": 1, "reduction": m})
              for m in _MODES),
            *(Example(("f32[100]", _LONG, "f32[100]"), {"reduction": m}) for m in _MODES),
            Example(("i64[2,100,3]", np.tile(_LONG[:, None], (2, 1, 2)), "i64[2,100,2]"),
                    {"axis": 1, "reduction": "add"}),
        ),
    ),
)  # fmt: skip
