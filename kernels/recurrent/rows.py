"""Recurrent layers on any device: a work-item (CPU) or work-group (GPU) walks the time of one batch row in one direction.

Each step is a product of the state with the recurrent weights, ``[D, H, G * H]``: neighbouring results are neighbours in
memory.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from asyncrt.kernels.codegen.source import accumulator_type, compute_type, kernel
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, FLOAT64, DataType

from .interface import INTS, CellForm

_GROUP = 256


def state_of(dtype: DataType) -> DataType:
    """Return the dtype in which states and gates of tensors of *dtype* are kept."""
    return FLOAT64 if dtype is FLOAT64 else FLOAT32


def scratch_bytes(gates: int, dtype: DataType, walks: int, hidden: int) -> int:
    """Return the bytes that *walks*, batch rows times directions, need for their states and gates."""
    return walks * (gates + 3) * hidden * state_of(dtype).itemsize


def walked(
    form: CellForm, dtype: DataType, refs: tuple[Ref, ...], ints: tuple[int, ...], walks: int, traits: DeviceTraits
) -> Launch:
    """Return the launch; its scratch is the third of *refs*."""
    source = _kernel(form, dtype, traits.is_cpu)
    if traits.is_cpu:
        return Launch(source, refs, ints, (walks,), (1,))
    group = min(_GROUP, traits.max_group)
    return Launch(source, refs, ints, (walks * group,), (group,))


class _RowForm(NamedTuple):
    """What the source of a kernel depends on, and the texts that all of its steps are made of."""

    cell: CellForm
    dtype: DataType
    cpu: bool

    @property
    def real(self) -> str:
        return accumulator_type(self.dtype)

    @property
    def units(self) -> str:
        """The loop over units that a work-item calculates."""
        return "for (int u = 0; u < H; u++)" if self.cpu else "for (int u = id; u < H; u += group)"

    @property
    def barrier(self) -> str:
        return "" if self.cpu else "barrier(CLK_GLOBAL_MEM_FENCE);"

    @property
    def store(self) -> str:
        return f"const {compute_type(self.dtype)} hv = h[u]; STORE({self.dtype.name}, Y, yo + u, hv);"

    def load(self, pointer: str, at: str) -> str:
        return f"LOAD({self.dtype.name}, {pointer}, {at})"

    def x(self, gate: int) -> str:
        """The input's part of a gate, with the input's bias."""
        bias = f" + {self.load('bias', f'bo + {gate} * H + u')}" if self.cell.optional.bias else ""
        return self.load("X", f"xo + {gate} * H + u") + bias

    def recurrent(self, gate: int) -> str:
        """The state's part of a gate, with its bias."""
        bias = f" + {self.load('bias', f'bo + GH + {gate} * H + u')}" if self.cell.optional.bias else ""
        return f"gate[{gate} * H + u]" + bias

    def peephole(self, position: int, cell: str) -> str:
        return f" + {self.load('P', f'(d * 3 + {position}) * H + u')} * {cell}" if self.cell.optional.peepholes else ""


@functools.cache
def _kernel(form: CellForm, dtype: DataType, cpu: bool) -> KernelSource:
    row = _RowForm(form, dtype, cpu)
    t, real, result = dtype.name, row.real, compute_type(dtype)
    finals = [f"{{ const {result} v = {s}[u]; STORE({t}, {o}, so + u, v); }}" for o, s in (("YH", "h"), ("YC", "c"))]
    body = f"""
  const int row = (int){"get_global_id(0)" if cpu else "get_group_id(0)"}, d = row / N, n = row - d * N;
  {"" if cpu else "const int id = (int)get_local_id(0), group = (int)get_local_size(0);"}
  const int GH = {form.gates} * H, ro = d * H * GH, bo = d * 2 * GH, so = (d * hs_d + n * hs_n) * H;
  __global {real}* h = S + row * (GH + 3 * H);
  __global {real}* c = h + H;
  __global {real}* part = c + H;
  __global {real}* gate = part + H;
  const int length = {"clamp(lens[n], 0, T)" if form.optional.lengths else "T"}, backwards = {form.backwards};
  {row.units} {{
    h[u] = {row.load("H0", "so + u") if form.optional.hidden else "0"};
    c[u] = {row.load("C0", "so + u") if form.optional.cell else "0"};
  }}
  for (int i = length; i < T; i++) {{
    const int yo = (i * ys_t + d * ys_d + n * ys_n) * H;
    {row.units} {{ const {result} v = 0; STORE({t}, Y, yo + u, v); }}
  }}
  {row.barrier}
  for (int i = 0; i < length; i++) {{
    const int at = backwards ? length - 1 - i : i;
    const int xo = ((at * xs_t + n * xs_n) * D + d) * GH, yo = (at * ys_t + d * ys_d + n * ys_n) * H;
    {_step(row)}
    {row.barrier}
  }}
  {row.units} {{ {" ".join(finals[: form.outputs - 1])} }}"""
    return kernel(form.operator.lower(), form.buffers(dtype, state_of(dtype)), INTS, body, helpers=form.functions)


def _step(row: _RowForm) -> str:
    """Return one step of an operator: new ``h``, new ``c``, and the step's output."""
    if row.cell.operator == "LSTM":
        return _lstm(row)
    if row.cell.operator == "RNN":
        return f"""
    {_product(row, "h", "0", "GH")}
    {row.barrier}
    {row.units} {{ h[u] = $_f0({row.x(0)} + {row.recurrent(0)}, d); {row.store} }}"""
    return _gru_linear_before_reset(row) if row.cell.linear_before_reset else _gru(row)


