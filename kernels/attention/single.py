"""Attention of few query rows on GPUs: a work-group takes one of them, or one of several parts of its keys.

That is what a decoder asks for its next token. The time goes into reading keys and values, and into waiting for them.
Adjacent work-items read 16 bytes each of a key, so a group reads some keys at once. Those of the next chunk are on their
way while this one's are multiplied, and the first values come together with the first keys.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen import runs
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.patterns.grid import GPU_GROUP, round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT16, FLOAT32, DataType

from .adding import adding_kernel, work
from .interface import SIZES, Attention, AttentionForm, biased, bounds, buffers

ROWS = 8  # of a key head: more of them share what is read of it
CHUNK = 64  # keys that a group treats at once
_GROUP = 256
_ALONE = 16  # chunks that one group walks by itself: a second launch takes host and device as long
_WIDEST = 256
_DTYPES = (FLOAT16, BFLOAT16, FLOAT32)


def fits(a: Attention, form: AttentionForm, traits: DeviceTraits) -> bool:
    """Return whether there are few rows, of heads whose rows begin at multiples of 16 bytes."""
    if form.query not in _DTYPES or form.value is not form.query or form.checked or traits.max_group < _GROUP:
        return False
    if a.group * a.queries > ROWS:
        return False
    each = _each(form.query)
    steps = (x for t in (a.key, a.value) for x in (t.batch, t.head, t.row))
    return max(a.size, a.value_size) <= _WIDEST and not any(x % each for x in (a.size, a.value_size, *steps))


def single(
    a: Attention, form: AttentionForm, refs: tuple[Ref, ...], ints: tuple[int, ...], traits: DeviceTraits
) -> tuple[tuple[Launch, ...], int]:
    """Return the launches and the bytes of their scratch, which is the last of *refs*; 0 if they have none."""
    tiles, chunks = a.batch * a.kv_heads * a.group * a.queries, -(-a.keys // CHUNK)
    widths = _lanes(a.size, form.query), _lanes(a.value_size, form.query)
    if chunks <= _ALONE or tiles >= traits.compute_units:
        source = _kernel(form, *widths, False)
        return (Launch(source, refs[:-1], (*ints, 1, 0), (tiles * _GROUP,), (_GROUP,)),), 0
    each = -(-chunks * tiles // (2 * traits.compute_units))
    parts = -(-chunks // each)
    ints = (*ints, parts, each * CHUNK)
    source = _kernel(form, *widths, True)
    walk = Launch(source, (*refs[:3], *refs[4:]), ints, (tiles * parts * _GROUP,), (_GROUP,))
    grid = (round_up(tiles * a.value_size, GPU_GROUP),)
    add = Launch(adding_kernel(form, 1), (refs[-1], a.target.ref), (*ints, tiles), grid, (GPU_GROUP,))
    return (walk, add), tiles * parts * (a.value_size + 2) * 4


def _each(dtype: DataType) -> int:
    """Elements that a work-item reads at once."""
    return 16 // dtype.itemsize


def _lanes(size: int, dtype: DataType) -> int:
    """Return how many work-items read a row of *size* elements: a power of two."""
    wanted, lanes = -(-size // _each(dtype)), 1
    while lanes < wanted:
        lanes *= 2
    return lanes


@functools.cache
def _kernel(form: AttentionForm, lanes: int, value_lanes: int, parted: bool) -> KernelSource:
    """*lanes*, *value_lanes*: work-items that read a key, and a value. *parted*: the group takes a part of the keys."""
    each = _each(form.query)
    lines, value_lines = _GROUP // lanes, _GROUP // value_lanes  # keys, and values, that are read at once
    passes, value_passes = -(-CHUNK // lines), -(-CHUNK // value_lines)
    span, room = lanes + 1, value_lanes * each
    part = "lo = max(lo, turn * each); hi = min(hi, (turn + 1) * each);" if parted else ""
    body = f"""
  __local float q[{lanes * each}] __attribute__((aligned(16))); __local float part[{CHUNK * span}];
  __local float p[{CHUNK}] __attribute__((aligned(16))); __local float w[{CHUNK}] __attribute__((aligned(16)));
  __local float sums[{value_lines * room}] __attribute__((aligned(16)));
  const float scale = as_float(scale_), cap = as_float(cap_);
  const int id = (int)get_local_id(0), turn = (int)get_group_id(0) % parts, tile = (int)get_group_id(0) / parts;
  const int row = tile % (group * queries), kv = tile / (group * queries) % kv_heads, b = tile / (group * queries) / kv_heads;
  const int head = kv * group + row / queries, i = row % queries;
  const int lane = id % {lanes}, line = id / {lanes}, value_lane = id % {value_lanes}, value_line = id / {value_lanes};
  int lo, hi;
  {bounds(form, "i", "lo", "hi")}
  {part}
  const __global {form.query.c}* keys_at = K + b * kb + kv * kh + lane * {each};
  const __global {form.value.c}* values_at = V + b * vb + kv * vh + value_lane * {each};
  const int wide = !(((ulong)K | (ulong)V) & 15);  // their buffers may be parts of others
  uint4 k[{passes}], v[{value_passes}];
  {{ const int j0 = lo; {_keys(lines, passes, each)} {_values(value_lines, value_passes, each)} }}
  for (int d = id; d < {lanes * each}; d += {_GROUP})
    q[d] = d < size ? LOAD({form.query.name}, Q, b * qb + head * qh + i * qs + d) * scale : 0;
  float top = -INFINITY, sum = 0, o[{each}];
  #pragma unroll
  for (int x = 0; x < {each}; x++) o[x] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int j1 = lo; j1 < hi; j1 += {CHUNK}) {{
    #pragma unroll
    for (int x = 0; x < {passes}; x++) {{
      float f[{each}], c = 0;
      {_floats(form.query, "k[x]")}
      #pragma unroll
      for (int d = 0; d < {each}; d++) c += q[lane * {each} + d] * f[d];
      if (line + x * {lines} < {CHUNK}) part[(line + x * {lines}) * {span} + lane] = c;
    }}
    {{ const int j0 = j1 + {CHUNK}; {_keys(lines, passes, each)} }}
    barrier(CLK_LOCAL_MEM_FENCE);
    {_scores(form, lanes, span)}
    barrier(CLK_LOCAL_MEM_FENCE);
    {_weights(each)}
    barrier(CLK_LOCAL_MEM_FENCE);
    #pragma unroll
    for (int x = 0; x < {value_passes}; x++) {{
      float f[{each}];
      {_floats(form.value, "v[x]")}
      const float weight = value_line + x * {value_lines} < {CHUNK} ? w[value_line + x * {value_lines}] : 0;
      if (j1 + value_line + x * {value_lines} < hi) {{
        #pragma unroll
        for (int d = 0; d < {each}; d++) o[d] += weight * f[d];
      }}
    }}
    {{ const int j0 = j1 + {CHUNK}; {_values(value_lines, value_passes, each)} }}
  }}
  {_results(form, value_lines, each, room, parted)}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    places = buffers(form)
    if parted:
        places = (*(b for b in places if b[0] != "Y"), work(form, "w"))
    name = f"attention_single{lanes}x{value_lanes}{'_parts' if parted else ''}"
    return kernel(name, places, (*SIZES, "parts", "each"), body, helpers=runs.helpers + _words(form.query), attributes=group)


