"""Attention: scaled dot-product attention of several heads, with masks, a key/value cache and shared key heads.

Sums and the softmax are calculated in float32 at least, whatever `softmax_precision` says. Query i of a request with
`past` cached keys is at position ``past + i``; where an outer cache says with `nonpad_kv_seqlen` how many keys there
are, the queries are the last of them. A row that sees no key gives zeros.

Source: ONNX Attention-25, Attention-24, Attention-23.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Undetermined
from asyncrt.errors import ShapeError
from asyncrt.kernels.attention import attention as kernels
from asyncrt.kernels.attention.interface import AttentionTensor
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, ImplBuilder, inp, out
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.copy import copy_launch
from asyncrt.kernels.shapes import count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Shape, row_major, show_shape
from asyncrt.memory.view import View, broadcast_strides

_QUERY, _KEY, _VALUE, _MASK, _PAST_KEY, _PAST_VALUE, _VALID = range(7)
_MODES = (kernels.SCORES, kernels.CAPPED, kernels.BIASED, kernels.PROBABILITIES)


class _Sizes(NamedTuple):
    """The extents of one attention; `heads` are those of the query."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    new: int
    past: int
    size: int
    value_size: int

    @property
    def keys(self) -> int:
        return self.past + self.new


def _agree(call: Call, what: str, *dims: int) -> None:
    """Raise `ShapeError` unless the dims are the same; dims that are not known yet may be."""
    for dim in dims[1:]:
        try:
            same = dims[0] == dim
        except Undetermined:
            continue
        if not same:
            raise ShapeError(f"'{call.name}': {what} of {' and '.join(str(d) for d in dims)} do not fit")


def _sizes(call: Call) -> _Sizes:
    mode = call.attributes.get("qk_matmul_output_mode", 0)
    if mode not in _MODES:  # no kernel would write the scores
        raise ShapeError(f"'{call.name}': qk_matmul_output_mode {mode} is not known")
    q, k, v = call.shape(_QUERY), call.shape(_KEY), call.shape(_VALUE)
    if not len(q) == len(k) == len(v) or len(q) not in (3, 4):
        shapes = ", ".join(show_shape(s) for s in (q, k, v))
        raise ShapeError(f"'{call.name}': query, key and value must all have 3 or all have 4 axes: {shapes}")
    if len(q) == 4:
        (batch, heads, queries, size), (_, kv_heads, new, key_size), value_size = q, k, v[3]
        _agree(call, "heads of key and value", kv_heads, v[1])
        _agree(call, "keys and values", new, v[2])
    else:
        heads, kv_heads = call.attributes.get("q_num_heads", 0), call.attributes.get("kv_num_heads", 0)
        if heads < 1 or kv_heads < 1:
            raise ShapeError(f"'{call.name}': inputs of 3 axes need q_num_heads and kv_num_heads")
        batch, queries, new = q[0], q[1], k[1]
        size, key_size, value_size = q[2] // heads, k[2] // kv_heads, v[2] // kv_heads
        _agree(call, "query elements and heads", q[2], size * heads)
        _agree(call, "key elements and heads", k[2], key_size * kv_heads)
        _agree(call, "value elements and heads", v[2], value_size * kv_heads)
        _agree(call, "keys and values", new, v[1])
    _agree(call, "batches", batch, k[0], v[0])
    _agree(call, "head sizes", size, key_size)
    _agree(call, "query heads and key heads", heads % kv_heads, 0)
    past: int = 0
    if call.has(_PAST_KEY) != call.has(_PAST_VALUE):
        raise ShapeError(f"'{call.name}': past_key and past_value must come together")
    if call.has(_PAST_KEY):
        pk, pv = call.shape(_PAST_KEY), call.shape(_PAST_VALUE)
        if len(pk) != 4 or len(pv) != 4:
            raise ShapeError(f"'{call.name}': past_key and past_value must have 4 axes")
        past = pk[2]
        _agree(call, "cached keys and values", past, pv[2])
        _agree(call, "cached batches", batch, pk[0], pv[0])
        _agree(call, "cached heads", kv_heads, pk[1], pv[1])
        _agree(call, "cached head sizes", size, pk[3])
        _agree(call, "cached value sizes", value_size, pv[3])
    if call.has(_VALID):
        _agree(call, "batches of nonpad_kv_seqlen", batch, count(call.shape(_VALID)))
        if call.has(_PAST_KEY):
            raise ShapeError(f"'{call.name}': nonpad_kv_seqlen and past_key name two caches")
    return _Sizes(batch, heads, kv_heads, queries, new, past, size, value_size)


