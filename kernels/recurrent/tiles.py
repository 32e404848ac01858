"""Recurrent layers of float32 on CPU devices, with constant weights: a walk takes several batch rows through time.

Each step is a product of the rows' states with packed panels of the recurrent weights, in tiles as matrix products have
them, so that weights are read once for all rows. Gates are calculated for 16 units at a time. The padding of a state
to whole panels is calculated along with it, and never read.

A walk is one work-item's, or its units are shared by several (`shares.py`), each of which has a part of the panels.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.codegen.tiles import PANEL, add_tiles, pair_rows, pair_tile
from asyncrt.kernels.impl import KernelSource, Launch, Ref, WeightsRequest
from asyncrt.kernels.int8.product import multiply_bytes, pack_bytes
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT32, UINT8, Array
from asyncrt.memory.own_pages import zeros

from .interface import INTS, CellForm

LEAST = 16  # units; with fewer, most of a panel would be padding
_MOST = 8  # batch rows of a walk
_LEAST_SHARE = 1 << 18  # bytes of weights; with fewer, work-items wait longer for each other than for weights
_MOST_SHARES = 32  # as many as an integer has bits
MEETING = 16  # elements of a cache line
"""Elements of scratch for each integer by which those meet who share a walk."""


def pack_gates(weights: Array, gates: int) -> Array:
    """Return recurrent weights ``[D, G * H, H]`` as ``[D, ceil(H / 32), G, H, 32]``: 32 units' panels of all gates."""
    directions, _, hidden = weights.shape
    packed = zeros((directions, -(-hidden // PANEL), gates, hidden, PANEL), weights.dtype)
    turned = weights.reshape(directions, gates, hidden, hidden).swapaxes(2, 3)
    for panel in range(packed.shape[1]):
        columns = turned[..., panel * PANEL : (panel + 1) * PANEL]
        packed[:, panel, :, :, : columns.shape[-1]] = columns
    return packed


_packer = functools.cache(lambda gates: functools.partial(pack_gates, gates=gates))


def gate_panels(index: int, gates: int, directions: int, hidden: int) -> WeightsRequest:
    """Ask for input *index*, recurrent weights, as panels of each gate."""
    elements = directions * gates * round_up(hidden, PANEL) * hidden
    return WeightsRequest(index, f"recurrent panels by units of {gates}", _packer(gates), elements)


def pack_byte_gates(weights: Array, gates: int) -> Array:
    """Return recurrent weights ``[D, H, G * H]`` of bytes as panels of `pack_bytes`, in the order of `pack_gates`."""
    return np.stack([np.stack([pack_bytes(gate) for gate in np.split(each, gates, axis=1)], 1) for each in weights])


_byte_packer = functools.cache(lambda gates: functools.partial(pack_byte_gates, gates=gates))


def byte_panels(index: int, gates: int, directions: int, hidden: int) -> WeightsRequest:
    """Ask for input *index*, recurrent weights of bytes, as panels of each gate."""
    elements = directions * gates * round_up(hidden, PANEL) * (-(-hidden // 4) + 1)
    return WeightsRequest(index, f"recurrent bytes by units of {gates}", _byte_packer(gates), elements)


class Walks(NamedTuple):
    """How a layer is cut: in each direction a walk takes a block of batch rows.

    Attributes:
        blocks: Blocks of each direction.
        height: Rows of a block.
        shares: Into how many parts a walk's units are cut, each for a work-item.
        own: Elements of scratch that each walk has.
        nbytes: Bytes of the scratch.
    """

    blocks: int
    height: int
    shares: int
    own: int
    nbytes: int


def cut_into_walks(form: CellForm, batch: int, directions: int, hidden: int, traits: DeviceTraits) -> Walks:
    """Return walks of at most `_MOST` rows, and as many work-items as there are compute units, if it is worth it.

    Where a step reads many weights, units are shared: each core then has its part of them near it. Else rows are: nobody
    waits for anybody.
    """
    panels = -(-hidden // PANEL)
    blocks = -(-batch // _MOST)
    worth = form.gates * panels * PANEL * hidden * 4 // _LEAST_SHARE
    shares = min(panels, _MOST_SHARES, traits.compute_units // (directions * blocks), worth)
    if shares < 2 or form.rounds or "threads" not in traits.features:
        shares, blocks = 1, max(blocks, min(batch, -(-traits.compute_units // directions)))
    height = -(-batch // blocks)
    blocks = -(-batch // height)
    states = height * (3 + (shares > 1) + form.gates) * panels * PANEL
    own = states + (MEETING * (1 + shares) if shares > 1 else 0)
    return Walks(blocks, height, shares, own, directions * blocks * own * 4)


def walked_by_tiles(
    form: CellForm, refs: tuple[Ref, ...], ints: tuple[int, ...], directions: int, walks: Walks
) -> Launch:
    """Return the launch; its scratch is the third of *refs*."""
    sizes = (*ints, walks.blocks, walks.height, walks.own)
    return Launch(_kernel(form), refs, sizes, (directions * walks.blocks,), (1,))


@functools.cache
def _kernel(form: CellForm) -> KernelSource:
    body = f"""
  const int walk = (int)get_global_id(0), p0 = 0, u0 = 0, u1 = H;
  {places(form)}
  const int p1 = panels;
  __global float* const h = S + walk * own;            /* [height, HP], as are the next two */
  __global float* const to = h;
  __global float* const c = h + height * HP;
  __global float* const part = c + height * HP;
  __global float* const gate = part + height * HP;     /* [panels * gates, rows, 32] */
  {begin(form)}
  for (int i = 0; i < longest; i++) {{
    {" ".join(phases(form))}
  }}
  {finish(form)}"""
    return tiles_kernel(form, f"{form.operator.lower()}_tiles", (), body)


def tiles_kernel(
    form: CellForm, name: str, ints: tuple[str, ...], body: str, declared: str = ""
) -> KernelSource:
    """Return a kernel of walks, whose sizes are those of the layer, of its walks, and *ints*.

    Args:
        declared: What *body* calls and nobody here defines.
    """
    buffers = form.buffers(FLOAT32, FLOAT32, packed=INT32)
    sizes = (*INTS, "blocks", "height", "own", *ints)
    return kernel(name, buffers, sizes, body, helpers="\n".join((declared, form.functions, _SOME, _multiply(form))))


def places(form: CellForm) -> str:
    """Find where the things of ``walk`` lie, and its rows' lengths."""
    return f"""const int d = walk / blocks, n0 = walk % blocks * height, rows = min(height, N - n0);
  const int panels = (H + {PANEL - 1}) / {PANEL}, HP = panels * {PANEL}, GH = {form.gates} * H;
  const int ro = d * {form.gates} * HP * {"((H + 3) / 4 + 1)" if form.rounds else "H"}, bo = d * 2 * GH, backwards = {form.backwards};
  int length[{_MOST}], longest = 0;
  for (int r = 0; r < rows; r++) {{
    length[r] = {"clamp(lens[n0 + r], 0, T)" if form.optional.lengths else "T"};
    longest = max(longest, length[r]);
  }}"""


def begin(form: CellForm) -> str:
    """Load the rows' first states, and write zeros where a row has ended."""
    return f"""for (int r = 0; r < rows; r++) {{
    const int n = n0 + r, so = (d * hs_d + n * hs_n) * H;
    for (int u = 0; u < HP; u += 16) {{
      vstore16({"$_some(H0 + so, u, H)" if form.optional.hidden else "(float16)(0.0f)"}, 0, h + r * HP + u);
      vstore16({"$_some(C0 + so, u, H)" if form.optional.cell else "(float16)(0.0f)"}, 0, c + r * HP + u);
      vstore16((float16)(0.0f), 0, part + r * HP + u);
    }}
    for (int i = length[r]; i < T; i++)
      for (int u = 0; u < H; u += 16) $_put((float16)(0.0f), Y + (i * ys_t + d * ys_d + n * ys_n) * H, u, H);
  }}"""


def finish(form: CellForm) -> str:
    """Write the last states of the units from ``u0`` to before ``u1``."""
    states = (("YH", "h"), ("YC", "c"))[: form.outputs - 1]
    finals = " ".join(f"$_put(vload16(0, {s} + r * HP + u), {o} + so, u, H);" for o, s in states)
    return f"""for (int r = 0; r < rows; r++) {{
    const int so = (d * hs_d + (n0 + r) * hs_n) * H;
    for (int u = u0; u < u1; u += 16) {{ {finals} }}
  }}"""


def phases(form: CellForm, ended: str = "") -> tuple[str, ...]:
    """Return the parts of step ``i`` of an operator, each of which needs what those before made of all units.

    They are for the panels from ``p0`` to before ``p1``, whose units are those from ``u0`` to before ``u1``. New states
    are at ``to``, which may be ``h``.

    Args:
        ended: Is done, in the last part, with each 16 units at ``hu`` of a row that is at its end.
    """
    if form.operator == "LSTM":
        return (_product(form) + _units(_lstm(form), ended),)
    if form.operator == "RNN":
        return (_product(form) + _units(f"const float16 now = $_f0({_gate(form, 0)}, d); {_STORE}", ended),)
    if form.linear_before_reset:
        now = f"""
        const float16 gz = $_f0({_gate(form, 0)}, d), gr = $_f0({_gate(form, 1)}, d);
        const float16 gh = $_f1({_input(form, 2)} + gr * ({_recurrent(form, 2)}), d), now = (1.0f - gz) * gh + gz * vload16(0, hu);
        {_STORE}"""
        return (_product(form) + _units(now, ended),)
    reset = f"vstore16(vload16(0, hu) * $_f0({_gate(form, 1)}, d), 0, part + r * HP + u);"
    candidate = f"""
        const float16 gz = $_f0({_gate(form, 0)}, d), gh = $_f1({_gate(form, 2)}, d);
        const float16 now = (1.0f - gz) * gh + gz * vload16(0, hu);
        {_STORE}"""
    return _some_gates(0, 2, "h") + _units(reset), _some_gates(2, 3, "part") + _units(candidate, ended)


def _input(form: CellForm, gate: int) -> str:
    """Return the input's part of 16 units of a gate, with the input's bias."""
    bias = f" + $_some(bias + bo + {gate} * H, u, H)" if form.optional.bias else ""
    return f"$_some(X + xo + {gate} * H, u, H)" + bias


def _gate(form: CellForm, gate: int) -> str:
    """Return the sum of the input's and the state's parts of 16 units of a gate."""
    return f"{_input(form, gate)} + {_recurrent(form, gate)}"


def _recurrent(form: CellForm, gate: int) -> str:
    """Return the state's part of 16 units of a gate, with its bias."""
    bias = f" + $_some(bias + bo + GH + {gate} * H, u, H)" if form.optional.bias else ""
    return f"vload16(0, gate + ((u / {PANEL} * {form.gates} + {gate}) * rows + r) * {PANEL} + u % {PANEL})" + bias


def _peephole(form: CellForm, position: int, cell: str) -> str:
    return f" + $_some(P + (d * 3 + {position}) * H, u, H) * {cell}" if form.optional.peepholes else ""


def _product(form: CellForm) -> str:
    """Multiply the states by the panels of all gates, into ``gate``."""
    if form.rounds:
        return "$_multiply_rounded(rows, h, HP, (__global uchar*)part, H, R + ro, RS + d * GH, RZ + d * GH, gate);"
    return f"$_multiply_panels(rows, h, HP, R + ro, H, p0 * {form.gates}, p1 * {form.gates}, gate);"


def _some_gates(first: int, last: int, vector: str) -> str:
    """Multiply what is at *vector* by the panels of a GRU's gates from *first* to before *last*, into ``gate``."""
    each = f"$_multiply_panels(rows, {vector}, HP, R + ro, H, p * 3 + {first}, p * 3 + {last}, gate);"
    return f"for (int p = p0; p < p1; p++) {each}"


def _units(text: str, ended: str = "") -> str:
    """Return *text* for 16 units at a time of each row that is not at its end, and *ended* for the others."""
    units = """for (int u = u0; u < u1; u += 16) {{
        __global float* const hu = h + r * HP + u; __global float* const cu = c + r * HP + u;
        {}
      }}""".format
    return f"""for (int r = 0; r < rows; r++) {{
      if (i >= length[r]) {{ {units(ended) if ended else ""} continue; }}
      const int n = n0 + r, at = backwards ? length[r] - 1 - i : i;
      const int xo = ((at * xs_t + n * xs_n) * D + d) * GH, yo = (at * ys_t + d * ys_d + n * ys_n) * H;
      {units(text)}
    }}"""


_STORE = "vstore16(now, 0, to + r * HP + u); $_put(now, Y + yo, u, H);"


def _lstm(form: CellForm) -> str:
    forget = "1.0f - gi" if form.input_forget else f"$_f0({_gate(form, 2)}{_peephole(form, 2, 'before')}, d)"
    return f"""
        const float16 before = vload16(0, cu);
        const float16 gi = $_f0({_gate(form, 0)}{_peephole(form, 0, "before")}, d), gf = {forget};
        const float16 gc = $_f1({_gate(form, 3)}, d), cell = gf * before + gi * gc;
        const float16 go = $_f0({_gate(form, 1)}{_peephole(form, 1, "cell")}, d);
        const float16 now = go * $_f2(cell, d);
        vstore16(cell, 0, cu);
        {_STORE}"""


# Loads and stores some of a row's units.
_SOME = """
inline float16 $_some(__global const float* p, int from, int n) {
  if (from + 16 <= n) return vload16(0, p + from);
  float t[16];
  for (int i = 0; i < 16; i++) t[i] = from + i < n ? p[from + i] : 0.0f;
  return vload16(0, t);
}
inline void $_put(float16 v, __global float* p, int from, int n) {
  if (from + 16 <= n) { vstore16(v, 0, p + from); return; }
  float t[16];
  vstore16(v, 0, t);
  for (int i = 0; from + i < n; i++) p[from + i] = t[i];
}"""


def _multiply(form: CellForm) -> str:
    """What multiplies rows by panels."""
    if form.rounds:
        return multiply_bytes(form.registers, UINT8, sums=False) + _rounded_product(form.gates)
    registers = form.registers
    paired = range(1, pair_rows(registers) + 1)
    pairs = "".join(
        f"""
  if (rows == {rows})
    for (; p + 2 <= last; p += 2)
      $_pair{rows}(a, row, 1, b + p * depth * {PANEL}, depth * {PANEL}, depth, sums + {rows} * p * {PANEL});"""
        for rows in paired
    )
    return f"""{add_tiles(registers, "__global", "__global", "__global", fetch=True)}
{"".join(pair_tile(rows, "__global") for rows in paired)}
inline void $_multiply_panels(
    int rows, __global const float* a, int row, __global const float* b, int depth, int first, int last,
    __global float* sums) {{
  int p = first;{pairs}
  for (; p < last; p++) {{
    __global float* const to = sums + p * rows * {PANEL};
    for (int i = 0; i < 2 * rows; i++) vstore16((float16)(0.0f), i, to);
    $_tiles(rows, a, row, 1, b + p * depth * {PANEL}, {PANEL}, depth, to);
  }}
}}"""


def _rounded_product(gates: int) -> str:
    """``$_multiply_rounded``: rounds states to bytes, and multiplies them by all panels.

    With sums of rows and of columns, as in `int8/product.py`; sums of integers are exact. A row in which there is
    something that is not finite becomes NaN.
    """
    return f"""
// Returns the scale; its bytes are in ``to``, ``zero`` stands for 0, and ``sum`` is the bytes' sum.
inline float $_round(__global const float* from, int H, __global uchar* to, int* zero, int* sum) {{
  float16 least = 0.0f, most = 0.0f, finite = 0.0f;
  for (int u = 0; u < H; u += 16) {{
    const float16 v = $_some(from, u, H);
    least = fmin(least, v); most = fmax(most, v); finite += v - v;
  }}
  float low = 0.0f, high = 0.0f, extents[48];
  vstore16(least, 0, extents); vstore16(most, 1, extents); vstore16(finite, 2, extents);
  for (int i = 0; i < 16; i++) {{ low = fmin(low, extents[i]); high = fmax(high, extents[16 + i]); }}
  const float scale = high > low ? (high - low) / 255.0f : 1.0f, shift = rint(clamp(-low / scale, 0.0f, 255.0f));
  int16 sums = 0;
  for (int u = 0; u < H; u += 16) {{
    const int16 v = convert_int16(clamp(rint($_some(from, u, H) / scale) + shift, 0.0f, 255.0f));
    const uchar16 bytes = convert_uchar16(v);
    if (u + 16 <= H) {{ sums += v; vstore16(bytes, 0, to + u); continue; }}
    uchar t[16];
    vstore16(bytes, 0, t);
    for (int i = 0; u + i < H; i++) {{ to[u + i] = t[i]; sums.s0 += t[i]; }}
  }}
  const int8 s8 = sums.lo + sums.hi;
  const int4 s4 = s8.lo + s8.hi;
  *zero = (int)shift; *sum = s4.x + s4.y + s4.z + s4.w;
  float all = scale - scale;
  for (int i = 0; i < 16; i++) all += extents[32 + i];
  return scale + all;
}}
inline void $_multiply_rounded(
    int rows, __global const float* h, int row, __global uchar* bytes, int H, __global const int* b,
    __global const float* scales, __global const float* zeros, __global float* gate) {{
  float scale[{_MOST}];
  int zero[{_MOST}], sum[{_MOST}], t[{_MOST * PANEL}] __attribute__((aligned(64)));
  for (int i = 0; i < rows; i++) {{
    scale[i] = $_round(h + i * row, H, bytes + i * H, &zero[i], &sum[i]);
    sum[i] -= H * zero[i];
  }}
  const int K4 = (H + 3) / 4;
  for (int n0 = 0; n0 < H; n0 += {PANEL})
    for (int g = 0; g < {gates}; g++, b += (K4 + 1) * {PANEL}) {{
      $_multiply(rows, bytes, H, b, t, 0);
      for (int u = 0; u < {PANEL} && n0 + u < H; u += 16) {{
        const float16 by = $_some(scales + g * H, n0 + u, H);
        const int16 z = convert_int16($_some(zeros + g * H, n0 + u, H)), columns = vload16(0, b + K4 * {PANEL} + u);
        for (int i = 0; i < rows; i++) {{
          const int16 s = vload16(0, t + i * {PANEL} + u) - zero[i] * columns - z * sum[i];
          vstore16(convert_float16(s) * (scale[i] * by), 0, gate + i * {PANEL} + u);
        }}
      }}
      gate += rows * {PANEL};
    }}
}}"""
