"""Rows of adjacent elements made to have zero mean, unit variance or unit length; optionally scaled and shifted.

What the normalisations share: for each row a shift and a factor are calculated, then every element becomes
``(x - shift) * factor * scale + bias``. Sums are kept in the arithmetic type, the variance is summed from differences.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.codegen.vectors import steps
from asyncrt.kernels.impl import KernelSource, Launch, Normalisation, Ref
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, FLOAT64, DataType

from .grid import cut_rows

_GROUP = 128
_SUMS = 4  # of a row on a CPU: an addition waits for the one before

STATISTICS: dict[str, tuple[str, str, str, str]] = {
    "layer": ("v", "(v - shift) * (v - shift)", "a / n", "1 / sqrt(b / n + eps)"),
    "rms": ("", "v * v", "0", "1 / sqrt(b / n + eps)"),
    "deviation": ("v", "(v - shift) * (v - shift)", "a / n", "1 / (sqrt(b / n) + eps)"),
    "l1": ("", "fabs(v)", "0", "b == 0 ? 0 : 1 / b"),
    "l2": ("", "v * v", "0", "b == 0 ? 0 : 1 / sqrt(b)"),
}
"""How a row's shift and factor come from its sums: the first term is summed over elements ``v`` to give ``a``, then the
second to give ``b``; ``n`` is how many there are, and ``eps`` the operator's epsilon."""


class Affine(NamedTuple):
    """What normalised elements are scaled and shifted by.

    Attributes:
        scale, bias: Buffers; a bias may be absent.
        scale_dtype: dtype of both, and of the result.
        scale_row, bias_row: Elements from one row's factors to the next row's, where there is one for each column.
        groups: 0: there is one factor for each column. Else rows belong to that many groups in turn, and a group has
            factors of its own, each for `length` adjacent columns.
        length: See `groups`.
    """

    scale: Ref
    bias: Ref | None
    scale_dtype: DataType
    scale_row: int = 0
    bias_row: int = 0
    groups: int = 0
    length: int = 1


