"""Attention on GPUs: a work-group takes a tile of query rows and walks the keys in chunks.

It keeps a running maximum and sum per row. Local memory holds the tile's queries, a chunk's weights and the sums of the
values. When a chunk raises a row's maximum, what is summed so far is scaled down.

Where there are few tiles and many keys, as for the next token behind a long cache, several work-groups each take a part of
the keys, and a second launch adds up what they have found ("Flash-Decoding", PyTorch's blog, October 2023).
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.patterns.grid import GPU_GROUP, round_up
from asyncrt.kernels.traits import DeviceTraits

from .adding import adding_kernel, work
from .interface import SIZES, Attention, AttentionForm, biased, bounds, buffers, real

ROWS = 8  # query rows of a tile
_CHUNK = 64  # keys that a tile treats at once
_GROUP = 128
_SHARE = ROWS * _CHUNK // _GROUP  # rows of a key that a work-item multiplies
_PER_ROW = _GROUP // ROWS  # work-items that share a row of weights
_LOCAL_BYTES = 30000
_FEW = 2  # chunks that one work-group walks as soon as several would


def fits(a: Attention, form: AttentionForm, traits: DeviceTraits) -> bool:
    """Return whether a work-group of the device can hold a tile in its local memory."""
    return _local_bytes(a, form) <= _LOCAL_BYTES and traits.max_group >= _GROUP


def shares_keys(a: Attention, traits: DeviceTraits) -> bool:
    """Return whether there are few tiles and many keys, so that several work-groups share those."""
    return -(-a.keys // _CHUNK) > _FEW and 2 * _tiles(a) <= traits.compute_units


def _tiles(a: Attention) -> int:
    return a.batch * a.kv_heads * -(-(a.group * a.queries) // ROWS)


def _local_bytes(a: Attention, form: AttentionForm) -> int:
    return ROWS * (a.size + a.value_size + _CHUNK) * (8 if real(form) == "double" else 4)


def groups(
    a: Attention, form: AttentionForm, refs: tuple[Ref, ...], ints: tuple[int, ...], traits: DeviceTraits
) -> tuple[tuple[Launch, ...], int]:
    """Return the launches and the bytes of their scratch, which is the last of *refs*; 0 if they have none."""
    tiles, local = _tiles(a), (_local_bytes(a, form),)
    if not shares_keys(a, traits):
        return (Launch(_kernel(form, False), refs[:-1], (*ints, 1, 0), (tiles * _GROUP,), (_GROUP,), local),), 0
    chunks = -(-a.keys // _CHUNK)
    each = -(-chunks * tiles // (2 * traits.compute_units))
    parts = -(-chunks // each)
    ints = (*ints, parts, each * _CHUNK)
    space, target = refs[-1], a.target.ref
    walk = Launch(_kernel(form, True), (*refs[:3], *refs[4:]), ints, (tiles * parts * _GROUP,), (_GROUP,), local)
    grid = (round_up(tiles * ROWS * a.value_size, GPU_GROUP),)
    add = Launch(adding_kernel(form, ROWS), (space, target), (*ints, tiles), grid, (GPU_GROUP,))
    return (walk, add), tiles * parts * ROWS * (a.value_size + 2) * (8 if real(form) == "double" else 4)


@functools.cache
def _kernel(form: AttentionForm, parted: bool) -> KernelSource:
    """*parted*: the group takes one of several parts of the keys, and writes what is added up later."""
    t = real(form)
    part = "lo = max(lo, turn * each); hi = min(hi, (turn + 1) * each);" if parted else ""
    body = f"""
  __local {t}* q = space; __local {t}* o = q + {ROWS} * size; __local {t}* p = o + {ROWS} * vsize;
  __local {t} part[{_GROUP}], top[{ROWS}], sum[{ROWS}], keep[{ROWS}];
  __local int head[{ROWS}], query[{ROWS}], from[{ROWS}], to[{ROWS}];
  const {t} scale = as_float(scale_), cap = as_float(cap_);
  const int id = (int)get_local_id(0), rows = group * queries, per_head = (rows + {ROWS - 1}) / {ROWS};
  const int turn = (int)get_group_id(0) % parts, tile = (int)get_group_id(0) / parts, r0 = tile % per_head * {ROWS};
  const int kv = tile / per_head % kv_heads, b = tile / per_head / kv_heads;
  const int ko = b * kb + kv * kh, vo = b * vb + kv * vh;
  {_start(form)}
  {part}
  const int own = id % {_CHUNK}, r1 = id / {_CHUNK} * {_SHARE};
  const int mine = id / {_PER_ROW}, lane = id % {_PER_ROW};
  for (int j0 = lo; j0 < hi; j0 += {_CHUNK}) {{
    barrier(CLK_LOCAL_MEM_FENCE);
    {_scores(form, parted)}
    {_weights(form)}
    {_sums(form)}
  }}
  {_parts() if parted else _results(form)}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    places = buffers(form)
    if parted:
        places = (*(b for b in places if b[0] != "Y"), work(form, "w"))
    name = "attention_parts" if parted else "attention_groups"
    return kernel(name, places, (*SIZES, "parts", "each"), body, attributes=group, local=(("space", t),))


