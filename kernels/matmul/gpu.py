"""Matrix products on GPUs, and on any device where no other kernel fits."""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.source import accumulator_type, kernel
from asyncrt.kernels.impl import KernelSource

from .interface import ProductForm

TILE = 64
_DEPTH = 16


@functools.cache
def shared_kernel(form: ProductForm) -> KernelSource:
    """64 × 64 tiles shared by 16 × 16 work-items through local memory; each computes 4 × 4."""
    acc = accumulator_type(form.a)
    body = f"""
  __local {acc} at[{_DEPTH}][{TILE} + 1]; __local {acc} bt[{_DEPTH}][{TILE} + 1];
  const int lx = (int)get_local_id(0), ly = (int)get_local_id(1), id = ly * 16 + lx;
  const int m0 = (int)get_group_id(1) * {TILE}, n0 = (int)get_group_id(0) * {TILE};
  {form.batch()}
  {acc} c[4][4];
  for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) c[i][j] = 0;
  const int a_fast_k = sa_k == 1, b_fast_k = sb_k == 1 && sb_n != 1;
  for (int k0 = 0; k0 < K; k0 += {_DEPTH}) {{
    for (int e = id; e < {TILE * _DEPTH}; e += 256) {{
      const int am = a_fast_k ? e / {_DEPTH} : e % {TILE}, ak = a_fast_k ? e % {_DEPTH} : e / {TILE};
      const int bn = b_fast_k ? e / {_DEPTH} : e % {TILE}, bk = b_fast_k ? e % {_DEPTH} : e / {TILE};
      at[ak][am] = (m0 + am < M && k0 + ak < K) ? ({acc})LOAD({form.a.name}, A, ao + (m0 + am) * sa_m + (k0 + ak) * sa_k) : ({acc})0;
      bt[bk][bn] = (n0 + bn < N && k0 + bk < K) ? ({acc})LOAD({form.b.name}, B, bo + (k0 + bk) * sb_k + (n0 + bn) * sb_n) : ({acc})0;
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < {_DEPTH}; k++) {{
      {acc} ra[4], rb[4];
      for (int i = 0; i < 4; i++) {{ ra[i] = at[k][ly + 16 * i]; rb[i] = bt[k][lx + 16 * i]; }}
      for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) c[i][j] += ra[i] * rb[j];
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  for (int i = 0; i < 4; i++) {{
    const int m = m0 + ly + 16 * i;
    {form.rows("m")}
    for (int j = 0; j < 4; j++) {{
      const int n = n0 + lx + 16 * j;
      if (m < M && n < N) {form.element("c[i][j]", "m", "n")}
    }}
  }}"""
    group = "__attribute__((reqd_work_group_size(16, 16, 1)))"
    helpers = form.last.helper_text
    return kernel(f"{form.name}_shared", form.buffers, form.ints, body, helpers=helpers, attributes=group)


@functools.cache
def generic_kernel(form: ProductForm) -> KernelSource:
    """One result per work-item; any dtype, any strides. The reference for the others."""
    acc = accumulator_type(form.a)
    body = f"""
  const int n = (int)get_global_id(0), m = (int)get_global_id(1);
  if (n >= N) return;
  {form.batch()}
  {acc} c = 0;
  for (int k = 0; k < K; k++)
    c += ({acc})LOAD({form.a.name}, A, ao + m * sa_m + k * sa_k) * ({acc})LOAD({form.b.name}, B, bo + k * sb_k + n * sb_n);
  {form.rows("m")}
  {form.element("c", "m", "n")}"""
    return kernel(f"{form.name}_generic", form.buffers, form.ints, body, helpers=form.last.helper_text)
