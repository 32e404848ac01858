"""Attention for any dtypes and sizes: one query row per work-item, with its scores in scratch memory.

It alone gives scores out.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, FLOAT64

from .interface import (
    BIASED,
    CAPPED,
    PROBABILITIES,
    SCORES,
    SIZES,
    Attention,
    AttentionForm,
    biased,
    bounds,
    buffers,
    real,
)  # fmt: skip


def rows(
    a: Attention, form: AttentionForm, refs: tuple[Ref, ...], ints: tuple[int, ...], traits: DeviceTraits
) -> tuple[Launch, int]:
    """Return the launch and the bytes of its scratch, which is the last of *refs*."""
    total = a.batch * a.kv_heads * a.group * a.queries
    group = 1 if traits.is_cpu else 64
    launch = Launch(_kernel(form), refs, (*ints, total), (round_up(total, group),), (group,))
    return launch, max(1, total * a.keys) * (8 if real(form) == "double" else 4)


@functools.cache
def _kernel(form: AttentionForm) -> KernelSource:
    """One query row per work-item, with its scores in scratch memory."""
    t = real(form)
    everything = form.scores is not None

    def give(mode: int, value: str) -> str:
        if form.scores is None or form.scores_mode != mode:
            return ""
        return f"STORE({form.scores.name}, S, so + j, {value});"

    cap = "s = cap * tanh(s / cap);" if form.softcap else ""
    body = f"""
  const int id = (int)get_global_id(0);
  if (id >= total) return;
  const {t} scale = as_float(scale_), cap = as_float(cap_);
  const int i = id % queries, h = id / queries % (kv_heads * group), b = id / queries / (kv_heads * group);
  const int kv = h / group;
  const int qo = b * qb + h * qh + i * qs, ko = b * kb + kv * kh, vo = b * vb + kv * vh, yo = b * yb + h * yh + i * ys;
  const int mo = b * mb + h * mh + i * ms;
  {"const int so = id * keys;" if everything else ""}
  __global {t}* p = work + (size_t)id * keys;
  int lo, hi;
  {bounds(form, "i", "lo", "hi")}
  const int j0 = {"0" if everything else "lo"}, j1 = {"keys" if everything else "hi"};
  {t} m = -INFINITY;
  for (int j = j0; j < j1; j++) {{
    {t} s = 0;
    for (int d = 0; d < size; d++)
      s += ({t})LOAD({form.query.name}, Q, qo + d) * ({t})LOAD({form.query.name}, K, ko + j * ks + d);
    s *= scale;
    {give(SCORES, "s")}
    {cap}
    {give(CAPPED, "s")}
    if (j >= lo && j < hi) s = {biased(form, "s", "mo + j")}; else s = -INFINITY;
    {give(BIASED, "s")}
    p[j] = s;
    m = fmax(m, s);
  }}
  if (m == -INFINITY) m = 0;
  {t} sum = 0;
  for (int j = j0; j < j1; j++) {{ p[j] = asyncrt_exp(p[j] - m); sum += p[j]; }}
  {"if (isnan(sum)) { for (int j = j0; j < j1; j++) p[j] = 0; sum = 0; }" if form.checked else ""}
  const {t} inverse = sum == 0 ? {form.unseen} : 1 / sum;
  {f"for (int j = j0; j < j1; j++) {{ {give(PROBABILITIES, 'p[j] * inverse')} }}" if everything else ""}
  for (int d = 0; d < vsize; d++) {{
    {t} y = 0;
    for (int j = lo; j < hi; j++) y += p[j] * ({t})LOAD({form.value.name}, V, vo + j * vs + d);
    STORE({form.target.name}, Y, yo + d, y * inverse);
  }}"""
    work = ("work", FLOAT64 if t == "double" else FLOAT32, "rw")
    return kernel("attention_rows", (*buffers(form), work), (*SIZES, "total"), body)
