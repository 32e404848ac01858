"""Attention on CPU devices for many query rows: blocks of rows times blocks of keys, as products of tiles.

A work-item takes a block of up to 64 query rows and walks the keys 128 at a time. It turns those keys into panels, has
the scores calculated in tiles (`tiles.add_tiles`), makes weights of them with a running maximum and sum of each row,
and adds the weights times the values to the result, again in tiles. When a block of keys raises a row's maximum, what
was summed so far is scaled down. All of this lies in a scratch of the work-item's own, small enough for its caches, so
that no matrix of all scores is ever written.
"""

from __future__ import annotations

import functools

from asyncrt.layout import FLOAT32

from .attention_form import SIZES, Attention, Form, bounds, buffers, vector_score
from .grid import round_up
from .impl import KernelSource, Launch, Ref
from .operator import DeviceTraits
from .source import kernel
from .tiles import PANEL, TILE, add_tiles, fill_panel, load16, store16

LEAST = 8  # query rows for which this kernel is worth it: those of one tile
_ROWS = 64
_KEYS = 128


def blocks(a: Attention, form: Form, refs: tuple[Ref, ...], ints: tuple[int, ...], traits: DeviceTraits) -> tuple[Launch, int]:
    """Return the launch and the bytes of its scratch, which is the last of *refs*."""
    rows, heads = a.group * a.queries, a.batch * a.kv_heads
    cuts = max(-(-rows // _ROWS), min(-(-rows // TILE), -(-4 * traits.compute_units // heads)))
    height = -(-rows // cuts)
    cuts = -(-rows // height)
    # A few work-items with several blocks each: the next block finds the scratch in the caches.
    per_item = -(-heads * cuts // (4 * traits.compute_units))
    items = -(-heads * cuts // per_item)
    columns = round_up(a.value_size, PANEL)
    work = height * (a.size + _KEYS + columns) + _KEYS * (a.size + columns)
    launch = Launch(_kernel(form), refs, (*ints, height, cuts, heads * cuts, per_item, work), (items,), (1,))
    return launch, items * work * 4


@functools.cache
def _kernel(form: Form) -> KernelSource:
    q, v, y = form.query, form.value, form.target
    clear = ""
    if form.checked:  # the row's sum stays NaN: those of all its keys count as zeros
        clear = """if (isnan(sum[r])) {
          for (int x = 0; x < n; x += 16) vstore16((float16)(0.0f), 0, st + (x / 32 * height + r) * 32 + x % 32);
          for (int p = 0; p < panels; p++) {
            __global float* const at = yt + (p * height + r) * 32;
            vstore16(vload16(0, at) * 0.0f, 0, at);
            vstore16(vload16(1, at) * 0.0f, 1, at);
          }
        }"""
    body = f"""
  const float scale = as_float(scale_), cap = as_float(cap_);
  const int panels = (vsize + {PANEL - 1}) / {PANEL}, item = (int)get_global_id(0);
  __global float* const qt = work + (size_t)item * own;         /* [height, size] */
  __global float* const kt = qt + height * size;                /* [{_KEYS} / 32, size, 32] */
  __global float* const vt = kt + {_KEYS} * size;               /* [panels, {_KEYS}, 32] */
  __global float* const st = vt + panels * {_KEYS * PANEL};     /* [{_KEYS} / 32, height, 32] */
  __global float* const yt = st + height * {_KEYS};             /* [panels, height, 32] */
  float top[{_ROWS}], sum[{_ROWS}];
  int from[{_ROWS}], to[{_ROWS}], mask[{_ROWS}];
  const int last = min((item + 1) * per_item, all);
  for (int block = item * per_item; block < last; block++) {{
    const int r0 = block % cuts * height, rows = min(height, group * queries - r0);
    const int kv = block / cuts % kv_heads, b = block / cuts / kv_heads;
    int j0 = keys, j1 = 0;
    for (int r = 0; r < rows; r++) {{
      const int g = (r0 + r) / queries, i = r0 + r - g * queries, h = kv * group + g;
      int lo, hi;
      {bounds(form, "i", "lo", "hi")}
      from[r] = lo; to[r] = hi; top[r] = -INFINITY; sum[r] = 0.0f; mask[r] = b * mb + h * mh + i * ms;
      if (lo < hi) {{ j0 = min(j0, lo); j1 = max(j1, hi); }}
      $_query(Q + b * qb + h * qh + i * qs, size, scale, qt + r * size);
    }}
    for (int x = 0; x < panels * height * 2; x++) vstore16((float16)(0.0f), x, yt);
    for (int k0 = j0; k0 < j1; k0 += {_KEYS}) {{
      const int n = min({_KEYS}, j1 - k0);
      for (int x = 0; x < (n + 31) / 32 * height * 2; x++) vstore16((float16)(0.0f), x, st);
      for (int p = 0; p * 32 < n; p++) {{
        $_fill(K + b * kb + kv * kh + (k0 + p * 32) * ks, 1, ks, size, n - p * 32, kt + p * size * 32);
        $_tiles(rows, qt, size, 1, kt + p * size * 32, 32, size, st + p * height * 32);
      }}
      for (int r = 0; r < rows; r++) {{
        const int mo = mask[r];
        float16 highest = -INFINITY, total = 0.0f;
        for (int x = 0; x < n; x += 16) {{
          __global float* const at = st + (x / 32 * height + r) * 32 + x % 32;
          const int j = k0 + x;
          const int16 key = j + (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
          float16 e = vload16(0, at);
          {vector_score(form)}
          e = select(e, (float16)(-INFINITY), key < from[r] || key >= to[r]);
          highest = fmax(highest, e);
          vstore16(e, 0, at);
        }}
        const float before = top[r], now = fmax(before, $_max(highest)), shift = now == -INFINITY ? 0.0f : now;
        for (int x = 0; x < n; x += 16) {{
          __global float* const at = st + (x / 32 * height + r) * 32 + x % 32;
          const float16 e = exp(vload16(0, at) - shift);
          total += e;
          vstore16(e, 0, at);
        }}
        if (now != before) top[r] = now;
        if (now != before && k0 > j0) {{ /* there is nothing yet in front of the first keys */
          const float down = exp(before - shift);
          sum[r] *= down;
          for (int p = 0; p < panels; p++) {{
            __global float* const at = yt + (p * height + r) * 32;
            vstore16(vload16(0, at) * down, 0, at);
            vstore16(vload16(1, at) * down, 1, at);
          }}
        }}
        sum[r] += $_sum(total);
        {clear}
      }}
      for (int p = 0; p < panels; p++) {{
        __global float* const values = vt + p * {_KEYS * PANEL};
        $_values(V + b * vb + kv * vh + k0 * vs + p * 32, vs, n, vsize - p * 32, values);
        for (int x = 0; x < n; x += 32)
          $_tiles(rows, st + x * height, 32, 1, values + x * 32, 32, min(32, n - x), yt + p * height * 32);
      }}
    }}
    for (int r = 0; r < rows; r++) {{
      const int g = (r0 + r) / queries, i = r0 + r - g * queries, h = kv * group + g;
      __global {y.c}* const to_ = Y + b * yb + h * yh + i * ys;
      const float inverse = sum[r] == 0.0f{" || isnan(sum[r])" if form.checked else ""} ? {form.unseen} : 1.0f / sum[r];
      int d = 0;
      for (; d + 16 <= vsize; d += 16) {{
        const float16 e = vload16(0, yt + (d / 32 * height + r) * 32 + d % 32) * inverse;
        {store16(y, "e", "to_ + d")}
      }}
      for (; d < vsize; d++) STORE({y.name}, to_, d, yt[(d / 32 * height + r) * 32 + d % 32] * inverse);
    }}
  }}"""
    helpers = f"""{add_tiles("__global", "__global", "__global")}{fill_panel(q, "__global")}
inline float $_max(float16 v) {{
  const float8 a = fmax(v.lo, v.hi); const float4 b = fmax(a.lo, a.hi); const float2 c = fmax(b.lo, b.hi);
  return fmax(c.x, c.y);
}}
inline float $_sum(float16 v) {{
  const float8 a = v.lo + v.hi; const float4 b = a.lo + a.hi; const float2 c = b.lo + b.hi;
  return c.x + c.y;
}}
inline void $_query(__global const {q.c}* q, int size, float scale, __global float* to) {{
  int d = 0;
  for (; d + 16 <= size; d += 16) vstore16({load16(q, "q + d")} * scale, 0, to + d);
  for (; d < size; d++) to[d] = LOAD({q.name}, q, d) * scale;
}}
inline void $_values(__global const {v.c}* v, int vs, int n, int left, __global float* to) {{
  for (int j = 0; j < n; j++, v += vs, to += 32) {{
    if (left >= 32) {{
      vstore16({load16(v, "v")}, 0, to);
      vstore16({load16(v, "v + 16")}, 1, to);
    }} else
      for (int c = 0; c < 32; c++) to[c] = c < left ? LOAD({v.name}, v, c) : 0.0f;
  }}
}}"""
    ints = (*SIZES, "height", "cuts", "all", "per_item", "own")
    return kernel("attention_blocks", (*buffers(form), ("work", FLOAT32, "rw")), ints, body, helpers=helpers)