def normalize_rows(
    statistics: str,
    source: Ref,
    target: Ref,
    dtype: DataType,
    rows: int,
    n: int,
    epsilon: float,
    traits: DeviceTraits,
    *,
    affine: Affine | None = None,
    mean: tuple[Ref, DataType] | None = None,
    inverse: tuple[Ref, DataType] | None = None,
) -> Launch:
    """Return the launch that normalises *rows* rows of *n* elements.

    Args:
        statistics: "layer" (variance), "deviation" (epsilon is added to the standard deviation), "rms", "l1" or "l2".
        mean, inverse: Where each row's shift and factor are written, if anywhere.
    """
    result = affine.scale_dtype if affine else dtype
    wide = FLOAT64 if FLOAT64 in (dtype, result) else FLOAT32
    form = _NormalizationForm(
        statistics, dtype, literal(epsilon, wide), affine is not None,
        affine is not None and affine.bias is not None, affine is not None and affine.groups > 0,
        result, mean[1] if mean else None, inverse[1] if inverse else None,
    )  # fmt: skip
    buffers = [source, target]
    if affine is not None:
        buffers.append(affine.scale)
        if affine.bias is not None:
            buffers.append(affine.bias)
    buffers += [extra[0] for extra in (mean, inverse) if extra]
    a = affine or Affine(source, None, dtype)
    ints = (rows, n, a.scale_row, a.bias_row, a.groups, a.length)
    if not traits.is_cpu:
        share = _share(n)
        groups = -(-rows * share.lanes // _GROUP)
        plain = affine is not None and not (affine.groups or affine.scale_row or affine.bias_row or mean or inverse)
        normal = None
        if affine is not None and plain and result is dtype:
            normal = Normalisation(statistics, epsilon, affine.scale, affine.bias)
        grid = (groups * _GROUP,)
        return Launch(_gpu_kernel(form, share), tuple(buffers), (*ints, 1), grid, (_GROUP,), normal=normal)
    cut = cut_rows(rows, n, traits)
    return Launch(_cpu_kernel(form), tuple(buffers), (*ints, cut.rows_per_item), cut.grid[1:], (1,))


class _Share(NamedTuple):
    """How a GPU's work-items share a row.

    Attributes:
        lanes: Work-items of a row: few, so that their sums are soon added, and a group has several rows.
        held: Elements that each of them reads once.
    """

    lanes: int
    held: int


_SHARES = (_Share(32, 4), _Share(32, 8), _Share(32, 12), _Share(64, 8), _Share(64, 12), _Share(128, 8))


def _share(n: int) -> _Share:
    """Return how work-items share a row of *n* elements: the least that holds it, or the largest."""
    return next((share for share in _SHARES if n <= share.lanes * share.held), _SHARES[-1])


class _NormalizationForm(NamedTuple):
    """What the source of a kernel depends on."""

    statistics: str
    dtype: DataType
    epsilon: str
    scaled: bool
    biased: bool
    grouped: bool
    result: DataType
    mean: DataType | None
    inverse: DataType | None


_INTS = ("rows", "n", "scale_row", "bias_row", "groups", "length", "per_item")


def _buffers(form: _NormalizationForm) -> tuple[tuple[str, DataType, str], ...]:
    wanted = (
        ("x", form.dtype, "r"), ("y", form.result, "w"),
        ("scale", form.result if form.scaled else None, "r"), ("bias", form.result if form.biased else None, "r"),
        ("mean", form.mean, "w"), ("inverse", form.inverse, "w"),
    )  # fmt: skip
    return tuple((name, dtype, access) for name, dtype, access in wanted if dtype is not None)


def _keep(form: _NormalizationForm) -> str:
    """Write a row's statistics out."""
    lines = []
    if form.mean is not None:
        lines.append(f"STORE({form.mean.name}, mean, r, shift);")
    if form.inverse is not None:
        lines.append(f"STORE({form.inverse.name}, inverse, r, factor);")
    return " ".join(lines)


def _type(form: _NormalizationForm) -> str:
    return "double" if FLOAT64 in (form.dtype, form.result) else compute_type(form.dtype)


def _element(form: _NormalizationForm, column: str) -> str:
    """Write the element of *column*; its factors are `w` and `z` unless each column has its own."""
    t = _type(form)
    text = f"(({t})LOAD({form.dtype.name}, x, o + {column}) - shift) * factor"
    if form.scaled:
        text += " * w" if form.grouped else f" * LOAD({form.result.name}, scale, so + {column})"
    if form.biased:
        text += " + z" if form.grouped else f" + LOAD({form.result.name}, bias, bo + {column})"
    return f"STORE({form.result.name}, y, o + {column}, {text});"


def _segments(form: _NormalizationForm, loop: str) -> str:
    """Run *loop* over columns c0 <= c < c1, once for all columns or once for each factor of a group."""
    if not form.grouped:
        return f"{{ const int so = r * scale_row, bo = r * bias_row, c0 = 0, c1 = n; {loop} }}"
    z = f"const {_type(form)} z = LOAD({form.result.name}, bias, f);" if form.biased else ""
    return f"""
    for (int c0 = 0, f = r % groups * (n / length); c0 < n; c0 += length, f++) {{
      const int c1 = c0 + length; const {_type(form)} w = LOAD({form.result.name}, scale, f); {z}
      {loop}
    }}"""


@functools.cache
def _cpu_kernel(form: _NormalizationForm) -> KernelSource:
    """A work-item takes some rows; float32 in vectors of 16."""
    t = _type(form)
    first, second, shift, factor = STATISTICS[form.statistics]
    plain = form.dtype is FLOAT32 and form.result is FLOAT32

    def total(name: str, term: str) -> str:
        if not term:
            return ""
        scalar = f"{{ const {t} v = LOAD({form.dtype.name}, x, o + c); {name} += {term}; }}"
        if not plain:
            return f"{t} {name} = 0; for (int c = 0; c < n; c++) {scalar}"
        sums = [f"u{k}" for k in range(_SUMS)]
        add = [f"{{ const float16 v = vload16({k}, x + o + c); {s} += {term}; }}" for k, s in enumerate(sums)]
        return f"""
    float {name} = 0.0f;
    {{
      {" ".join(f"float16 {s} = 0.0f;" for s in sums)} int c = 0;
      {steps(add, "n")}
      const float16 s = {" + ".join(sums)};
      const float8 s8 = s.lo + s.hi; const float4 s4 = s8.lo + s8.hi; const float2 s2 = s4.lo + s4.hi;
      {name} = s2.x + s2.y;
      for (; c < n; c++) {scalar}
    }}"""

    fast = ""
    if plain:
        text = "(vload16({k}, x + o + c) - shift) * factor"
        if form.scaled:
            text += " * w" if form.grouped else " * vload16({k}, scale + so + c)"
        if form.biased:
            text += " + z" if form.grouped else " + vload16({k}, bias + bo + c)"
        store = [f"vstore16({text.format(k=k)}, {k}, y + o + c);" for k in range(_SUMS)]
        fast = steps(store, "c1")
    loop = f"int c = c0; {fast} for (; c < c1; c++) {{ {_element(form, 'c')} }}"
    body = f"""
  const {t} eps = {form.epsilon};
  const int r1 = min(((int)get_global_id(0) + 1) * per_item, rows);
  for (int r = (int)get_global_id(0) * per_item; r < r1; r++) {{
    const int o = r * n;
    {total("a", first)}
    const {t} shift = {shift};
    {total("b", second)}
    const {t} factor = {factor};
    {_keep(form)}
    {_segments(form, loop)}
  }}"""
    return kernel(f"normalize_{form.statistics}", _buffers(form), _INTS, body)


class LocalRows(NamedTuple):
    """Rows that a work-group normalises for itself, in local memory, before it does something with them.

    Attributes:
        statistics: As for `normalize_rows`.
        dtype: Of their elements, and of the factors of each column.
        epsilon: Of the operator, as a literal.
        biased: Whether there is something to add to each column.
        share: How work-items share a row.
        room: Elements that there is local memory for.
    """

    statistics: str
    dtype: DataType
    epsilon: str
    biased: bool
    share: _Share
    room: int

    @property
    def buffers(self) -> tuple[tuple[str, DataType, str], ...]:
        bias = (("row_bias", self.dtype, "r"),) if self.biased else ()
        return (("row_scale", self.dtype, "r"), *bias)

    def arrays(self, group: int) -> str:
        """Declare what a work-group of so many work-items needs of local memory."""
        size, aligned = f"[{group // self.share.lanes}][{self.share.lanes}]", "__attribute__((aligned(16)))"
        sums = " ".join(f"__local float {name}{size} {aligned};" for name in ("parts_of_rows", "others_of_rows"))
        kind = {2: "ushort", 4: "uint"}[self.dtype.itemsize]  # no array is of halves without an extension
        space = f"__local {kind} space_of_rows[{self.room}] {aligned};"
        return f"{space} __local {self.dtype.c}* rows = (__local {self.dtype.c}*)space_of_rows; {sums}"

    def at(self, row: str, column: str) -> str:
        """Where an element lies in ``rows``; sixteen bytes may be read from each eighth on."""
        return f"({row}) * (K + {PAD}) + {column}"

    def made(self, group: int) -> str:
        """Write the statements that fill ``rows`` with ``M`` rows of ``K`` elements, from element ``ao`` of ``A`` on;
        one begins ``sa_m`` behind the other. ``id`` is the work-item's number."""
        form = _NormalizationForm(
            self.statistics, self.dtype, self.epsilon, scaled=True, biased=self.biased, grouped=False,
            result=self.dtype, mean=None, inverse=None,
        )  # fmt: skip
        lanes, rows = self.share.lanes, group // self.share.lanes
        names = _Names("A", "row_scale", "row_bias", "parts_of_rows", "others_of_rows")
        store = f"STORE({self.dtype.name}, rows, {self.at('r', 'c')}, {_scaled(form)});"
        return f"""
  for (int r0 = 0; r0 < M; r0 += {rows}) {{
    const float eps = {self.epsilon};
    const int n = K, line = id / {lanes}, lane = id % {lanes}, so = 0, bo = 0;
    const int place = r0 + line, end = place < M ? n : 0, r = min(place, M - 1), o = ao + r * sa_m;
    {_row(form, self.share, names, store)}
    barrier(CLK_LOCAL_MEM_FENCE);
  }}"""


PAD = 8
"""Elements between rows in local memory."""
_ROOM_NBYTES = 1 << 14


def local_rows(normal: Normalisation, dtype: DataType, rows: int, n: int) -> LocalRows | None:
    """Return *rows* rows of *n* elements for each work-group to normalise for itself; None if they are too many."""
    needed, room = rows * (n + PAD), 1024
    while room < needed and 2 * room * dtype.itemsize <= _ROOM_NBYTES:
        room *= 2
    if room < needed:
        return None
    epsilon = literal(normal.epsilon, FLOAT32)
    return LocalRows(normal.statistics, dtype, epsilon, normal.bias is not None, _share(n), room)


class _Names(NamedTuple):
    """What a kernel calls the elements of rows, their factors, and the parts of two sums."""

    x: str = "x"
    scale: str = "scale"
    bias: str = "bias"
    first: str = "parts"
    second: str = "others"


def _scaled(form: _NormalizationForm) -> str:
    """Write what becomes of an element with factors of its own."""
    return "(v - shift) * factor" + (" * w" if form.scaled else "") + (" + z" if form.biased else "")


def _row(form: _NormalizationForm, share: _Share, names: _Names, store: str, keep: str = "") -> str:
    """Write the statements that normalise row ``r``, whose elements begin at ``o`` and have ``end`` columns.

    Args:
        store: What stores column ``c``.
        keep: What is done once the row's ``shift`` and ``factor`` are known.
    """
    lanes, most = share
    t, own_factors = _type(form), form.scaled and not form.grouped
    first, second, shift, factor = STATISTICS[form.statistics]
    held = [("v", t, f"LOAD({form.dtype.name}, {names.x}, o + c)")]
    if own_factors:
        held.append(("w", t, f"LOAD({form.result.name}, {names.scale}, so + c)"))
        if form.biased:
            held.append(("z", t, f"LOAD({form.result.name}, {names.bias}, bo + c)"))
    arrays = " ".join(f"{kind} {name}s[{most}];" for name, kind, _ in held)
    reads = " ".join(f"{name}s[i] = {text};" for name, _, text in held)

    def each(text: str) -> str:
        """Run *text* for each of the work-item's elements, with `c` its column and what is held of it."""
        again = " ".join(f"const {kind} {name} = {read};" for name, kind, read in held)
        kept = " ".join(f"const {kind} {name} = {name}s[i];" for name, kind, _ in held)
        return f"""
  #pragma unroll
  for (int i = 0; i < {most}; i++) {{
    const int c = lane + i * {lanes};
    if (c < end) {{ {kept} {text} }}
  }}
  for (int c = lane + {most * lanes}; c < end; c += {lanes}) {{ {again} {text} }}"""

    def total(name: str, term: str, parts: str) -> str:
        if not term:
            return ""
        return f"""
  {t} own_{name} = 0;
  {each(f"own_{name} += {term};")}
  {parts}[line][lane] = own_{name};
  barrier(CLK_LOCAL_MEM_FENCE);
  {t}4 sums_{name} = 0;
  #pragma unroll
  for (int i = 0; i < {lanes // 4}; i++) sums_{name} += vload4(i, {parts}[line]);
  const {t} {name} = (sums_{name}.x + sums_{name}.y) + (sums_{name}.z + sums_{name}.w);"""

    return f"""{arrays}
  #pragma unroll
  for (int i = 0; i < {most}; i++) {{
    const int c = min(lane + i * {lanes}, max(n, 1) - 1);
    {reads}
  }}
  {total("a", first, names.first)}
  const {t} shift = {shift};
  {total("b", second, names.second)}
  const {t} factor = {factor};
  {keep}
  {each(store)}"""


@functools.cache
def _gpu_kernel(form: _NormalizationForm, share: _Share) -> KernelSource:
    """A work-group takes some rows. Each work-item reads its elements, and their factors, once and together."""
    lanes, t = share.lanes, _type(form)
    start, text = "", f"STORE({form.result.name}, y, o + c, {_scaled(form)});"
    if form.grouped:
        z = f"+ LOAD({form.result.name}, bias, f)" if form.biased else ""
        start = "const int f0 = r % groups * (n / length);"
        text = f"const int f = f0 + c / length; STORE({form.result.name}, y, o + c, (v - shift) * factor * LOAD({form.result.name}, scale, f) {z});"
    rows = _GROUP // lanes
    body = f"""
  __local {t} parts[{rows}][{lanes}] __attribute__((aligned(16))); __local {t} others[{rows}][{lanes}] __attribute__((aligned(16)));
  const {t} eps = {form.epsilon};
  const int line = (int)get_local_id(0) / {lanes}, lane = (int)get_local_id(0) % {lanes};
  const int place = (int)get_group_id(0) * {rows} + line, end = place < rows ? n : 0, r = min(place, rows - 1), o = r * n;
  const int so = r * scale_row, bo = r * bias_row;
  {start}
  {_row(form, share, _Names(), text, f"if (lane == 0 && place < rows) {{ {_keep(form)} }}")}"""
    group = f"__attribute__((reqd_work_group_size({_GROUP}, 1, 1)))"
    return kernel(f"normalize_{form.statistics}", _buffers(form), _INTS, body, attributes=group)
