"""Reductions along axes: all elements along some axes of a tensor become one value.

Axes that lie behind one another are merged first. Where the innermost reduced axis is contiguous, a result is folded in
vectors along it, several at once; where the innermost kept axis is, 16 neighbouring results are folded together. Neither
depends on how many results a work-item computes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen.source import accumulator_type, compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.shapes import count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BOOL, FLOAT16, FLOAT32, DataType, Layout, row_major
from asyncrt.memory.view import collapse

from .grid import GPU_GROUP, round_up

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
    """What becomes of the elements.

    Attributes:
        name: Of the kernel.
        passes: Usually one.
        finish: The result of ``a`` and ``n``, the number of elements; of ``m`` too.
        selects: Whether the result is one of the elements.
    """

    name: str
    passes: tuple[Pass, ...]
    finish: str
    selects: bool = False


SUM = Pass("0", "a + v", "a + v")
_SQUARES = Pass("0", "a + v * v", "a + v")
_ABSOLUTES = Pass("0", "a + (v < 0 ? -v : v)", "a + v", "a + fabs(v)")
_MAX = Pass("lowest", "(v > a || v != v) ? v : a", "(v > a || v != v) ? v : a", "select(a, v, (v > a) | (v != v))")
MEAN = Reduction("reducemean", (SUM,), "a / n")
GREATEST = Reduction("reducemax", (_MAX,), "a", selects=True)


@functools.cache
def norm(p: int) -> Reduction:
    """Return the p-norm, of floats where p is above 1."""
    if p == 1:
        return Reduction("reducel1", (_ABSOLUTES,), "a")
    if p == 2:
        return Reduction("reducel2", (_SQUARES,), "sqrt(a)")
    return Reduction(f"reducel{p}", (Pass("0", f"a + pown(fabs(v), {p})", "a + v"),), f"rootn(a, {p})")


class _ReductionForm(NamedTuple):
    """What the source of a kernel depends on; everything else is an argument.

    Attributes:
        kept, reduced: Number of axes left after merging.
        unit: "reduced" or "kept": which innermost axis walks the memory element by element; or neither.
        vectors: Whether the elements are read as ``float16`` vectors.
    """

    reduction: Reduction
    dtype: DataType
    kept: int
    reduced: int
    unit: str
    vectors: bool


def reduce_axes(reduction: Reduction, source: Layout | None, axes: Sequence[int], traits: DeviceTraits) -> Impl:
    """Return the implementation that reduces *axes* of input 0, whose layout is *source*, to output 0."""
    assert source is not None
    dtype, shape = source
    strides = row_major(shape)
    kept = tuple(a for a in range(len(shape)) if a not in axes)
    dims, (steps,) = collapse([shape[a] for a in kept], [strides[a] for a in kept])
    folded, (moves,) = collapse([shape[a] for a in axes], [strides[a] for a in axes])
    outputs, extent = count(dims), count(folded)
    unit = "reduced" if moves[-1] == 1 else "kept" if steps[-1] == 1 else ""
    vectors = traits.is_cpu and dtype in (FLOAT32, FLOAT16)
    form = _ReductionForm(reduction, dtype, len(dims), len(folded), unit, vectors)
    decode = tuple(x for a in range(len(dims) - 1, -1, -1) for x in (dims[a], steps[a]))
    walk = tuple(x for a in range(len(folded) - 1, -1, -1) for x in (folded[a], moves[a]))
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
    items = greatest(1, least(4 * traits.compute_units, units * work // 4096))
    return -(-units // items)


def _names(form: _ReductionForm, *more: str) -> tuple[str, ...]:
    kept = (f"{c}{a}" for a in range(form.kept) for c in "ds")
    reduced = (f"{c}{a}" for a in range(form.reduced) for c in "rt")
    return ("outputs", "n", *kept, *reduced, *more)


def _buffers(form: _ReductionForm) -> tuple[tuple[str, DataType, str], ...]:
    return (("x", form.dtype, "r"), ("y", form.dtype, "w"))


_SHIFT = "isfinite(a) ? a : 0"  # what the second pass of LogSumExp subtracts: the maximum, unless that is infinite


def _finish(form: _ReductionForm) -> str:
    finish = form.reduction.finish
    return finish if form.dtype.is_float else finish.replace("/ n", "/ max(n, 1)")


def _type(form: _ReductionForm) -> str:
    return compute_type(form.dtype) if form.reduction.selects else accumulator_type(form.dtype)


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
    reduction, acc = form.reduction, _type(form)
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
            halves = " ".join(
                f"float{k} h{k}; {{ const float{k} a = {whole}.lo, v = {whole}.hi; h{k} = {join}; }}"
                for k, whole in ((8, "a0"), (4, "h8"), (2, "h4"))
            )
            after = f"if (r0 >= 16) {{ {after} {halves} {{ const float v = h2.x; a = {join}; }} {{ const float v = h2.y; a = {join}; }} }}"
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
    return kernel(form.reduction.name, _buffers(form), _names(form, "per_item"), body)


@functools.cache
def _columns_kernel(form: _ReductionForm) -> KernelSource:
    """Rows folded into rows, 16 neighbouring results at once; on CPU devices, where the kept axis is contiguous."""
    reduction, acc = form.reduction, _type(form)
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
    return kernel(form.reduction.name, _buffers(form), _names(form, "per_item", "units", "blocks"), body)


@functools.cache
def _group_kernel(form: _ReductionForm) -> KernelSource:
    """A work-group per result, whose work-items join their values in local memory; on GPUs."""
    reduction, acc = form.reduction, _type(form)
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
    return kernel(form.reduction.name, _buffers(form), _names(form), body, attributes=group)
