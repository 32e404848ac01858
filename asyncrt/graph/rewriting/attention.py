"""ONNX Runtime's operators of attention, as ONNX's Attention and RotaryEmbedding.

A mask that ONNX Runtime adds as a large negative number is added here, too, so that a row that may see nothing is what
it is there. GroupQueryAttention writes keys and values into a cache at a place of its own for each entry of the batch;
here that is a TensorScatter, and the queries are the last of as many keys as there are.

Source: onnxruntime/docs/ContribOperators.md, and where it is silent ONNX Runtime's kernels for CPUs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from onnx import defs

from asyncrt.layout import BOOL, INT64

from .draft import MICROSOFT, Draft, Rule
from .signatures import FLOAT, INTS, REQUIRED_INT, signature

_HEADS_FIRST = [0, 2, 1, 3]


def _heads(draft: Draft, name: str, heads: int) -> str:
    """Return ``[B, S, N*H]`` as ``[B, N, S, H]``."""
    return draft.add("Transpose", draft.shaped(name, 0, 0, heads, -1), perm=_HEADS_FIRST)


def _joined(draft: Draft, name: str) -> str:
    """Return ``[B, N, S, H]`` as ``[B, S, N*H]``."""
    return draft.shaped(draft.add("Transpose", name, perm=_HEADS_FIRST), 0, 0, -1)


def _padding(draft: Draft, mask: str, rank: int | None, keys: str, like: int = 0) -> str:
    """Return what a padding mask adds to the scores, broadcast to ``[B, N, S, T]``.

    Args:
        mask: Integers: how many keys each entry of the batch sees ``[B]``, or which it sees ``[B, T]``, ``[B, S, T]``.
        rank: Of the mask; where it is not known, that of the commonest.
        keys: The number of keys, as a vector.
        like: An input of the scores' dtype.
    """
    if rank == 1:
        places = draft.add("Range", draft.constant(0), draft.add("Squeeze", keys), draft.constant(1))
        seen = draft.add("Less", places, draft.unsqueezed(draft.cast(mask, INT64), 1, 2, 3))
    else:
        draft.refuse(rank not in (None, 2, 3), f"a mask of {rank} axes")
        seen = draft.unsqueezed(draft.cast(mask, BOOL), *((1,) if rank == 3 else (1, 2)))
    value = draft.attributes["mask_filter_value"]
    return draft.add("Where", seen, draft.number(0, like), draft.number(value, like))


def _added(draft: Draft, *parts: str) -> str:
    given = [p for p in parts if p]
    return "" if not given else given[0] if len(given) == 1 else draft.add("Add", *given)


def _unidirectional(draft: Draft) -> dict[str, Any]:
    return {"is_causal": draft.attributes["unidirectional"], "scale": draft.attributes.get("scale") or None}


def _multi_head(draft: Draft) -> tuple[str, ...]:
    """Query, key and value are apart, or packed in the query, or key and value in the key."""
    query, key, value, bias, mask, added = (draft.input(i) for i in range(6))
    heads = draft.attributes["num_heads"]
    draft.refuse(draft.has(8) or draft.has(9), "a cache that is a part of a longer one")
    packed = not value
    if not key:
        query, key, value = _unpacked(draft, query, 3)
    elif packed:
        key, value = _unpacked(draft, key, 2)
        query = _heads(draft, query, heads)
    if bias:
        draft.refuse(packed, "a bias of what is packed")
        query, key, value = _biased(draft, query, key, value, bias)
    if draft.known_rank(1) == 4:  # keys and values of an encoder, as they are in a cache
        query, packed = _heads(draft, query, heads), True
    keys = draft.dims(key, -2, -1) if packed else draft.dims(key, 1, 2)
    if draft.has(6):
        keys = draft.add("Add", keys, draft.dims(draft.inputs[6], 2, 3))
    padding = _padding(draft, mask, draft.known_rank(4), keys) if mask else ""
    inputs = (query, key, value, _added(draft, padding, added), draft.input(6), draft.input(7))
    y, *present = draft.several(
        3, "Attention", *inputs, q_num_heads=heads, kv_num_heads=heads, **_unidirectional(draft)
    )
    return _joined(draft, y) if packed else y, *present


def _unpacked(draft: Draft, name: str, parts: int) -> tuple[str, ...]:
    """Return the parts of ``[B, S, N, parts, H]``, each with the heads first."""
    found = (draft.add("Gather", name, draft.constant(i), axis=3) for i in range(parts))
    return tuple(draft.add("Transpose", part, perm=_HEADS_FIRST) for part in found)


def _biased(draft: Draft, query: str, key: str, value: str, bias: str) -> tuple[str, ...]:
    """Add to each its part of the bias, as long as its last axis."""
    widths = [draft.dims(name, -1) for name in (query, key, value)]
    parts = draft.several(3, "Split", bias, draft.concat(*widths), axis=0)
    return tuple(draft.add("Add", name, part) for name, part in zip((query, key, value), parts, strict=True))


def attention(draft: Draft, product: str, mask: int, past: int, bias: int, like: int = 0) -> tuple[str, ...]:
    """Return output and present of an attention whose query, key and value are side by side in *product*.

    Args:
        like: An input of the product's dtype.
        mask, past, bias: The numbers of these inputs; that of one which the operator has not is past its inputs.
    """
    given, heads = draft.attributes, draft.attributes["num_heads"]
    draft.refuse(bool(given["do_rotary"]), "do_rotary")
    draft.refuse(bool(given["past_present_share_buffer"]), "a cache that is a part of a longer one")
    sizes = given.get("qkv_hidden_sizes")
    inputs = (product, draft.constant(sizes)) if sizes else (product,)
    query, key, value = draft.several(3, "Split", *inputs, axis=-1, num_outputs=None if sizes else 3)
    keys = draft.dims(key, 1, 2)
    cached: tuple[str, ...] = ("", "")
    if draft.has(past):
        cached = tuple(draft.add("Gather", draft.inputs[past], draft.constant(i), axis=0) for i in range(2))
        keys = draft.add("Add", keys, draft.dims(cached[0], 2, 3))
    padding = _padding(draft, draft.inputs[mask], draft.known_rank(mask), keys, like) if draft.has(mask) else ""
    y, *present = draft.several(
        3, "Attention", query, key, value, _added(draft, padding, draft.input(bias)), *cached,
        q_num_heads=heads, kv_num_heads=heads, **_unidirectional(draft),
    )  # fmt: skip
    if not draft.wants(1):
        return y, ""
    return y, draft.add("Concat", *[draft.unsqueezed(p, 0) for p in present], axis=0)


def _attention(draft: Draft) -> tuple[str, ...]:
    draft.refuse(draft.has(6), "past_sequence_length")
    product = draft.add("MatMul", draft.inputs[0], draft.inputs[1])
    product = draft.add("Add", product, draft.inputs[2]) if draft.has(2) else product
    return attention(draft, product, mask=3, past=4, bias=5)


def _rotary(draft: Draft) -> str:
    """Positions are for each token, or one number: where the first token of every sequence is."""
    x, positions, cosines, sines = draft.inputs
    given = draft.attributes
    draft.refuse(given["scale"] != 1 or given["is_packed_batching"] != 0, "a scale, or packed batches")
    if draft.known_rank(1) != 2:
        batch, length = draft.dims(x, 0, 1), draft.dims(x, -2, -1)
        steps = draft.add("Range", draft.constant(0), draft.add("Squeeze", length), draft.constant(1))
        if draft.known_rank(1) is None:  # of two axes, each token has its own
            missing = draft.add("Sub", draft.constant([2]), draft.rank(positions))
            steps = draft.add("Mul", steps, missing)
        positions = draft.add("Expand", draft.add("Add", positions, steps), draft.concat(batch, length))
    near, dim = given["interleaved"], given["rotary_embedding_dim"]
    return _turned(draft, x, positions, cosines, sines, near, dim, "num_heads")


def _turned(
    draft: Draft, x: str, positions: str, cosines: str, sines: str, interleaved: int, dim: int, heads: str
) -> str:
    return draft.add(
        "RotaryEmbedding", x, cosines, sines, positions,
        interleaved=interleaved, num_heads=draft.attributes[heads], rotary_embedding_dim=dim,
    )  # fmt: skip


def _group_query(draft: Draft) -> tuple[str, ...]:
    given = draft.attributes
    draft.refuse(any(draft.has(i) for i in range(11, 16)), "sinks, scales of the cache, or norms of query and key")
    draft.refuse(given["smooth_softmax"] > 0 or given["kv_cache_bit_width"] > 0, "smooth_softmax, or a packed cache")
    draft.refuse(not given["causal"] or given["sliding_window_cache"] > 0, "without causality, or a sliding cache")
    query, key, value, past_key, past_value = (draft.input(i) for i in range(5))
    heads, shared = given["num_heads"], given["kv_num_heads"]
    if not key:
        wide = draft.dims(query, -1)
        parts = draft.constant([heads, shared, shared])
        sizes = draft.add("Mul", draft.add("Div", wide, draft.constant([heads + 2 * shared])), parts)
        query, key, value = draft.several(3, "Split", query, sizes, axis=-1)
    length = draft.dims(query, 1, 2)
    total = draft.shaped(draft.cast(draft.inputs[6], INT64), 1)
    valid = draft.add("Add", draft.shaped(draft.cast(draft.inputs[5], INT64), -1), draft.constant([1]))
    # A prompt begins at 0, whatever stands behind its end; later tokens are the last of what is valid.
    prompt = draft.add("Equal", total, length)
    start = draft.add("Where", prompt, draft.constant([0]), draft.add("Sub", valid, length))
    valid = draft.add("Where", prompt, length, valid)
    if given["do_rotary"]:
        steps = draft.add("Range", draft.constant(0), draft.add("Squeeze", length), draft.constant(1))
        positions = draft.input(9) or draft.add("Add", draft.unsqueezed(start, 1), steps)
        turn = partial(
            _turned, draft, positions=positions, cosines=draft.inputs[7], sines=draft.inputs[8],
            interleaved=given["rotary_interleaved"], dim=0,
        )  # fmt: skip
        query, key = turn(x=query, heads="num_heads"), turn(x=key, heads="kv_num_heads")
    query, key, value = _heads(draft, query, heads), _heads(draft, key, shared), _heads(draft, value, shared)
    if past_key:
        key = _cached(draft, past_key, key, start, total)
        value = _cached(draft, past_value, value, start, total)
    window = given["local_window_size"]
    y = draft.add(
        "Attention", query, key, value, draft.input(10), "", "", valid,
        is_causal=1, scale=given.get("scale") or None, softcap=given["softcap"],
        left_window_size=window - 1 if window > 0 else None,
    )  # fmt: skip
    return _joined(draft, y), key, value


def _cached(draft: Draft, past: str, new: str, start: str, total: str) -> str:
    """Return the cache with what is new in its place, as long as it was, or as long as it has to be."""
    room = draft.add("Max", draft.add("Sub", total, draft.dims(past, 2, 3)), draft.constant([0]))
    pads = draft.concat(draft.constant([0] * 6), room, draft.constant([0]))
    return draft.add("TensorScatter", draft.add("Pad", past, pads), new, start, axis=2)


_ms = partial(signature, domain=MICROSOFT)
_FILTER = {"mask_filter_value": -10000.0, "unidirectional": 0, "scale": FLOAT, "num_heads": REQUIRED_INT}
ATTENTION = {
    **_FILTER, "do_rotary": 0, "past_present_share_buffer": 0, "qkv_hidden_sizes": INTS, "rotary_embedding_dim": 0,
}  # fmt: skip

OPERATORS: tuple[tuple[defs.OpSchema, Rule | None], ...] = (
    (
        _ms(
            "Attention",
            "input:F weights:F bias:F? mask_index:i? past:F? attention_bias:F? past_sequence_length:i?",
            "output:F present:F?", **ATTENTION,
        ),
        _attention,
    ),
    (
        _ms(
            "MultiHeadAttention",
            "query:F key:F? value:F? bias:F? key_padding_mask:i? attention_bias:F? past_key:F? past_value:F? "
            "past_sequence_length:i? cache_indirection:i?",
            "output:F present_key:F? present_value:F? qk:F?", **_FILTER,
        ),
        _multi_head,
    ),
    (
        _ms(
            "RotaryEmbedding", "input:F position_ids:l cos_cache:F sin_cache:F", "output:F", interleaved=0,
            is_packed_batching=0, num_heads=0, rotary_embedding_dim=0, scale=1.0,
        ),
        _rotary,
    ),
    (
        _ms(
            "GroupQueryAttention",
            "query:F key:F? value:F? past_key:F? past_value:F? seqlens_k:i total_sequence_length:i cos_cache:F? "
            "sin_cache:F? position_ids:l? attention_bias:F? head_sink:F? k_scale:f? v_scale:f? q_norm_weight:F? "
            "k_norm_weight:F?",
            "output:F present_key:F? present_value:F? output_qk:F?", causal=1, do_rotary=0, k_quant_type="NONE",
            kv_cache_bit_width=0, kv_num_heads=REQUIRED_INT, local_window_size=-1, num_heads=REQUIRED_INT,
            qk_norm_epsilon=1e-6, qk_output=0, rotary_interleaved=0, scale=FLOAT, sliding_window_cache=0,
            smooth_softmax=-1, softcap=0.0, v_quant_type="NONE",
        ),
        _group_query,
    ),
)  # fmt: skip
