"""Operators of ONNX Runtime in floats: fused products and convolutions, activations, normalisations, embeddings.

Source: onnxruntime/docs/ContribOperators.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from onnx import defs

from asyncrt.layout import FLOAT32, INT32

from .draft import MICROSOFT, Draft, Rule
from .signatures import FLOATS, INTS, REQUIRED_INTS, signature

_SWAP = "...ij->...ji"  # the last two axes, of any number of axes: Einsum of one operand is a view of it
_TO_CHANNELS_FIRST, _TO_CHANNELS_LAST = "n...c->nc...", "nc...->n...c"


def _turned(draft: Draft, name: str, equation: str) -> str:
    return draft.add("Einsum", name, equation=equation)


def channels_first(draft: Draft, name: str) -> str:
    """Return an image ``[N, ..., C]`` as ``[N, C, ...]``."""
    return _turned(draft, name, _TO_CHANNELS_FIRST)


def channels_last(draft: Draft, name: str) -> str:
    """Return an image ``[N, C, ...]`` as ``[N, ..., C]``."""
    return _turned(draft, name, _TO_CHANNELS_LAST)


def _fused_matmul(draft: Draft) -> str:
    given, operands = draft.attributes, list(draft.inputs)
    for i, side in enumerate("AB"):
        if given.get(f"transBatch{side}", 0):
            operands[i] = _turned(draft, operands[i], "a...b->...ab")
        if given[f"trans{side}"]:
            operands[i] = _turned(draft, operands[i], _SWAP)
    product = draft.add("MatMul", *operands)
    return product if given["alpha"] == 1 else draft.add("Mul", product, draft.number(given["alpha"]))


def _activated(draft: Draft, name: str, kind: str, *params: float) -> str:
    """Return a value with the activation that a fused operator names; "" is none."""
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max")}.get(kind, ())
    if not kind:
        return name
    draft.refuse(kind not in {*_ACTIVATIONS, "LeakyRelu", "HardSigmoid", "Clip"}, f"its activation '{kind}'")
    if kind == "Clip":
        draft.refuse(len(params) < 2, "its Clip has no bounds")
        return draft.add("Clip", name, draft.number(params[0]), draft.number(params[1]))
    given: dict[str, Any] = dict(zip(names, params, strict=False))
    return draft.add(kind, name, **given)


_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "Elu", "Selu", "Softplus", "Softsign", "HardSwish")


def _fused_gemm(draft: Draft) -> str:
    given = dict(draft.attributes)
    kind = given.pop("activation", "")
    params = [p for name in ("alpha", "beta", "gamma") if (p := given.pop(f"activation_{name}", None)) is not None]
    return _activated(draft, draft.add("Gemm", *draft.inputs, **given), kind, *params)


def _fused_conv(draft: Draft) -> str:
    """Z is added before the activation."""
    given = dict(draft.attributes)
    kind, params = given.pop("activation", ""), given.pop("activation_params", ())
    y = draft.add("Conv", *draft.inputs[:3], **given)
    return _activated(draft, draft.add("Add", y, draft.inputs[3]) if draft.has(3) else y, kind, *params)


def _nhwc_conv(draft: Draft) -> str:
    """Input and output are [N, H, W, C]; the weights are as everywhere."""
    x = channels_first(draft, draft.inputs[0])
    given = dict(draft.attributes)
    kind, params = given.pop("activation", ""), given.pop("activation_params", ())
    y = draft.add("Conv", x, *draft.inputs[1:3], **given)
    if draft.has(3):
        y = draft.add("Add", y, channels_first(draft, draft.inputs[3]))
    return channels_last(draft, _activated(draft, y, kind, *params))


def _nhwc_max_pool(draft: Draft) -> str:
    pooled = draft.add("MaxPool", channels_first(draft, draft.inputs[0]), **draft.attributes)
    return channels_last(draft, pooled)


def _gelu(draft: Draft) -> str:
    """With a second input, that is added first; FastGelu is the one by tanh."""
    x = draft.add("Add", *draft.inputs) if draft.has(1) else draft.inputs[0]
    return draft.add("Gelu", x, approximate="tanh" if draft.op == "FastGelu" else "none")


def _quick_gelu(draft: Draft) -> str:
    return draft.add("Swish", draft.inputs[0], alpha=draft.attributes["alpha"])


def _bias_split_gelu(draft: Draft) -> str:
    """The first half of the last axis times Gelu of the second."""
    left, right = draft.several(2, "Split", draft.add("Add", *draft.inputs), axis=-1, num_outputs=2)
    return draft.add("Mul", left, draft.add("Gelu", right))


def _inverse_deviation(draft: Draft, x: str, epsilon: float) -> str:
    """One divided by the root mean square of the last axis, in float32."""
    wide = draft.cast(x, FLOAT32)
    mean = draft.add("ReduceMean", draft.add("Mul", wide, wide), draft.constant([-1]), keepdims=1)
    return draft.add("Reciprocal", draft.add("Sqrt", draft.add("Add", mean, draft.constant(epsilon, FLOAT32))))


def _skip_normalization(draft: Draft, simplified: bool) -> tuple[str, ...]:
    """Outputs: the result, mean, inverse standard deviation, and the sum that is normalised."""
    x, skip, gamma = draft.inputs[:3]
    beta, bias = ("", draft.input(3)) if simplified else (draft.input(3), draft.input(4))
    total = draft.add("Add", x, skip)
    total = draft.add("Add", total, bias) if bias else total
    epsilon = draft.attributes["epsilon"]
    if simplified:
        draft.refuse(draft.wants(1), "its output 'mean'")
        y = draft.add("RMSNormalization", total, gamma, axis=-1, epsilon=epsilon)
        return y, "", _inverse_deviation(draft, total, epsilon) if draft.wants(2) else "", total
    inputs = (total, gamma, beta) if beta else (total, gamma)
    if draft.wants(1) or draft.wants(2):
        return (*draft.several(3, "LayerNormalization", *inputs, axis=-1, epsilon=epsilon), total)
    return draft.add("LayerNormalization", *inputs, axis=-1, epsilon=epsilon), "", "", total


def _simplified_normalization(draft: Draft) -> tuple[str, ...]:
    given = draft.attributes
    y = draft.add("RMSNormalization", *draft.inputs, axis=given["axis"], epsilon=given["epsilon"])
    draft.refuse(draft.wants(1) and given["axis"] != -1, "its second output for more axes than the last")
    return y, _inverse_deviation(draft, draft.inputs[0], given["epsilon"]) if draft.wants(1) else ""


def _layer_normalization(draft: Draft) -> tuple[str, ...]:
    """ONNX Runtime's optimiser writes it into models of opsets that do not have it yet."""
    given = {k: draft.attributes[k] for k in ("axis", "epsilon", "stash_type")}
    return draft.several(len(draft.outputs), "LayerNormalization", *draft.inputs, **given)


