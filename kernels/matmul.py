"""Matrix products: what MatMul and Gemm share.

On CPU devices, for float32, a work-item computes a register tile of `rows` × 32 with ``float16`` vectors. Constant
right-hand sides are read packed into panels of 32 columns (`pack_panels`), others where they lie. On GPUs a work-group
shares 64 × 64 tiles in local memory. Every other case is the generic kernel, one result per work-item.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncrt.layout import FLOAT32, Array, DataType, row_major
from asyncrt.memory.view import View, collapse

from .alignment import fake_alignment
from .grid import round_up
from .impl import Impl, KernelSource, Launch, Ref, WeightsRequest, weights
from .operator import DeviceTraits
from .source import accumulator_type, compute_type, kernel

PANEL = 32
_ROWS = 8  # of the largest register tile
_GPU_TILE, _GPU_DEPTH = 64, 16


class Operand(NamedTuple):
    """A matrix, or a batch of them, in a buffer; `view` has the batch axes first and the matrix axes last."""

    ref: Ref
    dtype: DataType
    view: View


class Bias(NamedTuple):
    """What is added to the product, broadcast to it: ``alpha * product + beta * bias``."""

    ref: Ref
    dtype: DataType
    row_stride: int
    column_stride: int
    beta: float = 1.0


def pack_panels(matrix: Array) -> Array:
    """Return a ``[K, N]`` matrix as ``[ceil(N / 32), K, 32]``, padded with zeros."""
    k, n = matrix.shape
    packed = np.zeros((-(-n // PANEL), k, PANEL), matrix.dtype)
    for i, panel in enumerate(packed):  # one by one, so that there is no second copy of a large matrix
        columns = matrix[:, i * PANEL : (i + 1) * PANEL]
        panel[:, : columns.shape[1]] = columns
    return packed


def _pack_transposed(matrix: Array) -> Array:
    return pack_panels(matrix.T)


def matmul(
    name: str,
    a: Operand,
    b: Operand,
    target: Ref,
    batch: Sequence[int],
    traits: DeviceTraits,
    *,
    bias: Bias | None = None,
    alpha: float = 1.0,
    constant: int | None = None,
    transposed: bool = False,
) -> Impl:
    """Return the implementation of ``alpha * a @ b + beta * bias`` into a dense tensor ``[*batch, M, N]``.

    Args:
        a: ``[*batch, M, K]``, batch axes already broadcast.
        b: ``[*batch, K, N]``, likewise.
        constant: Index of the node's input that is *b*, if its value is a constant ``[K, N]`` matrix.
        transposed: The constant is stored ``[N, K]``.
    """
    m, k = a.view.shape[-2:]
    n = b.view.shape[-1]
    batch = tuple(batch)
    if all(s == 0 for s in b.view.strides[:-2]) and _rows_merge(a.view):
        rows = m
        for d in batch:
            rows *= d
        a = a._replace(view=View((rows, k), (_merged_stride(a.view), a.view.strides[-1]), a.view.offset))
        b = b._replace(view=View(b.view.shape[-2:], b.view.strides[-2:], b.view.offset))
        m, batch = rows, ()
    shape = (*batch, m, n)
    outs = row_major(shape)
    axes, (sa, sb, sy) = collapse(batch, a.view.strides[:-2], b.view.strides[:-2], outs[:-2]) if batch else ((1,), [(0,)] * 3)
    strides = tuple(x for i in range(len(axes) - 1, -1, -1) for x in (axes[i], sa[i], sb[i], sy[i]))
    batches = 1
    for d in axes:
        batches *= d
    plain = a.dtype is FLOAT32 and b.dtype is FLOAT32 and (bias is None or bias.dtype is FLOAT32)
    sa_m, sa_k = a.view.strides[-2:]
    sb_k, sb_n = b.view.strides[-2:]
    edge = (0, 0) if bias is None else (bias.row_stride, bias.column_stride)
    refs = (a.ref, b.ref, target) + (() if bias is None else (bias.ref,))
    form = _Form(
        name, a.dtype, b.dtype, None if bias is None else bias.dtype, alpha, 0.0 if bias is None else bias.beta,
        len(axes), bias is not None and bias.column_stride == 1,
    )  # fmt: skip
    ints = (m, n, k, sa_m, sa_k, sb_k, sb_n, a.view.offset, b.view.offset, *edge, *strides)
    if traits.is_cpu and plain and (sb_n == 1 or (constant is not None and traits.packed_weights)):
        aligned = fake_alignment(m, _ROWS)
        rows = min(aligned, _ROWS)
        if constant is not None and traits.packed_weights and not batch:
            request = WeightsRequest(
                constant, "panels32t" if transposed else "panels32", _pack_transposed if transposed else pack_panels
            )
            panel_ints = (m, n, k, sa_m, sa_k, PANEL, 1, a.view.offset, 0, *edge, *strides)
            grid = (aligned // rows, -(-n // PANEL), 1)
            packed_refs = (a.ref, weights(0), *refs[2:])
            launch = Launch(_tile_kernel(form, rows, True), packed_refs, panel_ints, grid, (1, 1, 1), varying=(0,))
            return Impl(f"tile {rows}x{PANEL}, packed weights", (launch,), weights=(request,))
        if sb_n == 1:
            grid = (aligned // rows, -(-n // PANEL), batches)
            launch = Launch(_tile_kernel(form, rows, False), refs, ints, grid, (1, 1, 1), varying=(0,))
            return Impl(f"tile {rows}x{PANEL}", (launch,))
    if not traits.is_cpu and traits.max_group >= 256:
        grid = (round_up(n, _GPU_TILE) // 4, round_up(m, _GPU_TILE) // 4, batches)
        return Impl(f"shared {_GPU_TILE}x{_GPU_TILE}", (Launch(_shared_kernel(form), refs, ints, grid, (16, 16, 1)),))
    if traits.is_cpu:
        return Impl("generic", (Launch(_generic_kernel(form), refs, ints, (n, m, batches), (1, 1, 1)),))
    return Impl("generic", (Launch(_generic_kernel(form), refs, ints, (round_up(n, 64), m, batches), (64, 1, 1)),))


def _rows_merge(view: View) -> bool:
    """Whether the batch axes and the row axis of *view* are walked as one."""
    axes, _ = collapse(view.shape[:-1], view.strides[:-1])
    return len(axes) == 1


def _merged_stride(view: View) -> int:
    _, (strides,) = collapse(view.shape[:-1], view.strides[:-1])
    return strides[0]


class _Form(NamedTuple):
    """What the source of a kernel depends on; everything else is an argument."""

    name: str
    a: DataType
    b: DataType
    bias: DataType | None
    alpha: float
    beta: float
    axes: int
    bias_contiguous: bool


def _ints(form: _Form) -> tuple[str, ...]:
    batch = (x for i in range(form.axes) for x in (f"d{i}", f"sa{i}", f"sb{i}", f"sy{i}"))
    return ("M", "N", "K", "sa_m", "sa_k", "sb_k", "sb_n", "a_off", "b_off", "sc_m", "sc_n", *batch)


def _buffers(form: _Form) -> tuple[tuple[str, DataType, str], ...]:
    bias = () if form.bias is None else (("bias", form.bias, "r"),)
    return (("A", form.a, "r"), ("B", form.b, "r"), ("Y", form.a, "w"), *bias)


def _batch(form: _Form) -> str:
    """Move the operands to this work-item's matrix."""
    lines = ["int rest = (int)get_global_id(2); int ao = a_off, bo = b_off, yo = 0;"]
    lines += [
        f"{{ const int q = rest / d{i}, r = rest - q * d{i}; ao += r * sa{i}; bo += r * sb{i}; yo += r * sy{i}; rest = q; }}"
        for i in range(form.axes)
    ]
    return " ".join(lines)


