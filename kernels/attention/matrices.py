"""Attention on NVIDIA's tensor cores: 64 query rows a work-group, some keys at a time.

Each of its 4 groups of 32 work-items has 16 rows: their queries, scores, weights and sums stay in its registers, as in
FlashAttention-2 (Dao, 2023). Local memory holds keys and values; the next ones are copied there meanwhile, if both fit.

Floats are multiplied in two parts, as in products (`matmul/tensor_cores.py`); a row that is not finite is calculated once
more.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.mma import COPY, LANES, TYPES, Numbers, helpers, split
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32

from .interface import SIZES, Attention, AttentionForm, biased, bounds, buffers

ROWS = 64
_GROUP = 4 * LANES
_WIDEST, _WIDEST_OF_FLOATS = 128, 64
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


def matrices(a: Attention, form: AttentionForm, refs: tuple[Ref, ...], ints: tuple[int, ...]) -> Launch:
    """Return the launch; it has no scratch."""
    tiles = a.batch * a.kv_heads * -(-(a.group * a.queries) // ROWS)
    source = matrix_kernel(form, -(-a.size // 16) * 16, -(-a.value_size // 16) * 16)
    return Launch(source, refs, ints, (tiles * _GROUP,), (_GROUP,))


def _keys(form: AttentionForm) -> int:
    """Return how many keys are multiplied between two barriers."""
    return 32 if form.query is FLOAT32 else 64


@functools.cache
def matrix_kernel(form: AttentionForm, size: int, value_size: int) -> KernelSource:
    """*size*, *value_size*: Of the heads, as multiples of 16."""
    numbers, keys = Numbers.of(form.query), _keys(form)
    word, k_line, v_line = numbers.word, size + numbers.chunk, value_size + numbers.chunk
    stage = keys * (k_line + v_line)
    two = 2 * numbers.nbytes * stage <= _LOCAL_BYTES
    before = keys if two else 0  # how far ahead keys are copied
    place = f"((%s) - lo) / {keys} % 2 * {stage}" if two else "0"
    floats = form.query is FLOAT32
    multiply, add = (_float_scores, _float_sums) if floats else (_half_scores, _half_sums)
    body = f"""
  __local {word} space[{max(stage * (2 if two else 1), ROWS * k_line)}] __attribute__((aligned(16)));
  const float scale = as_float(scale_), cap = as_float(cap_);
  const int id = (int)get_local_id(0), lane = id & 31, warp = id / 32;
  const int rows = group * queries, per_head = (rows + {ROWS - 1}) / {ROWS};
  const int tile = (int)get_group_id(0), r0 = tile % per_head * {ROWS};
  const int kv = tile / per_head % kv_heads, b = tile / per_head / kv_heads;
  const int ko = b * kb + kv * kh, vo = b * vb + kv * vh;
  {_start(form)}
  {_queries(form, size)}
  float o[{value_size // 8}][4], top[2] = {{-INFINITY, -INFINITY}}, sum[2] = {{0, 0}};
  #pragma unroll
  for (int i = 0; i < {value_size // 8}; i++) {{ o[i][0] = 0; o[i][1] = 0; o[i][2] = 0; o[i][3] = 0; }}
  for (int j0 = lo - {before}; j0 < hi; j0 += {keys}) {{
    const int next = j0 + {before};
    if (next < hi) {{
      __local {word}* kt = space + {place.replace("%s", "next")}; __local {word}* vt = kt + {keys * k_line};
      {_copy(form, "K", "ko + j * ks", "kt", k_line, size, "size")}
      {_copy(form, "V", "vo + j * vs", "vt", v_line, value_size, "vsize")}
    }}
    asyncrt_copies_end_a_group();
    {"if (j0 < lo) continue; ASYNCRT_WAIT_FOR_COPIES(1);" if two else "ASYNCRT_WAIT_FOR_COPIES(0);"}
    barrier(CLK_LOCAL_MEM_FENCE);
    const __local {word}* kt = space + {place.replace("%s", "j0")}; const __local {word}* vt = kt + {keys * k_line};
    float c[{keys // 8}][4];
    {multiply(form, size, k_line)}
    {_scores(form)}
    {_weights(form)}
    {add(form, value_size, v_line)}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  {_results(form, value_size)}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    name = f"attention_mma_{size}_{value_size}"
    return kernel(name, buffers(form), SIZES, body, helpers=helpers(form.query), attributes=group)


def _copy(form: AttentionForm, source: str, row: str, target: str, line: int, width: int, real: str) -> str:
    """Copy the rows of the next keys; what is beyond them, and beyond a row's *real* elements, becomes 0."""
    numbers = Numbers.of(form.query)
    chunks = width // numbers.chunk
    return f"""#pragma unroll
      for (int e = id; e < {_keys(form) * chunks}; e += {_GROUP}) {{
        const int r = e / {chunks}, x = e % {chunks} * {numbers.chunk}, j = next + r;
        const int bytes = clamp((j < hi ? {real} - x : 0) * {numbers.nbytes}, 0, {COPY});
        asyncrt_copy16({target} + r * {line} + x, bytes > 0 ? {source} + {row} + x : {source}, bytes);
      }}"""


def _start(form: AttentionForm) -> str:
    """Find this work-item's two rows, and the keys that any row of the tile sees, `lo` to `hi`."""
    return f"""__local int lows[{ROWS}], highs[{ROWS}];
  int head[2], query[2], from[2], to[2];
  #pragma unroll
  for (int h = 0; h < 2; h++) {{
    const int r = warp * 16 + lane / 4 + h * 8, row = min(r0 + r, rows - 1), g = row / queries, i = row - g * queries;
    int lo, hi;
    {bounds(form, "i", "lo", "hi")}
    head[h] = kv * group + g; query[h] = i; from[h] = lo; to[h] = hi;
    if (lane % 4 == 0) {{ lows[r] = lo; highs[r] = hi; }}
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  int lo = keys, hi = 0;
  for (int r = 0; r < {ROWS}; r++) {{ lo = min(lo, lows[r]); hi = max(hi, highs[r]); }}"""


def _queries(form: AttentionForm, size: int) -> str:
    """Load the queries of the group's rows into ``q``."""
    numbers = Numbers.of(form.query)
    chunk, load = numbers.chunk, "asyncrt_matrices_of_floats" if form.query is FLOAT32 else "asyncrt_matrices"
    chunks, line, terms = size // chunk, size + chunk, 2 * chunk
    return f"""uint q[{size // terms}][4];
  for (int e = id; e < {ROWS * chunks}; e += {_GROUP}) {{
    const int r = e / {chunks}, x = e % {chunks} * {chunk}, row = r0 + r, g = row / queries, i = row - g * queries;
    const int bytes = clamp((row < rows ? size - x : 0) * {numbers.nbytes}, 0, {COPY});
    asyncrt_copy16(space + r * {line} + x, bytes > 0 ? Q + b * qb + (kv * group + g) * qh + i * qs + x : Q, bytes);
  }}
  asyncrt_copies_end_a_group();
  ASYNCRT_WAIT_FOR_COPIES(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll
  for (int d = 0; d < {size // terms}; d++)
    {load}(q[d], space + (warp * 16 + (lane & 15)) * {line} + d * {terms} + (lane >> 4) * {chunk});
  barrier(CLK_LOCAL_MEM_FENCE);"""


def _half_scores(form: AttentionForm, size: int, line: int) -> str:
    """Multiply the queries of 16 rows by the keys, to ``c``."""
    return f"""#pragma unroll
    for (int j = 0; j < {_keys(form) // 8}; j += 2) {{
      #pragma unroll
      for (int x = 0; x < 4; x++) {{ c[j][x] = 0; c[j + 1][x] = 0; }}
      #pragma unroll
      for (int d = 0; d < {size // 16}; d++) {{
        uint k[4];
        asyncrt_matrices(k, kt + (j * 8 + (lane & 7) + (lane >> 4) * 8) * {line} + d * 16 + (lane >> 3 & 1) * 8);
        asyncrt_mma_{TYPES[form.query]}(c[j], q[d], k[0], k[1]);
        asyncrt_mma_{TYPES[form.query]}(c[j + 1], q[d], k[2], k[3]);
      }}
    }}"""


def _float_scores(form: AttentionForm, size: int, line: int) -> str:
    """Do the same with floats: three products of their parts."""
    count = _keys(form) // 8
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
        asyncrt_matrices_of_floats(k, kt + (j * 8 + (lane & 7) + (lane >> 4) * 8) * {line} + d * 8 + (lane >> 3 & 1) * 4);
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


def _scores(form: AttentionForm) -> str:
    """Make the products scores, and those of keys that a row does not see minus infinity."""
    return f"""#pragma unroll
    for (int n = 0; n < {_keys(form) // 8}; n++)
      #pragma unroll
      for (int x = 0; x < 4; x++) {{
        const int h = x / 2, j = j0 + n * 8 + lane % 4 * 2 + x % 2;
        float e = c[n][x] * scale;
        {_score(form)}
        c[n][x] = j >= from[h] && j < to[h] ? e : -INFINITY;
      }}"""


def _score(form: AttentionForm) -> str:
    """Make `e`, the scaled product of row h and key j, its score, if the row sees the key."""
    cap = "e = cap * tanh(e / cap);" if form.softcap else ""
    bias = biased(form, "e", "b * mb + head[h] * mh + query[h] * ms + j")
    return f"{cap} if (j >= from[h] && j < to[h]) e = {bias};"


def _weights(form: AttentionForm) -> str:
    """Turn the scores into weights; the sums are those of this work-item's own columns."""
    count, power = _keys(form) // 8, "exp" if form.query is FLOAT32 else "native_exp"
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


def _half_sums(form: AttentionForm, value_size: int, line: int) -> str:
    """Add the keys' values times their weights, rounded to the dtype, to the sums."""
    pair, mma = f"asyncrt_pair_{TYPES[form.query]}", f"asyncrt_mma_{TYPES[form.query]}"
    return f"""#pragma unroll
    for (int x = 0; x < {_keys(form) // 16}; x++) {{
      const uint w[4] = {{
        {pair}(c[2 * x][0], c[2 * x][1]), {pair}(c[2 * x][2], c[2 * x][3]),
        {pair}(c[2 * x + 1][0], c[2 * x + 1][1]), {pair}(c[2 * x + 1][2], c[2 * x + 1][3])}};
      #pragma unroll
      for (int i = 0; i < {value_size // 8}; i += 2) {{
        uint v[4];
        asyncrt_matrices_turned(v, vt + (x * 16 + (lane & 15)) * {line} + i * 8 + (lane >> 4) * 8);
        {mma}(o[i], w, v[0], v[1]);
        {mma}(o[i + 1], w, v[2], v[3]);
      }}
    }}"""


def _float_sums(form: AttentionForm, value_size: int, line: int) -> str:
    """Do the same with floats. What lanes have of two neighbouring keys are the terms that they multiply, in any order."""
    return f"""float part[{value_size // 8}][4];
    #pragma unroll
    for (int i = 0; i < {value_size // 8}; i++) {{ part[i][0] = 0; part[i][1] = 0; part[i][2] = 0; part[i][3] = 0; }}
    #pragma unroll
    for (int n = 0; n < {_keys(form) // 8}; n++) {{
      uint w[4] = {{as_uint(c[n][0]), as_uint(c[n][2]), as_uint(c[n][1]), as_uint(c[n][3])}}, low[4];
      #pragma unroll
      for (int x = 0; x < 4; x++) {{ {split("w[x]", "low[x]")} }}
      #pragma unroll
      for (int i = 0; i < {value_size // 8}; i++) {{
        uint v2[2], rest[2];
        #pragma unroll
        for (int x = 0; x < 2; x++) {{
          v2[x] = as_uint(vt[(n * 8 + lane % 4 * 2 + x) * {line} + i * 8 + lane / 4]);
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


def _results(form: AttentionForm, value_size: int) -> str:
    """Divide the sums by those of the weights, and store them."""
    floats = form.query is FLOAT32
    return f"""int again = 0;
  #pragma unroll
  for (int h = 0; h < 2; h++) {{
    float all = sum[h];
    all += asyncrt_of_lane(all, 1);
    all += asyncrt_of_lane(all, 2);
    if (r0 + warp * 16 + lane / 4 + h * 8 < rows) {{
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
        {{ const int j = place; {_score(form)} }}
        if (first) most = fmax(most, e);
        else {{
          const float w = exp(e - (most == -INFINITY ? 0 : most));
          all += w;
          y = fma(w, V[vo + place * vs + d], y);
        }}
      }}
      STORE({form.target.name}, Y, b * yb + head[h] * yh + query[h] * ys + d, all == 0 ? {form.unseen} : y / all);
    }}"""