def _lstm(row: _RowForm) -> str:
    x, recurrent, real = row.x, row.recurrent, row.real
    forget = "1 - gi" if row.cell.input_forget else f"$_f0({x(2)} + {recurrent(2)}{row.peephole(2, 'c[u]')}, d)"
    return f"""
    {_rounded(row) if row.cell.rounds else ""}
    {_product(row, "part" if row.cell.rounds else "h", "0", "GH")}
    {row.barrier}
    {row.units} {{
      const {real} gi = $_f0({x(0)} + {recurrent(0)}{row.peephole(0, "c[u]")}, d), gf = {forget};
      const {real} gc = $_f1({x(3)} + {recurrent(3)}, d), cell = gf * c[u] + gi * gc;
      const {real} go = $_f0({x(1)} + {recurrent(1)}{row.peephole(1, "cell")}, d);
      c[u] = cell;
      h[u] = go * $_f2(cell, d);
      {row.store}
    }}"""


def _rounded(row: _RowForm) -> str:
    """Write the state as it is after rounding to ``part``."""
    real = row.real
    return f"""{{
      {real} low = 0, high = 0;
      for (int u = 0; u < H; u++) {{ low = fmin(low, h[u]); high = fmax(high, h[u]); }}
      const {real} scale = high > low ? (high - low) / 255 : 1, zero = rint(clamp(-low / scale, ({real})0, ({real})255));
      {row.units} {{
        const {real} rounded = (clamp(rint(h[u] / scale) + zero, ({real})0, ({real})255) - zero) * scale;
        part[u] = rounded + (scale - scale) + (h[u] - h[u]);
      }}
    }}
    {row.barrier}"""


def _gru_linear_before_reset(row: _RowForm) -> str:
    x, recurrent, real = row.x, row.recurrent, row.real
    return f"""
    {_product(row, "h", "0", "GH")}
    {row.barrier}
    {row.units} {{
      const {real} gz = $_f0({x(0)} + {recurrent(0)}, d), gr = $_f0({x(1)} + {recurrent(1)}, d);
      const {real} gh = $_f1({x(2)} + gr * ({recurrent(2)}), d);
      h[u] = (1 - gz) * gh + gz * h[u];
      {row.store}
    }}"""


def _gru(row: _RowForm) -> str:
    x, recurrent, real = row.x, row.recurrent, row.real
    return f"""
    {_product(row, "h", "0", "2 * H")}
    {row.barrier}
    {row.units} part[u] = h[u] * $_f0({x(1)} + {recurrent(1)}, d);
    {row.barrier}
    {_product(row, "part", "2 * H", "GH")}
    {row.barrier}
    {row.units} {{
      const {real} gz = $_f0({x(0)} + {recurrent(0)}, d), gh = $_f1({x(2)} + {recurrent(2)}, d);
      h[u] = (1 - gz) * gh + gz * h[u];
      {row.store}
    }}"""


def _product(row: _RowForm, vector: str, first: str, last: str) -> str:
    """``gate[j] = sum over k of vector[k] * R[k][j]`` for j from *first* to before *last*."""
    dtype, real = row.dtype, row.real
    if row.cell.rounds:
        each = "j++" if row.cpu else "j += group"
        return f"""
    for (int j = {first}{"" if row.cpu else " + id"}; j < {last}; {each}) {{
      {real} a = 0;
      for (int k = 0; k < H; k++) a += {vector}[k] * (R[ro + k * GH + j] - RZ[d * GH + j]);
      gate[j] = a * RS[d * GH + j];
    }}"""
    if not row.cpu:
        return f"""
    for (int j = {first} + id; j < {last}; j += group) {{
      {real} a = 0;
      for (int k = 0; k < H; k++) a += {vector}[k] * LOAD({dtype.name}, R, ro + k * GH + j);
      gate[j] = a;
    }}"""
    if dtype is not FLOAT32:
        return f"""
    for (int j = {first}; j < {last}; j++) gate[j] = 0;
    for (int k = 0; k < H; k++) {{
      const {real} v = {vector}[k];
      for (int j = {first}; j < {last}; j++) gate[j] += v * LOAD({dtype.name}, R, ro + k * GH + j);
    }}"""
    return f"""
    {{
      int j = {first};
      for (; j + 64 <= {last}; j += 64) {{
        float16 a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, a3 = 0.0f;
        __global const float* p = R + ro + j;
        for (int k = 0; k < H; k++, p += GH) {{
          const float16 v = (float16)({vector}[k]);
          a0 = fma(v, vload16(0, p), a0); a1 = fma(v, vload16(1, p), a1);
          a2 = fma(v, vload16(2, p), a2); a3 = fma(v, vload16(3, p), a3);
        }}
        vstore16(a0, 0, gate + j); vstore16(a1, 1, gate + j); vstore16(a2, 2, gate + j); vstore16(a3, 3, gate + j);
      }}
      for (; j + 16 <= {last}; j += 16) {{
        float16 a = 0.0f;
        for (int k = 0; k < H; k++) a = fma((float16)({vector}[k]), vload16(0, R + ro + k * GH + j), a);
        vstore16(a, 0, gate + j);
      }}
      for (; j < {last}; j++) {{
        float a = 0;
        for (int k = 0; k < H; k++) a += {vector}[k] * R[ro + k * GH + j];
        gate[j] = a;
      }}
    }}"""
