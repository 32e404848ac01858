"""ONNX Runtime's operators of quantised numbers.

Where ONNX Runtime looks a result up in a table, or rounds between the steps of an operator of its own, what it stands
for is calculated in float32 and rounded once; results differ by one step at most. Products of integers stay exact.

Source: onnxruntime/docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from onnx import defs

from asyncrt.layout import FLOAT32, INT8, INT32, UINT8

from .attention import ATTENTION, attention
from .dense import channels_first, channels_last
from .draft import MICROSOFT, Draft, Rule
from .signatures import FLOATS, INT, INTS, REQUIRED_INT, REQUIRED_INTS, STRINGS, signature


def _plain(draft: Draft, x: int) -> str:
    """Return input *x*, whose scale and zero point are the next two, as floats."""
    given = [draft.input(i) for i in (x, x + 1, x + 2)]
    return draft.add("DequantizeLinear", *given[: 3 if given[2] else 2])


def _quantized(draft: Draft, y: str, scale: int, like: int = 0) -> str:
    """Return *y* in the dtype of input *like*, by the scale and the zero point from input *scale* on."""
    given = [draft.input(scale), draft.input(scale + 1)]
    return draft.add("QuantizeLinear", y, *filter(None, given), output_dtype=draft.dtype(like).onnx)


def _elementwise(draft: Draft, op: str) -> str:
    return _quantized(draft, draft.add(op, _plain(draft, 0), _plain(draft, 3)), 6)


def _activation(draft: Draft, op: str) -> str:
    return _quantized(draft, draft.add(op, _plain(draft, 0), **draft.attributes), 3)


def _softmax(draft: Draft) -> str:
    """`opset` says which Softmax is meant: before 13, all axes from `axis` on are one."""
    axis, x = draft.attributes["axis"], _plain(draft, 0)
    if draft.attributes["opset"] >= 13:
        return _quantized(draft, draft.add("Softmax", x, axis=axis), 3)
    flat = draft.add("Softmax", draft.add("Flatten", x, axis=axis), axis=-1)
    return _quantized(draft, draft.shaped(flat, draft.dims(x)), 3)


def _concat(draft: Draft) -> str:
    """The scale and the zero point of the result come first, then each input with its own."""
    draft.refuse(len(draft.inputs) < 5 or len(draft.inputs) % 3 != 2, f"{len(draft.inputs)} inputs")
    parts = [_plain(draft, i) for i in range(2, len(draft.inputs), 3)]
    return _quantized(draft, draft.add("Concat", *parts, axis=draft.attributes["axis"]), 0, like=1)


def _pool(draft: Draft, op: str) -> str:
    given = dict(draft.attributes)
    last, x = given.pop("channels_last"), _plain(draft, 0)
    y = draft.add(op, channels_first(draft, x) if last else x, **given)
    return _quantized(draft, channels_last(draft, y) if last else y, 3)


def _reduce_mean(draft: Draft) -> str:
    axes = draft.constant(draft.attributes["axes"])
    mean = draft.add("ReduceMean", _plain(draft, 0), axes, keepdims=draft.attributes["keepdims"])
    return _quantized(draft, mean, 3)


def _where(draft: Draft) -> str:
    return _quantized(draft, draft.add("Where", draft.inputs[0], _plain(draft, 1), _plain(draft, 4)), 7, like=1)


def _conv(draft: Draft) -> str:
    given = dict(draft.attributes)
    last = given.pop("channels_last")
    x, *rest = draft.inputs
    y = draft.add("QLinearConv", channels_first(draft, x) if last else x, *rest, **given)
    return channels_last(draft, y) if last else y


def _quantize(draft: Draft) -> str:
    return draft.add("QuantizeLinear", *draft.inputs, axis=draft.attributes.get("axis"))


def _dequantize(draft: Draft) -> str:
    return draft.add("DequantizeLinear", *draft.inputs, axis=draft.attributes.get("axis"))


def _scaled_product(draft: Draft, a: str, b: str, zeros: tuple[str, str], scale: str, bias: str) -> str:
    """Return the product of integers in floats; an absent zero point is 0."""
    product = draft.cast(draft.add("MatMulInteger", a, b, *zeros), FLOAT32)
    y = draft.add("Mul", product, scale)
    return draft.add("Add", y, bias) if bias else y


def _product_to_float(draft: Draft) -> str:
    scale = draft.add("Mul", draft.inputs[2], draft.inputs[3])
    zeros = (draft.input(4), draft.input(5))
    return _scaled_product(draft, draft.inputs[0], draft.inputs[1], zeros, scale, draft.input(6))


def _dynamic_product(draft: Draft) -> str:
    quantized, scale, zero = draft.several(3, "DynamicQuantizeLinear", draft.inputs[0])
    scales = draft.add("Mul", scale, draft.inputs[2])
    return _scaled_product(draft, quantized, draft.inputs[1], (zero, draft.input(3)), scales, draft.input(4))


def _gemm(draft: Draft) -> str:
    """``alpha * (A @ B * a_scale * b_scale + C * a_scale * b_scale)``; float without a result's scale."""
    given, (a, a_scale, a_zero, b, b_scale, b_zero) = draft.attributes, draft.inputs[:6]
    a = draft.add("Transpose", a, perm=[1, 0]) if given["transA"] else a
    b = draft.add("Transpose", b, perm=[1, 0]) if given["transB"] else b
    product = draft.add("MatMulInteger", a, b, a_zero, b_zero)
    product = draft.add("Add", product, draft.inputs[6]) if draft.has(6) else product
    scale = draft.add("Mul", draft.add("Mul", a_scale, b_scale), draft.constant(given["alpha"], FLOAT32))
    y = draft.add("Mul", draft.cast(product, FLOAT32), scale)
    return _quantized(draft, y, 7, like=8 if draft.has(8) else 0) if draft.has(7) else y


