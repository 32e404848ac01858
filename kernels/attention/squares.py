"""Attention on GPUs where there are many query rows: a work-group takes 64 of them, and 64 keys at a time.

Each of its 16 × 16 work-items calculates a square of 4 × 4 scores, and 4 rows of a share of the columns of the result,
both in registers. Local memory holds slices of the queries, keys and values, and the weights. The maximum of a row is kept
as the keys go by, and what is summed so far is scaled down when it rises, as in FlashAttention (Dao et al., 2022).
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.traits import DeviceTraits

from .interface import SIZES, Attention, AttentionForm, biased, bounds, buffers, real

ROWS = KEYS = 64
_GROUP = 256
_SIDE = 16  # work-items along a side
_DEPTH = 16  # rows of the slices in local memory
_LINE = ROWS + 4  # elements of a line there, so that lines of vectors of 4 begin at different banks
_WIDEST = 16 * _SIDE
_UNROLL = "__attribute__((opencl_unroll_hint))"  # so that arrays are registers
_EACH = ROWS * _DEPTH // _GROUP


def fits(a: Attention, form: AttentionForm, traits: DeviceTraits) -> bool:
    """Return whether the tiles are enough to fill the device, and a work-group can hold one."""
    if real(form) != "float" or a.value_size > _WIDEST or traits.max_group < _GROUP:
        return False
    enough = a.batch * a.kv_heads * (a.group * a.queries // ROWS) >= traits.compute_units
    return enough and _local_bytes(_shares(a)) <= traits.local_memory


def squares(a: Attention, form: AttentionForm, refs: tuple[Ref, ...], ints: tuple[int, ...]) -> Launch:
    """Return the launch; it has no scratch."""
    tiles = a.batch * a.kv_heads * -(-(a.group * a.queries) // ROWS)
    return Launch(_kernel(form, _shares(a)), refs, ints, (tiles * _GROUP,), (_GROUP,))


def _shares(a: Attention) -> int:
    """Return how many columns of the result each work-item has."""
    columns = -(-a.value_size // _SIDE)
    return columns if columns < 4 else -(-columns // 4) * 4


def _local_bytes(shares: int) -> int:
    return 4 * (2 * _DEPTH * _LINE + KEYS * _LINE + _DEPTH * _SIDE * shares + 4 * ROWS)


@functools.cache
def _kernel(form: AttentionForm, shares: int) -> KernelSource:
    body = f"""
  __local float qt[{_DEPTH}][{_LINE}] __attribute__((aligned(16))), kt[{_DEPTH}][{_LINE}] __attribute__((aligned(16)));
  __local float pt[{KEYS}][{_LINE}] __attribute__((aligned(16)));
  __local float vt[{_DEPTH}][{_SIDE * shares}] __attribute__((aligned(16)));
  __local int head[{ROWS}], query[{ROWS}], from[{ROWS}], to[{ROWS}];
  const float scale = as_float(scale_), cap = as_float(cap_);
  const int id = (int)get_local_id(0), lx = id % {_SIDE}, ly = id / {_SIDE};
  const int rows = group * queries, per_head = (rows + {ROWS - 1}) / {ROWS};
  const int tile = (int)get_group_id(0), r0 = tile % per_head * {ROWS};
  const int kv = tile / per_head % kv_heads, b = tile / per_head / kv_heads;
  const int ko = b * kb + kv * kh, vo = b * vb + kv * vh;
  {_start(form)}
  float o[4][{shares}], top[4], sum[4], c[4][4];{" int bad[4];" if form.checked else ""}
  {_UNROLL} for (int i = 0; i < 4; i++) {{
    top[i] = -INFINITY; sum[i] = 0;{" bad[i] = 0;" if form.checked else ""}
    {_UNROLL} for (int x = 0; x < {shares}; x++) o[i][x] = 0;
  }}
  for (int j0 = lo; j0 < hi; j0 += {KEYS}) {{
    {_scores(form)}
    {_weights(form)}
    {_sums(form, shares)}
  }}
  {_results(form, shares)}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    return kernel(f"attention_squares_{shares}", buffers(form), SIZES, body, attributes=group)


def _start(form: AttentionForm) -> str:
    """Find the tile's rows and the keys that any of them sees, `lo` to `hi`."""
    return f"""if (id < {ROWS}) {{
    const int row = min(r0 + id, rows - 1), g = row / queries, i = row - g * queries;
    int lo, hi;
    {bounds(form, "i", "lo", "hi")}
    head[id] = kv * group + g; query[id] = i; from[id] = lo; to[id] = hi;
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  int lo = keys, hi = 0;
  for (int r = 0; r < {ROWS}; r++) {{ lo = min(lo, from[r]); hi = max(hi, to[r]); }}"""


