"""Matrix products: what MatMul and Gemm share, and which kernel carries one out.

On CPU devices float32 goes to the tiles of `matmul_cpu`, whatever the strides; on GPUs every dtype goes to the shared
tiles of `matmul_gpu`. Every other case is the generic kernel, one result per work-item.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.kernels.codegen.alignment import fake_alignment
from asyncrt.kernels.codegen.epilogue import Epilogue, Operand, bind
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.tiles import PANEL, TILE
from asyncrt.kernels.impl import Impl, Launch, Ref, WeightsRequest, weights
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT32, FLOAT64, UINT32, DataType
from asyncrt.memory.view import View, collapse

from . import bf16_weights as narrow
from .cpu import PAIRED, Source, pack_panels, pack_transposed, pair_kernel, rows_per_item, tile_kernel
from .gpu import TILE as SHARED
from .gpu import generic_kernel, shared_kernel
from .interface import ProductForm

__all__ = ["Bias", "Epilogue", "Operand", "matmul"]


class Bias(NamedTuple):
    """What is added to the product, broadcast to it: ``alpha * product + beta * bias``."""

    ref: Ref
    dtype: DataType
    row_stride: int
    column_stride: int
    beta: float = 1.0


def matmul(
    name: str,
    a: Operand,
    b: Operand,
    target: Ref,
    batch: Sequence[int],
    traits: DeviceTraits,
    *,
    bias: Bias | None = None,
    alpha: float = 1.0,
    constant: int | None = None,
    transposed: bool = False,
    epilogue: Epilogue | None = None,
) -> Impl:
    """Return the implementation of ``alpha * a @ b + beta * bias`` into a dense tensor ``[*batch, M, N]``.

    Args:
        a: ``[*batch, M, K]``, batch axes already broadcast.
        b: ``[*batch, K, N]``, likewise.
        constant: Index of the node's input that is *b*, if its value is a constant ``[K, N]`` matrix.
        transposed: The constant is stored ``[N, K]``.
        epilogue: What becomes of each element before it is stored, with operands of ``[*batch, M, N]``.
    """
    m, k = a.view.shape[-2:]
    n = b.view.shape[-1]
    batch = tuple(batch)
    last = bind(epilogue, (*batch, m, n))
    one_bias = bias is None or bias.row_stride == 0
    if one_bias and all(s == 0 for s in b.view.strides[:-2]) and _rows_merge(a.view):
        m *= math.prod(batch)
        a = a._replace(view=View((m, k), (_merged_stride(a.view), a.view.strides[-1]), a.view.offset))
        b = b._replace(view=View(b.view.shape[-2:], b.view.strides[-2:], b.view.offset))
        batch = ()
    tiled = _is_tiled(a, b, bias, traits)
    packed = constant is not None and traits.packed_weights and tiled
    halved = constant is not None and traits.packed_weights and traits.narrow_weights and b.dtype is FLOAT32
    requests: tuple[WeightsRequest, ...] = ()
    if packed:
        assert constant is not None
        requests = (_panels(constant, k, n, transposed=transposed, halved=halved),)
        view = View(b.view.shape, (*(0,) * len(batch), PANEL, 1))
        b = Operand(weights(0), UINT32 if halved else FLOAT32, view)
    elif halved and not traits.is_cpu:
        assert constant is not None
        requests = (WeightsRequest(constant, "bf16", narrow.bits, k * n),)
        b = Operand(weights(0), BFLOAT16, b.view)
    axes, (sa, sb) = collapse(batch, a.view.strides[:-2], b.view.strides[:-2])
    strides = tuple(x for i in range(len(axes) - 1, -1, -1) for x in (axes[i], sa[i], sb[i]))
    number = a.dtype if a.dtype.is_float else FLOAT64  # what integers are multiplied by need not be one
    scale = "" if alpha == 1 else literal(alpha, number)
    factor = "" if bias is None or bias.beta == 1 else literal(bias.beta, number)
    form = ProductForm(
        name, a.dtype, b.dtype, None if bias is None else bias.dtype, scale, factor,
        len(axes), bias is not None and bias.column_stride == 1, last.form,
    )  # fmt: skip
    edge = (0, 0) if bias is None else (bias.row_stride, bias.column_stride)
    ints = (m, n, k, *a.view.strides[-2:], *b.view.strides[-2:], a.view.offset, b.view.offset, *edge, *strides, *last.ints)
    refs = (a.ref, b.ref, target, *(() if bias is None else (bias.ref,)), *last.refs)
    batches = math.prod(batch)
    if tiled:
        panels = -(-n // PANEL)
        rows = rows_per_item(fake_alignment(m, TILE), panels * batches, traits.compute_units)
        grid = (-(-m // rows), panels, batches)
        columns = b.view.strides[-1] == 1 and n >= PANEL
        source = Source.ROWS if columns else Source.ANY
        if packed:
            source = Source.NARROW if halved else Source.PACKED
        launch = Launch(tile_kernel(form, source), refs, (*ints, rows), grid, (1, 1, 1), varying=(0,))
        if packed and m <= PAIRED and panels * batches >= 4 * traits.compute_units:
            launch = Launch(pair_kernel(form, source), refs, ints, (1, -(-panels // 2), batches), (1, 1, 1), varying=(0,))
        return Impl(f"tiles {TILE}x{PANEL}, {source.value}", (launch,), weights=requests)
    if not traits.is_cpu and traits.max_group >= 256:
        grid = (round_up(n, SHARED) // 4, round_up(m, SHARED) // 4, batches)
        launch = Launch(shared_kernel(form), refs, ints, grid, (16, 16, 1))
        return Impl(f"shared {SHARED}x{SHARED}", (launch,), weights=requests)
    group = 1 if traits.is_cpu else 64
    grid = (round_up(n, group), m, batches)
    return Impl("generic", (Launch(generic_kernel(form), refs, ints, grid, (group, 1, 1)),), weights=requests)


def _panels(constant: int, k: int, n: int, *, transposed: bool, halved: bool) -> WeightsRequest:
    """Ask for a constant as panels."""
    elements = k * round_up(n, PANEL)
    if halved:
        pack = narrow.pack_transposed if transposed else narrow.pack_panels
        return WeightsRequest(constant, "panels32t bf16" if transposed else "panels32 bf16", pack, elements // 2)
    if transposed:
        return WeightsRequest(constant, "panels32t", pack_transposed, elements)
    return WeightsRequest(constant, "panels32", pack_panels, elements)


def _is_tiled(a: Operand, b: Operand, bias: Bias | None, traits: DeviceTraits) -> bool:
    types = {a.dtype, b.dtype, FLOAT32 if bias is None else bias.dtype}
    return traits.is_cpu and types == {FLOAT32}


def _rows_merge(view: View) -> bool:
    """Whether the batch axes and the row axis of *view* are walked as one."""
    axes, _ = collapse(view.shape[:-1], view.strides[:-1])
    return len(axes) == 1


def _merged_stride(view: View) -> int:
    _, (strides,) = collapse(view.shape[:-1], view.strides[:-1])
    return strides[0]
