"""Windows that slide over planes on CPU devices, and fold what they see into one value: a greatest one or a sum.

The fold is separable. The rows that a row of the result sees are folded into a line of private memory first, which is
walked in vectors whatever the stride, and whose borders hold the value of nothing; then each result folds its cells of
that line. So a window of 5 × 5 costs 10 steps and not 25, and no step checks a border.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.arithmetic import least
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.vectors import LANES
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, FLOAT32, INT8, UINT8, DataType

from .grid import cut_rows, round_up
from .window import Window

TYPES = frozenset({FLOAT32, FLOAT16, INT8, UINT8})
_ROWS = 4  # of the result, whose lines are filled before the first is read: what was just stored is read late
_LINE = 512  # elements of a line
_ONCE = (
    '_Pragma("unroll 1")'  # before loops that compilers would write out: a build takes two thirds of the time without
)
_SLACK = 48  # of a line, that vectors at its end may see


class PoolFold(NamedTuple):
    """What a pool makes of its windows; every field is OpenCL C, and holds for vectors of 16 too.

    Attributes:
        name: Of the kernel.
        dtype: Of the input and of the result.
        kind: In what is folded: "float", or "int".
        start: The value of nothing.
        seen: What is folded of an element ``v``.
        join: Of what was folded before, ``a``, and ``v``.
        result: The result of ``a``; and of ``n``, a window's cells, if they are counted.
        counted: Which cells are counted: none, those "inside" the input, or also those of the "padding".
        helpers: Functions that these call.
    """

    name: str
    dtype: DataType
    kind: str
    start: str
    seen: str
    join: str
    result: str
    counted: str = ""
    helpers: str = ""


def fold_windows(fold: PoolFold, w: Window, planes: int, traits: DeviceTraits) -> Impl | None:
    """Return the implementation for *planes* planes; None if a window is wider than a line.

    Args:
        w: The window, with three spatial axes.
    """
    od, oh, ow = w.outs
    columns = (_LINE - _SLACK - w.extents[2]) // w.strides[2] + 1
    if columns < least(ow, 16):
        return None
    across = -(-ow // columns)
    blocks = -(-oh // _ROWS)
    units = planes * od * blocks
    work = least(oh, _ROWS) * round_up(-(-ow // across), 16) * (w.size[0] * w.size[1] * w.strides[2] + w.size[2])
    per_item = cut_rows(units, work, traits).rows_per_item
    ints = (
        *w.spatial, *w.outs, *w.size, *w.strides, *w.dilations, *w.before, *w.after, blocks, across, units, per_item,
        planes * w.spatial[0] * w.spatial[1] * w.spatial[2],
    )  # fmt: skip
    grid = (-(-units // per_item), across)
    return Impl("lines", (Launch(_kernel(fold), (inp(0), out(0)), ints, grid, (1, 1)),))


_INTS = (
    "D", "H", "W", "OD", "OH", "OW", "KD", "KH", "KW", "sD", "sH", "sW", "dD", "dH", "dW", "pD", "pH", "pW", "eD", "eH",
    "eW", "blocks", "across", "units", "per_item", "all",
)  # fmt: skip


def _load(dtype: DataType) -> str:
    if dtype is FLOAT16:
        return "vload_half16(0, p)"
    return "vload16(0, p)" if dtype is FLOAT32 else "convert_int16(vload16(0, p))"


def _store(dtype: DataType) -> str:
    if dtype is FLOAT16:
        return "vstore_half16_rte(v, 0, p)"
    return "vstore16(v, 0, p)" if dtype is FLOAT32 else f"vstore16(convert_{dtype.c}16(v), 0, p)"


def _helpers(fold: PoolFold) -> str:
    """Return functions that load and store fewer than 16 elements, and one that counts cells."""
    t, kind = fold.dtype, "float" if fold.dtype.is_float else "int"
    return f"""{fold.helpers}
