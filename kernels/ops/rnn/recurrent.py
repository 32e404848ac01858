"""LSTM, GRU and RNN: recurrent layers over a sequence, forwards, backwards or both.

The products of all inputs with the input weights are one matrix product. Then the kernels of `kernels/recurrent` walk
the time of each batch row: one row at a time (`rows.py`), or on CPUs, where they can, several at once (`tiles.py`).

Steps at or beyond a row's `sequence_lens` give zeros and leave the state as it is; the reverse direction begins at a
row's last step.

RoundedStateLSTM is what ONNX Runtime's DynamicQuantizeLSTM does once its inputs are multiplied: in place of X and W it
takes the products, ``[T, N, D * 4 * H]``, and its recurrent weights are bytes, ``[D, H, 4 * H]``, with a scale and a zero
point for each column.

Source: ONNX LSTM-22, GRU-22, RNN-22.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from asyncrt.dims import Dim
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.impl import Impl, ImplBuilder, Ref, WeightsRequest, inp, out
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.matmul.product import Operand, matmul
from asyncrt.kernels.operator import Example, Operator, spread
from asyncrt.kernels.patterns.copy import copy_launch
from asyncrt.kernels.recurrent.interface import CellForm, OptionalInputs
from asyncrt.kernels.recurrent.rows import scratch_bytes, walked
from asyncrt.kernels.recurrent.shares import walked_in_shares
from asyncrt.kernels.recurrent.tiles import LEAST, Walks, byte_panels, cut_into_walks, gate_panels, walked_by_tiles
from asyncrt.kernels.shapes import check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, Array, Shape
from asyncrt.memory.view import View

from ._activations import ACTIVATIONS, Chosen

_Wide = npt.NDArray[np.float64]


class _Kind(NamedTuple):
    """What tells the three operators apart.

    Attributes:
        gates: Number of blocks of H rows in the weights.
        activations: Defaults of one direction.
        outputs: The most outputs that a node may have.
        rounds: Whether products take states that are rounded to bytes, and weights that are bytes.
    """

    name: str
    gates: int
    activations: tuple[str, ...]
    outputs: int
    rounds: bool = False


_LSTM = _Kind("LSTM", 4, ("Sigmoid", "Tanh", "Tanh"), 3)
_ROUNDED_LSTM = _LSTM._replace(rounds=True)
_GRU = _Kind("GRU", 3, ("Sigmoid", "Tanh"), 2)
_RNN = _Kind("RNN", 1, ("Tanh",), 2)

_OF_CELL = 2
"""The activation of an LSTM that takes the cell's state, which `clip` leaves as it is: it bounds what gates take.
ONNX's text says that it bounds what activations take; ONNX Runtime and OpenVINO do it so."""


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
    check(call, len(x) == len(r) == 3 == len(w) + kind.rounds, "data and weights must have three axes")
    n, t = (x[0], x[1]) if settings.batch_first else (x[1], x[0])
    d, hidden = settings.directions, r[1 if kind.rounds else 2]

    def fits(index: int, wanted: Sequence[int]) -> None:
        if call.has(index):
            given = call.shape(index)
            known = len(given) != len(wanted) or not any(isinstance(v, Dim) for v in (*given, *wanted))
            check(call, not known or given == tuple(wanted), f"input {index} is {list(given)}, not {list(wanted)}")

    if kind.rounds:
        fits(0, (t, n, d * kind.gates * hidden))
        fits(1, (d, kind.gates * hidden))
        fits(2, (d, hidden, kind.gates * hidden))
        fits(8, (d, kind.gates * hidden))
    else:
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
    if kind.rounds:
        zeros = wide(8)
        assert zeros is not None
        r = ((r - zeros[:, None]) * w[:, None]).swapaxes(1, 2)
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
            columns = slice(d * gates * hidden, (d + 1) * gates * hidden)
            products = xs[:, columns] if kind.rounds else xs @ w[d].T
            new_h, new_c = _step(kind, settings, settings.activations[d], products, h, c, r[d], bias, peepholes)
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
        limit = None if function == _OF_CELL else settings.clip
        return functions[function](value if limit is None else np.clip(value, -limit, limit))

    def peephole(position: int, cell: _Wide) -> _Wide | float:
        """Absent peepholes add 0, also where the cell is infinite (0 times infinity would be NaN)."""
        return 0.0 if peepholes is None else peepholes[position] * cell

    size = h.shape[1]
    if kind is _RNN:
        return apply(0, x + h @ r.T + bias[0] + bias[1]), c
    if kind.rounds:
        h = _rounded(h)
    if kind.name == _LSTM.name:
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


