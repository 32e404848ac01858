"""Attention on CPU devices for many query rows: blocks of rows times blocks of keys, as products of tiles.

A work-item takes a block of up to 128 query rows and walks the keys up to 128 at a time, for 32 rows at once. A vector
has one element for each row: queries are turned once, then scores, their maxima, weights and sums of weights need
nothing from one element of a vector to the next. Weights times values are tiles of rows (`tiles.add_tiles`). When a
block of keys raises a row's maximum, what was summed so far is scaled down. All of this lies in a scratch of the
work-item's own, small enough for its caches, so that no matrix of all scores is ever written. Keys and values are read
where they lie, unless they are halves or do not fill the tiles.

A row's sums are over keys one by one, and end at multiples of 128 keys: they do not depend on the other rows of a block.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import PANEL, add_tiles, load16, store16, turn
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BOOL, FLOAT16, FLOAT32

from .interface import SIZES, Attention, AttentionForm, bounds, buffers

LEAST = 5  # query rows for which this kernel is worth it
_ROWS, _KEYS = 128, 128
_PANELS = _ROWS // PANEL
_LANES = 16
_TILE = 8  # keys of a tile of scores: with 32 rows 16 sums of a float16
_ALIGNED = "__attribute__((aligned(64)))"


def blocks(a: Attention, form: AttentionForm, refs: tuple[Ref, ...], ints: tuple[int, ...], traits: DeviceTraits) -> tuple[Launch, int]:
    """Return the launch and the bytes of its scratch, which is the last of *refs*."""
    rows, heads = a.group * a.queries, a.batch * a.kv_heads
    cuts = greatest(-(-rows // _ROWS), least(-(-rows // _LANES), -(-4 * traits.compute_units // heads)))
    height = round_up(-(-rows // cuts), _LANES)
    cuts = -(-rows // height)
    # A few work-items with several blocks each: the next block finds the scratch in the caches.
    per_item = -(-heads * cuts // (4 * traits.compute_units))
    items = -(-heads * cuts // per_item)
    across, columns = round_up(height, PANEL), round_up(a.value_size, PANEL)
    work = across * a.size + _KEYS * (a.size + columns + PANEL) + height * columns
    launch = Launch(_kernel(form), refs, (*ints, height, cuts, heads * cuts, per_item, work), (items,), (1,))
    return launch, items * work * 4


@functools.cache
def _kernel(form: AttentionForm) -> KernelSource:
    body = f"""
  const float scale = as_float(scale_), cap = as_float(cap_);
  const int panels = (vsize + {PANEL - 1}) / {PANEL}, item = (int)get_global_id(0);
  {_memory(form)}
  const int last = min((item + 1) * per_item, all);
  for (int block = item * per_item; block < last; block++) {{
    {_places(form)}
    for (int r = 0; r < padded; r += 16) $_queries(Q, query + r, size, scale, qt + r / 32 * 32 * size + r % 32);
    for (int r = 0; r < rows; r += 16) {{ vstore16((float16)(-INFINITY), 0, top + r); vstore16((float16)(0.0f), 0, sum + r); }}
    for (int x = 0; x < panels * height * 2; x++) vstore16((float16)(0.0f), x, yt);
    for (int k0 = j0, n; k0 < j1; k0 += n) {{
      n = min({_KEYS} - k0 % {_KEYS}, j1 - k0);
      {_keys_and_values(form)}
      for (int c = 0; c < rows; c += 32) {{
        const int count = min(32, rows - c), x0 = max(0, first[c / 32] - k0) & ~15, x1 = min(n, end[c / 32] - k0);
        if (x0 >= x1) continue;
        if (count > 16) {{ {_weights(form, 2)} }}
        else {{ {_weights(form, 1)} }}
        for (int p = 0; p < panels; p++)
          $_tiles(count, st + x0 * 32, 1, 32, value_rows + p * panel_step + x0 * value_step, value_step, x1 - x0,
                  yt + (p * height + c) * 32);
      }}
    }}
    {_results(form)}
  }}"""
    helpers = f"""{add_tiles(form.registers, "__global", "__global", "__global")}
{_scores(form, 1)}{_scores(form, 2)}{_bias(form)}
{_queries(form)}
{_copies(form)}"""
    ints = (*SIZES, "height", "cuts", "all", "per_item", "own")
    return kernel("attention_blocks", (*buffers(form), ("work", FLOAT32, "rw")), ints, body, helpers=helpers)


def _memory(form: AttentionForm) -> str:
    """Declare the parts of the work-item's scratch, and what it keeps of each row and of each 32 rows."""
    return f"""__global float* const kt = work + (size_t)item * own;         /* [{_KEYS}, size] */
  __global float* const vt = kt + {_KEYS} * size;               /* [panels, {_KEYS}, 32] */
  __global float* const st = vt + panels * {_KEYS * PANEL};     /* [{_KEYS}, 32] */
  __global float* const yt = st + {_KEYS * PANEL};              /* [panels, height, 32] */
  __global float* const qt = yt + panels * height * {PANEL};    /* [height / 32, size, 32] */
  float top[{_ROWS}] {_ALIGNED}, sum[{_ROWS}] {_ALIGNED}, down[{PANEL}] {_ALIGNED};
  int from[{_ROWS}] {_ALIGNED}, to[{_ROWS}] {_ALIGNED}, query[{_ROWS}], target[{_ROWS}], mask[{_ROWS}];
  int first[{_PANELS}], end[{_PANELS}], latest[{_PANELS}], earliest[{_PANELS}], same[{_PANELS}]; /* of 32 rows each */
  {f"float bias[{_LANES * PANEL}] {_ALIGNED};" if form.mask else ""}"""


