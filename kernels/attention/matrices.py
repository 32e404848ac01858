"""Attention of half precision on NVIDIA's tensor cores: 64 query rows a work-group, 64 keys at a time.

Each of its 4 groups of 32 work-items has 16 rows: their queries, scores, weights and sums stay in its registers, as in
FlashAttention-2 (Dao, 2023). Local memory holds keys and values; the next ones are copied there meanwhile, if both fit.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.mma import LANES, TYPES, helpers
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.traits import DeviceTraits

from .interface import SIZES, Attention, AttentionForm, biased, bounds, buffers

ROWS = KEYS = 64
_GROUP = 4 * LANES
_PAD = 8
_CHUNK = 8
_WIDEST = 128
_LOCAL_BYTES = 46 << 10  # of the 48 KiB that a work-group may have


def fits(a: Attention, form: AttentionForm, traits: DeviceTraits) -> bool:
    """Return whether tensor cores can do it: heads of at most 128, whose rows begin at multiples of 16 bytes."""
    if "mma" not in traits.features or form.query not in TYPES or form.value is not form.query or form.checked:
        return False
    steps = (x for t in (a.query, a.key, a.value) for x in (t.batch, t.head, t.row))
    return max(a.size, a.value_size) <= _WIDEST and not any(x % _CHUNK for x in steps)


def matrices(a: Attention, form: AttentionForm, refs: tuple[Ref, ...], ints: tuple[int, ...]) -> Launch:
    """Return the launch; it has no scratch."""
    tiles = a.batch * a.kv_heads * -(-(a.group * a.queries) // ROWS)
    source = matrix_kernel(form, -(-a.size // 16) * 16, -(-a.value_size // 16) * 16)
    return Launch(source, refs, ints, (tiles * _GROUP,), (_GROUP,))


@functools.cache
def matrix_kernel(form: AttentionForm, size: int, value_size: int) -> KernelSource:
    """*size*, *value_size*: Of the heads, as multiples of 16."""
    k_line, v_line = size + _PAD, value_size + _PAD
    stage = KEYS * (k_line + v_line)
    two = 4 * stage <= _LOCAL_BYTES
    before = KEYS if two else 0  # how far ahead keys are copied
    place = f"((%s) - lo) / {KEYS} % 2 * {stage}" if two else "0"
    body = f"""
  __local ushort space[{max(stage * (2 if two else 1), ROWS * k_line)}] __attribute__((aligned(16)));
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
  for (int j0 = lo - {before}; j0 < hi; j0 += {KEYS}) {{
    const int next = j0 + {before};
    if (next < hi) {{
      __local ushort* kt = space + {place.replace("%s", "next")}; __local ushort* vt = kt + {KEYS * k_line};
      {_copy("K", "ko + j * ks", "kt", k_line, size, "size")}
      {_copy("V", "vo + j * vs", "vt", v_line, value_size, "vsize")}
    }}
    asyncrt_copies_end_a_group();
    {"if (j0 < lo) continue; ASYNCRT_WAIT_FOR_COPIES(1);" if two else "ASYNCRT_WAIT_FOR_COPIES(0);"}
    barrier(CLK_LOCAL_MEM_FENCE);
    const __local ushort* kt = space + {place.replace("%s", "j0")}; const __local ushort* vt = kt + {KEYS * k_line};
    float c[{KEYS // 8}][4];
    {_scores(form, size, k_line)}
    {_weights()}
    {_sums(form, value_size, v_line)}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}
  {_results(form, value_size)}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    name = f"attention_mma_{size}_{value_size}"
    return kernel(name, buffers(form), SIZES, body, helpers=helpers(form.query), attributes=group)


def _copy(source: str, row: str, target: str, line: int, width: int, real: str) -> str:
    """Copy the rows of the next keys; what is beyond them, and beyond a row's *real* elements, becomes 0."""
    chunks = width // _CHUNK
    return f"""#pragma unroll
      for (int e = id; e < {KEYS * chunks}; e += {_GROUP}) {{
        const int r = e / {chunks}, x = e % {chunks} * {_CHUNK}, j = next + r;
        const int bytes = clamp((j < hi ? {real} - x : 0) * 2, 0, 16);
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
    chunks, line = size // _CHUNK, size + _PAD
    return f"""uint q[{size // 16}][4];
  for (int e = id; e < {ROWS * chunks}; e += {_GROUP}) {{
    const int r = e / {chunks}, x = e % {chunks} * {_CHUNK}, row = r0 + r, g = row / queries, i = row - g * queries;
    const int bytes = clamp((row < rows ? size - x : 0) * 2, 0, 16);
    asyncrt_copy16(space + r * {line} + x, bytes > 0 ? Q + b * qb + (kv * group + g) * qh + i * qs + x : Q, bytes);
  }}
  asyncrt_copies_end_a_group();
  ASYNCRT_WAIT_FOR_COPIES(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll
  for (int d = 0; d < {size // 16}; d++)
    asyncrt_matrices(q[d], space + (warp * 16 + (lane & 15)) * {line} + d * 16 + (lane >> 4) * 8);
  barrier(CLK_LOCAL_MEM_FENCE);"""


def _scores(form: AttentionForm, size: int, line: int) -> str:
    """Calculate the scores ``c``, of 16 rows and 64 keys."""
    cap = "e = cap * tanh(e / cap);" if form.softcap else ""
    return f"""#pragma unroll
    for (int j = 0; j < {KEYS // 8}; j += 2) {{
      #pragma unroll
      for (int x = 0; x < 4; x++) {{ c[j][x] = 0; c[j + 1][x] = 0; }}
      #pragma unroll
      for (int d = 0; d < {size // 16}; d++) {{
        uint k[4];
        asyncrt_matrices(k, kt + (j * 8 + (lane & 7) + (lane >> 4) * 8) * {line} + d * 16 + (lane >> 3 & 1) * 8);
        asyncrt_mma_{TYPES[form.query]}(c[j], q[d], k[0], k[1]);
        asyncrt_mma_{TYPES[form.query]}(c[j + 1], q[d], k[2], k[3]);
      }}
    }}
    #pragma unroll
    for (int n = 0; n < {KEYS // 8}; n++)
      #pragma unroll
      for (int x = 0; x < 4; x++) {{
        const int h = x / 2, j = j0 + n * 8 + lane % 4 * 2 + x % 2;
        float e = c[n][x] * scale;
        {cap}
        if (j >= from[h] && j < to[h]) e = {biased(form, "e", "b * mb + head[h] * mh + query[h] * ms + j")};
        else e = -INFINITY;
        c[n][x] = e;
      }}"""


def _weights() -> str:
    """Turn the scores into weights; the sums are those of this work-item's own columns."""
    return f"""#pragma unroll
    for (int h = 0; h < 2; h++) {{
      float m = top[h];
      #pragma unroll
      for (int n = 0; n < {KEYS // 8}; n++) m = fmax(m, fmax(c[n][2 * h], c[n][2 * h + 1]));
      m = fmax(m, asyncrt_of_lane(m, 1));
      m = fmax(m, asyncrt_of_lane(m, 2));
      const float shift = m == -INFINITY ? 0 : m, down = exp(top[h] - shift);
      top[h] = m;
      float own = 0;
      #pragma unroll
      for (int n = 0; n < {KEYS // 8}; n++)
        #pragma unroll
        for (int x = 2 * h; x < 2 * h + 2; x++) {{ const float w = native_exp(c[n][x] - shift); c[n][x] = w; own += w; }}
      sum[h] = sum[h] * down + own;
      #pragma unroll
      for (int i = 0; i < (int)(sizeof(o) / sizeof(o[0])); i++) {{ o[i][2 * h] *= down; o[i][2 * h + 1] *= down; }}
    }}"""


def _sums(form: AttentionForm, value_size: int, line: int) -> str:
    """Add the keys' values times their weights, rounded to the dtype, to the sums."""
    return f"""#pragma unroll
    for (int x = 0; x < {KEYS // 16}; x++) {{
      const uint w[4] = {{
        asyncrt_pair_{TYPES[form.query]}(c[2 * x][0], c[2 * x][1]), asyncrt_pair_{TYPES[form.query]}(c[2 * x][2], c[2 * x][3]),
        asyncrt_pair_{TYPES[form.query]}(c[2 * x + 1][0], c[2 * x + 1][1]), asyncrt_pair_{TYPES[form.query]}(c[2 * x + 1][2], c[2 * x + 1][3])}};
      #pragma unroll
      for (int i = 0; i < {value_size // 8}; i += 2) {{
        uint v[4];
        asyncrt_matrices_turned(v, vt + (x * 16 + (lane & 15)) * {line} + i * 8 + (lane >> 4) * 8);
        asyncrt_mma_{TYPES[form.query]}(o[i], w, v[0], v[1]);
        asyncrt_mma_{TYPES[form.query]}(o[i + 1], w, v[2], v[3]);
      }}
    }}"""


def _results(form: AttentionForm, value_size: int) -> str:
    """Divide the sums by those of the weights, and store them."""
    return f"""#pragma unroll
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
          if (d < vsize)
            STORE({form.target.name}, Y, b * yb + head[h] * yh + query[h] * ys + d, all == 0 ? {form.unseen} : o[i][2 * h + x] / all);
        }}
    }}
  }}"""