def _scaled(form: _Form, value: str, suffix: str = "f") -> str:
    return value if form.alpha == 1.0 else f"{form.alpha!r}{suffix} * {value}"


def _result(form: _Form, value: str, m: str, n: str) -> str:
    """``alpha * value + beta * bias[m, n]`` for one element."""
    text = _scaled(form, value, "f" if form.a.is_float else "")
    if form.bias is None:
        return text
    factor = "" if form.beta == 1.0 else f"{form.beta!r}f * "
    return f"{text} + {factor}LOAD({form.bias.name}, bias, ({m}) * sc_m + ({n}) * sc_n)"


@functools.cache
def _tile_kernel(form: _Form, rows: int, packed: bool) -> KernelSource:
    """A *rows* × 32 tile of the result per work-item, in registers."""
    r = range(rows)
    step = "bp += 32" if packed else "bp += sb_k"
    start = "B + bo + n0 * K" if packed else "B + bo + n0"
    pointers = "\n  ".join(f"__global const float* a{i} = A + ao + min(m0 + {i}, M - 1) * sa_m;" for i in r)
    zero = " ".join(f"float16 p{i} = 0.0f, q{i} = 0.0f;" for i in r)
    multiply = " ".join(f"p{i} = fma((float16)(a{i}[k * sa_k]), b0, p{i}); q{i} = fma((float16)(a{i}[k * sa_k]), b1, q{i});" for i in r)

    def vector(acc: str, i: int, half: int) -> str:
        text = _scaled(form, acc)
        if form.bias is None:
            return text
        at = f"(m0 + {i}) * sc_m + (n0 + {16 * half}) * sc_n"
        load = f"vload16(0, bias + {at})" if form.bias_contiguous else f"(float16)(bias[{at}])"
        return f"{text} + {'' if form.beta == 1.0 else f'{form.beta!r}f * '}{load}"

    full = "\n    ".join(
        f"if (m0 + {i} < M) {{ __global float* y = Y + yo + (m0 + {i}) * N + n0; "
        f"vstore16({vector(f'p{i}', i, 0)}, 0, y); vstore16({vector(f'q{i}', i, 1)}, 1, y); }}"
        for i in r
    )
    tail = "\n    ".join(
        f"if (m0 + {i} < M) {{ float t[32]; vstore16(p{i}, 0, t); vstore16(q{i}, 1, t); "
        f"for (int j = 0; j < N - n0; j++) Y[yo + (m0 + {i}) * N + n0 + j] = {_result(form, 't[j]', f'm0 + {i}', 'n0 + j')}; }}"
        for i in r
    )
    main = f"for (int k = 0; k < K; k++, {step}) {{ const float16 b0 = vload16(0, bp), b1 = vload16(1, bp); {multiply} }}"
    if packed:
        loop = main
    else:  # the last columns are gathered, so that nothing beyond the matrix is read
        gather = (
            f"for (int k = 0; k < K; k++, {step}) {{ float t[32]; for (int j = 0; j < 32; j++) t[j] = bp[min(j, left - 1)]; "
            f"const float16 b0 = vload16(0, t), b1 = vload16(1, t); {multiply} }}"
        )
        loop = f"const int left = N - n0; if (left >= 32) {main} else {gather}"
    contiguous = form.bias is None or form.bias_contiguous
    condition = "n0 + 32 <= N" + ("" if contiguous else " && sc_n == 0")
    body = f"""
  const int m0 = (int)get_global_id(0) * {rows}, n0 = (int)get_global_id(1) * 32;
  {_batch(form)}
  {pointers}
  __global const float* bp = {start};
  {zero}
  {loop}
  if ({condition}) {{
    {full}
  }} else {{
    {tail}
  }}"""
    one = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    return kernel(f"{form.name}_tile{rows}", _buffers(form), _ints(form), body, attributes=one)