def _places(form: AttentionForm) -> str:
    """Find the block's rows and the keys that they see: of each row, of each 32 rows, and of all, ``j0`` to ``j1``."""
    return f"""const int r0 = block % cuts * height, rows = min(height, group * queries - r0);
    const int kv = block / cuts % kv_heads, b = block / cuts / kv_heads;
    const int padded = (rows + 15) & ~15;
    int j0 = keys, j1 = 0;
    for (int r = 0, h = kv * group + r0 / queries, i = r0 % queries; r < padded; r++) {{ /* the last row, once more */
      int lo, hi;
      {bounds(form, "i", "lo", "hi")}
      from[r] = lo; to[r] = hi; query[r] = b * qb + h * qh + i * qs; target[r] = b * yb + h * yh + i * ys;
      mask[r] = b * mb + h * mh + i * ms;
      const int p = r / 32;
      if (r % 32 == 0) {{ first[p] = keys; end[p] = 0; latest[p] = 0; earliest[p] = keys; same[p] = 1; }}
      if (lo < hi) {{ first[p] = min(first[p], lo); end[p] = max(end[p], hi); j0 = min(j0, lo); j1 = max(j1, hi); }}
      latest[p] = max(latest[p], lo); earliest[p] = min(earliest[p], hi); same[p] &= mask[r] == mask[p * 32];
      if (r < rows - 1 && ++i == queries) {{ i = 0; h++; }}
    }}"""


def _keys_and_values(form: AttentionForm) -> str:
    """Find n keys and values from ``k0`` on where they lie, or copy them if they are halves or do not fill the tiles."""
    q, v = form.query, form.value
    return f"""__global const {q.c}* const ki = K + b * kb + kv * kh + k0 * ks;
      __global const {v.c}* const vi = V + b * vb + kv * vh + k0 * vs;
      __global const float *key_rows = kt, *value_rows = vt;
      int key_step = size, value_step = 32, panel_step = {_KEYS * PANEL};
      {"if (n % 8 == 0) { key_rows = ki; key_step = ks; } else" if q is FLOAT32 else ""}
      for (int j = 0; j < ((n + 7) & ~7); j++) /* tiles end with the last key, once more */
        $_key(ki + min(j, n - 1) * ks, size, kt + j * size);
      {"if (vsize % 32 == 0) { value_rows = vi; value_step = vs; panel_step = 32; } else" if v is FLOAT32 else ""}
      for (int p = 0; p < panels; p++) $_values(vi + p * 32, vs, n, vsize - p * 32, vt + p * {_KEYS * PANEL});"""


def _results(form: AttentionForm) -> str:
    """Divide the sums by those of the weights, and store them."""
    y = form.target
    return f"""for (int r = 0; r < rows; r++) {{
      __global {y.c}* const to_ = Y + target[r];
      const float inverse = sum[r] == 0.0f{" || isnan(sum[r])" if form.checked else ""} ? {form.unseen} : 1.0f / sum[r];
      int d = 0;
      for (; d + 16 <= vsize; d += 16) {{
        const float16 e = vload16(0, yt + (d / 32 * height + r) * 32 + d % 32) * inverse;
        {store16(y, "e", "to_ + d")}
      }}
      for (; d < vsize; d++) STORE({y.name}, to_, d, yt[(d / 32 * height + r) * 32 + d % 32] * inverse);
    }}"""


