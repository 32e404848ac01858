"""Attention on CPU devices for few query rows: tiles of 1, 2 or 4 rows.

A work-item takes tiles of rows, one after the other, in three steps. Sixteen dot products at a time give the scores:
`height` rows times 16 / `height` keys, but for one row only eight. Then each row of scores becomes weights, and the
weights times the values are summed in registers for blocks of columns. Keys and values are read in vectors of 16; the
scores lie in a scratch of the work-item's own.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import load16, store16
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32

from .interface import SIZES, Attention, AttentionForm, bounds, buffers, vector_score

_LANES = 16
_STREAMS = 8  # keys that are read at a time: of more, caches are not filled ahead
_MIN_WORK = 30_000  # multiplications that are worth a work-item of a CPU


def height_of(a: Attention) -> int:
    """Return how many rows a tile has."""
    return next((h for h in (1, 2) if a.group * a.queries <= h), 4)


def tiles(
    a: Attention, form: AttentionForm, refs: tuple[Ref, ...], ints: tuple[int, ...], traits: DeviceTraits
) -> tuple[Launch, int]:
    """Return the launch and the bytes of its scratch, which is the last of *refs*."""
    height = height_of(a)
    count = a.batch * a.kv_heads * -(-(a.group * a.queries) // height)
    cost = max(1, height * a.keys * (a.size + a.value_size))
    per_item = max(-(-count // (8 * traits.compute_units)), min(count, -(-_MIN_WORK // cost)))
    items = -(-count // per_item)
    padded_keys, padded_size = round_up(a.keys, _LANES) + _LANES, round_up(a.size, _LANES)
    launch = Launch(_kernel(form, height), refs, (*ints, count, per_item, padded_keys, padded_size), (items,), (1,))
    return launch, items * height * (padded_keys + padded_size) * 4


class _TileForm(NamedTuple):
    """What the source of a kernel depends on: attention's form, and how many rows a tile has (1, 2 or 4)."""

    attention: AttentionForm
    height: int

    @property
    def rows(self) -> range:
        return range(self.height)

    @property
    def keys(self) -> int:
        """Keys whose scores are calculated at a time."""
        return min(_STREAMS, _LANES // self.height)


@functools.cache
def _kernel(form: AttentionForm, height: int) -> KernelSource:
    tile = _TileForm(form, height)
    wide = 2 if height == 4 else 4  # vectors of a block of columns
    body = f"""
  const float scale = as_float(scale_), cap = as_float(cap_);
  const int rows = group * queries, item = (int)get_global_id(0);
  const int per_head = (rows + {height - 1}) / {height};
  __global float* s = work + (size_t)item * ({height} * (padded_keys + padded_size));
  __global float* qp = s + {height} * padded_keys;
  const int t1 = min((item + 1) * per_item, tiles);
  for (int tile = item * per_item; tile < t1; tile++) {{
    const int r0 = tile % per_head * {height}, kv = tile / per_head % kv_heads, b = tile / per_head / kv_heads;
    const int ko = b * kb + kv * kh, vo = b * vb + kv * vh;
    {_places(tile)}
    {_queries(tile)}
    {_scores(tile)}
    {"".join(_weights(form, r) for r in tile.rows)}
    int d = 0;
    {_sums(tile, wide)}
    {_sums(tile, 1)}
    {_last_sums(tile)}
  }}"""
    ints = (*SIZES, "tiles", "per_item", "padded_keys", "padded_size")
    helpers = _helpers(form)
    return kernel(f"attention_tile{height}", (*buffers(form), ("work", FLOAT32, "rw")), ints, body, helpers=helpers)


def _helpers(form: AttentionForm) -> str:
    """Return functions: sums of pairs of neighbours, and the first n of 16 elements, then zeros."""
    q = form.query
    return f"""
inline float16 $_pairs(float16 a, float16 b) {{ return (float16)(a.even + a.odd, b.even + b.odd); }}
inline float16 $_part(__global const {q.c}* p, int n) {{
  float t[16];
  for (int x = 0; x < 16; x++) t[x] = x < n ? LOAD({q.name}, p, x) : 0.0f;
  return vload16(0, t);
}}"""


def _places(tile: _TileForm) -> str:
    """Find where the tile's rows are, and the keys that any of them sees: `lo` to `hi`. The last row may repeat."""
    row = "\n    ".join(
        f"const int g{r} = min(r0 + {r}, rows - 1) / queries, i{r} = min(r0 + {r}, rows - 1) - g{r} * queries; "
        f"const int h{r} = kv * group + g{r}, y{r} = b * yb + h{r} * yh + i{r} * ys; float inverse{r}; "
        f"int lo{r}, hi{r}; {bounds(tile.attention, f'i{r}', f'lo{r}', f'hi{r}')}"
        for r in tile.rows
    )

    def fold(function: str, name: str) -> str:
        return functools.reduce(lambda a, n: f"{function}({a}, {n})", (f"{name}{r}" for r in tile.rows))

    return f"""{row}
    const int lo = {fold("min", "lo")}, hi = {fold("max", "hi")};"""


def _queries(tile: _TileForm) -> str:
    """Write the scaled queries to ``qp``, padded with zeros."""
    q = tile.attention.query
    fill = " ".join(
        f"qp[{r} * padded_size + d] = d < size ? LOAD({q.name}, Q, b * qb + h{r} * qh + i{r} * qs + d) * scale : 0.0f;"
        for r in tile.rows
    )
    return f"for (int d = 0; d < padded_size; d++) {{ {fill} }}"


def _scores(tile: _TileForm) -> str:
    """Write the products of queries and keys to ``s``: some sums at a time, of vectors of 16."""
    q, rows, columns = tile.attention.query, tile.rows, range(tile.keys)
    zero = " ".join(f"float16 c{n} = 0.0f;" for n in range(tile.height * tile.keys))
    keys = "\n      ".join(f"__global const {q.c}* k{x} = K + ko + min(j + {x}, keys - 1) * ks;" for x in columns)
    queries = " ".join(f"const float16 q{r} = vload16(0, qp + {r} * padded_size + d);" for r in rows)

    def multiply(key: str) -> str:
        return " ".join(
            f"{{ const float16 k = {key.format(x=x)}; "
            + " ".join(f"c{r * tile.keys + x} = fma(q{r}, k, c{r * tile.keys + x});" for r in rows)
            + " }"
            for x in columns
        )

    return f"""for (int j = lo; j < hi; j += {tile.keys}) {{
      {keys}
      {zero}
      int d = 0;
      for (; d + 16 <= size; d += 16) {{ {queries} {multiply(load16(q, "k{x} + d"))} }}
      if (d < size) {{ {queries} {multiply("$_part(k{x} + d, size - d)")} }}
      {_stored_scores(tile)}
    }}"""


def _stored_scores(tile: _TileForm) -> str:
    """Add up the 16 elements of each of the sums, and store them as the scores of each row."""
    sums = [f"c{n}" for n in range(tile.height * tile.keys)]
    while len(sums) > 1:
        sums = [f"$_pairs({a}, {b})" for a, b in zip(sums[::2], sums[1::2], strict=True)]
    if tile.height == 1:
        return f"const float16 e = {sums[0]}; vstore8(e.even + e.odd, 0, s + j);"
    part = {2: ("lo", "hi"), 4: ("lo.lo", "lo.hi", "hi.lo", "hi.hi")}[tile.height]
    return f"const float16 e = {sums[0]}; " + " ".join(
        f"vstore{tile.keys}(e.{part[r]}, 0, s + {r} * padded_keys + j);" for r in tile.rows
    )


def _weights(form: AttentionForm, r: int) -> str:
    """Turn the scores of row *r* into weights, not yet divided by their sum: that is ``inverse<r>``."""
    clear = ""
    if form.checked:
        clear = "if (isnan(sum)) { for (int j = lo; j < hi; j += 16) vstore16((float16)(0.0f), 0, p + j); sum = 0.0f; }"
    return f"""
    {{
      __global float* p = s + {r} * padded_keys;
      const int mo = b * mb + h{r} * mh + i{r} * ms;
      float16 vm = -INFINITY, vt = 0.0f;
      for (int j = lo; j < hi; j += 16) {{
        const int16 at = j + (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        float16 e = vload16(0, p + j);
        {vector_score(form)}
        e = select(e, (float16)(-INFINITY), at < lo{r} || at >= hi{r});
        vm = fmax(vm, e);
        vstore16(e, 0, p + j);
      }}
      const float8 m8 = fmax(vm.lo, vm.hi); const float4 m4 = fmax(m8.lo, m8.hi); const float2 m2 = fmax(m4.lo, m4.hi);
      float m = fmax(m2.x, m2.y);
      if (m == -INFINITY) m = 0.0f;
      for (int j = lo; j < hi; j += 16) {{
        const float16 e = asyncrt_exp(vload16(0, p + j) - m);
        vt += e;
        vstore16(e, 0, p + j);
      }}
      const float8 t8 = vt.lo + vt.hi; const float4 t4 = t8.lo + t8.hi; const float2 t2 = t4.lo + t4.hi;
      float sum = t2.x + t2.y;
      {clear}
      inverse{r} = sum == 0 ? {form.unseen} : 1.0f / sum;
    }}"""


def _sums(tile: _TileForm, count: int) -> str:
    """Store the weighted sums of *count* vectors of columns of each row, as long as there are so many columns."""
    v, y = tile.attention.value, tile.attention.target
    used = [(r, w) for r in tile.rows for w in range(count)]
    start = " ".join(f"float16 a{r}_{w} = 0.0f;" for r, w in used)
    loads = " ".join(f"const float16 v{w} = {load16(v, f'vp + {16 * w}')};" for w in range(count))
    adds = " ".join(f"a{r}_{w} = fma((float16)(s[{r} * padded_keys + j]), v{w}, a{r}_{w});" for r, w in used)
    stores = " ".join(store16(y, f"a{r}_{w} * inverse{r}", f"Y + y{r} + d + {16 * w}") for r, w in used)
    return f"""for (; d + {16 * count} <= vsize; d += {16 * count}) {{
      {start}
      __global const {v.c}* vp = V + vo + lo * vs + d;
      for (int j = lo; j < hi; j++, vp += vs) {{ {loads} {adds} }}
      {stores}
    }}"""


def _last_sums(tile: _TileForm) -> str:
    """Store the weighted sums of the columns that are left, one by one."""
    v, y = tile.attention.value, tile.attention.target
    last = " ".join(
        f"{{ float a = 0.0f; for (int j = lo; j < hi; j++) "
        f"a += s[{r} * padded_keys + j] * LOAD({v.name}, V, vo + j * vs + d); "
        f"STORE({y.name}, Y, y{r} + d, a * inverse{r}); }}"
        for r in tile.rows
    )
    return f"for (; d < vsize; d++) {{ {last} }}"
