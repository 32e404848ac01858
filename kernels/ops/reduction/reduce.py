"""The Reduce family: one value of all elements along some axes.

The axes are an attribute or, in newer versions, an input. A reduction over axes of one element that leaves the value
as it is (sum, mean, product, maximum, minimum) is the input's bytes.

Source: ONNX ReduceSum-13, ReduceMean-18, ReduceMax-20, ReduceMin-20, ReduceProd-18, ReduceL1-18, ReduceL2-18,
ReduceLogSum-18, ReduceLogSumExp-18, ReduceSumSquare-18.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Undetermined
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import accumulator_type, compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import materialise
from asyncrt.kernels.patterns.grid import GPU_GROUP, round_up
from asyncrt.kernels.shapes import count, normal_axes, reference_call
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Array,
    DataType,
    Shape,
    row_major,
)
from asyncrt.memory.view import View, collapse

_COLUMNS = 16  # of the result, that a work-item of a CPU device computes at once where rows are added to rows


class Pass(NamedTuple):
    """One walk over the elements: fold them into ``a``.

    Attributes:
        init: The value of nothing: OpenCL C, or "lowest" or "highest" of the dtype.
        step: Of ``a`` and an element ``v``; of ``m`` too, the result of the pass before.
        join: Of ``a`` and another such value ``v``.
        vector: `step` for ``float16`` vectors, where it differs.
    """

    init: str
    step: str
    join: str
    vector: str = ""


class Reduction(NamedTuple):
    """One operator of the family.

    Attributes:
        passes: Usually one.
        finish: The result of ``a`` and ``n``, the number of elements; of ``m`` too.
        numpy: The result of an array and its axes, kept as unit axes.
        keeps_one: Whether the result of one element is that element.
        ints: Whether kernels take integers.
    """

    passes: tuple[Pass, ...]
    finish: str
    numpy: Callable[[Any, tuple[int, ...]], Any]
    keeps_one: bool
    ints: bool = True


def _axes(call: Call) -> tuple[int, ...]:
    """The reduced axes, counted from the front: an attribute before opset 18 (ReduceSum: 13), then an input."""
    rank = len(call.shape(0))
    axes = call.ints(1) if call.has(1) else list(call.attributes.get("axes") or ())
    if not axes:
        return () if call.attributes.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return normal_axes(call, axes, rank)


def infer(call: Call) -> tuple[Shape]:
    axes = _axes(call)
    keep = call.attributes.get("keepdims", 1)
    return (tuple(1 if a in axes else d for a, d in enumerate(call.shape(0)) if keep or a not in axes),)


def _views(call: Call) -> tuple[ViewOf] | None:
    shape = call.shape(0)
    if any(shape[axis] != 1 for axis in _axes(call)):
        return None
    return (ViewOf(0, View.dense(call.outputs[0].shape)),)


def _why_not(call: Call) -> str:
    shape = call.shape(0)
    axis = next(axis for axis in _axes(call) if shape[axis] != 1)
    return f"reduces axis {axis}, which has {shape[axis]} elements"


# Kernels.


class _ReductionForm(NamedTuple):
    """What the source of a kernel depends on; everything else is an argument.

    Attributes:
        kept, reduced: Number of axes left after merging.
        unit: "reduced" or "kept": which innermost axis walks the memory element by element; or neither.
        vectors: Whether the elements are read as ``float16`` vectors.
    """

    name: str
    dtype: DataType
    kept: int
    reduced: int
    unit: str
    vectors: bool


def _implement(name: str, call: Call, traits: DeviceTraits) -> Impl:
    shape, axes = call.shape(0), _axes(call)
    if _TABLE[name].keeps_one:
        moved = _views(call)
        if moved is not None:
            return materialise(call, moved, traits)
    strides = row_major(shape)
    kept = tuple(a for a in range(len(shape)) if a not in axes)
    dims, (steps,) = collapse([shape[a] for a in kept], [strides[a] for a in kept])
    reduced, (moves,) = collapse([shape[a] for a in axes], [strides[a] for a in axes])
    outputs, extent = count(dims), count(reduced)
    unit = "reduced" if moves[-1] == 1 else "kept" if steps[-1] == 1 else ""
    dtype = call.dtype(0)
    form = _ReductionForm(name, dtype, len(dims), len(reduced), unit, traits.is_cpu and dtype in (FLOAT32, FLOAT16))
    decode = tuple(x for a in range(len(dims) - 1, -1, -1) for x in (dims[a], steps[a]))
    walk = tuple(x for a in range(len(reduced) - 1, -1, -1) for x in (reduced[a], moves[a]))
    ints = (outputs, extent, *decode, *walk)
    buffers = (inp(0), out(0))
    if not traits.is_cpu:
        if extent >= 64 and traits.max_group >= GPU_GROUP and (unit != "kept" or outputs < 16 * traits.compute_units):
            grid = (outputs * GPU_GROUP,)
            return Impl("group per result", (Launch(_group_kernel(form), buffers, ints, grid, (GPU_GROUP,)),))
        grid = (round_up(outputs, GPU_GROUP),)
        return Impl("item per result", (Launch(_scalar_kernel(form, False), buffers, (*ints, 1), grid, (GPU_GROUP,)),))
    if unit == "kept":
        blocks = -(-dims[-1] // _COLUMNS)
        units = outputs // dims[-1] * blocks
        each = _per_item(units, extent * _COLUMNS, traits)
        launch = Launch(_columns_kernel(form), buffers, (*ints, each, units, blocks), (-(-units // each),), (1,))
        return Impl("columns", (launch,))
    each = _per_item(outputs, extent, traits)
    launch = Launch(_scalar_kernel(form, True), buffers, (*ints, each), (-(-outputs // each),), (1,))
    return Impl("rows", (launch,))


def _per_item(units: int, work: int, traits: DeviceTraits) -> int:
    """How many *units* of *work* elements a work-item of a CPU device does."""
    items = max(1, min(4 * traits.compute_units, units * work // 4096))
    return -(-units // items)


def _names(form: _ReductionForm, *more: str) -> tuple[str, ...]:
    kept = (f"{c}{a}" for a in range(form.kept) for c in "ds")
    reduced = (f"{c}{a}" for a in range(form.reduced) for c in "rt")
    return ("outputs", "n", *kept, *reduced, *more)


def _buffers(form: _ReductionForm) -> tuple[tuple[str, DataType, str], ...]:
    return (("x", form.dtype, "r"), ("y", form.dtype, "w"))


_SHIFT = "isfinite(a) ? a : 0"  # what the second pass of LogSumExp subtracts: the maximum, unless that is infinite


def _finish(form: _ReductionForm) -> str:
    finish = _TABLE[form.name].finish
    return finish if form.dtype.is_float else finish.replace("/ n", "/ max(n, 1)")


def _type(form: _ReductionForm) -> str:
    return compute_type(form.dtype) if form.name in ("ReduceMax", "ReduceMin") else accumulator_type(form.dtype)


def _init(form: _ReductionForm, init: str) -> str:
    if init not in ("lowest", "highest"):
        return init
    if form.dtype.is_float:
        return "INFINITY" if init == "highest" else "-INFINITY"
    if form.dtype is BOOL:
        return "1" if init == "highest" else "0"
    kind = {"char": "CHAR", "short": "SHRT", "int": "INT", "long": "LONG"}
    if form.dtype.c[0] == "u":
        return f"U{kind[form.dtype.c[1:]]}_MAX" if init == "highest" else "0"
    return f"{kind[form.dtype.c]}_{'MAX' if init == 'highest' else 'MIN'}"


def _find(form: _ReductionForm, number: str, offset: str, *, first: int = 0) -> str:
    """Declare *offset*: where the elements of result *number* begin, over the kept axes from *first* (innermost 0)."""
    lines = [f"int rest = {number}; int {offset} = 0;"]
    lines += [
        f"{{ const int q = rest / d{a}; {offset} += (rest - q * d{a}) * s{a}; rest = q; }}"
        for a in range(first, form.kept)
    ]
    return " ".join(lines)


def _outer(form: _ReductionForm, body: str) -> str:
    """Run *body* for each row of the reduced elements, which begins at ``p``."""
    if form.reduced == 1:
        return f"{{ const int p = o; {body} }}"
    decode = " ".join(
        f"{{ const int q = left / r{a}; p += (left - q * r{a}) * t{a}; left = q; }}" for a in range(1, form.reduced)
    )
    outer = " * ".join(f"r{a}" for a in range(1, form.reduced))
    return f"for (int e = 0; e < {outer}; e++) {{ int left = e, p = o; {decode} {body} }}"


def _load16(form: _ReductionForm, at: str) -> str:
    return f"vload16(0, x + {at})" if form.dtype is FLOAT32 else f"vload_half16(0, x + {at})"


def _with(text: str, **names: str) -> str:
    """Rename the one-letter variables of an expression."""
    words: list[str] = []
    word = ""
    for c in text + " ":
        if c.isalnum() or c == "_" or c == ".":
            word += c
            continue
        words += [names.get(word, word), c]
        word = ""
    return "".join(words)[:-1]


def _store(form: _ReductionForm, finish: str, at: str) -> str:
    kind = compute_type(form.dtype)
    return f"const {kind} v = ({kind})({finish}); STORE({form.dtype.name}, y, {at}, v);"


@functools.cache
def _scalar_kernel(form: _ReductionForm, cpu: bool) -> KernelSource:
    """One result after another: a few per work-item (CPU) or one (GPU)."""
    reduction, acc = _TABLE[form.name], _type(form)
    passes = []
    for index, (init, step, join, vector) in enumerate(reduction.passes):
        text = [f"{acc} a = {_init(form, init)};"]
        row = "int c = 0; "
        after = ""
        if form.vectors and form.unit == "reduced":
            vector = vector or step
            text.append(" ".join(f"float16 a{k} = a;" for k in range(4)))
            four = " ".join(
                f"{{ const float16 v = {_load16(form, f'p + c + {16 * k}')}; a{k} = {_with(vector, a=f'a{k}')}; }}"
                for k in range(4)
            )
            one = f"const float16 v = {_load16(form, 'p + c')}; a0 = {_with(vector, a='a0')};"
            row += f"for (; c + 64 <= r0; c += 64) {{ {four} }} for (; c + 16 <= r0; c += 16) {{ {one} }} "
            after = " ".join(f"{{ const float16 v = a{k}; a0 = {_with(join, a='a0')}; }}" for k in range(1, 4))
            after += f" float t[16]; vstore16(a0, 0, t); for (int k = 0; k < 16; k++) {{ const float v = t[k]; a = {join}; }}"
        at = "p + c" if form.unit == "reduced" else "p + c * t0"
        row += f"for (; c < r0; c++) {{ const {acc} v = ({acc})LOAD({form.dtype.name}, x, {at}); a = {step}; }}"
        text += [_outer(form, row), after]
        last = index == len(reduction.passes) - 1
        text.append(_store(form, _finish(form), "o_out") if last else f"m = {_SHIFT};")
        passes.append("{ " + " ".join(text) + " }")
    body = f"""
  const int o0 = (int)get_global_id(0) * {"per_item" if cpu else "1"}, o1 = min(o0 + per_item, outputs);
  for (int o_out = o0; o_out < o1; o_out++) {{
    {_find(form, "o_out", "o")}
    {acc} m = 0;
    {" ".join(passes)}
  }}"""
    return kernel(form.name.lower(), _buffers(form), _names(form, "per_item"), body)


@functools.cache
def _columns_kernel(form: _ReductionForm) -> KernelSource:
    """Rows folded into rows, 16 neighbouring results at once; on CPU devices, where the kept axis is contiguous."""
    reduction, acc = _TABLE[form.name], _type(form)
    fast, slow = [], []
    for index, (init, step, _, vector) in enumerate(reduction.passes):
        last = index == len(reduction.passes) - 1
        first = _init(form, init)
        if form.vectors:
            row = f"const float16 v = {_load16(form, 'p + c * t0')}; a = {vector or step};"
            row = f"for (int c = 0; c < r0; c++) {{ {row} }}"
            end = "m = select((float16)0.0f, a, isfinite(a));"
            if last:
                end = f"const float16 f = {_finish(form)}; "
                end += "vstore16(f, 0, y + at);" if form.dtype is FLOAT32 else "vstore_half16_rte(f, 0, y + at);"
            fast.append(f"{{ float16 a = {first}; {_outer(form, row)} {end} }}")
        row = f"const {acc} v = ({acc})LOAD({form.dtype.name}, x, p + c * t0); a = {step};"
        row = f"for (int c = 0; c < r0; c++) {{ {row} }}"
        end = _store(form, _finish(form), "at + j") if last else f"m = {_SHIFT};"
        slow.append(f"{{ {acc} a = {first}; {_outer(form, row)} {end} }}")
    wide = f"if (columns == {_COLUMNS}) {{ const int o = o_; float16 m = 0; {' '.join(fast)} }} else" if fast else ""
    body = f"""
  const int u0 = (int)get_global_id(0) * per_item, u1 = min(u0 + per_item, units);
  for (int u = u0; u < u1; u++) {{
    const int line = u / blocks, c0 = (u - line * blocks) * {_COLUMNS};
    const int columns = min({_COLUMNS}, d0 - c0), at = line * d0 + c0;
    {_find(form, "line", "o_", first=1)}
    o_ += c0;
    {wide}
    for (int j = 0; j < columns; j++) {{
      const int o = o_ + j;
      {acc} m = 0;
      {" ".join(slow)}
    }}
  }}"""
    return kernel(form.name.lower(), _buffers(form), _names(form, "per_item", "units", "blocks"), body)


@functools.cache
def _group_kernel(form: _ReductionForm) -> KernelSource:
    """A work-group per result, whose work-items join their values in local memory; on GPUs."""
    reduction, acc = _TABLE[form.name], _type(form)
    decode = " ".join(
        f"{{ const int q = left / r{a}; p += (left - q * r{a}) * t{a}; left = q; }}" for a in range(form.reduced - 1)
    )
    outermost = form.reduced - 1
    passes = []
    for index, (init, step, join, _) in enumerate(reduction.passes):
        last = index == len(reduction.passes) - 1
        end = f"if (id == 0) {{ {_store(form, _finish(form), 'o_out')} }}" if last else f"m = {_SHIFT};"
        passes.append(f"""
  {{
    {acc} a = {_init(form, init)};
    for (int e = id; e < n; e += {GPU_GROUP}) {{
      int left = e, p = o;
      {decode}
      p += left * t{outermost};
      const {acc} v = ({acc})LOAD({form.dtype.name}, x, p);
      a = {step};
    }}
    part[id] = a;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_ = {GPU_GROUP // 2}; half_ > 0; half_ /= 2) {{
      if (id < half_) {{ {acc} a = part[id]; const {acc} v = part[id + half_]; part[id] = {join}; }}
      barrier(CLK_LOCAL_MEM_FENCE);
    }}
    a = part[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    {end}
  }}""")
    body = f"""
  __local {acc} part[{GPU_GROUP}];
  const int id = (int)get_local_id(0), o_out = (int)get_group_id(0);
  {_find(form, "o_out", "o")}
  {acc} m = 0;
  {"".join(passes)}"""
    group = f"__attribute__((reqd_work_group_size({GPU_GROUP}, 1, 1)))"
    return kernel(form.name.lower(), _buffers(form), _names(form), body, attributes=group)


# The table.

_SUM = Pass("0", "a + v", "a + v")
_SQUARES = Pass("0", "a + v * v", "a + v")
_MAX = Pass("lowest", "(v > a || v != v) ? v : a", "(v > a || v != v) ? v : a", "select(a, v, (v > a) | (v != v))")
_MIN = Pass("highest", "(v < a || v != v) ? v : a", "(v < a || v != v) ? v : a", "select(a, v, (v < a) | (v != v))")
_EXPS = Pass("0", "a + exp(v - m)", "a + v")


def _log_sum_exp(x: Any, axes: tuple[int, ...]) -> Any:
    highest = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(highest), highest, 0)
    return np.log(np.sum(np.exp(x - shift), axis=axes, keepdims=True)) + shift


def _extreme(function: Any, lowest: bool) -> Callable[[Any, tuple[int, ...]], Any]:
    """numpy.max or numpy.min, that of nothing being the lowest or the highest value of the dtype."""

    def reduce(x: Any, axes: tuple[int, ...]) -> Any:
        if x.size or 0 not in [x.shape[a] for a in axes]:
            return function(x, axis=axes, keepdims=True)
        if x.dtype.kind in "iu":
            limits = np.iinfo(x.dtype)
            first: Any = limits.min if lowest else limits.max
        else:
            first = (not lowest) if x.dtype == np.bool_ else -np.inf if lowest else np.inf
        return function(x, axis=axes, keepdims=True, initial=first)

    return reduce


def _mean(x: Any, axes: tuple[int, ...]) -> Any:
    total = np.sum(x, axis=axes, keepdims=True)
    n = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    if x.dtype.kind == "f":
        return total / n if n else np.full_like(total, np.nan)
    quotient = total // max(n, 1)
    return quotient + ((total < 0) & (total % max(n, 1) != 0))  # towards 0, exactly


def _numpy(function: Any, prepare: Callable[[Any], Any] = lambda x: x) -> Callable[[Any, tuple[int, ...]], Any]:
    return lambda x, axes: function(prepare(x), axis=axes, keepdims=True)


_TABLE: dict[str, Reduction] = {
    "ReduceMean": Reduction((_SUM,), "a / n", _mean, True),
    "ReduceSum": Reduction((_SUM,), "a", _numpy(np.sum), True),
    "ReduceMax": Reduction((_MAX,), "a", _extreme(np.max, True), True),
    "ReduceMin": Reduction((_MIN,), "a", _extreme(np.min, False), True),
    "ReduceProd": Reduction((Pass("1", "a * v", "a * v"),), "a", _numpy(np.prod), True),
    "ReduceL1": Reduction(
        (Pass("0", "a + (v < 0 ? -v : v)", "a + v", "a + fabs(v)"),), "a", _numpy(np.sum, np.abs), False
    ),
    "ReduceL2": Reduction(
        (_SQUARES,), "sqrt(a)", lambda x, axes: np.sqrt(np.sum(x * x, axis=axes, keepdims=True)), False, ints=False
    ),
    "ReduceLogSum": Reduction(
        (_SUM,), "log(a)", lambda x, axes: np.log(np.sum(x, axis=axes, keepdims=True)), False, ints=False
    ),
    "ReduceLogSumExp": Reduction((_MAX, _EXPS), "log(a) + m", _log_sum_exp, False, ints=False),
    "ReduceSumSquare": Reduction((_SQUARES,), "a", _numpy(np.sum, np.square), False),
}
_EXACT_FOR_OBJECTS = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")


def _reference(name: str, attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x: Any = inputs[0]
    axes = _axes(reference_call(name, attributes, inputs))
    if x.dtype == object and name not in _EXACT_FOR_OBJECTS:
        raise Undetermined(f"{name} of symbolic dims")
    if _TABLE[name].keeps_one and all(x.shape[a] == 1 for a in axes):
        result = x.copy()  # NumPy's sum of -0.0 alone would be +0.0
        return (result if attributes.get("keepdims", 1) else np.squeeze(result, axes),)
    exact = x.dtype.kind in "bO" or (x.dtype.kind in "iu" and _TABLE[name].ints)
    wide = x if exact else x.astype(np.float64)
    with np.errstate(all="ignore"):
        result = np.asarray(_TABLE[name].numpy(wide, axes)).astype(x.dtype)
    if not attributes.get("keepdims", 1):
        result = result.reshape(tuple(d for a, d in enumerate(result.shape) if a not in axes))
    return (result,)


_I64 = np.int64
_COMMON = (
    Example(("f32[3,5,37]", np.array([-1], _I64))),
    Example(("f32[4,33,19]", np.array([1], _I64)), {"keepdims": 0}),
    Example(("f32[7,100]", np.array([0], _I64))),
    Example(("f32[2,3,4,5]", np.array([0, 2], _I64))),
    Example(("f32[2,3,4,5]", np.array([3, 1], _I64)), {"keepdims": 0}),
    Example(("f32[3,1000]", np.array([1], _I64))),
    Example(("f32[2,9,300]",), {"keepdims": 0}),
    Example(("f16[3,5,40]", np.array([2], _I64))),
    Example(("f16[5,3,21]", np.array([0], _I64))),
    Example(("f32[1,5,1]", np.array([0, 2], _I64))),
    Example(("f32[2,3]", np.array([], _I64)), {"noop_with_empty_axes": 1}),
    Example(("f32[2,3]", np.array([], _I64))),
    Example(("f32[3,2]",), {"axes": (1,)}, opset=11),
    Example(("f64[3,7]", np.array([1], _I64))),
)
_POSITIVE = tuple(
    Example(
        (np.linspace(0.1, 3, int(np.prod(shape)), dtype=dtype).reshape(shape), np.array(axes, _I64)),
        {"keepdims": keep},
    )
    for shape, dtype, axes, keep in (
        ((3, 70), np.float32, [1], 1),
        ((9, 40), np.float32, [0], 0),
        ((2, 3, 4, 5), np.float32, [0, -2], 1),
        ((3, 20), np.float16, [1], 1),
        ((3, 1), np.float32, [1], 1),
    )
)
_INTS = (
    Example(("i64[3,40]", np.array([1], _I64))),
    Example(("i64[5,17]", np.array([0], _I64)), {"keepdims": 0}),
    Example(("i64[3,300]",)),
)
_EMPTY = (Example(("f32[2,0,3]", np.array([1], _I64))),)


def _operator(name: str) -> Operator:
    reduction = _TABLE[name]
    examples = _POSITIVE if name == "ReduceLogSum" else _COMMON + (_INTS if reduction.ints else ())
    if name not in ("ReduceMean",):
        examples += _EMPTY
    if name in ("ReduceMax", "ReduceMin"):
        examples += (
            Example(("bool[3,20]", np.array([1], _I64)), opset=20),
            Example(("u8[20,3]", np.array([0], _I64)), opset=20),
            Example((np.array([[1, np.nan, 2], [-np.inf, -1, 0]], np.float32), np.array([1], _I64))),
        )
    if name in ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceMean"):
        examples += (Example(("i32[3,20]", np.array([1], _I64))),)
    if name == "ReduceLogSumExp":
        examples += (Example((np.array([[1000, 1001], [-1000, -1001]], np.float32), np.array([1], _I64))),)
    return Operator(
        name=name,
        infer=infer,
        reference=functools.partial(_reference, name),
        implement=functools.partial(_implement, name),
        views=_views if reduction.keeps_one else None,
        why="only unit axes are reduced",
        why_not=_why_not,
        shape_infer_dependencies=(1,),
        device_types=None if reduction.ints else frozenset((FLOAT16, BFLOAT16, FLOAT32, FLOAT64)),
        examples=examples,
    )


OPERATORS = tuple(_operator(name) for name in _TABLE)