def _copies(form: AttentionForm) -> str:
    """Return functions that copy a key, and 32 columns of n values, as floats."""
    q, v = form.query, form.value
    return f"""inline void $_key(__global const {q.c}* k, int size, __global float* to) {{
  int d = 0;
  for (; d + 16 <= size; d += 16) vstore16({load16(q, "k + d")}, 0, to + d);
  for (; d < size; d++) to[d] = LOAD({q.name}, k, d);
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


def _weights(form: AttentionForm, vectors: int) -> str:
    """Calculate the weights of 32 rows from c on, or of 16, for keys x0 to x1 of a block: `st`; and their sums."""
    each = range(vectors)

    def all_(text: str) -> str:
        return " ".join(text.format(i=i) for i in each)

    fill = ""
    if form.mask:
        fill = f"if (!same[c / 32] && j % 16 == 0) $_bias(M, mask + c, k0 + j, mask_keys, {vectors}, bias);"
    clear = ""
    if form.checked:  # the row's sum stays NaN: those of all its keys count as zeros
        clear = f"if ({' || '.join(f'any(isnan(total{i}))' for i in each)})" + """
          for (int r = 0; r < count; r++)
            if (isnan(sum[c + r])) {
              for (int j = x0; j < x1; j++) st[j * 32 + r] = 0.0f;
              for (int p = 0; p < panels; p++) {
                __global float* const at = yt + (p * height + c + r) * 32;
                vstore16(vload16(0, at) * 0.0f, 0, at);
                vstore16(vload16(1, at) * 0.0f, 1, at);
              }
            }"""
    return f"""
          {all_("const float16 before{i} = vload16({i}, top + c); float16 now{i} = before{i}, total{i} = 0.0f;")}
          for (int j = x0; j < x1; j += {_TILE}) {{
            {fill}
            $_scores{vectors}(key_rows + j * key_step, key_step, size, qt + c * size, k0 + j,
                k0 + j < latest[c / 32] || k0 + j + {_TILE} > min(k0 + n, earliest[c / 32]), k0 + n, from + c, to + c, cap,
                {f"same[c / 32], M + mask[c], mask_keys - 1, bias + j % 16 * {PANEL}, " if form.mask else ""}st + j * 32, {", ".join(f"&now{i}" for i in each)});
          }}
          {all_("vstore16(now{i}, {i}, top + c);")}
          {all_("const float16 shift{i} = select(now{i}, (float16)(0.0f), now{i} == -INFINITY);")}
          for (int j = x0; j < x1; j++) {{
            __global float* const at = st + j * 32;
            {all_("{{ const float16 e = asyncrt_exp(vload16({i}, at) - shift{i}); total{i} += e; vstore16(e, {i}, at); }}")}
          }}
          if (k0 > j0) {{ /* there is nothing yet in front of the first keys */
            {all_("const float16 down{i} = exp(before{i} - shift{i}); vstore16(down{i}, {i}, down); total{i} += vload16({i}, sum + c) * down{i};")}
            for (int r = 0; r < count; r++)
              if (down[r] != 1.0f)
                for (int p = 0; p < panels; p++) {{
                  __global float* const at = yt + (p * height + c + r) * 32;
                  vstore16(vload16(0, at) * down[r], 0, at);
                  vstore16(vload16(1, at) * down[r], 1, at);
                }}
          }}
          {all_("vstore16(total{i}, {i}, sum + c);")}
          {clear}"""


def _scores(form: AttentionForm, vectors: int) -> str:
    """A tile of scores: 8 keys and 16 or 32 rows; and the highest scores so far.

    Where its sums are more than the registers hold, 4 keys and 16 rows are multiplied at a time.
    """
    keys, together = _TILE, vectors
    if keys * together * _LANES > form.registers.capacity // 2:
        keys, together = _TILE // 2, 1
    parts = "".join(
        _part_of_scores(form, range(k, k + keys), range(i, i + together))
        for i in range(0, vectors, together)
        for k in range(0, _TILE, keys)
    )
    bias = f"int same, __global const {form.mask.c}* row, int last, const float* bias, " if form.mask else ""
    return f"""
