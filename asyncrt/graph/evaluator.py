"""Operators that asyncrt has no words for: onnx's own evaluator carries them out, on the host.

Such a node is one like any other node on the host: it runs off the event loop, and what it makes may go to the device.
It is slow, being Python and NumPy; a log message says which nodes of a model are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import Operator
from asyncrt.kinds import nbytes_of
from asyncrt.layout import Array

_TIMES = 64  # bytes that a node makes for each that it is given; what it makes is judged again when it is there


def has_reference(schema: defs.OpSchema) -> bool:
    """Whether onnx carries an operator out by code of its own."""
    try:
        from onnx.reference.ops import load_op
        from onnx.reference.ops.aionnxml import load_op as load_ml

        load = {"": load_op, "ai.onnx.ml": load_ml}.get(schema.domain)
        return load is not None and load(schema.domain, schema.name, schema.since_version) is not None
    except Exception:  # it says so by errors of many classes
        return False


def evaluated(schema: defs.OpSchema) -> Operator | None:
    """Return an operator that onnx's evaluator carries out, or None if that does not know it either."""
    if not has_reference(schema):
        return None

    def infer(call: Call) -> Sequence[Any]:
        raise ValueUnknown(f"'{call.name}': its shapes are those of what onnx's evaluator makes")

    def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> Sequence[Array]:
        return _run(schema, attributes, inputs)

    def host_nbytes(call: Call) -> int:
        return _TIMES * sum([nbytes_of(a) for a in call.values if a is not None])

    return Operator(
        name=schema.name,
        domain=schema.domain,
        infer=infer,
        reference=reference,
        host_nbytes=host_nbytes,
        by_evaluator=True,
    )


def _run(schema: defs.OpSchema, attributes: Attributes, inputs: Sequence[Array | None]) -> list[Array]:
    from onnx.reference import ReferenceEvaluator  # takes long to import, and few models need it

    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(attributes.outputs)]
    given: dict[str, Any] = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()
    }
    node = helper.make_node(schema.name, names, outputs, domain=schema.domain, **given)
    infos = [onnx.ValueInfoProto(name=name) for name in names if name]
    graph = helper.make_graph([node], schema.name, infos, [onnx.ValueInfoProto(name=name) for name in outputs])
    opsets = [helper.make_opsetid(schema.domain, attributes.opset)]
    feeds = {n: _for_onnx(a) for n, a in zip(names, inputs, strict=True) if a is not None}
    try:
        results = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets)).run(None, feeds)
    except ImportError as error:
        raise ShapeError(f"onnx's evaluator needs a package for it: {error}") from error
    return [np.asarray(r) for r in results]


def _for_onnx(array: Array) -> Array:
    return array.astype(object) if array.dtype.kind == "T" else array
