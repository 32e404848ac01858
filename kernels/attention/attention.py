"""Scaled dot-product attention: ``softmax(scale * Q K' + mask) V`` for each head, without the matrix of all scores.

The query rows of all heads that share a key head are one list of rows, `group` × `queries` long. On CPU devices a
work-item takes blocks of them (`attention_blocks`), or where there are few, tiles of 1 to 4 rows: it keeps their scores
in a scratch of its own and reads keys and values in vectors of 16. On GPUs a work-group takes a tile of rows and walks
the keys in chunks, keeping a running maximum and sum. The generic kernel takes any dtypes and sizes, one row per
work-item, and alone gives scores out.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import load16, store16
from asyncrt.kernels.impl import Impl, KernelSource, Launch, scratch
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, FLOAT32, FLOAT64

from . import blocks as attention_blocks
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
    vector_score,
)  # fmt: skip

__all__ = ["BIASED", "CAPPED", "PROBABILITIES", "SCORES", "Attention", "attention", "attention_impl"]

_LANES = 16
_ROWS = 8  # rows of a GPU's tile
_CHUNK = 64  # keys that a GPU's tile treats at once
_GROUP = 128
_LOCAL_BYTES = 30000
_MIN_WORK = 30_000  # multiplications that are worth a work-item of a CPU

def attention(a: Attention, traits: DeviceTraits, *, scratches: int = 0) -> tuple[Launch, str, int]:
    """Return the launch that carries *a* out, its name, and the bytes of its scratch (0: it has none).

    Args:
        scratches: Index of its scratch buffer, if it has one.
    """
    form = AttentionForm(
        a.query.dtype, a.value.dtype, a.target.dtype, a.mask.dtype if a.mask else None, a.valid is not None, a.causal,
        a.softcap != 0, a.left >= 0 or a.right >= 0, a.scores.dtype if a.scores else None, a.scores_mode,
        "NAN" if math.isnan(a.unseen) else "0", a.checked,
    )  # fmt: skip
    masked = a.mask or a.query._replace(batch=0, head=0, row=0)
    strides = tuple(s for t in (a.query, a.key, a.value, a.target, masked) for s in t[2:])
    ints = (
        a.kv_heads, a.group, a.queries, a.keys, a.size, a.value_size, _bits(a.scale), _bits(a.softcap), a.offset,
        a.left, a.right, a.mask_keys, *strides,
    )  # fmt: skip
    refs = [a.query.ref, a.key.ref, a.value.ref, a.target.ref]
    refs += [r for r in (a.mask and a.mask.ref, a.valid, a.scores and a.scores.ref) if r is not None]
    rows = a.group * a.queries
    if traits.is_cpu and not form.scores and {a.query.dtype, a.value.dtype, a.target.dtype} <= {FLOAT32, FLOAT16}:
        if rows >= attention_blocks.LEAST:
            launch, nbytes = attention_blocks.blocks(a, form, (*refs, scratch(scratches)), ints, traits)
            return launch, "blocks", nbytes
        height = next((h for h in (1, 2) if rows <= h), 4)
        tiles = a.batch * a.kv_heads * -(-rows // height)
        cost = max(1, height * a.keys * (a.size + a.value_size))
        per_item = max(-(-tiles // (8 * traits.compute_units)), min(tiles, -(-_MIN_WORK // cost)))
        items = -(-tiles // per_item)
        padded_keys, padded_size = round_up(a.keys, _LANES) + _LANES, round_up(a.size, _LANES)
        work = height * (padded_keys + padded_size)
        buffers = (*refs, scratch(scratches))
        launch = Launch(
            _tile_kernel(form, height), buffers, (*ints, tiles, per_item, padded_keys, padded_size), (items,), (1,)
        )
        return launch, f"tiles of {height} rows", items * work * 4
    arithmetic = real(form)
    local = _ROWS * (a.size + a.value_size + _CHUNK) * (8 if arithmetic == "double" else 4)
    if not traits.is_cpu and not form.scores and local <= _LOCAL_BYTES and traits.max_group >= _GROUP:
        tiles = a.batch * a.kv_heads * -(-rows // _ROWS)
        launch = Launch(_group_kernel(form), tuple(refs), ints, (tiles * _GROUP,), (_GROUP,), (local,))
        return launch, f"group per {_ROWS} rows", 0
    total = a.batch * a.kv_heads * rows
    group = 1 if traits.is_cpu else 64
    launch = Launch(
        _row_kernel(form), (*refs, scratch(scratches)), (*ints, total), (round_up(total, group),), (group,)
    )
    return launch, "rows", max(1, total * a.keys) * (8 if arithmetic == "double" else 4)


def _bits(value: float) -> int:
    """The bits of a float32, as an argument of a kernel."""
    return int(np.float32(value).view(np.int32))


@functools.cache
def _row_kernel(form: AttentionForm) -> KernelSource:
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
  for (int j = j0; j < j1; j++) {{ p[j] = exp(p[j] - m); sum += p[j]; }}
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


@functools.cache
def _tile_kernel(form: AttentionForm, height: int) -> KernelSource:
    """A work-item takes tiles of *height* rows, one after the other, in three steps.

    Sixteen dot products at a time give the scores: `height` rows times 16 / `height` keys. Then each row of scores
    becomes weights, and the weights times the values are summed in registers for blocks of columns.
    """
    step = _LANES // height
    rows, columns = range(height), range(step)
    wide = 2 if height == 4 else 4  # vectors of a block of columns
    q, v, y = form.query, form.value, form.target
    zero = " ".join(f"float16 c{n} = 0.0f;" for n in range(_LANES))
    keys = "\n      ".join(f"__global const {q.c}* k{x} = K + ko + min(j + {x}, keys - 1) * ks;" for x in columns)
    queries = " ".join(f"const float16 q{r} = vload16(0, qp + {r} * padded_size + d);" for r in rows)

    def multiply(key: str) -> str:
        return " ".join(
            f"{{ const float16 k = {key.format(x=x)}; "
            + " ".join(f"c{r * step + x} = fma(q{r}, k, c{r * step + x});" for r in rows)
            + " }"
            for x in columns
        )

    sums = [f"c{n}" for n in range(_LANES)]
    while len(sums) > 1:
        sums = [f"$_pairs({a}, {b})" for a, b in zip(sums[::2], sums[1::2], strict=True)]
    if height == 1:
        put = f"vstore16({sums[0]}, 0, s + j);"
    else:
        part = {2: ("lo", "hi"), 4: ("lo.lo", "lo.hi", "hi.lo", "hi.hi")}[height]
        put = f"const float16 e = {sums[0]}; " + " ".join(
            f"vstore{step}(e.{part[r]}, 0, s + {r} * padded_keys + j);" for r in rows
        )
    masked = vector_score(form)
    clear = ""
    if form.checked:
        clear = "if (isnan(sum)) { for (int j = lo; j < hi; j += 16) vstore16((float16)(0.0f), 0, p + j); sum = 0.0f; }"

    def weights(r: int) -> str:
        return f"""
    {{
      __global float* p = s + {r} * padded_keys;
      const int mo = b * mb + h{r} * mh + i{r} * ms;
      float16 vm = -INFINITY, vt = 0.0f;
      for (int j = lo; j < hi; j += 16) {{
        const int16 at = j + (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        float16 e = vload16(0, p + j);
        {masked}
        e = select(e, (float16)(-INFINITY), at < lo{r} || at >= hi{r});
        vm = fmax(vm, e);
        vstore16(e, 0, p + j);
      }}
      const float8 m8 = fmax(vm.lo, vm.hi); const float4 m4 = fmax(m8.lo, m8.hi); const float2 m2 = fmax(m4.lo, m4.hi);
      float m = fmax(m2.x, m2.y);
      if (m == -INFINITY) m = 0.0f;
      for (int j = lo; j < hi; j += 16) {{
        const float16 e = exp(vload16(0, p + j) - m);
        vt += e;
        vstore16(e, 0, p + j);
      }}
      const float8 t8 = vt.lo + vt.hi; const float4 t4 = t8.lo + t8.hi; const float2 t2 = t4.lo + t4.hi;
      float sum = t2.x + t2.y;
      {clear}
      inverse{r} = sum == 0 ? {form.unseen} : 1.0f / sum;
    }}"""

    def block(count: int) -> str:
        """`count` vectors of columns of each row."""
        used = [(r, w) for r in rows for w in range(count)]
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

    row = "\n    ".join(
        f"const int g{r} = min(r0 + {r}, rows - 1) / queries, i{r} = min(r0 + {r}, rows - 1) - g{r} * queries; "
        f"const int h{r} = kv * group + g{r}, y{r} = b * yb + h{r} * yh + i{r} * ys; float inverse{r}; "
        f"int lo{r}, hi{r}; {bounds(form, f'i{r}', f'lo{r}', f'hi{r}')}"
        for r in rows
    )
    fill = " ".join(
        f"qp[{r} * padded_size + d] = d < size ? LOAD({q.name}, Q, b * qb + h{r} * qh + i{r} * qs + d) * scale : 0.0f;"
        for r in rows
    )

    def fold(function: str, name: str) -> str:
        return functools.reduce(lambda a, n: f"{function}({a}, {n})", (f"{name}{r}" for r in rows))

    last = " ".join(
        f"{{ float a = 0.0f; for (int j = lo; j < hi; j++) "
        f"a += s[{r} * padded_keys + j] * LOAD({v.name}, V, vo + j * vs + d); "
        f"STORE({y.name}, Y, y{r} + d, a * inverse{r}); }}"
        for r in rows
    )
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
    {row}
    const int lo = {fold("min", "lo")}, hi = {fold("max", "hi")};
    for (int d = 0; d < padded_size; d++) {{ {fill} }}
    for (int j = lo; j < hi; j += {step}) {{
      {keys}
      {zero}
      int d = 0;
      for (; d + 16 <= size; d += 16) {{ {queries} {multiply(load16(q, "k{x} + d"))} }}
      if (d < size) {{ {queries} {multiply("$_part(k{x} + d, size - d)")} }}
      {put}
    }}
    {"".join(weights(r) for r in rows)}
    int d = 0;
    {block(wide)}
    {block(1)}
    for (; d < vsize; d++) {{ {last} }}
  }}"""
    helpers = f"""
inline float16 $_pairs(float16 a, float16 b) {{ return (float16)(a.even + a.odd, b.even + b.odd); }}
inline float16 $_part(__global const {q.c}* p, int n) {{
  float t[16];
  for (int x = 0; x < 16; x++) t[x] = x < n ? LOAD({q.name}, p, x) : 0.0f;
  return vload16(0, t);
}}"""
    ints = (*SIZES, "tiles", "per_item", "padded_keys", "padded_size")
    return kernel(f"attention_tile{height}", (*buffers(form), ("work", FLOAT32, "rw")), ints, body, helpers=helpers)


@functools.cache
def _group_kernel(form: AttentionForm) -> KernelSource:
    """A work-group takes a tile of rows and walks the keys in chunks, with a running maximum and sum per row.

    Local memory holds the tile's queries, a chunk's weights and the sums of the values. When a chunk raises a row's
    maximum, what is summed so far is scaled down.
    """
    t = real(form)
    per_row = _GROUP // _ROWS  # work-items that share a row of weights
    share = _ROWS * _CHUNK // _GROUP  # rows of a key that a work-item multiplies
    cap = "e = cap * tanh(e / cap);" if form.softcap else ""
    weight, result = f"p[r * {_CHUNK} + x]", f"sum[r] == 0 ? {form.unseen} : o[e] / sum[r]"
    if form.checked:
        weight = f"(isnan(sum[r]) ? 0 : {weight})"
        result = "sum[r] == 0 || isnan(sum[r]) ? o[e] : o[e] / sum[r]"
    body = f"""
  __local {t}* q = space; __local {t}* o = q + {_ROWS} * size; __local {t}* p = o + {_ROWS} * vsize;
  __local {t} part[{_GROUP}], top[{_ROWS}], sum[{_ROWS}], keep[{_ROWS}];
  __local int head[{_ROWS}], query[{_ROWS}], from[{_ROWS}], to[{_ROWS}];
  const {t} scale = as_float(scale_), cap = as_float(cap_);
  const int id = (int)get_local_id(0), rows = group * queries, per_head = (rows + {_ROWS - 1}) / {_ROWS};
  const int tile = (int)get_group_id(0), r0 = tile % per_head * {_ROWS};
  const int kv = tile / per_head % kv_heads, b = tile / per_head / kv_heads;
  const int ko = b * kb + kv * kh, vo = b * vb + kv * vh;
  if (id < {_ROWS}) {{
    const int row = min(r0 + id, rows - 1), g = row / queries, i = row - g * queries;
    int lo, hi;
    {bounds(form, "i", "lo", "hi")}
    head[id] = kv * group + g; query[id] = i; from[id] = lo; to[id] = hi; top[id] = -INFINITY; sum[id] = 0;
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  int lo = keys, hi = 0;
  for (int r = 0; r < {_ROWS}; r++) {{ lo = min(lo, from[r]); hi = max(hi, to[r]); }}
  for (int e = id; e < {_ROWS} * size; e += {_GROUP}) {{
    const int r = e / size, d = e - r * size;
    q[e] = ({t})LOAD({form.query.name}, Q, b * qb + head[r] * qh + query[r] * qs + d) * scale;
  }}
  for (int e = id; e < {_ROWS} * vsize; e += {_GROUP}) o[e] = 0;
  const int own = id % {_CHUNK}, r1 = id / {_CHUNK} * {share};
  const int mine = id / {per_row}, lane = id % {per_row};
  for (int j0 = lo; j0 < hi; j0 += {_CHUNK}) {{
    barrier(CLK_LOCAL_MEM_FENCE);
    {{
      const int j = j0 + own, k0 = ko + min(j, keys - 1) * ks;
      {t} c[{share}];
      for (int x = 0; x < {share}; x++) c[x] = 0;
      for (int d = 0; d < size; d++) {{
        const {t} k = LOAD({form.query.name}, K, k0 + d);
        for (int x = 0; x < {share}; x++) c[x] += q[(r1 + x) * size + d] * k;
      }}
      for (int x = 0; x < {share}; x++) {{
        const int r = r1 + x;
        {t} e = c[x];
        {cap}
        if (j >= from[r] && j < to[r]) e = {biased(form, "e", "b * mb + head[r] * mh + query[r] * ms + j")};
        else e = -INFINITY;
        p[r * {_CHUNK} + own] = e;
      }}
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
    {t} m = -INFINITY;
    for (int x = lane; x < {_CHUNK}; x += {per_row}) m = fmax(m, p[mine * {_CHUNK} + x]);
    part[id] = m;
    barrier(CLK_LOCAL_MEM_FENCE);
    m = top[mine];
    for (int x = 0; x < {per_row}; x++) m = fmax(m, part[mine * {per_row} + x]);
    const {t} shift = m == -INFINITY ? 0 : m;
    {t} own_sum = 0;
    for (int x = lane; x < {_CHUNK}; x += {per_row}) {{
      const {t} w = exp(p[mine * {_CHUNK} + x] - shift);
      p[mine * {_CHUNK} + x] = w; own_sum += w;
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
    part[id] = own_sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0) {{
      const {t} down = exp(top[mine] - shift);
      {t} all = sum[mine] * down;
      for (int x = 0; x < {per_row}; x++) all += part[id + x];
      {"keep[mine] = isnan(all) ? 0 : down;" if form.checked else "keep[mine] = down;"} sum[mine] = all; top[mine] = m;
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
    const int n = min({_CHUNK}, hi - j0);
    for (int e = id; e < {_ROWS} * vsize; e += {_GROUP}) {{
      const int r = e / vsize, v0 = vo + j0 * vs + e - r * vsize;
      {t} y = o[e] * keep[r];
      for (int x = 0; x < n; x++) y += {weight} * ({t})LOAD({form.value.name}, V, v0 + x * vs);
      o[e] = y;
    }}
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int e = id; e < {_ROWS} * vsize; e += {_GROUP}) {{
    const int r = e / vsize, d = e - r * vsize;
    if (r0 + r < rows)
      STORE({form.target.name}, Y, b * yb + head[r] * yh + query[r] * ys + d, {result});
  }}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    return kernel("attention_groups", buffers(form), SIZES, body, attributes=group, local=(("space", t),))


def attention_impl(a: Attention, before: tuple[Launch, ...], sizes: tuple[int, ...], traits: DeviceTraits) -> Impl:
    """Return the implementation that runs *before*, whose scratch buffers have *sizes* bytes, and then *a*."""
    launch, name, nbytes = attention(a, traits, scratches=len(sizes))
    return Impl(name, (*before, launch), (*sizes, nbytes) if nbytes else sizes)
