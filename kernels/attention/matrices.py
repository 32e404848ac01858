"""Attention on NVIDIA's tensor cores: 64 query rows a work-group, some keys at a time.

Each of its 4 groups of 32 work-items has 16 rows: their queries, scores, weights and sums stay in its registers, as in
FlashAttention-2 (Dao, 2023). Local memory holds keys and values; the next ones are copied there meanwhile, if both fit.

Where such tiles leave half of the device idle, a work-group has 16 rows, and each group of 32 a quarter of the keys; what
they found is added up in their order.

Floats are multiplied in two parts, as in products (`matmul/tensor_cores.py`); a row that is not finite is calculated once
more.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.codegen.mma import COPY, LANES, TYPES, Numbers, helpers, split
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32

from .interface import SIZES, Attention, AttentionForm, bounds, buffers, element, with_element

_EACH, _WARPS = 16, 4  # rows of a group of 32 work-items, of which a work-group has so many
ROWS = _WARPS * _EACH
_GROUP = _WARPS * LANES
_FOUND = 4  # of what a work-item found, beside its sums: two rows' greatest scores, and the sums of their weights
_WIDEST, _WIDEST_OF_FLOATS = 128, 64
_MASK = "b * mb + head[h] * mh + query[h] * ms + j"  # where its element of row h and key j is
_LOCAL_BYTES = 46 << 10  # of the 48 KiB that a work-group may have


def fits(a: Attention, form: AttentionForm, traits: DeviceTraits) -> bool:
    """Return whether tensor cores can do it: heads of at most 128, or 64 floats, whose rows begin at multiples of 16 bytes."""
    if "mma" not in traits.features or form.value is not form.query or form.checked:
        return False
    floats = form.query is FLOAT32
    if not (traits.split_floats if floats else form.query in TYPES):
        return False
    steps = (x for t in (a.query, a.key, a.value) for x in (t.batch, t.head, t.row))
    widest, chunk = _WIDEST_OF_FLOATS if floats else _WIDEST, Numbers.of(form.query).chunk
    return max(a.size, a.value_size) <= widest and not any(x % chunk for x in steps)


def matrices(
    a: Attention, form: AttentionForm, refs: tuple[Ref, ...], ints: tuple[int, ...], traits: DeviceTraits
) -> tuple[Launch, int]:
    """Return the launch, which has no scratch, and how many rows its work-groups have."""
    heads, rows = a.batch * a.kv_heads, a.group * a.queries
    tile = ROWS if 2 * heads * -(-rows // ROWS) > traits.compute_units else _EACH
    source = matrix_kernel(form, -(-a.size // 16) * 16, -(-a.value_size // 16) * 16, tile)
    return Launch(source, refs, ints, (heads * -(-rows // tile) * _GROUP,), (_GROUP,)), tile


class _Tile(NamedTuple):
    """What a work-group multiplies at a time.

    Attributes:
        rows: Of queries: `ROWS`, or those of one group of 32 work-items, whose keys all groups share.
        keys: At a time.
    """

    rows: int
    keys: int

    @property
    def shared(self) -> bool:
        """Whether the groups share the keys of the same rows."""
        return self.rows != ROWS

    @property
    def some(self) -> int:
        """How many of the keys a group takes."""
        return self.keys // _WARPS if self.shared else self.keys

    @property
    def row(self) -> str:
        """The first row of a work-item's group."""
        return "0" if self.shared else f"warp * {_EACH}"

    @property
    def key(self) -> str:
        """The first of its keys."""
        return f"warp * {self.some}" if self.shared else "0"

    @property
    def stores(self) -> str:
        """Which of these groups have results."""
        return "warp == 0 && " if self.shared else ""