inline {fold.kind}16 $_seen({kind}16 v) {{ return {fold.seen}; }}
inline {kind}16 $_few(__global const {t.c}* p, int n) {{
  {kind} some[16];
  {_ONCE} for (int i = 0; i < 16; i++) some[i] = i < n ? LOAD({t.name}, p, i) : 0;
  return vload16(0, some);
}}
inline void $_put_some({kind}16 v, __global {t.c}* p, int n) {{
  {kind} some[16];
  vstore16(v, 0, some);
  {_ONCE} for (int i = 0; i < n; i++) {{ const {kind} e = some[i]; STORE({t.name}, p, i, e); }}
}}
inline int $_steps(int n, int by) {{ return by == 1 ? n : (n + by - 1) / by; }}
// How many of `cells` cells from `at` on, `apart` from one another, are not before `low` and before `high`.
inline int $_inside(int at, int cells, int apart, int low, int high) {{
  return max(0, min(cells, $_steps(max(0, high - at), apart)) - $_steps(max(0, low - at), apart));
}}"""


def _count(axis: str, fold: PoolFold) -> str:
    low, high = (f"-p{axis}", f"{axis} + e{axis}") if fold.counted == "padding" else ("0", axis)
    return f"$_inside(b{axis}, K{axis}, d{axis}, {low}, {high})"


@functools.cache
def _kernel(fold: PoolFold) -> KernelSource:
    t, kind = fold.kind, "float" if fold.dtype.is_float else "int"
    columns = f"""
  float many[{_LINE}];
  {_ONCE} for (int c = 0; c < wide; c++) {{ const int bW = (left + c) * sW - pW; many[c] = {_count("W", fold)}; }}"""
    body = f"""
  {t} lines[{_ROWS * _LINE}] __attribute__((aligned(64)));
  const int part = (int)get_global_id(1), left = part * (OW / across) + min(part, OW % across);
  const int wide = OW / across + (part < OW % across), in0 = left * sW - pW, first = max(0, -in0);
  const int length = (wide - 1) * sW + (KW - 1) * dW + 1, count = min(length, W - in0) - first;
  const int u0 = (int)get_global_id(0) * per_item, u1 = min(u0 + per_item, units);
  const long down = (long)dH * W, layer = (long)dD * H * W, safe = all - 16 + down;
  const int pitch = (length + {_SLACK - 1}) & ~15;
  {_ONCE} for (int c = 0; c < {_ROWS} * pitch; c += 16) vstore16(({t}16)({fold.start}), 0, lines + c);
  {columns if fold.counted else ""}
  int block = u0 % blocks, od = u0 / blocks % OD, plane = u0 / blocks / OD;
  for (int u = u0; u < u1; u++) {{
    const int bD = od * sD - pD, kd0 = $_steps(max(0, -bD), dD), kd1 = min(KD, $_steps(max(0, D - bD), dD));
    const int oh0 = block * {_ROWS}, high = min({_ROWS}, OH - oh0);
    {_ONCE} for (int r = 0; r < high; r++) {{
      const int bH = (oh0 + r) * sH - pH, kh0 = $_steps(max(0, -bH), dH), kh1 = min(KH, $_steps(max(0, H - bH), dH));
      const long top = ((long)(plane * D + bD) * H + bH + kh0 * dH) * W + in0 + first, tall = (kh1 - kh0) * down;
      {_ONCE} for (int c = 0; c < count; c += 16) {{
        const int at = max(0, min(c, count - 16));
        {t}16 a = {fold.start};
        {_ONCE} for (int kd = kd0; kd < kd1; kd++) {{
          const long from = top + at + kd * layer, end = from + tall;
          if (end <= safe) {_ONCE} for (long i = from; i < end; i += down) {{
            __global const {fold.dtype.c}* p = x + i; const {t}16 v = $_seen({_load(fold.dtype)}); a = {fold.join};
          }} else {_ONCE} for (long i = from; i < end; i += down) {{
            const {t}16 v = $_seen($_few(x + i, (int)(all - i))); a = {fold.join};
          }}
        }}
        if (count < 16) a = {LANES} < count ? a : ({t}16)({fold.start});
        vstore16(a, 0, lines + r * pitch + first + at);
      }}
    }}
    __global {fold.dtype.c}* to = y + ((plane * OD + od) * OH + oh0) * OW + left;
    {_ONCE} for (int r = 0; r < high; r++) {{
      {f"const int bH = (oh0 + r) * sH - pH, deep = {_count('H', fold)} * {_count('D', fold)};" if fold.counted else ""}
      {_ONCE} for (int c = 0; c < wide; c += 16) {{
        // What reaches into the next rows is stored before them.
        const int o = max(0, min(c, wide - 16)), room = wide >= 16 ? 16 : across > 1 ? wide : (high - r) * OW;
        {t}16 a = {fold.start};
        const {t}* cell = lines + r * pitch + o * sW;
        if (sW == 1) {_ONCE} for (int k = 0; k < KW; k++, cell += dW) {{ const {t}16 v = vload16(0, cell); a = {fold.join}; }}
        else if (sW == 2) {_ONCE} for (int k = 0; k < KW; k++, cell += dW) {{
          const {t}16 v = ({t}16)(vload16(0, cell).even, vload16(1, cell).even); a = {fold.join};
        }} else {{
          {t} folded[16];
          {_ONCE} for (int j = 0; j < 16; j++) {{
            {t} a = {fold.start};
            {_ONCE} for (int k = 0; k < KW && o + j < wide; k++) {{ const {t} v = cell[j * sW + k * dW]; a = {fold.join}; }}
            folded[j] = a;
          }}
          a = vload16(0, folded);
        }}
        {"const float16 n = (float)deep * vload16(0, many + o);" if fold.counted else ""}
        const {kind}16 v = {fold.result};
        __global {fold.dtype.c}* const p = to + r * OW + o;
        if (room >= 16) {_store(fold.dtype)}; else $_put_some(v, p, room);
      }}
    }}
    if (++block == blocks) {{ block = 0; if (++od == OD) {{ od = 0; plane++; }} }}
  }}"""
    buffers = (("x", fold.dtype, "r"), ("y", fold.dtype, "w"))
    return kernel(fold.name, buffers, _INTS, body, helpers=_helpers(fold))