inline void $_scores{vectors}(
    __global const float* k, int step, int size, __global const float* q, int key, int hidden, int end,
    const int* from, const int* to, float cap, {bias}__global float* s, {", ".join(f"float16* now{i}" for i in range(vectors))}) {{
  {parts}
}}"""


def _part_of_scores(form: AttentionForm, tile: range, each: range) -> str:
    """The scores of some of a tile's keys and vectors of rows."""
    keys = " ".join(f"__global const float* const k{x} = k + {x} * step;" for x in tile)
    zero = " ".join(f"float16 c{x}_{i} = 0.0f;" for x in tile for i in each)
    queries = " ".join(f"const float16 q{i} = vload16({i}, at);" for i in each)
    multiply = " ".join(
        f"v = k{x}[d]; " + " ".join(f"c{x}_{i} = fma(v, q{i}, c{x}_{i});" for i in each) for x in tile
    )

    def every(text: str, b: str = "") -> str:
        return " ".join(text.format(x=x, i=i, e=f"c{x}_{i}", b=b.format(x=x, at=2 * x + i)) for x in tile for i in each)

    cap = every("{e} = cap * tanh({e} / cap);") if form.softcap else ""
    mask = ""
    if form.mask is not None:
        add = "{e} += {b};" if form.mask is not BOOL else "{e} = select({e}, (float16)(-INFINITY), {b} == 0.0f);"
        own = " ".join(f"const float16 b{x} = (float)LOAD({form.mask.name}, row, min(key + {x}, last));" for x in tile)
        mask = f"if (same) {{ {own} {every(add, 'b{x}')} }} else {{ {every(add, 'vload16({at}, bias)')} }}"
    limits = " ".join(f"const int16 f{i} = vload16({i}, from), t{i} = min(vload16({i}, to), end);" for i in each)
    hide = every("{e} = select({e}, (float16)(-INFINITY), key + {x} < f{i} || key + {x} >= t{i});")
    highest = every("*now{i} = {e} > *now{i} ? {e} : *now{i};")
    store = every("vstore16({e}, 2 * {x} + {i}, s);")
    return f"""{{
  {keys}
  {zero}
  __global const float* at = q;
  for (int d = 0; d < size; d++, at += 32) {{ float16 v; {queries} {multiply} }}
  {cap}
  {mask}
  if (hidden) {{ {limits} {hide} }}
  {highest}
  {store}
  }}"""


def _bias(form: AttentionForm) -> str:
    """What the mask has for 16 keys from `key` on and 16 or 32 rows, whose elements begin at `at`: to [16, 32]."""
    if form.mask is None:
        return ""
    m = form.mask
    whole = ""
    if m in (FLOAT32, FLOAT16, BOOL):
        at = [f"M + at[i * 16 + {r}] + key" for r in range(_LANES)]
        each = [f"convert_float16(vload16(0, {where}))" if m is BOOL else load16(m, where) for where in at]
        loads = " ".join(f"const float16 x{r} = {load};" for r, load in enumerate(each))
        steps, names = turn([f"x{r}" for r in range(_LANES)], "y")
        stores = " ".join(f"vstore16({name}, {2 * x} + i, to);" for x, name in enumerate(names))
        whole = f"if (key + 16 <= keys) {{ for (int i = 0; i < vectors; i++) {{ {loads} {steps} {stores} }} return; }}"
    one = f"LOAD({m.name}, M, at[r] + min(key + x, keys - 1))"
    return f"""
inline void $_bias(__global const {m.c}* M, const int* at, int key, int keys, int vectors, float* to) {{
  {whole}
  for (int x = 0; x < 16; x++)
    for (int r = 0; r < vectors * 16; r++) to[x * 32 + r] = {one};
}}"""


def _queries(form: AttentionForm) -> str:
    """Turn 16 queries, whose rows begin at `at`: to [size, 32]."""
    q = form.query
    loads = " ".join(f"const float16 x{r} = {load16(q, f'Q + at[{r}] + d')} * scale;" for r in range(_LANES))
    steps, names = turn([f"x{r}" for r in range(_LANES)], "y")
    stores = " ".join(f"vstore16({name}, {2 * x}, to);" for x, name in enumerate(names))
    return f"""
inline void $_queries(__global const {q.c}* Q, const int* at, int size, float scale, __global float* to) {{
  int d = 0;
  for (; d + 16 <= size; d += 16, to += 512) {{ {loads} {steps} {stores} }}
  for (; d < size; d++, to += 32)
    for (int r = 0; r < 16; r++) to[r] = LOAD({q.name}, Q, at[r] + d) * scale;
}}"""
