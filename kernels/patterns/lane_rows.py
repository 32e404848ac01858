"""Up to 16 rows of half precision that a work-group normalises for itself before it multiplies them, and keeps.

Each 32 lanes normalise some rows. They read them at once, and add by handing sums from lane to lane (`codegen/mma.py`), so
that two rows take hardly longer than one, and the launch that would normalise them before is not needed. The rows are
written out as well, for others that read them.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.mma import LANES, TYPES
from asyncrt.kernels.impl import Normalisation
from asyncrt.layout import FLOAT32, DataType

from .normalize import PAD, STATISTICS

_CHUNK = 8  # elements that a lane reads at once
_MOST_ROWS, _MOST_CHUNKS = 2, 8  # of a lane: where they are more, a launch before the product is as fast


class LaneRows(NamedTuple):
    """How a work-group normalises rows.

    Attributes:
        statistics: As for `normalize_rows`.
        dtype: Of their elements, and of the factors of each column.
        epsilon: Of the operator, as a literal.
        biased: Whether there is something to add to each column.
        each: Rows that 32 lanes have.
        turns: Chunks that a lane has of a row at most.
    """

    statistics: str
    dtype: DataType
    epsilon: str
    biased: bool
    each: int
    turns: int

    @property
    def buffers(self) -> tuple[tuple[str, DataType, str], ...]:
        bias = (("row_bias", self.dtype, "r"),) if self.biased else ()
        return (("row_scale", self.dtype, "r"), *bias, ("kept_rows", self.dtype, "w"))

    @property
    def unaligned(self) -> str:
        """OpenCL C: the buffers of which none may begin elsewhere than at a multiple of 16 bytes, as one number."""
        bias = " | (ulong)row_bias" if self.biased else ""
        return f"(ulong)A | (ulong)row_scale{bias} | (ulong)kept_rows"

    def nbytes(self, group: int) -> int:
        """Return how much local memory that takes."""
        return self._room(group) * self.dtype.itemsize

    def arrays(self, group: int) -> str:
        """Declare what a work-group of so many work-items needs of local memory."""
        aligned = "__attribute__((aligned(16)))"
        space = f"__local ushort space_of_rows[{self._room(group)}] {aligned};"
        return f"{space} __local {self.dtype.c}* rows = (__local {self.dtype.c}*)space_of_rows;"

    def at(self, row: str, column: str) -> str:
        """Where an element lies in ``rows``; sixteen bytes may be read from each eighth on."""
        return f"({row}) * (K + {PAD}) + {column}"

    def made(self, group: int) -> str:
        """Write the statements that fill ``rows`` with rows from ``m0`` on, of ``M``, of ``K`` elements each; the first of
        all is at element ``ao`` of ``A``, and one begins ``sa_m`` behind the other. ``id`` is the work-item's number. Of
        the groups that have the same rows the first writes them out."""
        t, warps, place = TYPES[self.dtype], group // LANES, "const int c = (id % 32 + t * 32) * 8;"
        first, second, shift, factor = STATISTICS[self.statistics]
        pairs = "\n        #pragma unroll\n        for (int i = 0; i < 4; i++)"

        def rows(text: str) -> str:
            """Run *text* for each row *r* that a lane has a part of."""
            return f"""
    #pragma unroll
    for (int r = 0; r < {self.each}; r++) {{ {text} }}"""

        def chunks(text: str) -> str:
            """Run *text* for each chunk *t* of them."""
            turns = f"\n      #pragma unroll\n      for (int t = 0; t < {self.turns}; t++)"
            return rows(f"{turns} {{ {place} if (c < K) {{ {text} }} }}")

        def read(target: str, source: str) -> str:
            parts = " ".join(f"{target}[{i}] = v.{x};" for i, x in enumerate("xyzw"))
            return f"{{ uint4 v = 0; if (c < K) v = *(const __global uint4*)({source}); {parts} }}"

        def total(name: str, term: str) -> str:
            """Add *term* over all elements ``v`` of each row; lanes hand on the sums of all rows in turn, so that none
            waits for another."""
            if not term:
                return ""
            halves = " ".join(f"{{ const float v = pair.{x}; {name}s[r] += {term}; }}" for x in "xy")
            pair = f"const float2 pair = asyncrt_floats_{t}(held[r][t][i]);"
            return f"""
    float {name}s[{self.each}];
    {rows(f"{name}s[r] = 0;")}
    {chunks(f"const float shift = shifts_of[r]; {pairs} {{ {pair} {halves} }}")}
    #pragma unroll
    for (int other = 16; other > 0; other /= 2) {{
      {rows(f"{name}s[r] += asyncrt_of_lane({name}s[r], other);")}
    }}"""

        a, b = "const float a = as[r];" if first else "", "const float b = bs[r];"
        shifted = f" + asyncrt_floats_{t}(shifts[t][i]).{{x}}" if self.biased else ""
        lines = [f"(pair.{x} - shift) * factor * w.{x}{shifted.format(x=x)}" for x in "xy"]
        shifts = f"uint shifts[{self.turns}][4];" if self.biased else ""
        stored = f"""const int place = id / 32 + r * {warps}, m = m0 + place;
        const float shift = shifts_of[r], factor = factors[r];
        uint made[4];
        {pairs} {{
          const float2 pair = asyncrt_floats_{t}(held[r][t][i]), w = asyncrt_floats_{t}(scales[t][i]);
          made[i] = asyncrt_pair_{t}({lines[0]}, {lines[1]});
        }}
        const uint4 v = (uint4)(made[0], made[1], made[2], made[3]);
        if (m < M) {{
          *(__local uint4*)(rows + {self.at("place", "c")}) = v;
          if (get_group_id(0) == 0) *(__global uint4*)(kept_rows + m * K + c) = v;
        }}"""
        return f"""{{
    uint held[{self.each}][{self.turns}][4], scales[{self.turns}][4]; {shifts}
    #pragma unroll
    for (int t = 0; t < {self.turns}; t++) {{
      {place}
      {read("scales[t]", "row_scale + c")} {read("shifts[t]", "row_bias + c") if self.biased else ""}
      {rows(f"const int m = min(m0 + id / 32 + r * {warps}, M - 1); {read('held[r][t]', 'A + ao + m * sa_m + c')}")}
    }}
    const int n = K;
    const float eps = {self.epsilon};
    float shifts_of[{self.each}], factors[{self.each}];
    {rows("shifts_of[r] = 0;")}
    {total("a", first)}
    {rows(f"{a} shifts_of[r] = {shift};")}
    {total("b", second)}
    {rows(f"{b} factors[r] = {factor};")}
    {chunks(stored)}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}"""

    def made_one_by_one(self, group: int) -> str:
        """Write the statements that do the same wherever buffers begin: a work-item takes a row."""
        d = self.dtype.name
        first, second, shift, factor = STATISTICS[self.statistics]

        def total(name: str, term: str) -> str:
            each = f"for (int c = 0; c < K; c++) {{ const float v = LOAD({d}, A, o + c); {name} += {term}; }}"
            return f"float {name} = 0; {each}" if term else ""

        bias = f" + LOAD({d}, row_bias, c)" if self.biased else ""
        return f"""
    for (int place = id; place < {self._rows(group)} && m0 + place < M; place += {group}) {{
      const int n = K, m = m0 + place, o = ao + m * sa_m;
      const float eps = {self.epsilon};
      {total("a", first)} const float shift = {shift};
      {total("b", second)} const float factor = {factor};
      for (int c = 0; c < K; c++) {{
        const float y = (LOAD({d}, A, o + c) - shift) * factor * LOAD({d}, row_scale, c){bias};
        STORE({d}, rows, {self.at("place", "c")}, y);
        if (get_group_id(0) == 0) STORE({d}, kept_rows, m * K + c, y);
      }}
    }}
    barrier(CLK_LOCAL_MEM_FENCE);"""

    def _rows(self, group: int) -> int:
        return self.each * group // LANES

    def _room(self, group: int) -> int:
        return self._rows(group) * (self.turns * LANES * _CHUNK + PAD)


def lane_rows(normal: Normalisation, dtype: DataType, each: int, n: int) -> LaneRows | None:
    """Return how rows of *n* elements are normalised where each 32 lanes have *each* of them; None if they are too many,
    or too long."""
    turns = next((turns for turns in range(1, _MOST_CHUNKS // each + 1) if n <= turns * LANES * _CHUNK), None)
    if turns is None or each > _MOST_ROWS or n % _CHUNK or dtype not in TYPES:
        return None
    return LaneRows(normal.statistics, dtype, literal(normal.epsilon, FLOAT32), normal.bias is not None, each, turns)