def infer(call: Call) -> Sequence[Shape]:
    s = _sizes(call)
    if call.has(_MASK):
        _check_mask(call, call.shape(_MASK), s)
    if len(call.shape(_QUERY)) == 4:
        y: Shape = (s.batch, s.heads, s.queries, s.value_size)
    else:
        y = (s.batch, s.queries, s.heads * s.value_size)
    key, value = (s.batch, s.kv_heads, s.keys, s.size), (s.batch, s.kv_heads, s.keys, s.value_size)
    return (y, key, value, (s.batch, s.heads, s.queries, s.keys))[: max(1, len(call.output_types))]


def _check_mask(call: Call, mask: Shape, s: _Sizes) -> None:
    wanted = (s.batch, s.heads, s.queries)
    try:
        fits = 1 <= len(mask) <= 4 and mask[-1] <= s.keys
        fits = fits and all(d == 1 or d == w for d, w in zip(reversed(mask[:-1]), reversed(wanted), strict=False))
    except Undetermined:
        return
    if not fits:
        raise ShapeError(
            f"'{call.name}': attn_mask {show_shape(mask)} does not broadcast to {show_shape((*wanted, s.keys))}"
        )


def _heads(x: Array, heads: int) -> Any:
    """Return *x* with 4 axes, in float64."""
    wide: Any = x.astype(np.float64)
    if x.ndim == 4:
        return wide
    return wide.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def _scale(attributes: Attributes, size: int) -> float:
    scale = attributes.get("scale")
    return 1 / math.sqrt(max(size, 1)) if scale is None else float(scale)


