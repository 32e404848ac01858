"""Experimental operators of ONNX's first opsets, which ONNX has dropped and files still have.

Source: onnx/docs/Operators.md of ONNX 1.4, and ONNX Runtime's experimental operators.
"""

from __future__ import annotations

from onnx import defs

from .draft import Draft, Rule
from .signatures import INTS, REQUIRED_INTS, signature


def _per_channel(draft: Draft, values: object) -> str:
    return draft.shaped(draft.constant(values, draft.dtype(0)), 1, -1, 1, 1)


def _affine(draft: Draft) -> str:
    scaled = draft.add("Mul", draft.inputs[0], draft.number(draft.attributes["alpha"]))
    return draft.add("Add", scaled, draft.number(draft.attributes["beta"]))


def _scale(draft: Draft) -> str:
    return draft.add("Mul", draft.inputs[0], draft.number(draft.attributes["scale"]))


def _image_scaler(draft: Draft) -> str:
    scaled = draft.add("Mul", draft.inputs[0], draft.number(draft.attributes["scale"]))
    return draft.add("Add", scaled, _per_channel(draft, draft.attributes["bias"]))


def _crop(draft: Draft) -> str:
    """Borders are left, top, right, bottom; with `scale` the size is given instead of the right and the bottom."""
    border, scale = draft.attributes["border"], draft.attributes.get("scale")
    draft.refuse(len(border) != 4, f"its border {border} should have 4 numbers")
    left, top, right, bottom = border
    if scale:
        draft.refuse(len(scale) != 2, f"its scale {scale} should have 2 numbers")
        ends = draft.constant([top + scale[0], left + scale[1]])
    else:
        ends = draft.add("Sub", draft.dims(draft.inputs[0], 2, 4), draft.constant([bottom, right]))
    return draft.add("Slice", draft.inputs[0], draft.constant([top, left]), ends, draft.constant([2, 3]))


def _parametric_softplus(draft: Draft) -> str:
    soft = draft.add("Softplus", draft.add("Mul", draft.inputs[0], draft.number(draft.attributes["beta"])))
    return draft.add("Mul", soft, draft.number(draft.attributes["alpha"]))


def _scaled_tanh(draft: Draft) -> str:
    bent = draft.add("Tanh", draft.add("Mul", draft.inputs[0], draft.number(draft.attributes["beta"])))
    return draft.add("Mul", bent, draft.number(draft.attributes["alpha"]))


OPERATORS: tuple[tuple[defs.OpSchema, Rule | None], ...] = (
    (signature("Affine", "X:F", "Y:F", alpha=1.0, beta=0.0), _affine),
    (signature("Crop", "X:F", "Y:F", border=REQUIRED_INTS, scale=INTS), _crop),
    (signature("ImageScaler", "X:F", "Y:F", bias=[0.0], scale=1.0), _image_scaler),
    (signature("ParametricSoftplus", "X:F", "Y:F", alpha=1.0, beta=1.0), _parametric_softplus),
    (signature("Scale", "X:F", "Y:F", scale=1.0), _scale),
    (signature("ScaledTanh", "X:F", "Y:F", alpha=1.0, beta=1.0), _scaled_tanh),
)