def _scores(form: AttentionForm) -> str:
    """Calculate the scores ``c`` of rows ``4 ly`` and keys ``j0 + 4 lx`` on."""
    cap = "e = cap * tanh(e / cap);" if form.softcap else ""
    load = f"LOAD({form.query.name}"
    return f"""{_UNROLL} for (int i = 0; i < 4; i++) {_UNROLL} for (int x = 0; x < 4; x++) c[i][x] = 0;
    for (int d0 = 0; d0 < size; d0 += {_DEPTH}) {{
      barrier(CLK_LOCAL_MEM_FENCE);
      {_UNROLL} for (int i = 0; i < {_EACH}; i++) {{
        const int r = id / {_DEPTH} + i * {_GROUP // _DEPTH}, x = id % {_DEPTH}, d = d0 + x;
        qt[x][r] = d < size ? {load}, Q, b * qb + head[r] * qh + query[r] * qs + d) * scale : 0;
        kt[x][r] = d < size ? {load}, K, ko + min(j0 + r, keys - 1) * ks + d) : 0;
      }}
      barrier(CLK_LOCAL_MEM_FENCE);
      {_UNROLL} for (int d = 0; d < {_DEPTH}; d++) {{
        {_UNROLL} for (int i = 0; i < 4; i++)
          {_UNROLL} for (int x = 0; x < 4; x++) c[i][x] += qt[d][ly * 4 + i] * kt[d][lx * 4 + x];
      }}
    }}
    {_UNROLL} for (int i = 0; i < 4; i++) {{
      const int r = ly * 4 + i;
      {_UNROLL} for (int x = 0; x < 4; x++) {{
        const int j = j0 + lx * 4 + x;
        float e = c[i][x];
        {cap}
        if (j >= from[r] && j < to[r]) e = {biased(form, "e", "b * mb + head[r] * mh + query[r] * ms + j")};
        else e = -INFINITY;
        c[i][x] = e;
      }}
    }}"""


def _weights(form: AttentionForm) -> str:
    """Write the weights of the scores to ``pt``; the sums are those of this work-item's own columns.

    Where weights are checked, a row with a score of NaN or plus infinity has weights of 0 from then on.
    """
    most = "fmax(fmax(c[i][0], c[i][1]), fmax(c[i][2], c[i][3]))"
    note, weight, down = "", "exp(c[i][x] - shift)", "exp(top[i] - shift)"
    if form.checked:
        most = f"isnan(c[i][0]) || isnan(c[i][1]) || isnan(c[i][2]) || isnan(c[i][3]) ? NAN : {most}"
        note = "bad[i] |= isnan(own) || own == INFINITY;"
        weight, down = f"bad[i] ? 0 : {weight}", f"bad[i] ? 0 : {down}"
    return f"""__local float* part = &qt[0][0];
    barrier(CLK_LOCAL_MEM_FENCE);
    {_UNROLL} for (int i = 0; i < 4; i++) part[(ly * 4 + i) * {_SIDE + 1} + lx] = {most};
    barrier(CLK_LOCAL_MEM_FENCE);
    {_UNROLL} for (int i = 0; i < 4; i++) {{
      float m = top[i];
      for (int x = 0; x < {_SIDE}; x++) {{
        const float own = part[(ly * 4 + i) * {_SIDE + 1} + x];
        {note} m = fmax(m, own);
      }}
      const float shift = m == -INFINITY ? 0 : m, down = {down};
      sum[i] *= down; top[i] = m;
      {_UNROLL} for (int x = 0; x < 4; x++) {{
        const float w = {weight};
        sum[i] += w; pt[lx * 4 + x][ly * 4 + i] = w;
      }}
      c[i][0] = down;
    }}"""


def _sums(form: AttentionForm, shares: int) -> str:
    """Add the keys' values times their weights to the result, scaled down if the maximum has risen."""
    return f"""{_UNROLL} for (int i = 0; i < 4; i++) {_UNROLL} for (int x = 0; x < {shares}; x++) o[i][x] *= c[i][0];
    for (int x0 = 0; x0 < min({KEYS}, hi - j0); x0 += {_DEPTH}) {{
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int e = id; e < {_DEPTH * _SIDE * shares}; e += {_GROUP}) {{
        const int x = e / {_SIDE * shares}, d = e % {_SIDE * shares}, j = j0 + x0 + x;
        vt[x][d] = d < vsize && j < hi ? (float)LOAD({form.value.name}, V, vo + j * vs + d) : 0;
      }}
      barrier(CLK_LOCAL_MEM_FENCE);
      {_UNROLL} for (int k = 0; k < {_DEPTH}; k++) {{
        {_UNROLL} for (int i = 0; i < 4; i++)
          {_UNROLL} for (int x = 0; x < {shares}; x++) o[i][x] += pt[x0 + k][ly * 4 + i] * vt[k][{_column(shares)}];
      }}
    }}"""


def _column(shares: int) -> str:
    """Return the column of share x: a work-item's lie in fours, or where there are fewer, together."""
    return f"lx * {shares} + x" if shares <= 4 else f"x / 4 * {4 * _SIDE} + lx * 4 + x % 4"


def _results(form: AttentionForm, shares: int) -> str:
    """Add the sums of the work-items of a row, divide by them, and store."""
    result = f"all == 0 ? {form.unseen} : o[i][x] / all"
    if form.checked:
        result = "all == 0 || bad[i] ? o[i][x] : o[i][x] / all"
    return f"""__local float* part = &qt[0][0];
  barrier(CLK_LOCAL_MEM_FENCE);
  {_UNROLL} for (int i = 0; i < 4; i++) part[(ly * 4 + i) * {_SIDE + 1} + lx] = sum[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  {_UNROLL} for (int i = 0; i < 4; i++) {{
    const int r = ly * 4 + i;
    float all = 0;
    for (int x = 0; x < {_SIDE}; x++) all += part[r * {_SIDE + 1} + x];
    {_UNROLL} for (int x = 0; x < {shares}; x++) {{
      const int d = {_column(shares)};
      if (r0 + r < rows && d < vsize)
        STORE({form.target.name}, Y, b * yb + head[r] * yh + query[r] * ys + d, {result});
    }}
  }}"""
