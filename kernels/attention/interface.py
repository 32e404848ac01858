"""What the kernels of attention have in common: their arguments, and which keys a query sees."""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.devices.base import AVX512, Registers
from asyncrt.kernels.codegen.source import compute_type
from asyncrt.kernels.codegen.tiles import load16
from asyncrt.kernels.impl import Ref
from asyncrt.layout import BOOL, FLOAT16, FLOAT32, FLOAT64, INT64, DataType

SCORES, CAPPED, BIASED, PROBABILITIES = range(4)


class AttentionTensor(NamedTuple):
    """A buffer with its dtype and the elements between batches, heads and rows; a row's elements are adjacent."""

    ref: Ref
    dtype: DataType
    batch: int
    head: int
    row: int


class Attention(NamedTuple):
    """One attention.

    Attributes:
        query, key, value, target: The matrices of each head.
        batch, kv_heads, group, queries, keys, size, value_size: Extents; there are `kv_heads` × `group` query heads.
        scale: What scores are multiplied by.
        softcap: Scores become ``softcap * tanh(score / softcap)`` unless it is 0.
        causal: Query i sees keys up to ``i + offset``.
        offset: Where the queries begin among the keys.
        left, right: Query i sees keys from ``i + offset - left`` to ``i + offset + right``; -1: no bound.
        mask: Added to the scores, or for booleans: which keys are seen. Strides of 0 broadcast.
        mask_keys: How many keys the mask has; the rest are not seen.
        valid: For each batch the number of keys that there are, int64; then `offset` counts back from there.
        unseen: What a row gives that sees no key, or only with a score of minus infinity: 0 or NaN.
        checked: Weights of NaN, which make all weights of a row NaN, count as zeros. `unseen` is 0 then.
        scores, scores_mode: Where scores are written, and which: `SCORES`, `CAPPED`, `BIASED` or `PROBABILITIES`.
    """

    query: AttentionTensor
    key: AttentionTensor
    value: AttentionTensor
    target: AttentionTensor
    batch: int
    kv_heads: int
    group: int
    queries: int
    keys: int
    size: int
    value_size: int
    scale: float
    softcap: float = 0.0
    causal: bool = False
    offset: int = 0
    left: int = -1
    right: int = -1
    mask: AttentionTensor | None = None
    mask_keys: int = 0
    valid: Ref | None = None
    unseen: float = 0.0
    checked: bool = False
    scores: AttentionTensor | None = None
    scores_mode: int = SCORES


class AttentionForm(NamedTuple):
    """What the source of a kernel depends on; `registers` only where it is one for CPUs."""

    query: DataType
    value: DataType
    target: DataType
    mask: DataType | None
    valid: bool
    causal: bool
    softcap: bool
    window: bool
    scores: DataType | None
    scores_mode: int
    unseen: str
    checked: bool = False
    registers: Registers = AVX512


SIZES = (
    "kv_heads", "group", "queries", "keys", "size", "vsize", "scale_", "cap_", "offset", "left", "right", "mask_keys",
    "qb", "qh", "qs", "kb", "kh", "ks", "vb", "vh", "vs", "yb", "yh", "ys", "mb", "mh", "ms",
)  # fmt: skip


def real(form: AttentionForm) -> str:
    return "double" if FLOAT64 in (form.query, form.value) else compute_type(form.query)


def buffers(form: AttentionForm) -> tuple[tuple[str, DataType, str], ...]:
    wanted = (
        ("Q", form.query, "r"), ("K", form.query, "r"), ("V", form.value, "r"), ("Y", form.target, "w"),
        ("M", form.mask, "r"), ("valid", INT64 if form.valid else None, "r"), ("S", form.scores, "w"),
    )  # fmt: skip
    return tuple((name, dtype, access) for name, dtype, access in wanted if dtype is not None)


def bounds(form: AttentionForm, i: str, lo: str, hi: str) -> str:
    """Set *lo* and *hi* to the keys that query *i* of batch b sees: lo <= j < hi."""
    lines = [f"{lo} = 0; {hi} = keys;"]
    if form.valid:
        lines.append(f"{hi} = (int)clamp(valid[b], (long)0, (long)keys);")
    at = "(valid[b] - queries)" if form.valid else "offset"
    if form.causal:
        lines.append(f"{hi} = (int)min((long){hi}, (long)({i}) + {at} + 1);")
    if form.window:
        lines.append(f"if (left >= 0) {lo} = (int)min((long)keys, max((long)0, (long)({i}) + {at} - left));")
        lines.append(f"if (right >= 0) {hi} = (int)min((long){hi}, (long)({i}) + {at} + right + 1);")
    if form.mask is not None:
        lines.append(f"{hi} = min({hi}, mask_keys);")
    lines.append(f"{hi} = max({hi}, {lo});")
    return " ".join(lines)


def biased(form: AttentionForm, score: str, mask: str) -> str:
    """*score* with the mask's element at index *mask*."""
    return score if form.mask is None else with_element(form, score, element(form, mask))


def element(form: AttentionForm, index: str) -> str:
    """The mask's element at *index*."""
    assert form.mask is not None
    return f"LOAD({form.mask.name}, M, {index})"


def with_element(form: AttentionForm, score: str, element: str) -> str:
    """*score* with an *element* of the mask."""
    return f"({element} ? {score} : -INFINITY)" if form.mask is BOOL else f"({score} + {element})"


def vector_score(form: AttentionForm) -> str:
    """Write what softcap and mask make of ``e``, the scores of 16 keys from j on; the mask's row begins at mo."""
    bias = ""
    if form.mask is BOOL:
        bias = """{
          int16 seen;
          if (j + 16 <= mask_keys) seen = convert_int16(vload16(0, M + mo + j));
          else {
            int t[16];
            for (int x = 0; x < 16; x++) t[x] = M[mo + min(j + x, mask_keys - 1)];
            seen = vload16(0, t);
          }
          e = select((float16)(-INFINITY), e, seen != 0);
        }"""
    elif form.mask is not None:
        whole = f"e += {load16(form.mask, 'M + mo + j')};" if form.mask in (FLOAT32, FLOAT16) else ""
        some = f"""{{
          float t[16];
          for (int x = 0; x < 16; x++) t[x] = LOAD({form.mask.name}, M, mo + min(j + x, mask_keys - 1));
          e += vload16(0, t);
        }}"""
        bias = f"if (j + 16 <= mask_keys) {{ {whole} }} else {some}" if whole else some
    if bias:
        bias = f"if (mask_keys > 0) {{ {bias} }}"
    return ("e = cap * tanh(e / cap); " if form.softcap else "") + bias