def _parts() -> str:
    """Write down a part's sums of values, then each row's maximum and its sum of weights."""
    return f"""barrier(CLK_LOCAL_MEM_FENCE);
  const int w0 = (tile * parts + turn) * {ROWS} * (vsize + 2);
  for (int e = id; e < {ROWS} * vsize; e += {_GROUP}) work[w0 + e] = o[e];
  if (id < {ROWS}) {{ work[w0 + {ROWS} * vsize + id] = top[id]; work[w0 + {ROWS} * (vsize + 1) + id] = sum[id]; }}"""


def _start(form: AttentionForm) -> str:
    """Find the tile's rows and the keys that any of them sees, `lo` to `hi`; load the queries, scaled."""
    t = real(form)
    return f"""if (id < {ROWS}) {{
    const int row = min(r0 + id, rows - 1), g = row / queries, i = row - g * queries;
    int lo, hi;
    {bounds(form, "i", "lo", "hi")}
    head[id] = kv * group + g; query[id] = i; from[id] = lo; to[id] = hi; top[id] = -INFINITY; sum[id] = 0;
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  int lo = keys, hi = 0;
  for (int r = 0; r < {ROWS}; r++) {{ lo = min(lo, from[r]); hi = max(hi, to[r]); }}
  for (int e = id; e < {ROWS} * size; e += {_GROUP}) {{
    const int r = e / size, d = e - r * size;
    q[e] = ({t})LOAD({form.query.name}, Q, b * qb + head[r] * qh + query[r] * qs + d) * scale;
  }}
  for (int e = id; e < {ROWS} * vsize; e += {_GROUP}) o[e] = 0;"""


def _scores(form: AttentionForm, parted: bool) -> str:
    """Write the scores of a chunk to ``p``; each work-item calculates those of one key and `_SHARE` rows."""
    t = real(form)
    cap = "e = cap * tanh(e / cap);" if form.softcap else ""
    return f"""{{
      const int j = j0 + own, k0 = ko + min(j, keys - 1) * ks;
      {t} c[{_SHARE}];
      for (int x = 0; x < {_SHARE}; x++) c[x] = 0;
      for (int d = 0; d < size; d++) {{
        const {t} k = LOAD({form.query.name}, K, k0 + d);
        for (int x = 0; x < {_SHARE}; x++) c[x] += q[(r1 + x) * size + d] * k;
      }}
      for (int x = 0; x < {_SHARE}; x++) {{
        const int r = r1 + x;
        {t} e = c[x];
        {cap}
        if (j >= from[r] && j < to[r]{' && j < hi' if parted else ''}) e = {biased(form, "e", "b * mb + head[r] * mh + query[r] * ms + j")};
        else e = -INFINITY;
        p[r * {_CHUNK} + own] = e;
      }}
    }}"""


def _weights(form: AttentionForm) -> str:
    """Turn the scores of a chunk into weights, `_PER_ROW` work-items for each row; update its maximum and sum."""
    t = real(form)
    return f"""barrier(CLK_LOCAL_MEM_FENCE);
    {t} m = -INFINITY;
    for (int x = lane; x < {_CHUNK}; x += {_PER_ROW}) m = fmax(m, p[mine * {_CHUNK} + x]);
    part[id] = m;
    barrier(CLK_LOCAL_MEM_FENCE);
    m = top[mine];
    for (int x = 0; x < {_PER_ROW}; x++) m = fmax(m, part[mine * {_PER_ROW} + x]);
    const {t} shift = m == -INFINITY ? 0 : m;
    {t} own_sum = 0;
    for (int x = lane; x < {_CHUNK}; x += {_PER_ROW}) {{
      const {t} w = exp(p[mine * {_CHUNK} + x] - shift);
      p[mine * {_CHUNK} + x] = w; own_sum += w;
    }}
    barrier(CLK_LOCAL_MEM_FENCE);
    part[id] = own_sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0) {{
      const {t} down = exp(top[mine] - shift);
      {t} all = sum[mine] * down;
      for (int x = 0; x < {_PER_ROW}; x++) all += part[id + x];
      {"keep[mine] = isnan(all) ? 0 : down;" if form.checked else "keep[mine] = down;"} sum[mine] = all; top[mine] = m;
    }}
    barrier(CLK_LOCAL_MEM_FENCE);"""


def _sums(form: AttentionForm) -> str:
    """Add the chunk's values times their weights to the sums, scaled down if the maximum has risen."""
    t = real(form)
    weight = f"p[r * {_CHUNK} + x]"
    if form.checked:
        weight = f"(isnan(sum[r]) ? 0 : {weight})"
    return f"""const int n = min({_CHUNK}, hi - j0);
    for (int e = id; e < {ROWS} * vsize; e += {_GROUP}) {{
      const int r = e / vsize, v0 = vo + j0 * vs + e - r * vsize;
      {t} y = o[e] * keep[r];
      for (int x = 0; x < n; x++) y += {weight} * ({t})LOAD({form.value.name}, V, v0 + x * vs);
      o[e] = y;
    }}"""


def _results(form: AttentionForm) -> str:
    """Divide the sums by those of the weights, and store them."""
    result = f"sum[r] == 0 ? {form.unseen} : o[e] / sum[r]"
    if form.checked:
        result = "sum[r] == 0 || isnan(sum[r]) ? o[e] : o[e] / sum[r]"
    return f"""barrier(CLK_LOCAL_MEM_FENCE);
  for (int e = id; e < {ROWS} * vsize; e += {_GROUP}) {{
    const int r = e / vsize, d = e - r * vsize;
    if (r0 + r < rows)
      STORE({form.target.name}, Y, b * yb + head[r] * yh + query[r] * ys + d, {result});
  }}"""
