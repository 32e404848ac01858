"""Products of few rows on GPUs: the right-hand side is read once, by as many work-items as the memory keeps busy.

Such a product takes as long as its right-hand side takes to be read. Adjacent work-items read 16 bytes each, and begin to
read the next step's before they multiply this one's. A group takes all terms of few columns, so that there are enough
groups; its work-items have parts of each sum, which are added in their order.

Where rows do not begin at multiples of 16 bytes, a work-item takes each eighth of them, or fourth: these all begin as far
behind one. So it reads where the multiples are, and its sums are of columns that begin before those of the group. It does
so for one row of the left-hand side; for more of them elements are read one by one.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeAlias

from asyncrt.kernels.arithmetic import below
from asyncrt.kernels.codegen import runs
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT16, FLOAT32, DataType

from .interface import ProductForm

MOST_ROWS = 32
_GROUP = 256
_MOST = 8  # rows of a tile
_FLOATS = 4096  # of local memory, for parts of sums
_DTYPES = (FLOAT16, BFLOAT16, FLOAT32)
_Ints: TypeAlias = tuple[int, ...]


class Stream(NamedTuple):
    """How a group reads the right-hand side.

    Attributes:
        rows: Of the left-hand side, that a group multiplies.
        turned: Terms of a column are adjacent in memory, not columns.
        lanes: Work-items that read side by side; for other sizes it may be another number (`impl.chosen`).
        each: Columns of a work-item.
        whole: Elements that a work-item reads at once of a line of the right-hand side.
        left: Whether a work-item's terms of a row of the left-hand side are read at once.
        phases: Rows whose places among multiples of 16 bytes differ, one behind the other; 1 where all begin at one.
        depth: Terms that a work-item reads in a step.
        ahead: Steps whose reads are under way.
    """

    rows: int
    turned: bool
    lanes: int
    each: int
    whole: int
    left: bool
    phases: int = 1
    depth: int = 4
    ahead: int = 2

    @property
    def group(self) -> int:
        """Work-items."""
        return _GROUP

    @property
    def lines(self) -> int:
        """How many times as many work-items as read side by side there are."""
        return _GROUP // self.lanes

    @property
    def columns(self) -> int:
        """Of a group: its work-items read some more where rows begin anywhere."""
        return (self.lines if self.turned else self.lanes) * self.each - (self.phases - self.phases % 2)


def choose_stream(form: ProductForm, sizes: _Ints, a: _Ints, b: _Ints, traits: DeviceTraits) -> Stream | None:
    """Return how a product of few rows reads its right-hand side; None where other kernels have to.

    Args:
        sizes: Rows, columns, terms, and how many products.
        a, b: Strides of the operands, of batches, rows and columns, then the offset.
    """
    m, n, _, _ = sizes
    row, column = b[-3:-1]
    if traits.is_cpu or traits.max_group < _GROUP or m > MOST_ROWS:
        return None
    if form.a not in _DTYPES or form.b not in _DTYPES or min(row, column) < 0:
        return None
    rows = 1 if m == 1 else 2 if m == 2 else 4 if m <= 4 else _MOST
    if row == 1 and (column != 1 or n == 1):
        return _turned(form.b, rows, sizes, a, b, traits)
    return _straight(form.b, rows, sizes, a, b, traits) if column == 1 else None


def _turned(dtype: DataType, rows: int, sizes: _Ints, a: _Ints, b: _Ints, traits: DeviceTraits) -> Stream:
    """Return how columns are read whose terms are adjacent."""
    m, n, k, batches = sizes
    full = 16 // dtype.itemsize
    whole = full if _multiple(full, k, b[-2], b[-1], *b[:-3]) else 1
    left = whole > 1 and a[-2] == 1 and _multiple(whole, a[-1], *a[:-2])
    each = 4 if _enough(n, 32, batches, traits) else 1
    return Stream(rows, True, 32, each, whole, left, depth=max(whole, 4), ahead=2 if m <= _MOST else 1)


def _straight(dtype: DataType, rows: int, sizes: _Ints, a: _Ints, b: _Ints, traits: DeviceTraits) -> Stream:
    """Return how rows are read whose columns are adjacent."""
    m, n, k, batches = sizes
    full, ahead = 16 // dtype.itemsize, 2 if m <= _MOST else 1
    if not _multiple(full, n, b[-3], b[-1], *b[:-3]):
        if rows > 1:
            return Stream(rows, False, 32, 4 if _enough(n, 128, batches, traits) else 1, 1, False, ahead=1)
        lanes = next((x for x in (16, 8) if _enough(n, (x - 1) * full, batches, traits)), 4)
        return Stream(rows, False, lanes, full, full, False, full, ahead=1)
    whole = 4  # of half precision, 8 bytes: sums of eight columns leave no registers for what is under way
    # Calculated, as a convolution's columns are positions of a picture: a bound for each width were classes of sizes.
    lanes = 2 + 2 * _suffices(n, 4 * whole, batches, traits) + 4 * _suffices(n, 8 * whole, batches, traits)
    depth = 8 if full > whole and rows <= 2 else 4
    left = a[-2] == 1 and _multiple(depth, k, a[-1], *a[:-2])
    return Stream(rows, False, lanes, whole, whole, left, depth=depth, ahead=ahead)


def _suffices(n: int, columns: int, batches: int, traits: DeviceTraits) -> int:
    """Return 1 if groups of so many columns keep most of the device busy, else 0."""
    return 1 - below(3 * -(-n // columns) * batches, 2 * traits.compute_units)


def _enough(n: int, columns: int, batches: int, traits: DeviceTraits) -> bool:
    """Whether groups of so many columns keep most of the device busy."""
    return bool(_suffices(n, columns, batches, traits))


def _multiple(of: int, *numbers: int) -> bool:
    return not any(x % of for x in numbers)


@functools.cache
def stream_kernel(form: ProductForm, stream: Stream) -> KernelSource:
    """Groups that share columns, for other rows, follow each other: they find those in the cache."""
    rows, each, ahead = stream.rows, stream.each, stream.ahead
    words = each * stream.depth // _per_word(form.b, stream)
    lefts = stream.depth // (_per_left(form.a) if stream.left else 1)
    step = stream.depth * (stream.lanes if stream.turned else stream.lines)
    body = f"""
  __local float parts[{_chunk(stream) * each * _span(stream)}]; {form.local_rows(_GROUP)}
  const int id = (int)get_local_id(0), lane = id % {stream.lanes}, line = id / {stream.lanes};
  const int tiles = (M + {rows - 1}) / {rows}, tile = (int)get_group_id(0);
  const int m0 = tile % tiles * {rows}, n0 = tile / tiles * {stream.columns};
  {form.batch()}
  {_shift(form, stream) if stream.phases > 1 else _plain(form, stream)}
  float c[{rows}][{each}];
  #pragma unroll
  for (int r = 0; r < {rows}; r++)
    #pragma unroll
    for (int j = 0; j < {each}; j++) c[r][j] = 0;
  uint w[{ahead}][{words}], x[{ahead}][{rows}][{lefts}];
  const int steps = (K + {step - 1}) / {step};
  #pragma unroll
  for (int d = 0; d < {ahead}; d++) {{ const int k0 = d * {step}; {_read_right(form, stream)} }}
  {form.normalised(_GROUP)}
  #pragma unroll
  for (int d = 0; d < {ahead}; d++) {{ const int k0 = d * {step}; {_read_left(form, stream)} }}
  for (int s0 = 0; s0 < steps; s0 += {ahead}) {{
    #pragma unroll
    for (int d = 0; d < {ahead}; d++) {{
      {_products(form, stream)}
      {{ const int k0 = (s0 + d + {ahead}) * {step}; {_read_right(form, stream)} {_read_left(form, stream)} }}
    }}
  }}
  {_results(form, stream)}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    name = f"{form.name}_stream{rows}x{stream.columns}{'t' if stream.turned else ''}"
    helpers = runs.helpers + form.last.helper_text + (_line_reader(form.b) if stream.phases > 1 else "")
    return kernel(name, form.buffers, form.ints, body, helpers=helpers, attributes=group)


