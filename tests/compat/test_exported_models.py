"""Models as exporters write them: a session says the same of them as ONNX Runtime's, and gives the same."""

from __future__ import annotations

from typing import Any

import pytest

from ..zoo import assert_equal, zoo
from .api import session

NAMES = (
    "detector_nms_ts13", "gpt2_kv_dynamo20", "gru_tagger_ts17", "resnet_bn_ts13", "skip_mixed_reader_ts17", "vit_ts17",
)  # fmt: skip
META = ("producer_name", "graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map")


@pytest.mark.parametrize("name", NAMES)
def test_a_session_of_an_exported_model_is_like_onnx_runtimes(name: str, ours: Any) -> None:
    """Inputs are the same; of a dim of an output one may know the size where the other knows a name."""
    theirs = pytest.importorskip("onnxruntime")
    model = next(m for m in zoo() if m.name == name)
    a, b = session(theirs, model.path, providers=["CPUExecutionProvider"]), session(ours, model.path)

    assert [str(arg) for arg in b.get_inputs()] == [str(arg) for arg in a.get_inputs()]
    assert [(o.name, o.type, len(o.shape)) for o in b.get_outputs()] == [
        (o.name, o.type, len(o.shape)) for o in a.get_outputs()
    ]
    for x, y in zip(a.get_outputs(), b.get_outputs(), strict=True):
        differ = [(d, e) for d, e in zip(x.shape, y.shape, strict=True) if d != e]
        assert [(d, e) for d, e in differ if isinstance(d, int) == isinstance(e, int)] == []
    assert {n: getattr(b.get_modelmeta(), n) for n in META} == {n: getattr(a.get_modelmeta(), n) for n in META}
    feed = model.inputs(0)
    names = [arg.name for arg in a.get_outputs()]
    expected, given = (dict(zip(names, made.run(None, feed), strict=True)) for made in (a, b))
    assert_equal(expected, given, model, name)