def _keys(lines: int, passes: int, each: int) -> str:
    """Begin to read the keys of a chunk from j0 on."""
    return _rows("k", "keys_at", "ks", "line", lines, passes, f"lane * {each} < size")


def _values(lines: int, passes: int, each: int) -> str:
    """Begin to read the values of a chunk from j0 on."""
    return _rows("v", "values_at", "vs", "value_line", lines, passes, f"value_lane * {each} < vsize")


def _rows(to: str, source: str, stride: str, line: str, lines: int, passes: int, there: str) -> str:
    def loop(read: str) -> str:
        return f"""#pragma unroll
      for (int x = 0; x < {passes}; x++) {{
        const int j = j0 + {line} + x * {lines};
        {to}[x] = 0;
        if (j < hi && {there}) {to}[x] = {read.format(f"{source} + j * {stride}")};
      }}"""

    return f"""
    if (wide) {{
      {loop("*(const __global uint4*)({})")}
    }} else {{
      {loop("$_words({})")}
    }}"""


def _words(dtype: DataType) -> str:
    """Write the function that reads 16 bytes which begin anywhere."""
    words = [f"own[{i}]" for i in range(4)]
    if dtype.itemsize == 2:
        words = [f"own[{2 * i}] | (uint)own[{2 * i + 1}] << 16" for i in range(4)]
    kind = "uint" if dtype.itemsize == 4 else "ushort"
    return f"""
inline uint4 $_words(const __global {dtype.c}* p) {{
  const __global {kind}* own = (const __global {kind}*)p;
  return (uint4)({", ".join(words)});
}}"""


