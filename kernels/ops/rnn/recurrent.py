"""LSTM, GRU and RNN: recurrent layers over a sequence, forwards, backwards or both.

The products of all inputs with the input weights are one matrix product. Then a work-item (CPU) or work-group (GPU)
walks the time of one batch row in one direction: each step is a product of the state with the recurrent weights,
which lie transposed so that neighbouring results are neighbours in memory. Where it can, a CPU does so for several rows
at once (`recurrent_tiles`).

Steps at or beyond a row's `sequence_lens` give zeros and leave the state as it is; the reverse direction begins at a
row's last step.

Source: ONNX LSTM-22, GRU-22, RNN-22.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrt.dims import Dim
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import accumulator_type, compute_type, kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, Ref, WeightsRequest, inp, out, scratch, weights
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.matmul.product import Operand, matmul
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.copy import copy_launch
from asyncrt.kernels.recurrent.tiles import LEAST, CellForm, gate_panels, tiled
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, Array, DataType, Shape
from asyncrt.memory.view import View

from ._activations import ACTIVATIONS, Chosen

_GROUP = 256
_Wide = npt.NDArray[np.float64]


class _Kind(NamedTuple):
    """What tells the three operators apart.

    Attributes:
        gates: Blocks of H rows in the weights.
        activations: Defaults of one direction.
        outputs: Most outputs.
    """

    name: str
    gates: int
    activations: tuple[str, ...]
    outputs: int


_LSTM = _Kind("LSTM", 4, ("Sigmoid", "Tanh", "Tanh"), 3)
_GRU = _Kind("GRU", 3, ("Sigmoid", "Tanh"), 2)
_RNN = _Kind("RNN", 1, ("Tanh",), 2)


class _CellSettings(NamedTuple):
    """Attributes, checked; part of the kernel's key."""

    directions: int
    reverse: bool
    activations: tuple[tuple[Chosen, ...], ...]
    clip: float | None
    linear_before_reset: bool
    input_forget: bool
    batch_first: bool


