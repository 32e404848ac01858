"""MatMulNBits: a product with constant weights of 2, 4 or 8 bits, in blocks that have a scale and a zero point each.

Weights lie by output column: column n has `K` elements in blocks of `block_size`, each a run of bytes in which the first
element has the lowest bits. A kernel takes them to float32 where it multiplies them, so that memory is read once and
nothing is written; on CPUs constant weights are packed for the tiles of products (`kernels/matmul/few_bits.py`). Where
`accuracy_level` is 4 float32 rows are rounded to 8 bits first, block by block, as the file asks for
(`kernels/int8/few_bits.py`); lower levels change nothing.

Source: onnxruntime/docs/ContribOperators.md, com.microsoft.MatMulNBits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue, EpilogueForm, bind
from asyncrt.kernels.impl import Impl, ImplBuilder, inp, out
from asyncrt.kernels.int8.few_bits import round_rows, rounded_product, rounded_rows
from asyncrt.kernels.matmul.few_bits import BitsOperand
from asyncrt.kernels.matmul.interface import FewBits
from asyncrt.kernels.matmul.product import Operand, matmul_few_bits
from asyncrt.kernels.operator import Example, Operator, spread
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import check, count, ints
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, UINT8, Array, DataType, Shape
from asyncrt.memory.view import View

_X, _WEIGHTS, _SCALES, _ZEROS, _GROUPS, _BIAS = range(6)


class _Form(NamedTuple):
    """The extents: columns, elements of each, their bits, elements of a block and its bytes, blocks of a column."""

    n: int
    k: int
    bits: int
    block: int
    nbytes: int
    blocks: int

    @property
    def zero_nbytes(self) -> int:
        """Bytes of a column's zero points, where they are packed."""
        return -(-self.blocks * self.bits // 8)


def _form(attributes: Attributes) -> _Form:
    n, k, bits, block = (int(attributes[name]) for name in ("N", "K", "bits", "block_size"))
    blocks = -(-k // block) if block > 0 else 0
    return _Form(n, k, bits, block, block * bits // 8, blocks)


def infer(call: Call) -> tuple[Shape]:
    form, shape = _form(call.attributes), call.shape(_X)
    check(call, form.bits in (2, 4, 8), f"{form.bits} bits; there are kernels for 2, 4 and 8")
    check(call, form.block >= 16 and form.block & (form.block - 1) == 0, f"block_size {form.block}")
    check(call, form.n > 0 and form.k > 0, f"N={form.n}, K={form.k}")
    check(call, len(shape) > 0, "its input must have an axis")
    check(call, isinstance(shape[-1], Dim) or shape[-1] == form.k, f"its input has {shape[-1]} columns, K is {form.k}")
    check(call, not call.has(_GROUPS), "g_idx is not supported")
    wanted = {_WEIGHTS: (form.n * form.blocks * form.nbytes,), _SCALES: (form.n * form.blocks,), _BIAS: (form.n,)}
    if call.has(_ZEROS):
        packed = call.dtype(_ZEROS) is UINT8
        wanted[_ZEROS] = (form.n * (form.zero_nbytes if packed else form.blocks),)
    for index, (elements,) in wanted.items():
        if call.has(index):
            given = call.shape(index)
            known = any(isinstance(d, Dim) for d in given) or count(given) == elements
            check(call, known, f"input {index} has {given}, {elements} elements are wanted")
    return ((*shape[:-1], form.n),)


def _rounds(attributes: Attributes, dtype: DataType) -> bool:
    """Whether what is multiplied is rounded to 8 bits, block by block, as the file allows; float16 is not worth it."""
    return dtype is FLOAT32 and int(attributes.get("accuracy_level", 0)) == 4


def _unpacked(packed: Array, bits: int, elements: int) -> Array:
    """Return the first *elements* of each row of bytes."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    wide: Array = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return wide.reshape(*packed.shape[:-1], -1)[..., :elements]


def _weights(attributes: Attributes, inputs: Sequence[Array | None]) -> Any:
    """Return the weights in float64, ``[N, K]``."""
    form = _form(attributes)
    packed, scales, zeros = inputs[_WEIGHTS], inputs[_SCALES], inputs[_ZEROS] if len(inputs) > _ZEROS else None
    assert packed is not None
    assert scales is not None
    raw = _unpacked(packed.reshape(form.n, form.blocks, form.nbytes), form.bits, form.block).astype(np.float64)
    zero: Any = float(1 << (form.bits - 1))
    if zeros is not None:
        rows = zeros.reshape(form.n, -1)
        zero = (_unpacked(rows, form.bits, form.blocks) if zeros.dtype == np.uint8 else rows).astype(np.float64)
        zero = zero[..., None]
    scaled = (raw - zero) * scales.reshape(form.n, form.blocks, 1).astype(np.float64)
    return scaled.reshape(form.n, -1)[:, : form.k]


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x = inputs[_X]
    assert x is not None
    if x.dtype == np.float32 and _rounds(attributes, FLOAT32):
        x = rounded_rows(x, int(attributes["block_size"]))
    y = x.astype(np.float64) @ _weights(attributes, inputs).T
    if len(inputs) > _BIAS and (bias := inputs[_BIAS]) is not None:
        y = y + bias.reshape(-1).astype(np.float64)
    return (y.astype(x.dtype),)


def host_nbytes(call: Call) -> int:
    """The weights in float64 some times over, and what is multiplied."""
    form = _form(call.attributes)
    rows = math.prod(call.shape(_X)[:-1])
    rounding = 32 * rows * form.blocks * form.block if _rounds(call.attributes, call.dtype(_X)) else 0
    return 40 * form.n * form.blocks * form.block + 16 * rows * (form.k + form.n) + rounding


def implement(call: Call, traits: DeviceTraits, epilogue: Epilogue | None = None) -> Impl:
    form, dtype = _form(call.attributes), call.dtype(_X)
    rows = count(ints(call.shape(_X)[:-1]))
    zeros = call.dtype(_ZEROS) if call.has(_ZEROS) else None
    last = bind(epilogue, call.outputs[0].shape)
    constant = all(call.constants[i] for i in (_WEIGHTS, _SCALES, _ZEROS) if call.has(i))
    if traits.is_cpu and traits.packed_weights and dtype is FLOAT32 and zeros in (None, UINT8, FLOAT32) and constant:
        b = BitsOperand(
            FewBits(form.bits, zeros), form.n, form.block, _WEIGHTS, _SCALES, None if zeros is None else _ZEROS
        )
        multiply = rounded_product if _rounds(call.attributes, dtype) else matmul_few_bits
        a, bias = Operand(inp(_X), dtype, View.dense((rows, form.k))), inp(_BIAS) if call.has(_BIAS) else None
        return multiply("matmul_nbits", a, b, out(0), last, traits, bias)
    tall = 4 if rows >= 4 else 1
    wide = 1 if tall > 1 else 4
    built, x = ImplBuilder(), inp(_X)
    if _rounds(call.attributes, dtype):
        x = built.scratch(4 * rows * form.k)
        built.launch(round_rows(inp(_X), x, rows, form.k, form.block, traits))
    buffers = [
        WalkedBuffer("x", x, dtype, "r"), WalkedBuffer("w", inp(_WEIGHTS), UINT8, "r"),
        WalkedBuffer("scales", inp(_SCALES), dtype, "r"), WalkedBuffer("y", out(0), dtype, "w"),
    ]  # fmt: skip
    if zeros is not None:
        buffers.append(WalkedBuffer("zeros", inp(_ZEROS), zeros, "r"))
    if call.has(_BIAS):
        buffers.append(WalkedBuffer("bias", inp(_BIAS), dtype, "r"))
    buffers += [WalkedBuffer(n, ref, t, "r") for (n, t, _), ref in zip(last.form.buffers, last.refs, strict=True)]
    each = walk(
        "matmul_nbits", _statement(dtype, zeros, form.bits, call.has(_BIAS), tall, wide, last.form),
        (-(-rows // tall), -(-form.n // wide)), buffers, traits,
        offsets=(("row_tile", (1, 0)), ("column_tile", (0, 1))),
        ints=(
            ("rows", rows), ("n", form.n), ("k", form.k), ("size", form.block), ("nbytes", form.nbytes),
            ("blocks", form.blocks), ("zero_nbytes", form.zero_nbytes),
            *zip(last.form.ints, last.ints, strict=True),
        ),
        work=form.k * tall * wide, helpers=last.form.helpers,
    )  # fmt: skip
    built.launch(each)
    return built.impl("elements")


@functools.cache
def _statement(
    dtype: DataType, zeros: DataType | None, bits: int, bias: bool, tall: int, wide: int, last: EpilogueForm
) -> str:
    """OpenCL C of a tile of *tall* rows and *wide* columns; rows and columns past the end are the last ones again."""
    tile = [(r, c) for r in range(tall) for c in range(wide)]
    places = [f"const int r{r} = min((int)row_tile * {tall} + {r}, rows - 1);" for r in range(tall)]
    places += [f"const int c{c} = min((int)column_tile * {wide} + {c}, n - 1);" for c in range(wide)]
    sums = [f"float t{r}_{c} = 0.0f;" for r, c in tile]
    heads = []
    for c in range(wide):
        zero = f"{float(1 << (bits - 1))}f"
        if zeros is UINT8:
            at = f"c{c} * zero_nbytes + b * {bits} / 8"
            zero = f"(float)((zeros[{at}] >> (b * {bits} % 8)) & {(1 << bits) - 1})"
        elif zeros is not None:
            zero = f"LOAD({zeros.name}, zeros, c{c} * blocks + b)"
        heads.append(
            f"const float f{c} = LOAD({dtype.name}, scales, c{c} * blocks + b), z{c} = {zero};"
            f" const __global uchar* w{c} = w + (c{c} * blocks + b) * nbytes;"
        )
    elements = [
        f"const float v{c} = ((float)((w{c}[e * {bits} / 8] >> (e * {bits} % 8)) & {(1 << bits) - 1}) - z{c}) * f{c};"
        for c in range(wide)
    ]
    elements += [f"const float x{r} = LOAD({dtype.name}, x, r{r} * k + k0 + e);" for r in range(tall)]
    elements += [f"t{r}_{c} = fma(x{r}, v{c}, t{r}_{c});" for r, c in tile]
    stores = []
    for r, c in tile:
        added = f" + LOAD({dtype.name}, bias, c{c})" if bias else ""
        # A row or a column that was taken twice is stored twice, the same each time.
        stored = last.element(dtype, "y", f"r{r} * n + c{c}", f"c{c}", f"t{r}_{c}{added}")
        stores.append(f"{{ {last.rows(f'r{r}')} {stored} }}")
    joined = "\n      ".join
    return f"""{{
    {joined(places)}
    {joined(sums)}
    for (int b = 0; b < blocks; b++) {{
      const int k0 = b * size, left = min(size, k - k0);
      {joined(heads)}
      for (int e = 0; e < left; e++) {{
        {joined(elements)}
      }}
    }}
    {joined(stores)}
    }}"""


def _packed(seed: int, *shape: int) -> Array:
    return (spread(*shape, skip=seed) * 256).astype(np.uint8)


def _scales(dtype: type, *shape: int) -> Array:
    return (spread(*shape) * 0.1 + 0.01).astype(dtype)


def _example(
    x: str, n: int, k: int, bits: int, block: int, dtype: type = np.float32, zeros: Any = None, bias: str | None = None
) -> Example:
    blocks = -(-k // block)
    inputs = (
        x, _packed(1, n, blocks, block * bits // 8), _scales(dtype, n * blocks), zeros, None, bias,
    )  # fmt: skip
    kept = inputs if bias else inputs[:4] if zeros is not None else inputs[:3]
    return Example(kept, {"N": n, "K": k, "bits": bits, "block_size": block, "accuracy_level": 1}, opset=1)


OPERATOR = Operator(
    name="MatMulNBits",
    domain="com.microsoft",
    infer=infer,
    reference=reference,
    implement=implement,
    with_epilogue=implement,
    host_nbytes=host_nbytes,
    examples=(
        _example("f32[1,64]", 7, 64, 4, 32),
        _example("f32[2,3,96]", 9, 96, 4, 32, zeros=_packed(2, 9 * 2)),
        _example("f32[5,70]", 6, 70, 4, 16, zeros=_scales(np.float32, 6, 5) * 100),
        _example("f32[1,72]", 6, 72, 4, 32, bias="f32[6]"),
        _example("f32[3,128]", 5, 128, 8, 64, zeros=_packed(3, 5 * 2)),
        _example("f32[1,128]", 5, 128, 8, 32),
        _example("f32[1,96]", 5, 96, 2, 32, zeros=_packed(4, 5)),
        _example("f32[5,96]", 5, 96, 2, 32),
        _example("f16[1,64]", 7, 64, 4, 32, np.float16),
        _example("f16[6,64]", 7, 64, 4, 32, np.float16, zeros=_packed(2, 7)),
        _example("f32[0,64]", 7, 64, 4, 32),
    ),
)