def _floats(dtype: DataType, words: str) -> str:
    """Let ``f`` be the elements of four words."""
    if dtype is FLOAT32:
        return " ".join(f"f[{i}] = as_float({words}.{x});" for i, x in enumerate("xyzw"))
    low, high = "asyncrt_half_of({})", "asyncrt_half_of({} >> 16)"
    if dtype is BFLOAT16:
        low, high = "as_float({} << 16)", "as_float({} & 0xffff0000)"
    word = [f"{words}.{x}" for x in "xyzw"]
    return " ".join(f"f[{2 * i}] = {low.format(w)}; f[{2 * i + 1}] = {high.format(w)};" for i, w in enumerate(word))


def _scores(form: AttentionForm, lanes: int, span: int) -> str:
    """Write the scores of a chunk to ``p``: minus infinity for keys that are not seen."""
    cap = "e = cap * tanh(e / cap);" if form.softcap else ""
    return f"""if (id < {CHUNK}) {{
      const int j = j1 + id;
      float e = 0;
      #pragma unroll
      for (int x = 0; x < {lanes}; x++) e += part[id * {span} + x];
      {cap}
      if (j < hi) e = {biased(form, "e", "b * mb + head * mh + i * ms + j")}; else e = -INFINITY;
      p[id] = e;
    }}"""


def _weights(each: int) -> str:
    """Raise the maximum, scale down what is summed so far, and write the weights of a chunk to ``w``."""
    quarter = CHUNK // 4
    return f"""float4 tops = -INFINITY;
    #pragma unroll
    for (int x = 0; x < {quarter}; x++) tops = fmax(tops, vload4(x, p));
    const float m = fmax(top, fmax(fmax(tops.x, tops.y), fmax(tops.z, tops.w)));
    const float shift = m == -INFINITY ? 0 : m, down = exp(top - shift);
    top = m; sum *= down;
    #pragma unroll
    for (int x = 0; x < {each}; x++) o[x] *= down;
    if (id < {CHUNK}) {{ w[id] = exp(p[id] - shift); sum += w[id]; }}"""


def _results(form: AttentionForm, lines: int, each: int, room: int, parted: bool) -> str:
    """Add what lines of work-items have summed, and divide by the sum of the weights, or write both down."""
    result = f"all == 0 ? {form.unseen} : y / all"
    store = f"STORE({form.target.name}, Y, b * yb + head * yh + i * ys + d, {result});"
    if parted:
        store = "work[w0 + d] = y; if (d == 0) { work[w0 + vsize] = top; work[w0 + vsize + 1] = all; }"
    return f"""if (id < {CHUNK}) p[id] = sum;
  #pragma unroll
  for (int x = 0; x < {each}; x++) sums[value_line * {room} + value_lane * {each} + x] = o[x];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int d = id; d < vsize; d += {_GROUP}) {{
    float y = 0;
    for (int x = 0; x < {lines}; x++) y += sums[x * {room} + d];
    float4 four = 0;
    #pragma unroll
    for (int x = 0; x < {CHUNK // 4}; x++) four += vload4(x, p);
    const float all = (four.x + four.y) + (four.z + four.w);
    {"const int w0 = (tile * parts + turn) * (vsize + 2);" if parted else ""}
    {store}
  }}"""