def _rounded(states: _Wide) -> _Wide:
    """Return rows as bytes with a scale and a zero point for each say them: those of DynamicQuantizeLinear.

    In float32, as kernels and ONNX Runtime do it: where a row's least and greatest are opposite, its zero is a tie. What
    is not finite becomes NaN, and a whole row if its range is not.
    """
    rows, zero, most = states.astype(np.float32), np.float32(0), np.float32(255)
    low, high = np.fmin.reduce(rows, 1, keepdims=True, initial=zero), np.fmax.reduce(rows, 1, keepdims=True, initial=zero)
    with np.errstate(all="ignore"):
        scale = np.where(high > low, (high - low) / most, np.float32(1))
        shift = np.rint(np.clip(-low / scale, zero, most))
        rounded = (np.clip(np.rint(rows / scale) + shift, zero, most) - shift).astype(np.float64) * scale
        made: _Wide = rounded + (scale - scale) + (rows - rows)
    return made


def _pack_input(w: Array) -> Array:
    """``[D, G * H, I]`` as ``[I, D * G * H]``."""
    return np.ascontiguousarray(w.transpose(2, 0, 1).reshape(w.shape[2], -1))


def _pack_state(r: Array) -> Array:
    """``[D, G * H, H]`` as ``[D, H, G * H]``."""
    return np.ascontiguousarray(r.transpose(0, 2, 1))


class _LayerSizes(NamedTuple):
    """The extents of a layer; `columns` are the units of all gates."""

    steps: int
    batch: int
    directions: int
    hidden: int
    columns: int
    width: int


