"""Products of few rows in half precision on tensor cores: the right-hand side goes from memory to registers at once.

Such a product takes as long as its right-hand side takes to be read, once. Lanes read it by chunks that are whole parts
of the matrices that `mma.sync` multiplies: which term of a sum, and which column, a part stands for is free, as long as
the other operand agrees. So there is no local memory on the way and no barrier, and each lane has several steps' reads
under way. The roles are turned: columns of the right-hand side are the 16 rows of a tensor core's tile, and its eight
columns are rows of the left-hand side.

Each group of 32 lanes takes a part of all sums, and the parts are added in their order.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.codegen.mma import LANES, TYPES, helpers
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.traits import DeviceTraits

from .interface import ProductForm

STEP = 32
"""Terms that a group of lanes multiplies at once: each lane has a chunk of eight of them."""
_CHUNK = 8
_EIGHT = 8  # rows of the left-hand side that tensor cores multiply at once
MOST_ROWS = 32
"""Of a work-group."""
MOST_TILED = 96
"""Rows up to which several groups share them, where all groups have a multiprocessor each: tiles that go through local
memory take longer then."""
_FEWEST = 4  # rows up to which tensor cores are not worth it where elements are read one by one
_GROUP = 256
_PARTS = _GROUP // LANES
_TERM = f"const int k = (step * {_PARTS} + warp) * {STEP} + chunk;"  # the first of a lane's chunk


class Strip(NamedTuple):
    """What a work-group calculates: all rows of some columns, or `MOST_ROWS` of them.

    Attributes:
        eights: By how many eights of rows.
        each: Columns whose elements a lane reads; a group has eight times as many.
        ahead: Steps whose reads are under way.
        turned: Terms of a column are adjacent in memory, not columns.
        whole: Lines of the right-hand side begin at multiples of 16 bytes; else its elements are read one by one.
    """

    eights: int
    each: int
    ahead: int
    turned: bool
    whole: bool = True

    @property
    def rows(self) -> int:
        return _EIGHT * self.eights

    @property
    def columns(self) -> int:
        return _EIGHT * self.each

    @property
    def group(self) -> int:
        """Work-items."""
        return _GROUP

    @property
    def nbytes(self) -> int:
        """Of local memory."""
        return 4 * _PARTS * self.rows * self.line

    @property
    def line(self) -> int:
        return self.columns + 4


def choose_strip(
    form: ProductForm, sizes: tuple[int, int, int, int], a: tuple[int, ...], b: tuple[int, ...], traits: DeviceTraits
) -> Strip | None:
    """Return how tensor cores multiply few rows; None where other kernels have to.

    Strips are wide where there are enough of them, so that the left-hand side is read less often. Several groups share the
    rows of more than eight, if there are multiprocessors for all of them.

    Args:
        sizes: Rows, columns, terms, and how many products.
        a, b: Strides of the operands, of batches, rows and columns, then the offset.
    """
    m, n, k, batches = sizes
    if m > MOST_TILED or traits.max_group < _GROUP or "mma" not in traits.features:
        return None
    if form.a not in TYPES or form.b is not form.a:
        return None
    *right, row, column = b[:-1]
    turned = column != 1
    along, length = (column, k) if turned else (row, n)
    if a[-2] != 1 or (turned and row != 1) or _beyond(k, *a[:-2], a[-1]):
        return None
    whole = not _beyond(length, along, *right, b[-1])
    if not whole and (m <= _FEWEST or m > MOST_ROWS):
        return None
    strips = -(-n // 32) * batches
    eights = 1 if m <= _EIGHT else 2 if m <= 2 * _EIGHT or (m <= MOST_ROWS and 2 * strips <= traits.compute_units) else 4
    if m > _EIGHT * eights:
        strips *= -(-m // (_EIGHT * eights))
        if strips > traits.compute_units:
            return None
    each = 4 if 3 * strips >= traits.compute_units else 2
    alone = strips <= 2 * traits.compute_units  # on its multiprocessor: others do not read meanwhile
    ahead = (3 if eights == 1 else 2) if alone and whole else 1
    return Strip(eights, each, ahead, turned, whole)


def _beyond(*numbers: int) -> bool:
    """Whether one of them is no multiple of a chunk."""
    return any(x % _CHUNK for x in numbers)


@functools.cache
def strip_kernel(form: ProductForm, strip: Strip) -> KernelSource:
    """Lanes keep their sums until all terms are multiplied."""
    eights, each, ahead, columns, rows = strip.eights, strip.each, strip.ahead, strip.columns, strip.rows
    held, line = max(1, rows * columns // _GROUP), strip.line
    body = f"""
  __local float parts[{_PARTS * rows * line}]; {form.local_rows(_GROUP)}
  const int id = (int)get_local_id(0), lane = id & 31, warp = id / 32, own = lane / 4, chunk = lane % 4 * {_CHUNK};
  const int m0 = (int)get_group_id(1) * {rows}, n0 = (int)get_group_id(0) * {columns};
  {form.batch()}
  if {form.is_unaligned} {{ {form.normalised_one_by_one(_GROUP)} {_plain(form, strip)} return; }}
  {form.held(held)}
  #pragma unroll
  for (int i = 0; i < {held}; i++) {{
    const int e = i * {_GROUP} + id, m = m0 + e / {columns}, n = n0 + e % {columns};
    {form.rows("m")}
    if (m < M && n < N) {{ {form.hold("i", "m", "n")} }}
  }}
  float c[{eights}][{each // 2}][4];
  #pragma unroll
  for (int h = 0; h < {eights}; h++)
    #pragma unroll
    for (int q = 0; q < {each // 2}; q++) {{ c[h][q][0] = 0; c[h][q][1] = 0; c[h][q][2] = 0; c[h][q][3] = 0; }}
  uint x[{ahead}][{eights}][4], w[{ahead}][{each * (4 if strip.whole else _CHUNK)}];
  const int steps = (K + {_PARTS * STEP - 1}) / {_PARTS * STEP};
  #pragma unroll
  for (int d = 0; d < {ahead}; d++) {{ const int step = d; {_TERM} {_read_right(strip)} }}
  {form.normalised(_GROUP)}
  #pragma unroll
  for (int d = 0; d < {ahead}; d++) {{ const int step = d; {_TERM} {_read_left(form, strip)} }}
  for (int s0 = 0; s0 < steps; s0 += {ahead}) {{
    #pragma unroll
    for (int d = 0; d < {ahead}; d++) {{
      {_products(form, strip)}
      {{ const int step = s0 + d + {ahead}; {_TERM} {_read_right(strip)} {_read_left(form, strip)} }}
    }}
  }}
  #pragma unroll
  for (int h = 0; h < {eights}; h++)
    #pragma unroll
    for (int q = 0; q < {each // 2}; q++)
      #pragma unroll
      for (int i = 0; i < 4; i++) {{
        const int m = h * {_EIGHT} + lane % 4 * 2 + i % 2, n = {_column(strip, "2 * q + i / 2")};
        parts[(warp * {rows} + m) * {line} + n] = c[h][q][i];
      }}
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll
  for (int i = 0; i < {held}; i++) {{
    const int e = i * {_GROUP} + id, r = e / {columns}, m = m0 + r, n = n0 + e % {columns};
    {form.rows("m")}
    if (m < M && n < N) {{
      float sum = 0;
      #pragma unroll
      for (int p = 0; p < {_PARTS}; p++) sum += parts[(p * {rows} + r) * {line} + e % {columns}];
      {form.element("sum", "m", "n", "i")}
    }}
  }}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    name = f"{form.name}_strips{rows}x{columns}{'t' if strip.turned else ''}"
    texts = helpers(form.a) + form.last.helper_text
    return kernel(name, form.buffers, form.ints, body, helpers=texts, attributes=group)


def _plain(form: ProductForm, strip: Strip) -> str:
    """Calculate a strip's results one by one, of operands wherever they lie."""
    left, right = form.left(_row(form), "k"), f"LOAD({form.b.name}, B, bo + k * sb_k + n * sb_n)"
    return f"""
    for (int e = id; e < {strip.rows * strip.columns}; e += {_GROUP}) {{
      const int r = e / {strip.columns}, m = m0 + r, n = n0 + e % {strip.columns};
      {form.rows("m")}
      if (m < M && n < N) {{
        float sum = 0;
        #pragma unroll 1
        for (int k = 0; k < K; k++) sum = fma({left}, {right}, sum);
        {form.element("sum", "m", "n")}
      }}
    }}
    """


def _row(form: ProductForm) -> str:
    """Return which row of the left-hand side ``m`` is: of those that the group has normalised, its own ``r``-th."""
    return "m" if form.normal is None else "r"


def _column(strip: Strip, index: str) -> str:
    """Return which of the strip's columns is the one of that index of a lane."""
    return f"own * {strip.each} + {index}" if strip.whole and not strip.turned else f"own + {_EIGHT} * ({index})"


def _read_right(strip: Strip) -> str:
    """Begin to read a lane's chunks of the right-hand side for a step; what is beyond it is 0."""
    if not strip.whole:
        return f"""
      #pragma unroll
      for (int i = 0; i < {strip.each}; i++) {{
        const int n = n0 + {_column(strip, "i")};
        #pragma unroll
        for (int t = 0; t < {_CHUNK}; t++) {{
          w[d][i * {_CHUNK} + t] = 0;
          if (k < K && n < N) w[d][i * {_CHUNK} + t] = ((const __global ushort*)B)[bo + (k + t) * sb_k + n * sb_n];
        }}
      }}"""
    if strip.turned:
        return f"""
      #pragma unroll
      for (int i = 0; i < {strip.each}; i++) {{
        const int n = n0 + {_column(strip, "i")};
        uint4 v = 0;
        if (k < K && n < N) v = asyncrt_stream4(B + bo + n * sb_n + k);
        w[d][i * 4] = v.x; w[d][i * 4 + 1] = v.y; w[d][i * 4 + 2] = v.z; w[d][i * 4 + 3] = v.w;
      }}"""
    words = strip.each // 2
    kind = f"uint{words}" if words > 1 else "uint"
    parts = [f"v.{'xyzw'[q]}" for q in range(words)] if words > 1 else ["v"]
    stores = " ".join(f"w[d][i * {words} + {q}] = {part};" for q, part in enumerate(parts))
    return f"""
      const int n = n0 + own * {strip.each};
      #pragma unroll
      for (int i = 0; i < {_CHUNK}; i++) {{
        {kind} v = 0;
        if (k < K && n < N) v = asyncrt_stream{words}(B + bo + (k + i) * sb_k + n);
        {stores}
      }}"""


def _read_left(form: ProductForm, strip: Strip) -> str:
    """Begin to read a lane's chunks of the left-hand side for a step; what is beyond it is 0."""
    return f"""
      #pragma unroll
      for (int h = 0; h < {strip.eights}; h++) {{
        const int r = h * {_EIGHT} + own, m = m0 + r;
        uint4 v = 0;
        if (k < K && m < M) v = *(const {form.left_space} uint4*)({form.left_at(_row(form), "k")});
        {" ".join(f"x[d][h][{i}] = v.{x};" for i, x in enumerate("xyzw"))}
      }}"""


def _products(form: ProductForm, strip: Strip) -> str:
    """Multiply what was read for a step, 16 terms at a time."""
    words = strip.each // 2
    if not strip.whole:
        lows = [f"w[d][(2 * q + {c}) * {_CHUNK} + 4 * j + {t}" for t in (0, 2) for c in (0, 1)]
        pairs = ", ".join(f"{low}] | {low} + 1] << 16" for low in lows)
    elif strip.turned:
        pairs = "w[d][8 * q + 2 * j], w[d][8 * q + 4 + 2 * j], w[d][8 * q + 2 * j + 1], w[d][8 * q + 5 + 2 * j]"
    else:  # of two rows of the right-hand side, the elements of one column, then those of the next
        rows = [f"w[d][(4 * j + {i}) * {words} + q]" for i in range(4)]
        halves = "as_uint((ushort2)(as_ushort2({}).{x}, as_ushort2({}).{x}))"
        pairs = ", ".join(halves.format(*rows[i : i + 2], x=x) for i in (0, 2) for x in "xy")
    return f"""#pragma unroll
      for (int j = 0; j < 2; j++)
        #pragma unroll
        for (int q = 0; q < {words}; q++) {{
          const uint a[4] = {{{pairs}}};
          #pragma unroll
          for (int h = 0; h < {strip.eights}; h++)
            asyncrt_mma_{TYPES[form.a]}(c[h][q], a, x[d][h][2 * j], x[d][h][2 * j + 1]);
        }}"""