def _gather(draft: Draft) -> str:
    """Rows of a table of 4 or 8 bits: bytes, scales and zero points are gathered, and then taken to floats."""
    given, bits = draft.attributes, draft.attributes["bits"]
    table, rank = draft.constant_input(0), draft.known_rank(0)
    last = given["quantize_axis"] in (-1, None if rank is None else rank - 1)
    draft.refuse(bits not in (4, 8) or given["gather_axis"] != 0 or not last, "other bits than 4 and 8, or other axes")
    draft.refuse(table is not None and table.shape[-1] * 8 // bits % given["block_size"] != 0, "a block that is cut")
    raw, scales = (draft.add("Gather", draft.inputs[i], draft.inputs[1], axis=0) for i in (0, 2))
    raw = _nibbles(draft, raw) if bits == 4 else raw
    shift = draft.constant(1 << (bits - 1), draft.dtype(2))
    if draft.has(3):
        zeros = draft.add("Gather", draft.inputs[3], draft.inputs[1], axis=0)
        zeros = _nibbles(draft, zeros) if bits == 4 else zeros
        # A row with an odd number of blocks has half a byte to spare.
        ends = draft.dims(scales, -1)
        zeros = draft.add("Slice", zeros, draft.constant([0]), ends, draft.constant([-1]))
        shift = draft.unsqueezed(draft.cast(zeros, draft.dtype(2)), -1)
    outer = draft.dims(raw, 0, -1)
    blocks = draft.shaped(draft.cast(raw, draft.dtype(2)), outer, -1, given["block_size"])
    scaled = draft.add("Mul", draft.add("Sub", blocks, shift), draft.unsqueezed(scales, -1))
    return draft.shaped(scaled, outer, -1)


def _nibbles(draft: Draft, name: str) -> str:
    """Return the two halves of each byte, the lower one first, along the last axis."""
    low = draft.add("BitwiseAnd", name, draft.constant(15, UINT8))
    high = draft.add("BitShift", name, draft.constant(4, UINT8), direction="RIGHT")
    pairs = draft.add("Concat", draft.unsqueezed(low, -1), draft.unsqueezed(high, -1), axis=-1)
    return draft.shaped(pairs, draft.dims(name, 0, -1), -1)


def _multiplied(draft: Draft) -> str:
    factors = []
    for x, zero in ((0, 1), (2, 3)):
        wide = draft.cast(draft.inputs[x], INT32)
        factors.append(draft.add("Sub", wide, draft.cast(draft.input(zero), INT32)) if draft.has(zero) else wide)
    return draft.add("Mul", *factors)


def _attention(draft: Draft) -> tuple[str, ...]:
    scale = draft.add("Mul", draft.inputs[3], draft.inputs[4])
    zeros = (draft.input(6), draft.input(7))
    product = _scaled_product(draft, draft.inputs[0], draft.inputs[1], zeros, scale, draft.inputs[2])
    return attention(draft, product, mask=5, past=8, bias=len(draft.inputs), like=2)


def _lstm(draft: Draft) -> tuple[str, ...]:
    """Its weights are transposed and quantised, and so are inputs, and states before they are multiplied.

    The inputs of all steps are multiplied as one.
    """
    columns = [draft.dims(draft.inputs[1], axis, axis + 1) for axis in (0, 2)]

    def each(index: int) -> str:
        """A scale or a zero point for every column, which the file may have one of for all."""
        return draft.add("Expand", draft.shaped(draft.inputs[index], 0, -1), draft.concat(*columns))

    def flat(name: str) -> str:
        return draft.shaped(name, -1)

    weights = draft.add("Transpose", draft.inputs[1], perm=[1, 0, 2])
    quantized, scale, zero = draft.several(3, "DynamicQuantizeLinear", draft.inputs[0])
    zeros, scales = (zero, flat(each(9))), draft.add("Mul", scale, flat(each(8)))
    products = _scaled_product(draft, quantized, draft.shaped(weights, 0, -1), zeros, scales, "")
    recurrent, shift = draft.inputs[2], draft.cast(each(11), FLOAT32)
    if draft.dtype(2) is UINT8:
        middle = draft.constant(128, INT32)
        recurrent = draft.cast(draft.add("Sub", draft.cast(recurrent, INT32), middle), INT8)
        shift = draft.add("Sub", shift, draft.cast(middle, FLOAT32))
    inputs = (products, each(10), recurrent, *(draft.input(i) for i in range(3, 8)), shift)
    return draft.several(3, "RoundedStateLSTM", *inputs, domain="asyncrt", **draft.attributes)


_ms: Callable[..., defs.OpSchema] = partial(signature, domain=MICROSOFT)
_ONE, _RESULT = "X:B X_scale:f X_zero_point:B?", "Y_scale:f Y_zero_point:B?"
_TWO = "A:B A_scale:f A_zero_point:B? B:B B_scale:f B_zero_point:B?"
_WINDOWS = {"auto_pad": "NOTSET", "channels_last": 0, "pads": INTS, "strides": INTS}

OPERATORS: tuple[tuple[defs.OpSchema, Rule | None], ...] = (
    (_ms("QuantizeLinear", "x:F y_scale:F y_zero_point:Q?", "y:Q", axis=INT), _quantize),
    (_ms("DequantizeLinear", "x:Q x_scale:F x_zero_point:Q?", "y:F", axis=INT), _dequantize),
    *(
        (_ms(f"QLinear{op}", f"{_TWO} C_scale:f C_zero_point:B?", "C:B"), partial(_elementwise, op=op))
        for op in ("Add", "Mul")
    ),
    (_ms("QLinearSigmoid", f"{_ONE} {_RESULT}", "Y:B"), partial(_activation, op="Sigmoid")),
    (_ms("QLinearLeakyRelu", f"{_ONE} {_RESULT}", "Y:B", alpha=0.01), partial(_activation, op="LeakyRelu")),
    (_ms("QLinearSoftmax", f"{_ONE} {_RESULT}".rstrip("?"), "Y:B", axis=-1, opset=REQUIRED_INT), _softmax),
    (_ms("QLinearConcat", "Y_scale:f Y_zero_point:B inputs:A*", "Y:B", axis=REQUIRED_INT), _concat),
    (
        _ms("QLinearGlobalAveragePool", f"{_ONE} {_RESULT}".replace("?", ""), "Y:B", channels_last=0),
        partial(_pool, op="GlobalAveragePool"),
    ),
    (
        _ms(
            "QLinearAveragePool", f"{_ONE} {_RESULT}", "Y:B", ceil_mode=0, count_include_pad=0,
            kernel_shape=REQUIRED_INTS, **_WINDOWS,
        ),
        partial(_pool, op="AveragePool"),
    ),
    (
        _ms("QLinearReduceMean", f"{_ONE} {_RESULT}", "Y:B", axes=REQUIRED_INTS, keepdims=REQUIRED_INT),
        _reduce_mean,
    ),
    (
        _ms(
            "QLinearWhere",
            "condition:b X:B x_scale:f x_zero_point:B Y:B y_scale:f y_zero_point:B z_scale:f z_zero_point:B",
            "Z:B",
        ),
        _where,
    ),
    (
        _ms(
            "QLinearConv",
            "x:B1 x_scale:f x_zero_point:B1 w:B2 w_scale:f w_zero_point:B2 y_scale:f y_zero_point:B3 B:i?",
            "y:B3", dilations=INTS, group=1, kernel_shape=INTS, **_WINDOWS,
        ),
        _conv,
    ),
    (
        _ms(
            "QGemm", "A:B1 a_scale:f a_zero_point:B1 B:B2 b_scale:f b_zero_point:B2 C:i? y_scale:f? y_zero_point:B3?",
            "Y:A", alpha=1.0, transA=0, transB=0,
        ),
        _gemm,
    ),
    (_ms("MulInteger", "A:B A_zero_point:B? B:B B_zero_point:B?", "C:i"), _multiplied),
    (
        _ms(
            "MatMulIntegerToFloat",
            "A:B1 B:B2 a_scale:f b_scale:f a_zero_point:B1? b_zero_point:B2? bias:f?", "Y:f",
        ),
        _product_to_float,
    ),
    (_ms("DynamicQuantizeMatMul", "A:f B:B b_scale:f b_zero_point:B? bias:f?", "Y:f"), _dynamic_product),
    (
        _ms(
            "MatMulNBits",
            "A:F B:u scales:F zero_points:Z? g_idx:i? bias:F?",
            "Y:F", K=REQUIRED_INT, N=REQUIRED_INT, accuracy_level=0, bits=4, block_size=REQUIRED_INT,
            weight_prepacked=0,
        ),
        None,
    ),
    (
        _ms(
            "GatherBlockQuantized", "data:u indices:I scales:F zero_points:u?", "output:F", bits=4, block_size=128,
            gather_axis=0, quantize_axis=1,
        ),
        _gather,
    ),
    (
        _ms(
            "QAttention",
            "input:B1 weight:B2 bias:f input_scale:f weight_scale:f mask_index:i? input_zero_point:B1? "
            "weight_zero_point:B2? past:f?",
            "output:f present:f?", **ATTENTION,
        ),
        _attention,
    ),
    (
        _ms(
            "DynamicQuantizeLSTM",
            "X:f W:B R:B B:f? sequence_lens:i? initial_h:f? initial_c:f? P:f? W_scale:f W_zero_point:B R_scale:f "
            "R_zero_point:B",
            "Y:f? Y_h:f? Y_c:f?", activation_alpha=FLOATS, activation_beta=FLOATS, activations=STRINGS,
            clip=defs.OpSchema.AttrType.FLOAT, direction="forward", hidden_size=INT, input_forget=0,
        ),
        _lstm,
    ),
)  # fmt: skip