@functools.cache
def _shared_kernel(form: _Form) -> KernelSource:
    """64 × 64 tiles shared by 16 × 16 work-items through local memory; each computes 4 × 4."""
    acc = accumulator_type(form.a)
    tile, depth = _GPU_TILE, _GPU_DEPTH
    body = f"""
  __local {acc} at[{depth}][{tile} + 1]; __local {acc} bt[{depth}][{tile} + 1];
  const int lx = (int)get_local_id(0), ly = (int)get_local_id(1), id = ly * 16 + lx;
  const int m0 = (int)get_group_id(1) * {tile}, n0 = (int)get_group_id(0) * {tile};
  {_batch(form)}
  {acc} c[4][4];
  for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) c[i][j] = 0;
  const int a_fast_k = sa_k == 1, b_fast_k = sb_k == 1 && sb_n != 1;
  for (int k0 = 0; k0 < K; k0 += {depth}) {{
    for (int e = id; e < {tile * depth}; e += 256) {{
      const int am = a_fast_k ? e / {depth} : e % {tile}, ak = a_fast_k ? e % {depth} : e / {tile};
      const int bn = b_fast_k ? e / {depth} : e % {tile}, bk = b_fast_k ? e % {depth} : e / {tile};
      at[ak][am] = (m0 + am < M && k0 + ak < K) ? ({acc})LOAD({form.a.name}, A, ao + (m0 + am) * sa_m + (k0 + ak) * sa_k) : ({acc})0;
      bt[bk][bn] = (n0 + bn < N && k0 + bk < K) ? ({acc})LOAD({form.b.name}, B, bo + (k0 + bk) * sb_k + (n0 + bn) * sb_n) : ({acc})0;
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < {depth}; k++) {{
      {acc} ra[4], rb[4];
      for (int i = 0; i < 4; i++) {{ ra[i] = at[k][ly + 16 * i]; rb[i] = bt[k][lx + 16 * i]; }}
      for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) c[i][j] += ra[i] * rb[j];
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) {{
    const int m = m0 + ly + 16 * i, n = n0 + lx + 16 * j;
    if (m < M && n < N) {{ const {compute_type(form.a)} v = ({compute_type(form.a)})({_result(form, "c[i][j]", "m", "n")}); STORE({form.a.name}, Y, yo + m * N + n, v); }}
  }}"""
    group = "__attribute__((reqd_work_group_size(16, 16, 1)))"
    return kernel(f"{form.name}_shared", _buffers(form), _ints(form), body, attributes=group)


@functools.cache
def _generic_kernel(form: _Form) -> KernelSource:
    """One result per work-item; any dtype, any strides. The reference for the others."""
    acc = accumulator_type(form.a)
    body = f"""
  const int n = (int)get_global_id(0), m = (int)get_global_id(1);
  if (n >= N) return;
  {_batch(form)}
  {acc} c = 0;
  for (int k = 0; k < K; k++)
    c += ({acc})LOAD({form.a.name}, A, ao + m * sa_m + k * sa_k) * ({acc})LOAD({form.b.name}, B, bo + k * sb_k + n * sb_n);
  const {compute_type(form.a)} v = ({compute_type(form.a)})({_result(form, "c", "m", "n")});
  STORE({form.a.name}, Y, yo + m * N + n, v);"""
    return kernel(f"{form.name}_generic", _buffers(form), _ints(form), body)