def _settings(kind: _Kind, name: str, attributes: Attributes) -> _CellSettings:
    direction = attributes.get("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ShapeError(f"'{name}': direction {direction!r} is not known")
    directions = 2 if direction == "bidirectional" else 1
    each = len(kind.activations)
    names = tuple(attributes.get("activations") or kind.activations * directions)
    if len(names) < each * directions:
        raise ShapeError(f"'{name}': {len(names)} activations for {directions} directions of {each}")
    alphas, betas = iter(attributes.get("activation_alpha") or ()), iter(attributes.get("activation_beta") or ())
    chosen: list[Chosen] = []
    for activation in names[: each * directions]:
        known = ACTIVATIONS.get(activation.lower())
        if known is None:
            raise ShapeError(f"'{name}': activation {activation!r} is not known")
        alpha = 0.0 if known.alpha is None else float(next(alphas, known.alpha))
        beta = 0.0 if known.beta is None else float(next(betas, known.beta))
        chosen.append(Chosen(activation.lower(), alpha, beta))
    clip = attributes.get("clip")
    if clip is not None and not clip > 0:
        raise ShapeError(f"'{name}': clip is {clip}; it must be above 0")
    return _CellSettings(
        directions,
        direction == "reverse",
        tuple(tuple(chosen[d * each : (d + 1) * each]) for d in range(directions)),
        clip,
        bool(attributes.get("linear_before_reset", 0)),
        bool(attributes.get("input_forget", 0)),
        bool(attributes.get("layout", 0)),
    )


def _infer(kind: _Kind, call: Call) -> tuple[Shape, ...]:
    settings = _settings(kind, call.name, call.attributes)
    x, w, r = call.shape(0), call.shape(1), call.shape(2)
    check(call, len(x) == len(w) == len(r) == 3, "data and weights must have three axes")
    n, t = (x[0], x[1]) if settings.batch_first else (x[1], x[0])
    d, hidden = settings.directions, r[2]

    def fits(index: int, wanted: Sequence[int]) -> None:
        if call.has(index):
            given = call.shape(index)
            known = len(given) != len(wanted) or not any(isinstance(v, Dim) for v in (*given, *wanted))
            check(call, not known or given == tuple(wanted), f"input {index} is {list(given)}, not {list(wanted)}")

    fits(1, (d, kind.gates * hidden, x[2]))
    fits(2, (d, kind.gates * hidden, hidden))
    fits(3, (d, 2 * kind.gates * hidden))
    fits(4, (n,))
    state = (n, d, hidden) if settings.batch_first else (d, n, hidden)
    fits(5, state)
    fits(6, state)
    fits(7, (d, 3 * hidden))
    every = (n, t, d, hidden) if settings.batch_first else (t, d, n, hidden)
    return (every, *(state,) * (kind.outputs - 1))[: max(1, len(call.output_types))]


def _lengths(call: Call) -> Indices | None:
    steps = call.shape(0)[1 if call.attributes.get("layout", 0) else 0]
    return Indices(4, ((0, steps),)) if call.has(4) else None


def _reference(kind: _Kind, attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    settings = _settings(kind, kind.name, attributes)

    def wide(index: int) -> _Wide | None:
        value = inputs[index] if index < len(inputs) else None
        return None if value is None else value.astype(np.float64)

    x, w, r, b, h0, c0, p = (wide(i) for i in (0, 1, 2, 3, 5, 6, 7))
    assert x is not None
    assert w is not None
    assert r is not None
    if settings.batch_first:
        x = x.swapaxes(0, 1)
        h0, c0 = (None if s is None else s.swapaxes(0, 1) for s in (h0, c0))
    steps, n, hidden, gates = x.shape[0], x.shape[1], r.shape[2], kind.gates
    given = inputs[4] if len(inputs) > 4 else None
    lengths = np.full(n, steps) if given is None else given.astype(np.int64)
    every = np.zeros((steps, settings.directions, n, hidden))
    finals = np.zeros((2, settings.directions, n, hidden))
    for d in range(settings.directions):
        h = np.zeros((n, hidden)) if h0 is None else h0[d]
        c = np.zeros((n, hidden)) if c0 is None else c0[d]
        bias = np.zeros((2, gates * hidden)) if b is None else b[d].reshape(2, -1)
        peepholes = None if p is None else p[d].reshape(3, -1)
        rows = np.arange(n)
        for step in range(steps):
            at = lengths - 1 - step if settings.reverse or d == 1 else np.full(n, step)
            live = (step < lengths)[:, None]
            xs = x[np.maximum(at, 0), rows]
            new_h, new_c = _step(kind, settings, settings.activations[d], xs @ w[d].T, h, c, r[d], bias, peepholes)
            h, c = np.where(live, new_h, h), np.where(live, new_c, c)
            every[at[live[:, 0]], d, rows[live[:, 0]]] = h[live[:, 0]]
        finals[:, d] = h, c
    if settings.batch_first:
        every, finals = every.transpose(2, 0, 1, 3), finals.swapaxes(1, 2)
    dtype = inputs[0].dtype  # type: ignore[union-attr]  # present, see above
    return tuple(np.ascontiguousarray(a).astype(dtype) for a in (every, *finals[: kind.outputs - 1]))


def _step(
    kind: _Kind,
    settings: _CellSettings,
    functions: Sequence[Chosen],
    x: _Wide,
    h: _Wide,
    c: _Wide,
    r: _Wide,
    bias: _Wide,
    peepholes: _Wide | None,
) -> tuple[_Wide, _Wide]:
    """One step of one direction over all batch rows: the new hidden and cell states."""

    def apply(function: int, value: _Wide) -> _Wide:
        return functions[function](value if settings.clip is None else np.clip(value, -settings.clip, settings.clip))

    def peephole(position: int, cell: _Wide) -> _Wide | float:
        """What is not there adds nothing, not even 0 times infinity."""
        return 0.0 if peepholes is None else peepholes[position] * cell

    size = h.shape[1]
    if kind is _RNN:
        return apply(0, x + h @ r.T + bias[0] + bias[1]), c
    if kind is _LSTM:
        i, o, f, g = np.split(x + h @ r.T + bias[0] + bias[1], 4, axis=1)
        i = apply(0, i + peephole(0, c))
        f = 1 - i if settings.input_forget else apply(0, f + peephole(2, c))
        c = f * c + i * apply(1, g)
        return apply(0, o + peephole(1, c)) * apply(2, c), c
    first = x[:, : 2 * size] + h @ r[: 2 * size].T + bias[0, : 2 * size] + bias[1, : 2 * size]
    z, reset = np.split(apply(0, first), 2, axis=1)
    last, rest = r[2 * size :], x[:, 2 * size :] + bias[0, 2 * size :]
    if settings.linear_before_reset:
        candidate = apply(1, rest + reset * (h @ last.T + bias[1, 2 * size :]))
    else:
        candidate = apply(1, rest + (reset * h) @ last.T + bias[1, 2 * size :])
    return (1 - z) * candidate + z * h, c


def _pack_input(w: Array) -> Array:
    """``[D, G * H, I]`` as ``[I, D * G * H]``."""
    return np.ascontiguousarray(w.transpose(2, 0, 1).reshape(w.shape[2], -1))


def _pack_state(r: Array) -> Array:
    """``[D, G * H, H]`` as ``[D, H, G * H]``."""
    return np.ascontiguousarray(r.transpose(0, 2, 1))


def _implement(kind: _Kind, call: Call, traits: DeviceTraits) -> Impl:
    settings = _settings(kind, call.name, call.attributes)
    x, w, dtype = call.shape(0), call.shape(1), call.dtype(0)
    n, t = (x[0], x[1]) if settings.batch_first else (x[1], x[0])
    d, columns, width = w
    hidden = columns // kind.gates
    wide = FLOAT64 if dtype is FLOAT64 else FLOAT32
    launches: list[Launch] = []
    requests: list[WeightsRequest] = []
    sizes = [max(1, t * n * d * columns) * dtype.itemsize, d * n * (kind.gates + 3) * hidden * wide.itemsize]

    def transposed(index: int, view: View, layout: str, pack: Callable[[Array], Array]) -> Ref:
        """Weights in another order: packed once if they are constant, else copied."""
        if call.constants[index] and traits.packed_weights:
            requests.append(WeightsRequest(index, layout, pack, count(view.shape)))
            return weights(len(requests) - 1)
        sizes.append(max(1, count(view.shape)) * dtype.itemsize)
        target = scratch(len(sizes) - 1)
        copy = copy_launch(inp(index), view, target, View.dense(view.shape), dtype.itemsize, traits)
        launches.extend([copy] if copy else [])
        return target

    tiles = traits.is_cpu and dtype is FLOAT32 and call.constants[2] and traits.packed_weights and hidden >= LEAST
    if tiles:
        state = weights(0)
        requests.append(gate_panels(2, kind.gates, d, hidden))
    else:
        state = transposed(2, View.dense(call.shape(2)).permute((0, 2, 1)), "recurrent state", _pack_state)
    if t:
        by_input = transposed(1, View.dense(w).permute((2, 0, 1)), "recurrent input", _pack_input)
        product = matmul(
            f"{kind.name.lower()}_input",
            Operand(inp(0), dtype, View.dense((t * n, width))),
            Operand(by_input, dtype, View.dense((width, d * columns))),
            scratch(0),
            (),
            traits,
        )
        launches.extend(product.launches)
    optional = tuple(call.has(i) for i in range(3, 8))
    refs = (scratch(0), state, scratch(1), *(inp(i) for i in range(3, 8) if call.has(i)))
    refs += tuple(out(i) for i in range(len(call.outputs)))
    if settings.batch_first:  # strides in rows: of x by time and batch, of Y and of the states
        strides = (1, t, d, 1, t * d, 1, d)
    else:
        strides = (n, 1, d * n, n, 1, n, 1)
    ints = (t, n, d, hidden, *strides)
    if tiles:
        form = CellForm(
            kind.name, kind.gates, _functions(settings, "float16"), _backwards(settings), optional, len(call.outputs),
            settings.input_forget, settings.linear_before_reset,
        )  # fmt: skip
        launch, sizes[1] = tiled(form, refs, ints, n, d, hidden, traits)
        return Impl("tiles of rows", (*launches, launch), tuple(sizes), tuple(requests))
    functions = _functions(settings, "double" if dtype is FLOAT64 else "float")
    flags = settings._replace(activations=(), clip=None)  # their numbers are in the text: some do not compare
    k = _kernel(kind, flags, functions, dtype, optional, len(call.outputs), traits.is_cpu)
    if traits.is_cpu:
        launches.append(Launch(k, refs, ints, (d * n,), (1,)))
    else:
        group = min(_GROUP, traits.max_group)
        launches.append(Launch(k, refs, ints, (d * n * group,), (group,)))
    return Impl("rows" if traits.is_cpu else "groups", tuple(launches), tuple(sizes), tuple(requests))


def _backwards(settings: _CellSettings) -> str:
    return "1" if settings.reverse else "d == 1"


def _functions(settings: _CellSettings, real: str) -> str:
    """One OpenCL C function per activation: ``$_f0(x, d)``, ``$_f1(x, d)``, ..."""
    dtype = FLOAT64 if real == "double" else FLOAT32
    clip = ""
    if settings.clip is not None:
        low, high = literal(-settings.clip, dtype), literal(settings.clip, dtype)
        clip = f"x = x < {low} ? ({real}){low} : x > {high} ? ({real}){high} : x;"

    def text(chosen: Chosen) -> str:
        c = ACTIVATIONS[chosen.name].c.replace("(T)", f"({real})")
        return re.sub(r"\b[AB]\b", lambda m: literal(chosen.alpha if m[0] == "A" else chosen.beta, dtype), c)

    lines: list[str] = []
    for index, alternatives in enumerate(zip(*settings.activations, strict=True)):
        first, last = text(alternatives[0]), text(alternatives[-1])
        body = f"return {first};" if first == last else f"if (d == 0) return {first}; return {last};"
        lines.append(f"{real} $_f{index}({real} x, int d) {{ {clip} {body} }}")
    return "\n".join(lines)


def _product(dtype: DataType, cpu: bool, vector: str, first: str, last: str) -> str:
    """``gate[j] = sum over k of vector[k] * R[k][j]`` for j from *first* to before *last*."""
    real = accumulator_type(dtype)
    if not cpu:
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


@functools.cache
def _kernel(
    kind: _Kind,
    settings: _CellSettings,
    functions: str,
    dtype: DataType,
    optional: tuple[bool, ...],
    outputs: int,
    cpu: bool,
) -> KernelSource:
    t, real, result = dtype.name, accumulator_type(dtype), compute_type(dtype)
    wide = FLOAT64 if dtype is FLOAT64 else FLOAT32
    bias, lens, has_h, has_c, peepholes = optional
    units = "for (int u = 0; u < H; u++)" if cpu else "for (int u = id; u < H; u += group)"
    barrier = "" if cpu else "barrier(CLK_GLOBAL_MEM_FENCE);"

    def x(gate: int) -> str:
        """The input's part of a gate, with the input's bias."""
        return f"LOAD({t}, X, xo + {gate} * H + u)" + (f" + LOAD({t}, bias, bo + {gate} * H + u)" if bias else "")

    def recurrent(gate: int) -> str:
        return f"gate[{gate} * H + u]" + (f" + LOAD({t}, bias, bo + GH + {gate} * H + u)" if bias else "")

    def peephole(position: int, cell: str) -> str:
        return f" + LOAD({t}, P, (d * 3 + {position}) * H + u) * {cell}" if peepholes else ""

    def product(vector: str, first: str, last: str) -> str:
        return _product(dtype, cpu, vector, first, last)

    store = f"const {result} hv = h[u]; STORE({t}, Y, yo + u, hv);"
    if kind is _LSTM:
        forget = "1 - gi" if settings.input_forget else f"$_f0({x(2)} + {recurrent(2)}{peephole(2, 'c[u]')}, d)"
        step = f"""
    {product("h", "0", "GH")}
    {barrier}
    {units} {{
      const {real} gi = $_f0({x(0)} + {recurrent(0)}{peephole(0, "c[u]")}, d), gf = {forget};
      const {real} gc = $_f1({x(3)} + {recurrent(3)}, d), cell = gf * c[u] + gi * gc;
      const {real} go = $_f0({x(1)} + {recurrent(1)}{peephole(1, "cell")}, d);
      c[u] = cell;
      h[u] = go * $_f2(cell, d);
      {store}
    }}"""
    elif kind is _RNN:
        step = f"""
    {product("h", "0", "GH")}
    {barrier}
    {units} {{ h[u] = $_f0({x(0)} + {recurrent(0)}, d); {store} }}"""
    elif settings.linear_before_reset:
        step = f"""
    {product("h", "0", "GH")}
    {barrier}
    {units} {{
      const {real} gz = $_f0({x(0)} + {recurrent(0)}, d), gr = $_f0({x(1)} + {recurrent(1)}, d);
      const {real} gh = $_f1({x(2)} + gr * ({recurrent(2)}), d);
      h[u] = (1 - gz) * gh + gz * h[u];
      {store}
    }}"""
    else:
        step = f"""
    {product("h", "0", "2 * H")}
    {barrier}
    {units} part[u] = h[u] * $_f0({x(1)} + {recurrent(1)}, d);
    {barrier}
    {product("part", "2 * H", "GH")}
    {barrier}
    {units} {{
      const {real} gz = $_f0({x(0)} + {recurrent(0)}, d), gh = $_f1({x(2)} + {recurrent(2)}, d);
      h[u] = (1 - gz) * gh + gz * h[u];
      {store}
    }}"""
    finals = [f"{{ const {result} v = {s}[u]; STORE({t}, {o}, so + u, v); }}" for o, s in (("YH", "h"), ("YC", "c"))]
    body = f"""
  const int row = (int){"get_global_id(0)" if cpu else "get_group_id(0)"}, d = row / N, n = row - d * N;
  {"" if cpu else "const int id = (int)get_local_id(0), group = (int)get_local_size(0);"}
  const int GH = {kind.gates} * H, ro = d * H * GH, bo = d * 2 * GH, so = (d * hs_d + n * hs_n) * H;
  __global {real}* h = S + row * (GH + 3 * H);
  __global {real}* c = h + H;
  __global {real}* part = c + H;
  __global {real}* gate = part + H;
  const int length = {"clamp(lens[n], 0, T)" if lens else "T"}, backwards = {_backwards(settings)};
  {units} {{
    h[u] = {f"LOAD({t}, H0, so + u)" if has_h else "0"};
    c[u] = {f"LOAD({t}, C0, so + u)" if has_c else "0"};
  }}
  for (int i = length; i < T; i++) {{
    const int yo = (i * ys_t + d * ys_d + n * ys_n) * H;
    {units} {{ const {result} v = 0; STORE({t}, Y, yo + u, v); }}
  }}
  {barrier}
  for (int i = 0; i < length; i++) {{
    const int at = backwards ? length - 1 - i : i;
    const int xo = ((at * xs_t + n * xs_n) * D + d) * GH, yo = (at * ys_t + d * ys_d + n * ys_n) * H;
    {step}
    {barrier}
  }}
  {units} {{ {" ".join(finals[: outputs - 1])} }}"""
    named = (("bias", dtype), ("lens", INT32), ("H0", dtype), ("C0", dtype), ("P", dtype))
    buffers: tuple[tuple[str, DataType, str], ...] = (("X", dtype, "r"), ("R", dtype, "r"), ("S", wide, "rw"))
    buffers += tuple((name, type_, "r") for (name, type_), given in zip(named, optional, strict=True) if given)
    buffers += tuple((name, dtype, "w") for name in ("Y", "YH", "YC")[:outputs])
    ints = ("T", "N", "D", "H", "xs_t", "xs_n", "ys_t", "ys_d", "ys_n", "hs_d", "hs_n")
    return kernel(kind.name.lower(), buffers, ints, body, helpers=functions)


def _example(
    kind: _Kind,
    steps: int,
    batch: int,
    width: int,
    hidden: int,
    *,
    directions: int = 1,
    given: Sequence[int] = (3,),
    outputs: int = 1,
    dtype: str = "f32",
    batch_first: bool = False,
    **attributes: Any,
) -> Example:
    """An example whose optional inputs are those with the indices *given*."""
    columns = kind.gates * hidden
    state = f"{batch},{directions},{hidden}" if batch_first else f"{directions},{batch},{hidden}"
    shapes = {
        0: f"{batch},{steps},{width}" if batch_first else f"{steps},{batch},{width}",
        1: f"{directions},{columns},{width}", 2: f"{directions},{columns},{hidden}", 3: f"{directions},{2 * columns}",
        5: state, 6: state, 7: f"{directions},{3 * hidden}",
    }  # fmt: skip
    last = max(2, *given) if given else 2
    inputs: list[Any] = [f"{dtype}[{shapes[i]}]" if i < 3 or i in given else None for i in range(last + 1)]
    attributes["hidden_size"] = hidden
    if batch_first:
        attributes["layout"] = 1
    if directions == 2:
        attributes["direction"] = "bidirectional"
    return Example(tuple(inputs), attributes, outputs, opset=14)


def _operator(kind: _Kind, examples: tuple[Example, ...]) -> Operator:
    def infer(call: Call) -> tuple[Shape, ...]:
        return _infer(kind, call)

    return Operator(
        name=kind.name,
        infer=infer,
        reference=functools.partial(_reference, kind),
        implement=functools.partial(_implement, kind),
        indices=_lengths,
        device_types=frozenset({FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT32}),
        examples=examples,
    )


def _examples(kind: _Kind) -> tuple[Example, ...]:
    return (
        _example(kind, 5, 2, 3, 4, outputs=2),
        _example(kind, 4, 3, 5, 17, given=(), outputs=1),
        _example(kind, 3, 2, 6, 32, given=(3, 5), outputs=2, directions=2),
        _example(kind, 3, 2, 4, 5, outputs=2, direction="reverse"),
        _example(kind, 2, 1, 3, 4, outputs=2, dtype="f16"),
    )


OPERATORS = (
    _operator(
        _LSTM,
        (
            *_examples(_LSTM),
            _example(_LSTM, 4, 2, 3, 6, given=(3, 5, 6, 7), outputs=3, directions=2),
            _example(_LSTM, 4, 2, 3, 6, given=(3, 7), outputs=3),
        ),
    ),
    _operator(_GRU, (*_examples(_GRU), _example(_GRU, 4, 2, 3, 6, outputs=2, linear_before_reset=1))),
    _operator(_RNN, _examples(_RNN)),
)