def _per_left(dtype: DataType) -> int:
    return 4 // dtype.itemsize


def _per_word(dtype: DataType, stream: Stream) -> int:
    """Elements in a word: where they are read one by one, each has a word."""
    return _per_left(dtype) if stream.whole > 1 else 1


def _bits(dtype: DataType) -> str:
    return "uint" if dtype.itemsize == 4 else "ushort"


def _chunk(stream: Stream) -> int:
    """Rows whose parts of sums are in local memory at once."""
    return min(stream.rows, _FLOATS // (_GROUP * stream.each))


def _span(stream: Stream) -> int:
    """Floats from the parts of a column of each work-item to those of the next; neighbours meet different banks."""
    return stream.lines * (stream.lanes + 1) if stream.turned else _GROUP + stream.lanes


def _term(stream: Stream, t: int | str) -> str:
    """Return which term of a step is the one of that index of a work-item."""
    if not stream.turned:
        phases = stream.phases
        whole = f"line % {phases} + {phases} * (line / {phases} * {stream.depth} + {t})"
        return whole if phases > 1 else f"line * {stream.depth} + {t}"
    return f"lane * {stream.depth} + {t}" if stream.whole > 1 else f"lane + {stream.lanes} * ({t})"


def _column(stream: Stream, j: int | str) -> str:
    """Return which of the group's columns is the one of that index of a work-item."""
    if stream.turned:
        return f"line + {stream.lines} * ({j})"
    if stream.whole == 1:
        return f"lane + {stream.lanes} * ({j})"
    return f"lane * {stream.each} + {j}{' - shift' if stream.phases > 1 else ''}"


def _fetch(target: str, address: str, nbytes: int, condition: str, space: str = "__global") -> str:
    """Write statements that read so many bytes at once, to words from *target* on, or zeros."""
    count = nbytes // 4
    kind = "uint" if count == 1 else f"uint{count}"
    stores = f"{target.format(0)} = v;"
    if count > 1:
        stores = " ".join(f"{target.format(i)} = v.{'xyzw'[i]};" for i in range(count))
    return f"{{ {kind} v = 0; if ({condition}) v = *(const {space} {kind}*)({address}); {stores} }}"


def _terms(stream: Stream) -> list[str]:
    """Return a work-item's terms of a step."""
    return [f"(k0 + {_term(stream, t)})" for t in range(stream.depth)]


def _read_right(form: ProductForm, stream: Stream) -> str:
    """Begin to read a work-item's elements of the right-hand side for a step; what is beyond it is 0."""
    lines = []
    per, size = _per_word(form.b, stream), form.b.itemsize
    terms = _terms(stream)
    columns = [f"(n0 + {_column(stream, j)})" for j in range(stream.each)]
    there = "{} < K && {} < N"
    if stream.whole == 1:
        for t, k in enumerate(terms):
            for j, n in enumerate(columns):
                at = f"w[d][{t * stream.each + j}]"
                value = f"((const __global {_bits(form.b)}*)B)[bo + {k} * sb_k + {n} * sb_n]"
                lines.append(f"{at} = 0; if ({there.format(k, n)}) {at} = {value};")
    elif stream.turned:
        for j, n in enumerate(columns):
            target = f"w[d][{j * stream.whole // per} + {{}}]"
            address = f"B + bo + {n} * sb_n + {terms[0]}"
            lines.append(_fetch(target, address, stream.whole * size, there.format(terms[0], n)))
    elif stream.phases > 1:
        for t, k in enumerate(terms):
            stores = " ".join(f"w[d][{t * stream.whole // per + i}] = v.{x};" for i, x in enumerate("xyzw"))
            at = f"bo + {k} * sb_k + {columns[0]}"
            value = f"$_line((const __global {_bits(form.b)}*)B + {at}, end - ({at}))"
            lines.append(f"{{ uint4 v = 0; if ({there.format(k, columns[0])}) v = {value}; {stores} }}")
    else:
        for t, k in enumerate(terms):
            target = f"w[d][{t * stream.whole // per} + {{}}]"
            address = f"B + bo + {k} * sb_k + {columns[0]}"
            lines.append(_fetch(target, address, stream.whole * size, there.format(k, columns[0])))
    return "\n      ".join(["", *lines])


def _shift(form: ProductForm, stream: Stream) -> str:
    """Declare how far a line's rows are behind multiples of 16 bytes, and where the matrix ends."""
    return f"""const int start = (int)((ulong)B / {form.b.itemsize} % {stream.phases}) + bo, end = bo + (K - 1) * sb_k + N;
  const int shift = (start + line % {stream.phases} * sb_k) & {stream.phases - 1};"""


def _plain(form: ProductForm, stream: Stream) -> str:
    """Calculate a group's results one by one if its operands do not begin where they can be read at once.

    The sums are of the same parts, so that bits do not depend on where operands lie.
    """
    if stream.whole == 1 and not stream.left:
        return ""
    step, columns = stream.depth * (stream.lanes if stream.turned else stream.lines), stream.columns
    name, parts = ("lane", stream.lanes) if stream.turned else ("line", stream.lines)
    left = form.left("m", "k")
    right = f"LOAD({form.b.name}, B, bo + k * sb_k + n * sb_n)"
    return f"""if {form.is_unaligned} {{
    {form.normalised(_GROUP)}
    for (int e = id; e < {stream.rows * columns}; e += {_GROUP}) {{
      const int m = m0 + e / {columns}, n = n0 + e % {columns};
      {form.rows("m")}
      if (m < M && n < N) {{
        float sum = 0;
        #pragma unroll 1
        for (int {name} = 0; {name} < {parts}; {name}++) {{
          float part = 0;
          #pragma unroll 1
          for (int k0 = 0; k0 < K; k0 += {step})
            #pragma unroll 1
            for (int t = 0; t < {stream.depth}; t++) {{
              const int k = k0 + {_term(stream, "t")};
              if (k < K) part = fma({left}, {right}, part);
            }}
          sum += part;
        }}
        {form.element("sum", "m", "n")}
      }}
    }}
    return;
  }}"""


def _line_reader(dtype: DataType) -> str:
    """Write the function that reads 16 bytes, or those of the first *left* elements."""
    count = 16 // dtype.itemsize
    some = [f"({i} < left ? p[{i}] : 0)" for i in range(count)]
    words = some if dtype.itemsize == 4 else [f"{some[2 * i]} | (uint){some[2 * i + 1]} << 16" for i in range(4)]
    return f"""
inline uint4 $_line(const __global {_bits(dtype)}* p, const int left) {{
  if (left >= {count}) return *(const __global uint4*)p;
  return (uint4)({", ".join(words)});
}}"""


def _read_left(form: ProductForm, stream: Stream) -> str:
    """Begin to read a work-item's elements of the left-hand side for a step; what is beyond it is 0."""
    lines, most, terms = [], 16 // form.a.itemsize, _terms(stream)
    at_once = min(most, stream.depth)
    for r in range(stream.rows):
        row = f"(m0 + {r})"
        if stream.left:
            for first in range(0, stream.depth, at_once):
                target = f"x[d][{r}][{first // _per_left(form.a)} + {{}}]"
                address, there = form.left_at(row, terms[first]), f"{terms[first]} < K && {row} < M"
                lines.append(_fetch(target, address, at_once * form.a.itemsize, there, form.left_space))
        else:
            for t, k in enumerate(terms):
                at = f"x[d][{r}][{t}]"
                value = f"((const {form.left_space} {_bits(form.a)}*){_left_of(form, row, k)}"
                lines.append(f"{at} = 0; if ({k} < K && {row} < M) {at} = {value};")
    return "\n      ".join(["", *lines])


def _left_of(form: ProductForm, row: str, term: str) -> str:
    """Return the left-hand side's buffer, and which of its elements one is."""
    if form.normal is not None:
        return f"rows)[{form.normal.at(row, term)}]"
    return f"A)[ao + {row} * sa_m + {term} * sa_k]"


def _number(dtype: DataType, word: str, high: int) -> str:
    """Return the float that half of a word is, or all of it."""
    if dtype is FLOAT32:
        return f"as_float({word})"
    if dtype is FLOAT16:
        return f"asyncrt_half_of({word}{' >> 16' if high else ''})"
    return f"as_float({word} & 0xffff0000)" if high else f"as_float({word} << 16)"


def _products(form: ProductForm, stream: Stream) -> str:
    """Multiply what was read for a step."""
    per, per_left = _per_word(form.b, stream), _per_left(form.a) if stream.left else 1
    lines = []
    for t in range(stream.depth):
        factors = []
        for j in range(stream.each):
            place = j * stream.depth + t if stream.turned and stream.whole > 1 else t * stream.each + j
            factors.append(_number(form.b, f"w[d][{place // per}]", place % per))
        declared = ", ".join(f"b{j} = {factor}" for j, factor in enumerate(factors))
        lines.append(f"{{ const float {declared};")
        for r in range(stream.rows):
            left = _number(form.a, f"x[d][{r}][{t // per_left}]", t % per_left)
            sums = " ".join(f"c[{r}][{j}] = fma(a, b{j}, c[{r}][{j}]);" for j in range(stream.each))
            lines.append(f"  {{ const float a = {left}; {sums} }}")
        lines.append("}")
    return "\n      ".join(lines)


def _results(form: ProductForm, stream: Stream) -> str:
    """Add the parts of each sum in local memory, some rows at a time, and store them."""
    chunk, each, span, columns = _chunk(stream), stream.each, _span(stream), stream.columns
    if stream.turned:
        count, own, apart, to = stream.lanes, f"line * {stream.lanes + 1} + lane", 1, stream.lines
        place = f"u / {to} * {span} + u % {to} * {stream.lanes + 1}"
        column = "u"
    else:
        count, own, apart, to = stream.lines, "id", stream.lanes, stream.lanes
        place = f"u / {to} * {span} + u % {to}"
        column = f"u % {to} * {each} + u / {to}" if stream.whole > 1 else "u"
    part = f"parts[from + p * {apart}]"
    if stream.phases > 1:
        place, column = "0", "u"
        part = f"parts[from + at % {each} * {span} + p * {apart} + at / {each}]"
    return f"""#pragma unroll
  for (int r0 = 0; r0 < {stream.rows}; r0 += {chunk}) {{
    {"barrier(CLK_LOCAL_MEM_FENCE);" if chunk < stream.rows else ""}
    #pragma unroll
    for (int r = 0; r < {chunk}; r++)
      #pragma unroll
      for (int j = 0; j < {each}; j++) parts[(r * {each} + j) * {span} + {own}] = c[r0 + r][j];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = id; e < {chunk * columns}; e += {_GROUP}) {{
      const int r = e / {columns}, u = e % {columns}, m = m0 + r0 + r, n = n0 + {column};
      const int from = r * {each * span} + {place};
      {form.rows("m")}
      if (m < M && n < N) {{
        float sum = 0;
        #pragma unroll
        for (int p = 0; p < {count}; p++) {{
          {f"const int at = u + ((start + p * sb_k) & {stream.phases - 1});" if stream.phases > 1 else ""}
          sum += {part};
        }}
        {form.element("sum", "m", "n")}
      }}
    }}
  }}"""
