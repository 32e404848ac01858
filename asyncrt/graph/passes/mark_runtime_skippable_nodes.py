"""What loading can tell about skipping: always, never, or only a request can say.

Asks the same question that a request asks, with symbolic dims. An answer that holds for every request is final; one
that depends on a dim or a value makes the node runtime-skippable.
"""

from __future__ import annotations

from asyncrt.dims import Undetermined
from asyncrt.graph.ir import Graph, Placement
from asyncrt.kernels.call import ValueUnknown
from asyncrt.kernels.decide import Empty, Skip, SkipMode, decide
from asyncrt.layout import Layout
from asyncrt.options import RuntimeOptions

from .fold_constants import as_model_error
from .infer_layouts import partial_call
from .value_inputs import host_values


def mark_runtime_skippable_nodes(graph: Graph, options: RuntimeOptions) -> None:
    """Set each node's skip mode and the reason."""
    known = host_values(graph)
    for node in graph.nodes:
        if node.place is Placement.HOST or node.operator.views is None:
            continue
        node.skip_mode, node.skip_note = SkipMode.AT_RUNTIME, "depends on the request's shapes or values"
        call = partial_call(node, graph)
        shapes = [graph.values[o].layout.shape for o in node.outputs]
        if call is None or any(s is None for s in shapes):
            continue
        outputs = tuple(Layout(t, s) for t, s in zip(node.output_types, shapes, strict=True))  # type: ignore[arg-type]
        try:
            decision = decide(node.operator, call._replace(outputs=outputs))
        except (Undetermined, ValueUnknown):
            continue
        except Exception as error:
            if all(graph.values[v].layout.is_static for v in node.uses):
                raise as_model_error(node, "cannot tell whether it moves data", error) from error
            continue  # it takes no symbolic dims; with sizes it may
        if isinstance(decision, Skip):
            node.skip_mode, node.skip_note = SkipMode.ALWAYS, decision.why
        elif not isinstance(decision, Empty) and not any(
            v in known and graph.values[v].constant is None for v in node.get_value_hints()
        ):
            node.skip_mode, node.skip_note = SkipMode.NEVER, decision.why