def _embed_normalization(draft: Draft) -> tuple[str, ...]:
    """Outputs: the normalised sum of the embeddings, how many tokens each mask has, and the sum."""
    ids, segments, words, positions, kinds, gamma, beta = draft.inputs[:7]
    length = draft.dims(ids, 1, 2)
    if draft.has(8):
        places = draft.add("Gather", positions, draft.inputs[8])
    else:
        places = draft.add("Slice", positions, draft.constant([0]), length, draft.constant([0]))
    total = draft.add("Add", draft.add("Gather", words, ids), places)
    if segments:
        total = draft.add("Add", total, draft.add("Gather", kinds, segments))
    y = draft.add("LayerNormalization", total, gamma, beta, axis=-1, epsilon=draft.attributes["epsilon"])
    count = ""
    if draft.wants(1) and draft.has(7):
        count = draft.add("ReduceSum", draft.inputs[7], draft.constant([1]), keepdims=0)
    elif draft.wants(1):
        count = draft.add("Expand", draft.constant(0, INT32), draft.dims(ids, 0, 1))
    return y, count, total


_ms = partial(signature, domain=MICROSOFT)
_CONV = {
    "auto_pad": "NOTSET", "dilations": INTS, "group": 1, "kernel_shape": INTS, "pads": INTS, "strides": INTS,
}  # fmt: skip
_FUSED = {"activation": "", "activation_params": FLOATS}
_POOL = {"auto_pad": "NOTSET", "ceil_mode": 0, "dilations": INTS, "kernel_shape": INTS, "pads": INTS, "strides": INTS}
_TRANSPOSED: dict[str, Any] = {"alpha": 1.0, "transA": 0, "transB": 0}

