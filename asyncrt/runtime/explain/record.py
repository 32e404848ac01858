"""What became of one node of a finished inference: data, for the table, the JSON and the page."""

from __future__ import annotations

import attrs

DECISIONS = ("ran", "fused", "skipped", "view", "empty", "host")


@attrs.frozen
class NodeExplanation:
    """One node of one inference.

    Attributes:
        node: Its name.
        operator: ONNX operator.
        decision: "ran", "fused", "skipped", "view", "empty" or "host".
        outputs: Layout of each output, e.g. ``float32[2,8]``.
        implementation: Which kernel it ran with, for those that ran.
        alias_of: The value that a skipped node's first output is, or that it is a view of.
        offset: Bytes into that value, from its first element.
        strides: Of a view's first output, in elements.
        why: The reason for the decision.
        skip_mode: "never", "always" or "at runtime": what loading could tell.
        inputs: Names of the values that it takes, constants too, each once.
        output_names: Names of the values that it makes. No other node of the explanation makes one of that name: where
            a model uses a name again, as two subgraphs may, the later one has `'1` or the like behind it.
        inside: The node whose subgraph it is in, which comes before it; "" for a node of the model's own graph.
        lane, lanes: On which of how many lanes its kernels were, the first being 1, where branches of its chunk may run
            side by side (`RuntimeOptions.branches`).
        device_us: Microseconds that its kernels took, in all executions of a subgraph together; None where that was not
            measured, or where none ran.
    """

    node: str
    operator: str
    decision: str
    outputs: tuple[str, ...]
    implementation: str = ""
    alias_of: str = ""
    offset: int = 0
    strides: tuple[int, ...] = ()
    why: str = ""
    skip_mode: str = "never"
    inputs: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    inside: str = ""
    lane: int = 1
    lanes: int = 1
    device_us: float | None = None