def _sizes(kind: _Kind, settings: _CellSettings, call: Call) -> _LayerSizes:
    first, second, width = call.shape(0)
    steps, batch = (second, first) if settings.batch_first else (first, second)
    directions, columns = call.shape(1)[:2]
    return _LayerSizes(steps, batch, directions, columns // kind.gates, columns, width)


def _implement(kind: _Kind, call: Call, traits: DeviceTraits) -> Impl:
    settings = _settings(kind, call.name, call.attributes)
    s, dtype, made = _sizes(kind, settings, call), call.dtype(0), ImplBuilder()
    nbytes = max(1, s.steps * s.batch * s.directions * s.columns) * dtype.itemsize
    products = inp(0) if kind.rounds else made.scratch(nbytes)
    tiles = traits.is_cpu and dtype is FLOAT32 and call.constants[2] and traits.packed_weights and s.hidden >= LEAST
    real = "float16" if tiles else "double" if dtype is FLOAT64 else "float"
    form = CellForm(
        kind.name, kind.gates, _functions(settings, real), "1" if settings.reverse else "d == 1",
        OptionalInputs(*(call.has(i) for i in range(3, 8))), len(call.outputs), settings.input_forget,
        settings.linear_before_reset, kind.rounds, traits.registers,
    )  # fmt: skip
    walks: Walks | None = None
    if tiles:
        walks = cut_into_walks(form, s.batch, s.directions, s.hidden, traits)
        states = made.scratch(walks.nbytes)
        panels = byte_panels if kind.rounds else gate_panels
        by_state = made.weights(panels(2, kind.gates, s.directions, s.hidden))
    else:
        states = made.scratch(scratch_bytes(kind.gates, dtype, s.directions * s.batch, s.hidden))
        order = (0, 2, 1)
        by_state = inp(2) if kind.rounds else _transposed(call, 2, order, "recurrent state", _pack_state, made, traits)
    if s.steps and not kind.rounds:
        _multiply_inputs(kind, call, s, products, made, traits)
    refs = (products, by_state, states, *(inp(i) for i in range(3, 8) if call.has(i)))
    refs += (*(out(i) for i in range(len(call.outputs))), *((inp(1), inp(8)) if kind.rounds else ()))
    ints = (s.steps, s.batch, s.directions, s.hidden, *_strides(settings, s))
    if not walks:
        made.launch(walked(form, dtype, refs, ints, s.directions * s.batch, traits))
        return made.impl("rows" if traits.is_cpu else "groups")
    if walks.shares == 1:
        made.launch(walked_by_tiles(form, refs, ints, s.directions, walks))
        return made.impl("tiles of rows")
    for launch in walked_in_shares(form, refs, ints, s.directions, walks, traits):
        made.launch(launch)
    return made.impl("tiles of rows and units")


def _strides(settings: _CellSettings, s: _LayerSizes) -> tuple[int, ...]:
    """Return strides in rows: of x by time and batch, of Y and of the states."""
    if settings.batch_first:
        return (1, s.steps, s.directions, 1, s.steps * s.directions, 1, s.directions)
    return (s.batch, 1, s.directions * s.batch, s.batch, 1, s.batch, 1)


def _transposed(
    call: Call, index: int, order: Sequence[int], layout: str, pack: Callable[[Array], Array], made: ImplBuilder,
    traits: DeviceTraits,
) -> Ref:  # fmt: skip
    """Return where weights lie with their axes in another order: packed once if they are constant, else copied."""
    view = View.dense(call.shape(index)).permute(order)
    if call.constants[index] and traits.packed_weights:
        return made.weights(WeightsRequest(index, layout, pack, count(view.shape)))
    itemsize = call.dtype(0).itemsize
    target = made.scratch(max(1, count(view.shape)) * itemsize)
    made.launch(copy_launch(inp(index), view, target, View.dense(view.shape), itemsize, traits))
    return target


def _multiply_inputs(
    kind: _Kind, call: Call, s: _LayerSizes, products: Ref, made: ImplBuilder, traits: DeviceTraits
) -> None:
    """Multiply the inputs of all steps by the input weights, as one matrix product."""
    dtype, shape, constant = call.dtype(0), (s.width, s.directions * s.columns), None
    if traits.is_cpu and dtype is FLOAT32 and call.constants[1]:
        by_input, view, constant = inp(1), View(shape, (1, s.width)), 1  # the product asks for them packed
    else:
        by_input = _transposed(call, 1, (2, 0, 1), "recurrent input", _pack_input, made, traits)
        view = View.dense(shape)
    made.add(
        matmul(
            f"{kind.name.lower()}_input",
            Operand(inp(0), dtype, View.dense((s.steps * s.batch, s.width))),
            Operand(by_input, dtype, view),
            products,
            (),
            attrs.evolve(traits, narrow_weights=False),  # those of recurrent layers stay as they are
            constant=constant,
            transposed=constant is not None,
        )
    )


def _functions(settings: _CellSettings, real: str) -> str:
    """One OpenCL C function per activation: ``$_f0(x, d)``, ``$_f1(x, d)``, ..."""
    dtype = FLOAT64 if real == "double" else FLOAT32
    clip = ""
    if settings.clip is not None:
        low, high = literal(-settings.clip, dtype), literal(settings.clip, dtype)
        clip = f"x = x < {low} ? ({real}){low} : x > {high} ? ({real}){high} : x; "

    def text(chosen: Chosen) -> str:
        c = ACTIVATIONS[chosen.name].c.replace("(T)", f"({real})")
        return re.sub(r"\b[AB]\b", lambda m: literal(chosen.alpha if m[0] == "A" else chosen.beta, dtype), c)

    lines: list[str] = []
    for index, alternatives in enumerate(zip(*settings.activations, strict=True)):
        first, last = text(alternatives[0]), text(alternatives[-1])
        body = f"return {first};" if first == last else f"if (d == 0) return {first}; return {last};"
        lines.append(f"{real} $_f{index}({real} x, int d) {{ {clip if index != _OF_CELL else ''}{body} }}")
    return "\n".join(lines)


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


def _operator(kind: _Kind, examples: tuple[Example, ...], name: str = "", domain: str = "") -> Operator:
    def infer(call: Call) -> tuple[Shape, ...]:
        return _infer(kind, call)

    return Operator(
        name=name or kind.name,
        domain=domain,
        infer=infer,
        reference=functools.partial(_reference, kind),
        implement=functools.partial(_implement, kind),
        indices=_lengths,
        device_types=frozenset({FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT8, INT32}),
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


def _rounded_example(steps: int, batch: int, hidden: int, directions: int = 1, *, zero: int = 0) -> Example:
    columns = 4 * hidden
    scales = (0.002 + 0.01 * spread(directions, columns)).astype(np.float32)
    zeros = np.rint(zero * spread(directions, columns, skip=5)).astype(np.float32)
    shapes = (f"{steps},{batch},{directions * columns}", f"{directions},{hidden},{columns}", f"{directions},{2 * columns}")
    attributes = {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else "forward"}
    return Example(
        (f"f32[{shapes[0]}]", scales, f"i8[{shapes[1]}]", f"f32[{shapes[2]}]", None, None, None, None, zeros), attributes, 3
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
    _operator(
        _ROUNDED_LSTM,
        (_rounded_example(3, 2, 5), _rounded_example(4, 3, 18, 2, zero=20), _rounded_example(2, 1, 32, zero=-3)),
        "RoundedStateLSTM",
        "asyncrt",
    ),
    _operator(_GRU, (*_examples(_GRU), _example(_GRU, 4, 2, 3, 6, outputs=2, linear_before_reset=1))),
    _operator(_RNN, _examples(_RNN)),
)
