"""Matrix products: what MatMul and Gemm share, and which kernel carries one out.

On CPU devices float32 goes to the tiles of `cpu.py`, whatever the strides; on GPUs every dtype goes to the shared tiles
of `gpu.py`, few rows of floats to `few_rows.py`, and floats of 16 and 32 bits to tensor cores where there are some. Every
other case is the generic kernel, one result per work-item.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.kernels.codegen.alignment import fake_alignment
from asyncrt.kernels.codegen.epilogue import Bound, Epilogue, Operand, bind
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import accumulator_type
from asyncrt.kernels.codegen.tiles import PANEL, pair_rows, tile_of
from asyncrt.kernels.impl import (
    Impl,
    KernelChoice,
    KernelSource,
    Launch,
    Normalisation,
    Ref,
    WeightsRequest,
    chosen,
    weights,
)
from asyncrt.kernels.patterns.grid import round_up
from asyncrt.kernels.patterns.lane_rows import lane_rows
from asyncrt.kernels.patterns.normalize import local_rows
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import BFLOAT16, FLOAT32, FLOAT64, UINT32, DataType, Layout
from asyncrt.memory.view import View, collapse

from . import bf16_weights as narrow
from .cpu import Source, pack_panels, pack_transposed, pair_kernel, rows_per_item, tile_kernel
from .few_bits import BitsOperand
from .few_rows import Stream, choose_stream, stream_kernel
from .few_rows_mma import Strip, choose_strip, strip_kernel
from .gpu import (
    GROUP,
    NARROW,
    SLICE_COLUMNS,
    SLICE_ROWS,
    SLICES,
    WIDE,
    Regime,
    choose_regime,
    generic_kernel,
    shared_kernel,
    slices_kernel,
)
from .interface import ProductForm
from .tensor_cores import choices_of, choose_stages, choose_tile, takes, tensor_core_kernel
from .warpgroups import choose_warpgroups, warpgroup_kernel

__all__ = ["Bias", "Epilogue", "Operand", "bits_arguments", "matmul", "matmul_few_bits", "takes_normalised"]

MOST_NORMALISED = 8
"""Rows that each work-group of a product may normalise for itself."""


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
    normal: Normalisation | None = None,
) -> Impl:
    """Return the implementation of ``alpha * a @ b + beta * bias`` into a dense tensor ``[*batch, M, N]``.

    Args:
        a: ``[*batch, M, K]``, batch axes already broadcast.
        b: ``[*batch, K, N]``, likewise.
        constant: Index of the node's input that is *b*, if its value is a constant ``[K, N]`` matrix.
        transposed: The constant is stored ``[N, K]``.
        epilogue: What becomes of each element before it is stored, with operands of ``[*batch, M, N]``.
        normal: What is done to each row of *a* before it is multiplied; only where `takes_normalised` says so.
    """
    last = bind(epilogue, (*batch, a.view.shape[-2], b.view.shape[-1]), integers=traits.is_cpu)
    a, b, batch = _with_merged_rows(a, b, tuple(batch), bias)
    tiled = _is_tiled(a, b, bias, traits)
    requests: tuple[WeightsRequest, ...] = ()
    if constant is not None and traits.packed_weights:
        b, requests = _repacked(b, constant, traits, tiled=tiled, transposed=transposed)
    m, k = a.view.shape[-2:]
    n = b.view.shape[-1]
    axes, (sa, sb) = collapse(batch, a.view.strides[:-2], b.view.strides[:-2])
    strides = tuple(x for i in range(len(axes) - 1, -1, -1) for x in (axes[i], sa[i], sb[i]))
    number = a.dtype if a.dtype.is_float else FLOAT64  # what integers are multiplied by need not be one
    scale = "" if alpha == 1 else literal(alpha, number)
    factor = "" if bias is None or bias.beta == 1 else literal(bias.beta, number)
    form = ProductForm(
        name, a.dtype, b.dtype, None if bias is None else bias.dtype, scale, factor,
        len(axes), bias is not None and bias.column_stride == 1, last.form, traits.registers,
        normal=None if normal is None else local_rows(normal, a.dtype, m, k),
    )  # fmt: skip
    edge = (0, 0) if bias is None else (bias.row_stride, bias.column_stride)
    ints = (m, n, k, *a.view.strides[-2:], *b.view.strides[-2:], a.view.offset, b.view.offset, *edge, *strides, *last.ints)
    factors = () if normal is None else normal.refs
    refs = (a.ref, b.ref, target, *(() if bias is None else (bias.ref,)), *factors, *last.refs)
    left, right = (*a.view.strides, a.view.offset), (*b.view.strides, b.view.offset)
    bound = _BoundProduct(form, refs, ints, m, n, k, math.prod(batch), left, right)
    if tiled:
        columns = b.view.strides[-1] == 1 and n >= PANEL
        source = Source.ROWS if columns else Source.ANY
        if requests:
            source = Source.NARROW if b.dtype is UINT32 else Source.PACKED
        tile = tile_of(traits.registers)
        return Impl(f"tiles {tile.rows}x{tile.columns}, {source.value}", (_tiles(bound, source, traits),), weights=requests)
    launch, which = _other(bound, traits)
    return Impl(which, (launch,), weights=requests)


def takes_normalised(a: Layout, b: Layout, normal: Normalisation, traits: DeviceTraits) -> bool:
    """Whether each work-group of a product ``a @ b`` of few rows by a matrix can normalise those rows for itself.

    It does so while the first part of *b* is on its way, and so a launch less is needed. Where the rows are many, or
    long, a launch of their own is faster.

    Args:
        b: A constant, whose rows or columns lie one behind the other.
    """
    if traits.is_cpu or a.dtype is not b.dtype or len(b.shape) != 2:
        return False
    *rows, k = a.shape
    sizes, dense = (math.prod(rows), b.count // k if k else 0, k, 1), (k, 1, 0)
    form = ProductForm("", a.dtype, b.dtype, None, "", "", 0, False, bind(None, (1, 1)).form, traits.registers)
    if sizes[0] > MOST_NORMALISED or local_rows(normal, a.dtype, sizes[0], k) is None:
        return False
    return choose_stream(form, sizes, dense, (sizes[1], 1, 0), traits) is not None


def matmul_few_bits(
    name: str, a: Operand, b: BitsOperand, target: Ref, last: Bound, traits: DeviceTraits, bias: Ref | None = None
) -> Impl:
    """Return the implementation of ``a @ b``, and of a bias for each column, into a dense ``[M, N]`` on a CPU."""
    (m, k), n, requests = a.view.shape, b.columns, b.requests(a.view.shape[1])
    form, refs, ints = bits_arguments(name, a, b, target, last, traits, bias)
    strides = (*a.view.strides, a.view.offset)
    launch = _tiles(_BoundProduct(form, refs, ints, m, n, k, 1, strides, ()), Source.BITS, traits)
    return Impl(f"{b.few.bits} bits, packed", (launch,), weights=requests)


def bits_arguments(
    name: str, a: Operand, b: BitsOperand, target: Ref, last: Bound, traits: DeviceTraits, bias: Ref | None
) -> tuple[ProductForm, tuple[Ref, ...], tuple[int, ...]]:
    """Return the form of a product with a right-hand side of few bits, its buffers and its sizes."""
    form = ProductForm(
        name, FLOAT32, UINT32, None if bias is None else FLOAT32, "", "", 0, bias is not None, last.form,
        traits.registers, b.few,
    )  # fmt: skip
    (m, k), biased = a.view.shape, () if bias is None else (bias,)
    ints = (m, b.columns, k, *a.view.strides, 0, 0, a.view.offset, 0, 0, len(biased), b.block, *last.ints)
    packed = (weights(1),) if b.zeros is None else (weights(1), weights(2))
    return form, (a.ref, weights(0), target, *biased, *packed, *last.refs), ints


class _BoundProduct(NamedTuple):
    """A product that is bound to its operands, for whichever kernel carries it out: *batches* times ``[m, n]``.

    Attributes:
        left, right: The operands' strides, of batches, rows and columns, and where each begins.
    """

    form: ProductForm
    refs: tuple[Ref, ...]
    ints: tuple[int, ...]
    m: int
    n: int
    k: int
    batches: int
    left: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def has_one_row(self) -> bool:
        """Whether the result is one row of elements."""
        return self.m == 1 and self.batches == 1


def _with_merged_rows(
    a: Operand, b: Operand, batch: tuple[int, ...], bias: Bias | None
) -> tuple[Operand, Operand, tuple[int, ...]]:
    """Return the product as one of two matrices, where all batches share *b*: their rows are those of one matrix."""
    if (bias is not None and bias.row_stride != 0) or any(s != 0 for s in b.view.strides[:-2]) or not _rows_merge(a.view):
        return a, b, batch
    m, k = a.view.shape[-2:]
    rows = View((m * math.prod(batch), k), (_merged_stride(a.view), a.view.strides[-1]), a.view.offset)
    matrix = View(b.view.shape[-2:], b.view.strides[-2:], b.view.offset)
    return a._replace(view=rows), b._replace(view=matrix), ()


def _repacked(
    b: Operand, constant: int, traits: DeviceTraits, *, tiled: bool, transposed: bool
) -> tuple[Operand, tuple[WeightsRequest, ...]]:
    """Return a constant right-hand side as the kernel wants it, and what is asked for so that it is there."""
    k, n = b.view.shape[-2:]
    halved = traits.narrow_weights and b.dtype is FLOAT32
    if tiled:
        view = View(b.view.shape, (*(0,) * (len(b.view.shape) - 2), PANEL, 1))
        request = _panels(constant, k, n, transposed=transposed, halved=halved)
        return Operand(weights(0), UINT32 if halved else FLOAT32, view), (request,)
    if halved and not traits.is_cpu:
        request = WeightsRequest(constant, "bf16", narrow.bits, k * n)
        return Operand(weights(0), BFLOAT16, b.view), (request,)
    return b, ()


def _tiles(p: _BoundProduct, source: Source, traits: DeviceTraits) -> Launch:
    """Return the launch of the CPU's tiles, or of pairs of panels for few rows of packed weights."""
    panels, packed = -(-p.n // PANEL), source in (Source.PACKED, Source.NARROW, Source.BITS)
    if packed and p.m <= pair_rows(traits.registers) and panels * p.batches >= 4 * traits.compute_units:
        grid = (1, -(-panels // 2), p.batches)
        return Launch(pair_kernel(p.form, source), p.refs, p.ints, grid, (1, 1, 1), varying=(0,))
    tile = tile_of(traits.registers).rows
    rows = rows_per_item(fake_alignment(p.m, tile), tile, panels * p.batches, traits.compute_units)
    grid = (-(-p.m // rows), panels, p.batches)
    return Launch(tile_kernel(p.form, source), p.refs, (*p.ints, rows), grid, (1, 1, 1), varying=(0,))


def _copying_strips(form: ProductForm, strip: Strip, copies: int) -> KernelSource | KernelChoice:
    return strip_kernel(form._replace(copies=copies), strip)


def _strips_of_rows(
    p: _BoundProduct, strip: Strip, grid: tuple[int, ...], traits: DeviceTraits, normal: Normalisation, n: int, kept: Ref
) -> Launch | None:
    """Return the launch that normalises the rows of the left-hand side, of *n* elements each, for itself, and writes them
    to *kept*; None where they do not lie as rows of a matrix do, or there is no room."""
    rows = lane_rows(normal, p.form.a, strip.eights, n)
    if rows is None or p.form.normal is not None or p.batches != 1 or n != p.k or p.left[-3:] != (p.k, 1, 0):
        return None
    if strip.nbytes + rows.nbytes(strip.group) > traits.local_memory:
        return None
    form = p.form._replace(normal=rows)
    own = 3 + (form.bias is not None)
    refs = (*p.refs[:own], *normal.refs, kept, *p.refs[own:])
    return Launch(strip_kernel(form, strip), refs, p.ints, grid, (strip.group, 1, 1))


def _copying_streams(form: ProductForm, stream: Stream, copies: int) -> KernelSource | KernelChoice:
    return chosen(stream.lanes, _streaming, form._replace(copies=copies), stream._replace(lanes=1))


def _streaming(form: ProductForm, stream: Stream, lanes: int) -> KernelSource:
    return stream_kernel(form, stream._replace(lanes=lanes))


def _other(p: _BoundProduct, traits: DeviceTraits) -> tuple[Launch, str]:
    """Return the launch of a GPU's tiles, or of the generic kernel, and which of them it is."""
    sizes = (p.m, p.n, p.k, p.batches)
    strip = choose_strip(p.form, sizes, p.left, p.right, traits)
    if strip is not None:
        grid = (-(-p.n // strip.columns) * strip.group, -(-p.m // strip.rows), p.batches)
        also = functools.partial(_copying_strips, p.form, strip) if p.has_one_row else None
        of_rows = functools.partial(_strips_of_rows, p, strip, grid, traits) if also is None else None
        launch = Launch(
            strip_kernel(p.form, strip), p.refs, p.ints, grid, (strip.group, 1, 1), also=also, of_rows=of_rows
        )  # fmt: skip
        return launch, f"tensor cores, strips of {strip.columns}"
    stream = choose_stream(p.form, sizes, p.left, p.right, traits)
    if takes((p.form.a, p.form.b), p.left, p.right, traits) and (stream is None or p.form.a is not FLOAT32):
        turned = p.right[-2] != 1
        large = None if p.form.a is FLOAT32 else choose_warpgroups(p.m, p.n, p.k, p.batches, traits)
        if large is not None:
            grid = (-(-p.n // large.columns) * large.group, -(-p.m // large.rows), p.batches)
            launch = Launch(warpgroup_kernel(p.form, large, turned), p.refs, p.ints, grid, (large.group, 1, 1))
            return launch, f"warpgroups {large.rows}x{large.columns}"
        tile = choose_tile(choices_of(p.form.a), p.m, p.n, p.batches, traits)
        grid = (-(-p.n // tile.columns) * tile.group, -(-p.m // tile.rows), p.batches)
        source = tensor_core_kernel(p.form, tile, turned, choose_stages(p.form.a, tile, turned, traits))
        return Launch(source, p.refs, p.ints, grid, (tile.group, 1, 1)), f"tensor cores {tile.rows}x{tile.columns}"
    if stream is not None:
        grid = (-(-p.n // stream.columns) * -(-p.m // stream.rows) * stream.group, 1, p.batches)
        also = functools.partial(_copying_streams, p.form, stream) if p.has_one_row else None
        launch = Launch(_copying_streams(p.form, stream, 0), p.refs, p.ints, grid, (stream.group, 1, 1), also=also)
        return launch, f"few rows, {int.__index__(stream.columns)} columns"
    element = 8 if accumulator_type(p.form.a) in ("double", "long", "ulong") else 4
    regime = choose_regime(p.m, p.n, p.k, p.batches, element, traits)
    match regime:
        case Regime.SLICES:
            grid = (round_up(p.n, SLICE_COLUMNS), -(-p.m // SLICE_ROWS) * SLICES, p.batches)
            launch = Launch(slices_kernel(p.form), p.refs, p.ints, grid, (SLICE_COLUMNS, SLICES, 1))
        case Regime.WIDE | Regime.NARROW:
            side = WIDE if regime is Regime.WIDE else NARROW
            grid = (-(-p.n // side) * GROUP, -(-p.m // side) * GROUP, p.batches)
            launch = Launch(shared_kernel(p.form, side), p.refs, p.ints, grid, (GROUP, GROUP, 1))
        case Regime.GENERIC:
            group = 1 if traits.is_cpu else 64
            grid = (round_up(p.n, group), p.m, p.batches)
            launch = Launch(generic_kernel(p.form), p.refs, p.ints, grid, (group, 1, 1))
    return launch, regime.value


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