def _softcap(attributes: Attributes) -> float:
    """Return the bound of the scores, or 0 if they have none. Values of 0 and below mean no bound, as in ONNX Runtime."""
    cap = float(attributes.get("softcap", 0.0))
    return cap if cap > 0 else 0.0


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array, Array, Array, Array]:
    x = [*inputs, *(None,) * (7 - len(inputs))]
    query, key, value = x[:3]
    assert query is not None
    assert key is not None
    assert value is not None
    kv_heads = attributes.get("kv_num_heads", 0)
    q, k, v = _heads(query, attributes.get("q_num_heads", 0)), _heads(key, kv_heads), _heads(value, kv_heads)
    past = 0
    past_key, past_value, valid = x[_PAST_KEY], x[_PAST_VALUE], x[_VALID]
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k = np.concatenate([past_key.astype(np.float64), k], axis=2)
        v = np.concatenate([past_value.astype(np.float64), v], axis=2)
    present_key, present_value = k.astype(key.dtype), v.astype(value.dtype)
    batch, heads, queries, size = q.shape
    keys = k.shape[2]
    scores = np.matmul(q, np.repeat(k, heads // k.shape[1], axis=1).swapaxes(2, 3))
    scores = scores * _scale(attributes, size)
    given = scores
    cap = _softcap(attributes)
    if cap:
        scores = cap * np.tanh(scores / cap)
    mode = attributes.get("qk_matmul_output_mode", 0)
    given = scores if mode == kernels.CAPPED else given
    seen, added = _bias(attributes, x[_MASK], valid, past, batch, queries, keys)
    scores = np.where(seen, scores + added, -np.inf)  # also where a masked score is NaN
    given = scores if mode == kernels.BIASED else given
    with np.errstate(all="ignore"):
        top = scores.max(axis=3, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
        total = weights.sum(axis=3, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    given = weights if mode == kernels.PROBABILITIES else given
    y = np.matmul(weights, np.repeat(v, heads // v.shape[1], axis=1))
    if query.ndim == 3:
        y = y.transpose(0, 2, 1, 3).reshape(batch, queries, heads * y.shape[3])
    with np.errstate(all="ignore"):
        return y.astype(query.dtype), present_key, present_value, given.astype(query.dtype)


def host_nbytes(call: Call) -> int:
    """Bytes of several copies of the scores, and of keys and values for all heads, in float64."""
    s = _sizes(call)
    return 8 * s.batch * s.heads * (6 * s.queries * s.keys + 4 * (s.queries + s.keys) * (s.size + s.value_size))


def _bias(
    attributes: Attributes, mask: Array | None, valid: Array | None, past: int, batch: int, queries: int, keys: int
) -> tuple[Any, Any]:
    """Return which keys are seen, and what is added to the scores of those."""
    j, count_of = np.arange(keys), np.full(batch, keys)
    position = np.arange(queries)[None, :, None] + past
    if valid is not None:
        count_of = valid.reshape(-1).astype(np.int64)
        position = np.arange(queries)[None, :, None] + (count_of - queries)[:, None, None]
    seen = np.broadcast_to(j < count_of[:, None, None], (batch, queries, keys))
    if attributes.get("is_causal", 0):
        seen = seen & (j <= position)
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    if left >= 0:
        seen = seen & (j >= position - left)
    if right >= 0:
        seen = seen & (j <= position + right)
    seen = seen[:, None]
    if mask is None:
        return seen, 0.0
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
    if mask.dtype == np.bool_:
        return seen & np.pad(mask, missing, constant_values=False), 0.0
    return seen, np.pad(mask.astype(np.float64), missing, constant_values=-np.inf)


def takes_view(call: Call, index: int, view: View) -> bool:
    """Queries, keys and values need rows of adjacent elements; cached ones are copied, through any strides."""
    if index in (_PAST_KEY, _PAST_VALUE):
        return True
    return index in (_QUERY, _KEY, _VALUE) and (view.strides[-1] == 1 or view.shape[-1] == 1)


def indices(call: Call) -> Indices | None:
    """How many keys of each batch entry there are."""
    return Indices(_VALID, ((0, _sizes(call).keys),)) if call.has(_VALID) else None


def implement(call: Call, traits: DeviceTraits) -> Impl:
    s, dtype, attributes = _sizes(call), call.dtype(_QUERY), call.attributes
    made = ImplBuilder()
    key = _cached(call, s, _KEY, made, traits)
    value = _cached(call, s, _VALUE, made, traits)
    whole = kernels.Attention(
        query=AttentionTensor(inp(_QUERY), dtype, *_strides(call, call.view(_QUERY), s.size)),
        key=key,
        value=value,
        target=AttentionTensor(out(0), dtype, *_strides(call, View.dense(call.outputs[0].shape), s.value_size)),
        batch=s.batch,
        kv_heads=s.kv_heads,
        group=s.heads // s.kv_heads,
        queries=s.queries,
        keys=s.keys,
        size=s.size,
        value_size=s.value_size,
        scale=_scale(attributes, s.size),
        softcap=_softcap(attributes),
        causal=bool(attributes.get("is_causal", 0)),
        offset=s.past,
        left=attributes.get("left_window_size", -1),
        right=attributes.get("right_window_size", -1),
        mask=_mask(call, s),
        mask_keys=call.shape(_MASK)[-1] if call.has(_MASK) else 0,
        valid=inp(_VALID) if call.has(_VALID) else None,
        scores=_scores(call),
        scores_mode=attributes.get("qk_matmul_output_mode", 0),
    )
    return kernels.attention_impl(whole, tuple(made.launches), tuple(made.sizes), traits)


def _strides(call: Call, view: View, size: int) -> tuple[int, int, int]:
    """Return the elements between batches, heads (of *size* elements) and rows of an input or of the first output."""
    packed = len(call.shape(_QUERY)) == 3
    return (view.strides[0], size, view.strides[1]) if packed else view.strides[:3]  # type: ignore[return-value]  # 4


def _mask(call: Call, s: _Sizes) -> AttentionTensor | None:
    if not call.has(_MASK):
        return None
    shape = call.shape(_MASK)
    steps = broadcast_strides(shape, (s.batch, s.heads, s.queries, shape[-1]))
    return AttentionTensor(inp(_MASK), call.dtype(_MASK), *steps[:3])


def _scores(call: Call) -> AttentionTensor | None:
    if len(call.outputs) <= 3:
        return None
    return AttentionTensor(out(3), call.dtype(_QUERY), *row_major(call.outputs[3].shape)[:3])


def _cached(call: Call, s: _Sizes, index: int, made: ImplBuilder, traits: DeviceTraits) -> AttentionTensor:
    """Return the keys or the values, input *index*: where they are, or written behind the cached ones."""
    past, output, size = (_PAST_KEY, 1, s.size) if index == _KEY else (_PAST_VALUE, 2, s.value_size)
    dtype, own = call.dtype(index), _strides(call, call.view(index), size)
    present = (s.batch, s.kv_heads, s.keys, size)
    wanted = len(call.outputs) > output
    if not wanted and not call.has(past):
        return AttentionTensor(inp(index), dtype, *own)
    target = out(output) if wanted else made.scratch(count(present) * dtype.itemsize)
    whole = View.dense(present)
    parts = [(inp(index), View((s.batch, s.kv_heads, s.new, size), (*own, 1)), s.past)]
    if call.has(past):
        parts.append((inp(past), call.view(past), 0))
    for source, view, start in parts:
        made.launch(
            copy_launch(source, view, target, whole.slice(2, start, view.shape[2]), dtype.itemsize, traits)
        )
    return AttentionTensor(target, dtype, *row_major(present)[:3])


_PADDED = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]], np.bool_).reshape(2, 1, 1, 6)
_NONE = np.concatenate([np.zeros((1, 7), np.bool_), np.ones((3, 7), np.bool_)])
_BIAS = np.where(np.arange(28).reshape(4, 7) % 3 == 0, -np.inf, 0.5).astype(np.float32)
_LENGTHS = np.array([5, 2], np.int64)
_HEADS = {"q_num_heads": 4, "kv_num_heads": 2}

OPERATOR = Operator(
    name="Attention",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    implement=implement,
    indices=indices,
    value_hints=(_VALID,),
    compares_hints=False,
    takes_view=takes_view,
    examples=(
        Example(("f32[2,3,5,16]", "f32[2,3,6,16]", "f32[2,3,6,16]"), opset=23),
        Example(("f32[1,2,37,64]", "f32[1,2,37,64]", "f32[1,2,37,64]"), {"is_causal": 1}, opset=23),
        Example(("f32[2,2,4,19]", "f32[2,2,6,19]", "f32[2,2,6,35]", _PADDED), opset=23),
        Example(("f32[1,2,4,8]", "f32[1,2,7,8]", "f32[1,2,7,5]", _NONE), opset=23),
        Example(("f32[1,2,4,8]", "f32[1,2,7,8]", "f32[1,2,7,5]", _BIAS), {"scale": 0.3, "softcap": 2.0}, opset=23),
        Example(("f32[2,5,32]", "f32[2,6,16]", "f32[2,6,20]"), _HEADS, opset=23),
        Example(
            ("f32[2,1,64]", "f32[2,1,32]", "f32[2,1,32]", None, "f32[2,2,20,16]", "f32[2,2,20,16]"),
            {**_HEADS, "is_causal": 1}, outputs=3, opset=23,
        ),
        Example(
            ("f32[2,4,3,80]", "f32[2,1,3,80]", "f32[2,1,3,80]", None, "f32[2,1,5,80]", "f32[2,1,5,80]"),
            {"is_causal": 1}, opset=23,
        ),
        Example(("f32[1,2,3,8]", "f32[1,2,3,8]", "f32[1,2,3,8]"), {"is_causal": 1}, outputs=4, opset=23),
        Example(
            ("f32[1,2,4,8]", "f32[1,2,7,8]", "f32[1,2,7,5]", _BIAS),
            {"softcap": 2.0, "qk_matmul_output_mode": 1}, outputs=4, opset=23,
        ),
        Example(
            ("f32[1,2,4,8]", "f32[1,2,7,8]", "f32[1,2,7,5]", _BIAS),
            {"softcap": 2.0, "qk_matmul_output_mode": 2}, outputs=4, opset=23,
        ),
        Example(
            ("f32[1,2,4,8]", "f32[1,2,7,8]", "f32[1,2,7,5]", _NONE), {"qk_matmul_output_mode": 3}, outputs=4, opset=23
        ),
        Example(
            ("f32[2,4,3,8]", "f32[2,2,7,8]", "f32[2,2,7,8]", "f32[3,6]", None, None, _LENGTHS), {"is_causal": 1},
            opset=24,
        ),
        Example(("f32[2,2,1,8]", "f32[2,2,7,8]", "f32[2,2,7,8]", None, None, None, _LENGTHS), opset=24),
        Example(("f16[1,2,9,32]", "f16[1,2,11,32]", "f16[1,2,11,40]", "f16[9,11]"), opset=23),
        Example(("f16[2,5,32]", "f16[2,6,16]", "f16[2,6,20]"), _HEADS, outputs=3, opset=23),
        Example(("f64[1,2,3,8]", "f64[1,2,4,8]", "f64[1,2,4,8]"), opset=23),
        Example(("f32[1,1,1,1]", "f32[1,1,1,1]", "f32[1,1,1,1]"), opset=23),
        Example(("f32[1,2,3,200]", "f32[1,2,150,200]", "f32[1,2,150,200]", "f32[1,1,3,150]"), opset=23),
        Example(
            ("f32[1,2,20,8]", "f32[1,2,20,8]", "f32[1,2,20,8]"), {"left_window_size": 3, "right_window_size": 1},
            opset=25,
        ),
    ),
)  # fmt: skip
