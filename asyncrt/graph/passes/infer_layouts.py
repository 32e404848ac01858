"""Partial shapes forward through the graph, with the values of shape arithmetic beside them.

Asks each operator's own `infer` with symbolic dims. What depends on the request stays unknown; what can never fit is
reported now, naming the node.
"""

from __future__ import annotations

import numpy as np

from asyncrt.dims import Undetermined
from asyncrt.errors import AsyncrtError, ModelError, ModelFormatError, ModelLimitError, ShapeError
from asyncrt.kernels.operator import Call, ValueUnknown
from asyncrt.layout import Layout, PartialLayout
from asyncrt.options import RuntimeOptions

from ..node import ProgramNode
from ..onnx import Graph
from .fold_constants import fold


def infer_layouts(graph: Graph, options: RuntimeOptions) -> None:
    """Give every value what can be known of its layout, and its value where that is constant."""
    for value in graph.values:
        if value.constant is not None and value.constant.size <= 1024 and value.constant.dtype.kind in "iub":
            value.partial = value.constant
    for node in graph.nodes:
        call = partial_call(node, graph)
        if call is not None:
            call = _infer(node, call, graph, options)
        fold(node, graph, call, options)


def partial_call(node: ProgramNode, graph: Graph) -> Call | None:
    """Return the node's call as far as loading knows it; None if the rank of an input is unknown."""
    layouts: list[Layout | None] = []
    for id in node.inputs:
        layout = None if id is None else graph.values[id].layout
        if layout is not None and (layout.shape is None or layout.dtype is None):
            return None
        layouts.append(None if layout is None else Layout(layout.dtype, layout.shape))  # type: ignore[arg-type]  # may hold Dims
    values = tuple(None if id is None else _known(graph, id) for id in node.inputs)
    constants = tuple(id is not None and graph.values[id].constant is not None for id in node.inputs)
    return Call(node.name, node.attributes, tuple(layouts), values, (), node.output_types, constants)


def _known(graph: Graph, id: int) -> np.ndarray | None:
    value = graph.values[id]
    return value.partial if value.partial is not None else value.constant


def _infer(node: ProgramNode, call: Call, graph: Graph, options: RuntimeOptions) -> Call | None:
    try:
        shapes = node.operator.infer(call)
    except (Undetermined, ValueUnknown):
        return call  # a request will tell
    except ShapeError as error:
        raise ModelFormatError(f"{node.operator.name} {error.message}", detail=error.detail, hint=error.hint) from error
    except AsyncrtError:
        raise
    except Exception as error:
        raise ModelError(f"'{node.name}': the shapes of {node.operator.name} cannot be inferred: {error!r}") from error
    outputs: list[Layout] = []
    for id, shape, dtype in zip(node.outputs, shapes, node.output_types, strict=True):
        if len(shape) > options.max_rank:
            raise ModelLimitError(
                f"'{node.name}': its output has rank {len(shape)}; RuntimeOptions.max_rank is {options.max_rank}"
            )
        graph.values[id].layout = PartialLayout(dtype, tuple(shape))
        outputs.append(Layout(dtype, tuple(shape)))
    return call._replace(outputs=tuple(outputs))
