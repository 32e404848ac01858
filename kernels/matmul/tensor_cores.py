"""Products on NVIDIA's tensor cores: sums in float32, tiles of five sizes.

A group of 32 work-items multiplies tiles from local memory; what comes next is copied there meanwhile. Where tiles are few,
several such groups each add a part of every sum, and the parts are added in order.

Factors of half precision are multiplied as they are. A float32 is split into two numbers of 11 bits, and three products of
those are added: what is left out is as large as the rounding of a float32. Tensor cores cut off what their sums cannot
hold, so these are of a few terms, and are added in float32. (Ootomo and Yokota, Recovering single precision accuracy from
Tensor Cores, 2022.) Infinities have no such parts: a result that is no finite number is calculated once more.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeAlias

from asyncrt.kernels.codegen.mma import COPY, LANES, TYPES, Numbers, helpers, split
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, DataType

from .interface import ProductForm

DEPTH = 32  # terms of each sum of half precision that are multiplied between two barriers; of floats, half as many
PAD = 8  # elements between lines of columns in local memory
HELD = 4  # rows whose operands are read before any of them is stored
_FEW_STAGES, _MANY_STAGES = 2, 4  # of local memory, of which all but one are on their way from memory


def _depth(numbers: Numbers) -> int:
    """Return how many terms of each sum are multiplied between two barriers."""
    return 2 * DEPTH // numbers.nbytes


class MatrixTile(NamedTuple):
    """The tile of a work-group: *rows* × *columns*, of which *down* × *across* groups of lanes take their parts.

    Attributes:
        slices: Into how many parts each sum is cut.
    """

    rows: int
    columns: int
    down: int
    across: int
    slices: int

    @property
    def group(self) -> int:
        """Work-items."""
        return self.down * self.across * self.slices * LANES

    def stage(self, numbers: Numbers, *, turned: bool) -> int:
        """Return how many elements of both operands, of a slice, are in local memory between two barriers."""
        line = _depth(numbers) + numbers.chunk
        return self.rows * line + (self.columns * line if turned else _depth(numbers) * (self.columns + PAD))


LARGE, FLAT = MatrixTile(128, 128, 2, 2, 1), MatrixTile(64, 128, 2, 2, 1)
MIDDLE, SMALL, TINY = MatrixTile(64, 64, 2, 2, 2), MatrixTile(32, 32, 1, 1, 4), MatrixTile(16, 16, 1, 1, 8)
TALL, SQUARE = MatrixTile(128, 64, 2, 2, 1), MatrixTile(64, 64, 1, 2, 2)

Choices: TypeAlias = tuple[tuple[MatrixTile, int], ...]
"""Tiles, the largest first, and how many percent of the device each must keep busy. What none of them does, `TINY` does."""

HALF_TILES: Choices = ((LARGE, 70), (FLAT, 70), (MIDDLE, 50), (SMALL, 35))
FLOAT_TILES: Choices = ((TALL, 300), (SQUARE, 150), (SMALL, 35))  # smaller: there are two sums for each result


def choices_of(dtype: DataType) -> Choices:
    """Return the tiles of products of a dtype."""
    return FLOAT_TILES if dtype is FLOAT32 else HALF_TILES


def choose_tile(choices: Choices, m: int, n: int, batches: int, traits: DeviceTraits) -> MatrixTile:
    """Return the largest tile of which there are enough to fill the device, and of which less than half is empty."""
    for tile, percent in choices:
        tiles = -(-m // tile.rows) * -(-n // tile.columns) * batches
        if 100 * tiles >= percent * traits.compute_units and 2 * m > tile.rows:  # of ints: recipes follow no others
            return tile
    return TINY


def choose_stages(dtype: DataType, tile: MatrixTile, turned: bool, traits: DeviceTraits) -> int:
    """Return how many stages a tile gets: more where local memory has room for them in two work-groups."""
    numbers = Numbers.of(dtype)
    nbytes = numbers.nbytes * _MANY_STAGES * tile.stage(numbers, turned=turned) * tile.slices
    return _MANY_STAGES if 2 * nbytes <= traits.local_memory else _FEW_STAGES


def takes(types: tuple[DataType, DataType], a: tuple[int, ...], b: tuple[int, ...], traits: DeviceTraits) -> bool:
    """Return whether tensor cores can multiply operands of these strides, of batches, rows and columns, then the offset.

    Copies of 16 bytes must begin at multiples of 16 bytes.
    """
    dtype, other = types
    if "mma" not in traits.features or other is not dtype:
        return False
    if dtype not in TYPES and not (dtype is FLOAT32 and traits.split_floats):
        return False
    chunk = Numbers.of(dtype).chunk
    *left, last = a[:-1]
    if last != 1 or any(s % chunk for s in (*left, a[-1])):
        return False
    *right, row, column = b[:-1]
    along = row if column == 1 else column if row == 1 else 1
    return not any(s % chunk for s in (*right, along, b[-1]))


@functools.cache
def tensor_core_kernel(form: ProductForm, tile: MatrixTile, turned: bool, stages: int = _FEW_STAGES) -> KernelSource:
    """*turned*: the columns of the right-hand side are adjacent in memory, not its rows."""
    numbers = Numbers.of(form.a)
    word, depth, chunk = numbers.word, _depth(numbers), numbers.chunk
    line_a = depth + chunk
    line_b = line_a if turned else tile.columns + PAD
    a_size, stage, lanes = tile.rows * line_a, tile.stage(numbers, turned=turned), tile.down * tile.across * LANES
    mi, ni = tile.rows // tile.down // 16, tile.columns // tile.across // 8
    multiply = split_products if form.a is FLOAT32 else functools.partial(products, form.a)
    body = f"""
  __local {word} space[{stages * stage * tile.slices}] __attribute__((aligned(16)));
  const int id = (int)get_local_id(0), lane = id & 31, own = id % {lanes}, slice = id / {lanes};
  const int row = own / 32 / {tile.across} * {mi * 16}, column = own / 32 % {tile.across} * {ni * 8};
  const int m0 = (int)get_group_id(1) * {tile.rows}, n0 = (int)get_group_id(0) * {tile.columns};
  {form.batch()}
  const int steps = (K + {depth * tile.slices - 1}) / {depth * tile.slices}, start = slice * steps * {depth};
  __local {word}* mine = space + slice * {stages * stage};
  {_first_held(form, tile)}
  float c[{mi}][{ni}][4];
  {zeros("c", mi, ni)}
  for (int step = {1 - stages}; step < steps; step++) {{
    if (step >= 0) {{
      ASYNCRT_WAIT_FOR_COPIES({stages - 2});
      {"asyncrt_lanes_meet();" if lanes == LANES else "barrier(CLK_LOCAL_MEM_FENCE);"}
    }}
    const int next = step + {stages - 1};
    if (next < steps) {{
      __local {word}* at = mine + next % {stages} * {stage}; __local {word}* bt = at + {a_size};
      const int k0 = start + next * {depth};
      {each_of(tile.rows * depth // chunk, lanes)} {{
        const int r = e / {depth // chunk}, x = e % {depth // chunk} * {chunk};
        const int bytes = clamp((m0 + r < M ? K - k0 - x : 0) * {numbers.nbytes}, 0, {COPY});
        asyncrt_copy16(at + r * {line_a} + x, bytes > 0 ? A + ao + (m0 + r) * sa_m + k0 + x : A, bytes);
      }}
      {_copy_b(numbers, tile, lanes, line_b, turned)}
    }}
    asyncrt_copies_end_a_group();
    if (step < 0) continue;
    const __local {word}* at = mine + step % {stages} * {stage}; const __local {word}* bt = at + {a_size};
    {multiply(mi, ni, line_a, line_b, "c", turned=turned)}
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  {_results(form, tile, mi, ni)}"""
    group = f"__attribute__((reqd_work_group_size({tile.group}, 1, 1)))"
    name = f"{form.name}_mma{tile.rows}{'t' if turned else ''}"
    texts = helpers(form.a) + form.last.helper_text
    return kernel(name, form.buffers, form.ints, body, helpers=texts, attributes=group)


def zeros(sums: str, mi: int, ni: int) -> str:
    """Set a work-item's *sums* to 0."""
    return f"""#pragma unroll
  for (int i = 0; i < {mi}; i++)
    #pragma unroll
    for (int j = 0; j < {ni}; j++) {{ {" ".join(f"{sums}[i][j][{x}] = 0;" for x in range(4))} }}"""


def each_of(count: int, lanes: int, first: str = "own") -> str:
    """Write the head of a loop over *count* numbers `e` that *lanes* work-items share, unrolled where they all have as
    many: what `e` is divided by is then known for each turn."""
    if count % lanes:
        return f"for (int e = {first}; e < {count}; e += {lanes})"
    return f"""#pragma unroll
      for (int turn = 0, e = {first}; turn < {count // lanes}; turn++, e += {lanes})"""


def products(dtype: DataType, mi: int, ni: int, line_a: int, line_b: int, sums: str, *, turned: bool) -> str:
    """Multiply what is in local memory, where lines of either operand are so long, and add to *sums*."""
    load_b = f"asyncrt_matrices_turned(b[j], bt + (k + (lane & 15)) * {line_b} + column + j * 16 + (lane >> 4) * 8);"
    if turned:
        place = f"(column + j * 16 + (lane & 7) + (lane >> 4) * 8) * {line_b} + k + (lane >> 3 & 1) * 8"
        load_b = f"asyncrt_matrices(b[j], bt + {place});"
    mma = f"asyncrt_mma_{TYPES[dtype]}"
    return f"""#pragma unroll
    for (int k = 0; k < {DEPTH}; k += 16) {{
      uint a[{mi}][4], b[{ni // 2}][4];
      #pragma unroll
      for (int j = 0; j < {ni // 2}; j++) {load_b}
      #pragma unroll
      for (int i = 0; i < {mi}; i++)
        asyncrt_matrices(a[i], at + (row + i * 16 + (lane & 15)) * {line_a} + k + (lane >> 4) * 8);
      #pragma unroll
      for (int i = 0; i < {mi}; i++)
        #pragma unroll
        for (int j = 0; j < {ni // 2}; j++) {{
          {mma}({sums}[i][2 * j], a[i], b[j][0], b[j][1]);
          {mma}({sums}[i][2 * j + 1], a[i], b[j][2], b[j][3]);
        }}
    }}"""


def split_products(mi: int, ni: int, line_a: int, line_b: int, sums: str, *, turned: bool) -> str:
    """Do the same with floats, as the sum of three products of their parts: those of two lesser parts are left out."""
    place = "(k + lane % 4 + x * 4) * {line} + column + j * 8 + lane / 4"
    load_b = f"b[j][x] = as_uint(bt[{place.format(line=line_b)}]);"
    loads_b = f"""for (int j = 0; j < {ni}; j++)
        #pragma unroll
        for (int x = 0; x < 2; x++) {load_b}"""
    if turned:
        place = f"(column + j * 8 + (lane & 7) + (lane >> 4) * 8) * {line_b} + k + (lane >> 3 & 1) * 4"
        loads_b = f"""for (int j = 0; j < {ni}; j += 2) asyncrt_matrices_of_floats(b[j], bt + {place});"""
    multiply = "\n".join(
        f"""#pragma unroll
      for (int i = 0; i < {mi}; i++)
        #pragma unroll
        for (int j = 0; j < {ni}; j++) asyncrt_mma_tf32(part[i][j], {left}[i], {right}[j][0], {right}[j][1]);"""
        for left, right in (("low", "b"), ("a", "rest"), ("a", "b"))
    )
    return f"""float part[{mi}][{ni}][4];
    {zeros("part", mi, ni)}
    #pragma unroll
    for (int k = 0; k < {DEPTH // 2}; k += 8) {{
      uint a[{mi}][4], low[{mi}][4], b[{ni}][2], rest[{ni}][2];
      #pragma unroll
      for (int i = 0; i < {mi}; i++)
        asyncrt_matrices_of_floats(a[i], at + (row + i * 16 + (lane & 15)) * {line_a} + k + (lane >> 4) * 4);
      #pragma unroll
      {loads_b}
      #pragma unroll
      for (int j = 0; j < {ni}; j++)
        #pragma unroll
        for (int x = 0; x < 2; x++) {{ {split("b[j][x]", "rest[j][x]")} }}
      #pragma unroll
      for (int i = 0; i < {mi}; i++)
        #pragma unroll
        for (int x = 0; x < 4; x++) {{ {split("a[i][x]", "low[i][x]")} }}
      {multiply}
    }}
    #pragma unroll
    for (int i = 0; i < {mi}; i++)
      #pragma unroll
      for (int j = 0; j < {ni}; j++) {{ {" ".join(f"{sums}[i][j][{x}] += part[i][j][{x}];" for x in range(4))} }}"""


def _copy_b(numbers: Numbers, tile: MatrixTile, lanes: int, line: int, turned: bool) -> str:
    """Copy `depth` rows of the right-hand side."""
    depth, chunk = _depth(numbers), numbers.chunk
    chunks = (depth if turned else tile.columns) // chunk
    lines = tile.columns if turned else depth
    place, left, source = "const int k = k0 + r, n = n0 + x;", "k < K ? N - n : 0", "B + bo + k * sb_k + n"
    if turned:
        place, left, source = "const int n = n0 + r, k = k0 + x;", "n < N ? K - k : 0", "B + bo + n * sb_n + k"
    return f"""{each_of(lines * chunks, lanes)} {{
        const int r = e / {chunks}, x = e % {chunks} * {chunk};
        {place}
        const int bytes = clamp(({left}) * {numbers.nbytes}, 0, {COPY});
        asyncrt_copy16(bt + r * {line} + x, bytes > 0 ? {source} : B, bytes);
      }}"""


def _results(form: ProductForm, tile: MatrixTile, mi: int, ni: int) -> str:
    """Store the sums, a row by adjacent lanes; parts of them are added in local memory first."""
    if tile.slices == 1:
        return _rows_of_lanes(form, mi, ni)
    size, held = tile.rows * tile.columns, _held(tile)
    parts = " + ".join(f"parts[e + {s * size}]" for s in range(tile.slices))
    return f"""__local float* parts = (__local float*)space;
  #pragma unroll
  for (int i = 0; i < {mi}; i++)
    #pragma unroll
    for (int j = 0; j < {ni}; j++)
      #pragma unroll
      for (int x = 0; x < 4; x++) {{
        const int r = row + i * 16 + lane / 4 + x / 2 * 8;
        parts[slice * {size} + r * {tile.columns} + column + j * 8 + lane % 4 * 2 + x % 2] = c[i][j][x];
      }}
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll 1
  for (int e0 = id; e0 < {size}; e0 += {held * tile.group}) {{
    {compute_type(form.a)} y[{held}];
    #pragma unroll
    for (int i = 0; i < {held}; i++) {{
      {_element(tile, "e0")}
      if (m < M && n < N) {{
        float sum = {parts};
        {_finite(form)}
        {form.calculated("y[i]", "sum", "i")}
      }}
    }}
    {_hold(form, tile, f"e0 + {held * tile.group}") if size > held * tile.group else ""}
    #pragma unroll
    for (int i = 0; i < {held}; i++) {{
      {_element(tile, "e0")}
      if (m < M && n < N) STORE({form.a.name}, Y, (first + m) * N + n, y[i]);
    }}
  }}"""


def _held(tile: MatrixTile) -> int:
    """Of how many results a work-item reads what belongs to them at once, where sums have several parts."""
    return min(HELD, tile.rows * tile.columns // tile.group)


def _first_held(form: ProductForm, tile: MatrixTile) -> str:
    """Read what belongs to this work-item's first results before they are calculated, where sums have several parts."""
    if tile.slices == 1:
        return ""
    return f"""{form.held(_held(tile))}
  {_hold(form, tile, "id")}"""


def _hold(form: ProductForm, tile: MatrixTile, first: str) -> str:
    """Read what belongs to this work-item's results from *first* on."""
    return f"""#pragma unroll
    for (int i = 0; i < {_held(tile)}; i++) {{
      {_element(tile, first)}
      {form.rows("m")}
      if (m < M && n < N) {{ {form.hold("i", "m", "n")} }}
    }}"""


def _element(tile: MatrixTile, first: str) -> str:
    """Say which result is this work-item's *i*-th from *first* on, where sums have several parts."""
    return f"const int e = {first} + i * {tile.group}, m = m0 + e / {tile.columns}, n = n0 + e % {tile.columns};"


def _rows_of_lanes(form: ProductForm, mi: int, ni: int) -> str:
    """Store the sums of each group of lanes, 16 rows at a time, by way of local memory."""
    line, each = ni * 8 + 4, ni * 8 // LANES
    return f"""__local float* parts = (__local float*)space + id / 32 * {16 * line};
  #pragma unroll
  for (int i = 0; i < {mi}; i++) {{
    asyncrt_lanes_meet();
    #pragma unroll
    for (int j = 0; j < {ni}; j++)
      #pragma unroll
      for (int x = 0; x < 4; x++) parts[(lane / 4 + x / 2 * 8) * {line} + j * 8 + lane % 4 * 2 + x % 2] = c[i][j][x];
    asyncrt_lanes_meet();
    #pragma unroll 1
    for (int r0 = 0; r0 < 16; r0 += {HELD}) {{
      {form.held(HELD * each)}
      #pragma unroll
      for (int r = r0; r < r0 + {HELD}; r++) {{
        const int m = m0 + row + i * 16 + r;
        {form.rows("m")}
        #pragma unroll
        for (int x = 0; x < {each}; x++) {{
          const int n = n0 + column + lane + x * {LANES};
          if (m < M && n < N) {{ {form.hold(f"(r - r0) * {each} + x", "m", "n")} }}
        }}
      }}
      #pragma unroll
      for (int r = r0; r < r0 + {HELD}; r++) {{
        const int m = m0 + row + i * 16 + r;
        #pragma unroll
        for (int x = 0; x < {each}; x++) {{
          const int n = n0 + column + lane + x * {LANES};
          if (m < M && n < N) {{
            float sum = parts[r * {line} + lane + x * {LANES}];
            {_finite(form)}
            {form.element("sum", "m", "n", f"(r - r0) * {each} + x")}
          }}
        }}
      }}
    }}
  }}"""


def _finite(form: ProductForm) -> str:
    """Calculate a `sum` of split floats once more, as one of floats, where it is no finite number."""
    if form.a is not FLOAT32:
        return ""
    return """if (!isfinite(sum)) {
              sum = 0;
              for (int k = 0; k < K; k++) sum = fma(A[ao + m * sa_m + k * sa_k], B[bo + k * sb_k + n * sb_n], sum);
            }"""