OPERATORS: tuple[tuple[defs.OpSchema, Rule | None], ...] = (
    (_ms("FusedMatMul", "A:F B:F", "Y:F", transBatchA=0, transBatchB=0, **_TRANSPOSED), _fused_matmul),
    (_ms("TransposeMatMul", "A:F B:F", "Y:F", **_TRANSPOSED), _fused_matmul),
    (
        _ms(
            "FusedGemm", "A:F B:F C:F?", "Y:F", beta=1.0, activation="", activation_alpha=defs.OpSchema.AttrType.FLOAT,
            activation_beta=defs.OpSchema.AttrType.FLOAT, activation_gamma=defs.OpSchema.AttrType.FLOAT, **_TRANSPOSED,
        ),
        _fused_gemm,
    ),
    (_ms("FusedConv", "X:F W:F B:F? Z:F?", "Y:F", **_CONV, **_FUSED), _fused_conv),
    (_ms("NhwcConv", "X:F W:F B:F?", "Y:F", **_CONV), _nhwc_conv),
    (_ms("NhwcFusedConv", "X:F W:F B:F? Z:F?", "Y:F", **_CONV, **_FUSED), _nhwc_conv),
    (_ms("NhwcMaxPool", "x:B", "y:B", **{**_POOL, "kernel_shape": REQUIRED_INTS}), _nhwc_max_pool),
    (_ms("Gelu", "X:F", "Y:F"), _gelu),
    (_ms("BiasGelu", "A:F B:F", "C:F"), _gelu),
    (_ms("FastGelu", "X:F bias:F?", "Y:F"), _gelu),
    (_ms("QuickGelu", "X:F", "Y:F", alpha=1.702), _quick_gelu),
    (_ms("BiasSplitGelu", "X:F bias:F", "Y:F"), _bias_split_gelu),
    (
        _ms(
            "SkipLayerNormalization", "input:F skip:F gamma:F beta:F? bias:F?",
            "output:F mean:f? inv_std_var:f? input_skip_bias_sum:F?", epsilon=1e-12,
        ),
        partial(_skip_normalization, simplified=False),
    ),
    (
        _ms(
            "SkipSimplifiedLayerNormalization", "input:F skip:F gamma:F bias:F?",
            "output:F mean:f? inv_std_var:f? input_skip_bias_sum:F?", epsilon=1e-12,
        ),
        partial(_skip_normalization, simplified=True),
    ),
    *(
        (
            signature(
                "SimplifiedLayerNormalization", "X:F1 scale:F2", "Y:F2 inv_std_var:f?", domain=domain, axis=-1,
                epsilon=1e-5, stash_type=1,
            ),
            _simplified_normalization,
        )
        for domain in ("", MICROSOFT)
    ),
    (
        signature(
            "LayerNormalization", "X:F1 Scale:F2 B:F2?", "Y:F2 Mean:f? InvStdDev:f?", axis=-1, epsilon=1e-5,
            stash_type=1,
        ),
        _layer_normalization,
    ),
    (
        _ms(
            "EmbedLayerNormalization",
            "input_ids:i segment_ids:i? word_embedding:F position_embedding:F segment_embedding:F? gamma:F beta:F "
            "mask:i? position_ids:i?",
            "output:F mask_index:i? embedding_sum:F?", epsilon=1e-12, mask_index_type=0,
        ),
        _embed_normalization,
    ),
)  # fmt: skip