@functools.cache
def matrix_kernel(form: AttentionForm, size: int, value_size: int, rows: int = ROWS) -> KernelSource:
    """*size*, *value_size*: Of the heads, as multiples of 16. *rows*: Of a work-group."""
    keys = 32 if rows == ROWS and form.query is FLOAT32 else 64
    tile, numbers = _Tile(rows, keys), Numbers.of(form.query)
    word, k_line, v_line = numbers.word, size + numbers.chunk, value_size + numbers.chunk
    stage = keys * (k_line + v_line)
    two = 2 * numbers.nbytes * stage <= _LOCAL_BYTES
    before = keys if two else 0  # how far ahead keys are copied
    place = f"((%s) - lo) / {keys} % 2 * {stage}" if two else "0"
    found = (_FOUND + value_size // 2) * _GROUP * 4 // numbers.nbytes if tile.shared else 0
    floats = form.query is FLOAT32
    multiply, add = (_float_scores, _float_sums) if floats else (_half_scores, _half_sums)
    body = f"""
  __local {word} space[{max(stage * (2 if two else 1), rows * k_line, found)}] __attribute__((aligned(16)));
  const float scale = as_float(scale_), cap = as_float(cap_);
  const int id = (int)get_local_id(0), lane = id & 31, warp = id / 32;
  const int rows = group * queries, per_head = (rows + {rows - 1}) / {rows};
  const int tile = (int)get_group_id(0), r0 = tile % per_head * {rows};
  const int kv = tile / per_head % kv_heads, b = tile / per_head / kv_heads;
  const int ko = b * kb + kv * kh, vo = b * vb + kv * vh;
  {_start(form, tile)}
  {_queries(form, tile, size)}
  float o[{value_size // 8}][4], top[2] = {{-INFINITY, -INFINITY}}, sum[2] = {{0, 0}};
  #pragma unroll
  for (int i = 0; i < {value_size // 8}; i++) {{ o[i][0] = 0; o[i][1] = 0; o[i][2] = 0; o[i][3] = 0; }}
  for (int j0 = lo - {before}; j0 < hi; j0 += {keys}) {{
    const int next = j0 + {before};
    if (next < hi) {{
      __local {word}* kt = space + {place.replace("%s", "next")}; __local {word}* vt = kt + {keys * k_line};
      {_copy(form, keys, "K", "ko + j * ks", "kt", k_line, size, "size")}
      {_copy(form, keys, "V", "vo + j * vs", "vt", v_line, value_size, "vsize")}
    }}
    asyncrt_copies_end_a_group();
    {_mask(form, tile)}
    {"if (j0 < lo) continue; ASYNCRT_WAIT_FOR_COPIES(1);" if two else "ASYNCRT_WAIT_FOR_COPIES(0);"}
    barrier(CLK_LOCAL_MEM_FENCE);
    const __local {word}* kt = space + {place.replace("%s", "j0")}; const __local {word}* vt = kt + {keys * k_line};
    float c[{tile.some // 8}][4];
    {multiply(form, tile, size, k_line)}
    {_scores(form, tile)}
    {_weights(form, tile)}
    {add(form, tile, value_size, v_line)}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  {_joined(value_size) if tile.shared else ""}
  {_results(form, tile, value_size)}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    name = f"attention_mma{rows}_{size}_{value_size}"
    return kernel(name, buffers(form), SIZES, body, helpers=helpers(form.query), attributes=group)


def _copy(form: AttentionForm, keys: int, source: str, row: str, target: str, line: int, width: int, real: str) -> str:
    """Copy the rows of the next keys; what is beyond them, and beyond a row's *real* elements, becomes 0."""
    numbers = Numbers.of(form.query)
    chunks = width // numbers.chunk
    return f"""#pragma unroll
      for (int e = id; e < {keys * chunks}; e += {_GROUP}) {{
        const int r = e / {chunks}, x = e % {chunks} * {numbers.chunk}, j = next + r;
        const int bytes = clamp((j < hi ? {real} - x : 0) * {numbers.nbytes}, 0, {COPY});
        asyncrt_copy16({target} + r * {line} + x, bytes > 0 ? {source} + {row} + x : {source}, bytes);
      }}"""


def _start(form: AttentionForm, tile: _Tile) -> str:
    """Find this work-item's two rows, and the keys that any row of the tile sees, `lo` to `hi`."""
    return f"""__local int lows[{tile.rows}], highs[{tile.rows}];
  int head[2], query[2], from[2], to[2];
  #pragma unroll
  for (int h = 0; h < 2; h++) {{
    const int r = {tile.row} + lane / 4 + h * 8, row = min(r0 + r, rows - 1), g = row / queries, i = row - g * queries;
    int lo, hi;
    {bounds(form, "i", "lo", "hi")}
    head[h] = kv * group + g; query[h] = i; from[h] = lo; to[h] = hi;
    if (lane % 4 == 0) {{ lows[r] = lo; highs[r] = hi; }}
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  int lo = keys, hi = 0;
  for (int r = 0; r < {tile.rows}; r++) {{ lo = min(lo, lows[r]); hi = max(hi, highs[r]); }}"""


def _queries(form: AttentionForm, tile: _Tile, size: int) -> str:
    """Load the queries of the group's rows into ``q``."""
    numbers = Numbers.of(form.query)
    chunk, load = numbers.chunk, "asyncrt_matrices_of_floats" if form.query is FLOAT32 else "asyncrt_matrices"
    chunks, line, terms = size // chunk, size + chunk, 2 * chunk
    return f"""uint q[{size // terms}][4];
  for (int e = id; e < {tile.rows * chunks}; e += {_GROUP}) {{
    const int r = e / {chunks}, x = e % {chunks} * {chunk}, row = r0 + r, g = row / queries, i = row - g * queries;
    const int bytes = clamp((row < rows ? size - x : 0) * {numbers.nbytes}, 0, {COPY});
    asyncrt_copy16(space + r * {line} + x, bytes > 0 ? Q + b * qb + (kv * group + g) * qh + i * qs + x : Q, bytes);
  }}
  asyncrt_copies_end_a_group();
  ASYNCRT_WAIT_FOR_COPIES(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll
  for (int d = 0; d < {size // terms}; d++)
    {load}(q[d], space + ({tile.row} + (lane & 15)) * {line} + d * {terms} + (lane >> 4) * {chunk});
  barrier(CLK_LOCAL_MEM_FENCE);"""


def _half_scores(form: AttentionForm, tile: _Tile, size: int, line: int) -> str:
    """Multiply the queries of 16 rows by the keys, to ``c``."""
    return f"""#pragma unroll
    for (int j = 0; j < {tile.some // 8}; j += 2) {{
      #pragma unroll
      for (int x = 0; x < 4; x++) {{ c[j][x] = 0; c[j + 1][x] = 0; }}
      #pragma unroll
      for (int d = 0; d < {size // 16}; d++) {{
        uint k[4];
        asyncrt_matrices(k, kt + ({tile.key} + j * 8 + (lane & 7) + (lane >> 4) * 8) * {line} + d * 16 + (lane >> 3 & 1) * 8);
        asyncrt_mma_{TYPES[form.query]}(c[j], q[d], k[0], k[1]);
        asyncrt_mma_{TYPES[form.query]}(c[j + 1], q[d], k[2], k[3]);
      }}
    }}"""


def _float_scores(form: AttentionForm, tile: _Tile, size: int, line: int) -> str:
    """Do the same with floats: three products of their parts."""
    count = tile.some // 8
    place = f"({tile.key} + j * 8 + (lane & 7) + (lane >> 4) * 8) * {line} + d * 8 + (lane >> 3 & 1) * 4"
    return f"""#pragma unroll
    for (int j = 0; j < {count}; j++) {{ c[j][0] = 0; c[j][1] = 0; c[j][2] = 0; c[j][3] = 0; }}
    #pragma unroll
    for (int d = 0; d < {size // 8}; d++) {{
      uint a[4], low[4];
      #pragma unroll
      for (int x = 0; x < 4; x++) {{ a[x] = q[d][x]; {split("a[x]", "low[x]")} }}
      #pragma unroll
      for (int j = 0; j < {count}; j += 2) {{
        uint k[4], rest[4];
        asyncrt_matrices_of_floats(k, kt + {place});
        #pragma unroll
        for (int x = 0; x < 4; x++) {{ {split("k[x]", "rest[x]")} }}
        asyncrt_mma_tf32(c[j], low, k[0], k[1]);
        asyncrt_mma_tf32(c[j + 1], low, k[2], k[3]);
        asyncrt_mma_tf32(c[j], a, rest[0], rest[1]);
        asyncrt_mma_tf32(c[j + 1], a, rest[2], rest[3]);
        asyncrt_mma_tf32(c[j], a, k[0], k[1]);
        asyncrt_mma_tf32(c[j + 1], a, k[2], k[3]);
      }}
    }}"""


def _scores(form: AttentionForm, tile: _Tile) -> str:
    """Make the products scores, and those of keys that a row does not see minus infinity."""
    return f"""#pragma unroll
    for (int n = 0; n < {tile.some // 8}; n++)
      #pragma unroll
      for (int x = 0; x < 4; x++) {{
        const int h = x / 2, j = {_key(tile)};
        float e = c[n][x] * scale;
        {_score(form, "z[n][x]")}
        c[n][x] = j >= from[h] && j < to[h] ? e : -INFINITY;
      }}"""


def _key(tile: _Tile) -> str:
    """The key that a work-item's score `c[n][x]` is of."""
    return f"j0 + {tile.key} + n * 8 + lane % 4 * 2 + x % 2"


def _mask(form: AttentionForm, tile: _Tile) -> str:
    """Read the mask's elements of these scores, while keys and values are on their way."""
    if form.mask is None:
        return ""
    return f"""{compute_type(form.mask)} z[{tile.some // 8}][4];
    #pragma unroll
    for (int n = 0; n < {tile.some // 8}; n++)
      #pragma unroll
      for (int x = 0; x < 4; x++) {{
        const int h = x / 2, j = {_key(tile)};
        if (j >= from[h] && j < to[h]) z[n][x] = {element(form, _MASK)};
      }}"""


def _score(form: AttentionForm, mask: str) -> str:
    """Make `e`, the scaled product of row h and key j, its score, if the row sees the key; *mask* is their element of it."""
    lines = ["e = cap * tanh(e / cap);"] if form.softcap else []
    if form.mask is not None:
        lines.append(f"if (j >= from[h] && j < to[h]) e = {with_element(form, 'e', mask)};")
    return " ".join(lines)


def _weights(form: AttentionForm, tile: _Tile) -> str:
    """Turn the scores into weights; the sums are those of this work-item's own columns."""
    count, power = tile.some // 8, "exp" if form.query is FLOAT32 else "native_exp"
    return f"""#pragma unroll
    for (int h = 0; h < 2; h++) {{
      float m = top[h];
      #pragma unroll
      for (int n = 0; n < {count}; n++) m = fmax(m, fmax(c[n][2 * h], c[n][2 * h + 1]));
      m = fmax(m, asyncrt_of_lane(m, 1));
      m = fmax(m, asyncrt_of_lane(m, 2));
      const float shift = m == -INFINITY ? 0 : m, down = exp(top[h] - shift);
      top[h] = m;
      float own = 0;
      #pragma unroll
      for (int n = 0; n < {count}; n++)
        #pragma unroll
        for (int x = 2 * h; x < 2 * h + 2; x++) {{ const float w = {power}(c[n][x] - shift); c[n][x] = w; own += w; }}
      sum[h] = sum[h] * down + own;
      #pragma unroll
      for (int i = 0; i < (int)(sizeof(o) / sizeof(o[0])); i++) {{ o[i][2 * h] *= down; o[i][2 * h + 1] *= down; }}
    }}"""


def _half_sums(form: AttentionForm, tile: _Tile, value_size: int, line: int) -> str:
    """Add the keys' values times their weights, rounded to the dtype, to the sums."""
    pair, mma = f"asyncrt_pair_{TYPES[form.query]}", f"asyncrt_mma_{TYPES[form.query]}"
    return f"""#pragma unroll
    for (int x = 0; x < {tile.some // 16}; x++) {{
      const uint w[4] = {{
        {pair}(c[2 * x][0], c[2 * x][1]), {pair}(c[2 * x][2], c[2 * x][3]),
        {pair}(c[2 * x + 1][0], c[2 * x + 1][1]), {pair}(c[2 * x + 1][2], c[2 * x + 1][3])}};
      #pragma unroll
      for (int i = 0; i < {value_size // 8}; i += 2) {{
        uint v[4];
        asyncrt_matrices_turned(v, vt + ({tile.key} + x * 16 + (lane & 15)) * {line} + i * 8 + (lane >> 4) * 8);
        {mma}(o[i], w, v[0], v[1]);
        {mma}(o[i + 1], w, v[2], v[3]);
      }}
    }}"""


def _float_sums(form: AttentionForm, tile: _Tile, value_size: int, line: int) -> str:
    """Do the same with floats. What lanes have of two neighbouring keys are the terms that they multiply, in any order."""
    return f"""float part[{value_size // 8}][4];
    #pragma unroll
    for (int i = 0; i < {value_size // 8}; i++) {{ part[i][0] = 0; part[i][1] = 0; part[i][2] = 0; part[i][3] = 0; }}
    #pragma unroll
    for (int n = 0; n < {tile.some // 8}; n++) {{
      uint w[4] = {{as_uint(c[n][0]), as_uint(c[n][2]), as_uint(c[n][1]), as_uint(c[n][3])}}, low[4];
      #pragma unroll
      for (int x = 0; x < 4; x++) {{ {split("w[x]", "low[x]")} }}
      #pragma unroll
      for (int i = 0; i < {value_size // 8}; i++) {{
        uint v2[2], rest[2];
        #pragma unroll
        for (int x = 0; x < 2; x++) {{
          v2[x] = as_uint(vt[({tile.key} + n * 8 + lane % 4 * 2 + x) * {line} + i * 8 + lane / 4]);
          {split("v2[x]", "rest[x]")}
        }}
        asyncrt_mma_tf32(part[i], low, v2[0], v2[1]);
        asyncrt_mma_tf32(part[i], w, rest[0], rest[1]);
        asyncrt_mma_tf32(part[i], w, v2[0], v2[1]);
      }}
    }}
    #pragma unroll
    for (int i = 0; i < {value_size // 8}; i++)
      #pragma unroll
      for (int x = 0; x < 4; x++) o[i][x] += part[i][x];"""


def _joined(value_size: int) -> str:
    """Give the first 32 work-items what the others found of the same rows, and let them add it up."""
    values = value_size // 8
    return f"""__local float* found = (__local float*)space + id;
  #pragma unroll
  for (int h = 0; h < 2; h++) {{ found[h * {_GROUP}] = top[h]; found[(2 + h) * {_GROUP}] = sum[h]; }}
  #pragma unroll
  for (int i = 0; i < {values}; i++)
    #pragma unroll
    for (int x = 0; x < 4; x++) found[({_FOUND} + i * 4 + x) * {_GROUP}] = o[i][x];
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll
  for (int w = 1; w < {_WARPS} && warp == 0; w++) {{
    found += {LANES};
    #pragma unroll
    for (int h = 0; h < 2; h++) {{
      const float other = found[h * {_GROUP}], m = fmax(top[h], other), shift = m == -INFINITY ? 0 : m;
      const float down = exp(top[h] - shift), theirs = exp(other - shift);
      top[h] = m;
      sum[h] = sum[h] * down + found[(2 + h) * {_GROUP}] * theirs;
      #pragma unroll
      for (int i = 0; i < {values}; i++)
        #pragma unroll
        for (int x = 2 * h; x < 2 * h + 2; x++) o[i][x] = o[i][x] * down + found[({_FOUND} + i * 4 + x) * {_GROUP}] * theirs;
    }}
  }}"""


def _results(form: AttentionForm, tile: _Tile, value_size: int) -> str:
    """Divide the sums by those of the weights, and store them."""
    floats = form.query is FLOAT32
    return f"""int again = 0;
  #pragma unroll
  for (int h = 0; h < 2; h++) {{
    float all = sum[h];
    all += asyncrt_of_lane(all, 1);
    all += asyncrt_of_lane(all, 2);
    if ({tile.stores}r0 + {tile.row} + lane / 4 + h * 8 < rows) {{
      #pragma unroll
      for (int i = 0; i < {value_size // 8}; i++)
        #pragma unroll
        for (int x = 0; x < 2; x++) {{
          const int d = i * 8 + lane % 4 * 2 + x;
          const float y = all == 0 ? {form.unseen} : o[i][2 * h + x] / all;
          if (d < vsize) STORE({form.target.name}, Y, b * yb + head[h] * yh + query[h] * ys + d, y);
          {"again |= isfinite(y) ? 0 : 1 << h;" if floats else ""}
        }}
    }}
  }}
  {_plainly(form) if floats else ""}"""


def _plainly(form: AttentionForm) -> str:
    """Calculate this work-item's results of the rows of `again` as sums of products of whole floats."""
    return f"""for (int h = 0; h < 2; h++)
    for (int d = lane % 4 * 2; d < vsize && again >> h & 1; d += d % 2 ? 7 : 1) {{
      float most = -INFINITY, all = 0, y = 0;
      for (int j = from[h]; j < 2 * to[h] - from[h]; j++) {{
        const int first = j < to[h], place = first ? j : j - to[h] + from[h];
        float e = 0;
        for (int x = 0; x < size; x++)
          e = fma(Q[b * qb + head[h] * qh + query[h] * qs + x] * scale, K[ko + place * ks + x], e);
        {{ const int j = place; {_score(form, element(form, _MASK) if form.mask else "")} }}
        if (first) most = fmax(most, e);
        else {{
          const float w = exp(e - (most == -INFINITY ? 0 : most));
          all += w;
          y = fma(w, V[vo + place * vs + d], y);
        }}
      }}
      STORE({form.target.name}, Y, b * yb + head[h] * yh + query[h] * ys + d, all == 0 ? {form.unseen} : y / all);
    }}"""
