"""Scaled dot-product attention: ``softmax(scale * Q K' + mask) V`` for each head, without the matrix of all scores.

The query rows of all heads that share a key head are one list of rows, `group` × `queries` long. On CPU devices a
work-item takes blocks of them (`blocks.py`), or where there are few, tiles of 1 to 4 rows (`tiles.py`). On GPUs a
work-group takes one row where few share their keys (`single.py`), a tile of many rows where such tiles fill the device
(`squares.py`; `matrices.py` on tensor cores), or else a tile of few (`groups.py`); several groups share the keys of few rows
where those are many. The generic kernel takes any dtypes and sizes, and alone gives scores out (`rows.py`).
"""

from __future__ import annotations

import math

import numpy as np

from asyncrt.devices.base import AVX512
from asyncrt.kernels.impl import Impl, Launch, scratch
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, FLOAT32

from .blocks import LEAST, blocks
from .groups import ROWS, fits, groups, shares_keys
from .interface import BIASED, CAPPED, PROBABILITIES, SCORES, Attention, AttentionForm
from .matrices import fits as matrices_fit
from .matrices import matrices
from .rows import rows
from .single import fits as single_fits
from .single import single
from .squares import ROWS as SQUARES
from .squares import fits as squares_fit
from .squares import squares
from .tiles import height_of, tiles

__all__ = ["BIASED", "CAPPED", "PROBABILITIES", "SCORES", "Attention", "attention", "attention_impl"]


def attention(a: Attention, traits: DeviceTraits, *, scratches: int = 0) -> tuple[tuple[Launch, ...], str, int]:
    """Return the launches that carry *a* out, their name, and the bytes of their scratch (0: they have none).

    Args:
        scratches: Index of their scratch buffer, if they have one.
    """
    form = AttentionForm(
        a.query.dtype, a.value.dtype, a.target.dtype, a.mask.dtype if a.mask else None, a.valid is not None, a.causal,
        a.softcap != 0, a.left >= 0 or a.right >= 0, a.scores.dtype if a.scores else None, a.scores_mode,
        "NAN" if math.isnan(a.unseen) else "0", a.checked,
        traits.registers if traits.is_cpu else AVX512,
    )  # fmt: skip
    masked = a.mask or a.query._replace(batch=0, head=0, row=0)
    strides = tuple(s for t in (a.query, a.key, a.value, a.target, masked) for s in t[2:])
    ints = (
        a.kv_heads, a.group, a.queries, a.keys, a.size, a.value_size, _bits(a.scale), _bits(a.softcap), a.offset,
        a.left, a.right, a.mask_keys, *strides,
    )  # fmt: skip
    refs = [a.query.ref, a.key.ref, a.value.ref, a.target.ref]
    refs += [r for r in (a.mask and a.mask.ref, a.valid, a.scores and a.scores.ref) if r is not None]
    refs_and_scratch = (*refs, scratch(scratches))
    if traits.is_cpu and not form.scores and {form.query, form.value, form.target} <= {FLOAT32, FLOAT16}:
        if a.group * a.queries >= LEAST:
            launch, nbytes = blocks(a, form, refs_and_scratch, ints, traits)
            return (launch,), "blocks", nbytes
        launch, nbytes = tiles(a, form, refs_and_scratch, ints, traits)
        return (launch,), f"tiles of {height_of(a)} rows", nbytes
    if not traits.is_cpu and not form.scores:
        if single_fits(a, form, traits):
            launches, nbytes = single(a, form, refs_and_scratch, ints, traits)
            return launches, f"group per row{', parts of the keys' if nbytes else ''}", nbytes
        few = fits(a, form, traits) and a.group * a.queries <= ROWS and shares_keys(a, traits)
        if matrices_fit(a, form, traits) and not few:
            launch, tile = matrices(a, form, tuple(refs), ints, traits)
            return (launch,), f"tensor cores, {tile} rows", 0
        if squares_fit(a, form, traits):
            return (squares(a, form, tuple(refs), ints),), f"group per {SQUARES} rows", 0
        if fits(a, form, traits):
            launches, nbytes = groups(a, form, refs_and_scratch, ints, traits)
            return launches, f"group per {ROWS} rows{', parts of the keys' if nbytes else ''}", nbytes
    launch, nbytes = rows(a, form, refs_and_scratch, ints, traits)
    return (launch,), "rows", nbytes


def _bits(value: float) -> int:
    """The bits of a float32, as an argument of a kernel."""
    return int(np.float32(value).view(np.int32))


def attention_impl(a: Attention, before: tuple[Launch, ...], sizes: tuple[int, ...], traits: DeviceTraits) -> Impl:
    """Return the implementation that runs *before*, whose scratch buffers have *sizes* bytes, and then *a*."""
    launches, name, nbytes = attention(a, traits, scratches=len(sizes))
    return Impl(name, (*before, *launches), (*sizes, nbytes) if nbytes else sizes)
