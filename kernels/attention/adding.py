"""What work-groups that each had a part of the keys have found, added up to the results of attention."""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource
from asyncrt.layout import FLOAT32, FLOAT64, DataType

from .interface import SIZES, AttentionForm, real


def work(form: AttentionForm, access: str) -> tuple[str, DataType, str]:
    """Return the buffer of what they found: for each part of a tile its sums of values, row by row, then the rows' maxima
    and their sums of weights."""
    return "work", FLOAT64 if real(form) == "double" else FLOAT32, access


@functools.cache
def adding_kernel(form: AttentionForm, tile_rows: int) -> KernelSource:
    """One element of a result for each work-item.

    Args:
        tile_rows: Rows of a tile.
    """
    t = real(form)
    result = f"all == 0 ? {form.unseen} : y / all"
    if form.checked:
        result = "isnan(all) ? bare * 0 : all == 0 ? bare : y / all"
    body = f"""
  const int rows = group * queries, per_head = (rows + {tile_rows - 1}) / {tile_rows};
  const int d = (int)get_global_id(0) % vsize, r = (int)get_global_id(0) / vsize % {tile_rows};
  const int tile = (int)get_global_id(0) / vsize / {tile_rows}, row = tile % per_head * {tile_rows} + r;
  if (tile >= tiles || row >= rows) return;
  const int kv = tile / per_head % kv_heads, b = tile / per_head / kv_heads;
  const int step = {tile_rows} * (vsize + 2), w0 = tile * parts * step;
  {t} m = -INFINITY, all = 0, y = 0, bare = 0;
  for (int x = 0; x < parts; x++) m = fmax(m, work[w0 + x * step + {tile_rows} * vsize + r]);
  const {t} shift = m == -INFINITY ? 0 : m;
  for (int x = 0; x < parts; x++) {{
    const int w = w0 + x * step;
    const {t} down = exp(work[w + {tile_rows} * vsize + r] - shift);
    all += work[w + {tile_rows} * (vsize + 1) + r] * down;
    y += work[w + r * vsize + d] * down; bare += work[w + r * vsize + d];
  }}
  STORE({form.target.name}, Y, b * yb + (kv * group + row / queries) * yh + row % queries * ys + d, {result});"""
    places = (work(form, "r"), ("Y", form.target, "w"))
    return kernel("attention_adding", places, (*SIZES, "parts", "each", "tiles"), body)
