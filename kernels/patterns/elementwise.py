"""Element-wise kernels from an expression, with broadcasting.

The expression is OpenCL C over ``a0, a1, ...``, the inputs in their arithmetic types. Axes that all operands walk as
one are merged first, so that most calls have one or two axes; shapes and strides are arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from asyncrt.kernels.codegen import constants
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.codegen.vectors import ALL_VECTORS, INTEGER_VECTORS, VECTORS
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BOOL, FLOAT16, DataType, Layout, row_major
from asyncrt.memory.view import View, broadcast_strides, collapse

from .grid import GPU_GROUP, cut_rows, round_up


def elementwise(
    name: str,
    expression: str,
    inputs: Sequence[Layout],
    output: Layout,
    traits: DeviceTraits,
    *,
    sources: Sequence[int] | None = None,
    views: Sequence[View | None] = (),
    vector: bool = False,
    integers: bool = False,
    helpers: str = "",
    numbers: tuple[float, ...] = (),
) -> Impl:
    """Return the implementation of ``output = expression(inputs...)``, inputs broadcast to the output's shape.

    Args:
        name: For traces.
        expression: OpenCL C over ``a0, a1, ...``.
        inputs: Layouts of the operands.
        sources: For each operand the node's input that it is; default 0, 1, 2, ...
        views: For each operand how it lies, or None if dense; empty if all are.
        vector: The expression also holds for vectors; booleans are 0 and -1 in them.
        integers: Also where operands or the result are `INTEGER_VECTORS`.
        helpers: OpenCL C functions that the expression calls; ``$`` stands for the kernel's unique name.
        numbers: What the expression reads by `constants.read`; those that it has as literals are added to them.
    """
    expression, numbers = constants.lift(expression, numbers)
    shape = output.shape
    every = [
        broadcast_strides(i.shape, shape) if v is None else v.expand(shape).strides
        for i, v in zip(inputs, views or (None,) * len(inputs), strict=True)
    ]
    dims, (*ins, outs) = collapse(shape, *every, row_major(shape))
    inner, outer = dims[-1], dims[:-1]
    rows = 1
    for d in outer:
        rows *= d
    steps = tuple(s[-1] for s in ins)
    patterns = tuple(s if s in (0, 1) else 2 for s in steps)
    dtypes = tuple(i.dtype for i in inputs)
    strides = tuple(
        x for a in range(len(outer) - 1, -1, -1) for x in (outer[a], *(s[a] for s in ins), outs[a])
    )
    buffers = tuple(inp(i) for i in (sources or range(len(inputs)))) + (out(0),)
    allowed = ALL_VECTORS if integers else VECTORS
    use_vectors = vector and traits.is_cpu and {*dtypes, output.dtype} <= allowed.keys() and 2 not in patterns
    k = _kernel(
        name, expression, dtypes, output.dtype, len(outer), patterns, traits.is_cpu, use_vectors, helpers,
        len(numbers),
    )  # fmt: skip
    walk = (*steps, *strides, *constants.bits(numbers))
    if not traits.is_cpu:
        return Impl(name, (Launch(k, buffers, (inner, rows, *walk), (round_up(rows * inner, GPU_GROUP),), (GPU_GROUP,)),))
    cut = cut_rows(rows, inner, traits)
    ints = (inner, rows, cut.chunk, cut.rows_per_item, *walk)
    return Impl(name, (Launch(k, buffers, ints, cut.grid, (1, 1)),))


@functools.cache
def _kernel(
    name: str,
    expression: str,
    dtypes: tuple[DataType, ...],
    result: DataType,
    axes: int,
    patterns: tuple[int, ...],
    cpu: bool,
    vectors: bool,
    helpers: str,
    numbers: int,
) -> KernelSource:
    n = range(len(dtypes))
    offset = {0: "o{i}", 1: "o{i} + c", 2: "o{i} + c * e{i}"}
    at = [offset[p].format(i=i) for i, p in zip(n, patterns, strict=True)]
    scalar = " ".join(
        f"const {compute_type(t)} a{i} = LOAD({t.name}, x{i}, {at[i]});" for i, t in zip(n, dtypes, strict=True)
    )
    store = f"const {compute_type(result)} v = ({compute_type(result)})({expression}); STORE({result.name}, y, oy + c, v);"
    decode = ["int rest = r; " + " ".join(f"int o{i} = 0;" for i in n) + " int oy = 0;"]
    for a in range(axes):
        moves = " ".join(f"o{i} += i_ * s{a}_{i};" for i in n)
        decode.append(
            f"{{ const int q_ = rest / d{a}; const int i_ = rest - q_ * d{a}; {moves} oy += i_ * t{a}; rest = q_; }}"
        )
    scalar = f"{constants.declared(numbers)} {scalar}"
    if cpu:
        head: tuple[str, ...] = ("n", "rows", "chunk", "per_item")
        fast = ""
        if vectors:
            loads = " ".join(
                f"const {ALL_VECTORS[t]} a{i} = {_load(t, f'x{i}', f'o{i}', spread=p == 0)};"
                for i, t, p in zip(n, dtypes, patterns, strict=True)
            )
            fast = f"for (; c + 16 <= c1; c += 16) {{ {constants.declared(numbers)} {loads} {_store(result, expression)} }}"
        body = f"""
  const int r1 = min(((int)get_global_id(1) + 1) * per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int r = (int)get_global_id(1) * per_item; r < r1; r++) {{
    {" ".join(decode)}
    int c = c0;
    {fast}
    for (; c < c1; c++) {{ {scalar} {store} }}
  }}"""
    else:
        head = ("n", "rows")
        body = f"""
  const int id = (int)get_global_id(0);
  if (id >= rows * n) return;
  const int r = id / n, c = id - r * n;
  {" ".join(decode)}
  {scalar} {store}"""
    walk = (x for a in range(axes) for x in (f"d{a}", *(f"s{a}_{i}" for i in n), f"t{a}"))
    ints = (*head, *(f"e{i}" for i in n), *walk, *constants.sizes(numbers))
    buffers = (*((f"x{i}", t, "r") for i, t in zip(n, dtypes, strict=True)), ("y", result, "w"))
    return kernel(name, buffers, ints, body, helpers=helpers, contract=False)


def _load(dtype: DataType, buffer: str, offset: str, *, spread: bool) -> str:
    """Return OpenCL C for 16 elements from column ``c`` on, or for one element 16 times."""
    if spread:
        element = f"LOAD({dtype.name}, {buffer}, {offset})"
        return f"({ALL_VECTORS[dtype]})({f'-({element} != 0)' if dtype is BOOL else element})"
    if dtype is FLOAT16:
        return f"vload_half16(0, {buffer} + {offset} + c)"
    load = f"vload16(0, {buffer} + {offset} + c)"
    if dtype in INTEGER_VECTORS:
        return f"convert_int16({load})"
    return f"convert_int16({load}) != 0" if dtype is BOOL else load


def _store(dtype: DataType, expression: str) -> str:
    """Return a statement that stores 16 elements from column ``c`` on."""
    if dtype is FLOAT16:
        return f"vstore_half16_rte((float16)({expression}), 0, y + oy + c);"
    if dtype is BOOL:
        return f"vstore16(convert_uchar16(({expression}) & 1), 0, y + oy + c);"
    if dtype in INTEGER_VECTORS:
        return f"vstore16(convert_{dtype.c}16((int16)({expression})), 0, y + oy + c);"
    return f"vstore16((float16)({expression}), 0, y + oy + c);"
