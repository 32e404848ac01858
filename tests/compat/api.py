"""One program, two packages: what these tests expect of asyncrt they expect of ONNX Runtime as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import pytest

RELU = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18], producer_name: "me", model_version: 7,
                                   domain: "of.mine", doc_string: "a model">
positive (float[batch, 3] x, int64[2] i) => (float[batch, 3] y, int64[] z) {
    y = Relu (x)
    z = ReduceSum <keepdims = 0> (i)
}""")

SUM = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
added (float[n] a, float[n] b) => (float[m] c) { c = Add (a, b) }""")

DEFAULT = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
defaulted (float[batch, 3] x, float[3] k = {1, 2, 3}) => (float[batch, 3] y) { y = Add (x, k) }""")

CONSTANT = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
fixed (float[batch, 3] x) => (float[batch, 3] y) <float[3] k = {1, 2, 3}> { y = Add (x, k) }""")


def session(ort: Any, model: onnx.ModelProto | Any, *arguments: Any, **named: Any) -> Any:
    """Return a session of a model, or of whatever a program hands over."""
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return ort.InferenceSession(source, *arguments, **named)


def raised(ort: Any, call: Callable[[], Any]) -> tuple[str, str]:
    """Return the name of the class that programs catch, and the message, of what a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which it is, is what is asked
        call()
    state = ort.capi.onnxruntime_pybind11_state
    classes = (
        *(
            getattr(state, name)
            for name in ("Fail", "InvalidArgument", "NoSuchFile", "InvalidProtobuf", "InvalidGraph")
        ),
        *(TypeError, AttributeError, RuntimeError, ValueError),
    )
    name = next((c.__name__ for c in classes if isinstance(caught.value, c)), type(caught.value).__name__)
    return name, str(caught.value)


def described(args: list[Any]) -> list[tuple[str, str, list[Any]]]:
    """Return what is known of inputs or outputs."""
    return [(arg.name, arg.type, arg.shape) for arg in args]


def gives(made: Any, feed: Mapping[str, Any]) -> list[Any]:
    """Return all outputs as lists."""
    return [output.tolist() for output in made.run(None, dict(feed))]
