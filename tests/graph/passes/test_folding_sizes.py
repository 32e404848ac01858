"""Folding is judged by sizes before anything is calculated; what is too much stays for a request."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt.errors import OutOfHostMemory
from asyncrt.graph import build as building
from asyncrt.graph.build import build_program
from asyncrt.graph.importer import import_model
from asyncrt.graph.passes import fold_constants
from asyncrt.graph.passes.infer_layouts import infer_layouts
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array
from asyncrt.options import RuntimeOptions

from ...builders import i64, model, node

MIB = 1 << 20


@contextlib.contextmanager
def peak_below(nbytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < nbytes


def folded(nodes: Sequence[onnx.NodeProto], constants: dict[str, Array], **options: Any) -> list[str]:
    """The values that loading has calculated."""
    given = RuntimeOptions(**options)
    source = model(nodes, ["x f32[n]"], [nodes[-1].output[0]], constants)
    graph = import_model(source, given)
    infer_layouts(graph, given)
    made = {output for n in nodes for output in n.output}
    return [v.name for v in graph.values if v.constant is not None and v.name in made]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        pytest.param(
            [node("y = MelWeightMatrix(b, l, r, lo, hi)")],
            {"b": np.array(128), "l": np.array(1 << 20), "r": np.array(16000),
             "lo": np.float32(0), "hi": np.float32(8e3)},
            id="MelWeightMatrix",
        ),
        pytest.param(
            [node("w = HannWindow(n)"), node("y = ReduceSum(w)")], {"n": np.array(1 << 30)}, id="HannWindow"
        ),
        pytest.param(
            [node("y = MaxUnpool(a, i, s)", kernel_shape=[1 << 28])],
            {"a": np.ones((1, 1, 1), np.float32), "i": i64(0).reshape(1, 1, 1), "s": i64(1, 1, 4)}, id="MaxUnpool",
        ),
        pytest.param(
            [node("y = NonZero(a)")], {"a": np.ones((16,) * 5, np.uint8)}, id="NonZero",
        ),
        pytest.param(
            [node("y = NonMaxSuppression(b, s, m)")],
            {"b": np.ones((1, 1000, 4), np.float32), "s": np.ones((1, 200, 1000), np.float32), "m": i64(1000)},
            id="NonMaxSuppression",
        ),
        pytest.param(
            [node("s = Shape(x)"), node("v = Concat(s, one)", axis=0), node("y = Tile(v, k)")],
            {"one": i64(1), "k": i64(1 << 28)}, id="Tile of a shape that is known in part",
        ),
        pytest.param(
            [node("s = Shape(x)"), node("y = Expand(s, k)")], {"k": i64(1 << 28, 1)}, id="Expand of one",
        ),
    ],
)  # fmt: skip
def test_what_takes_too_much_is_not_calculated(nodes: list[onnx.NodeProto], constants: dict[str, Array]) -> None:
    """Neither its result nor what it needs on the way; the model is imported all the same."""
    with peak_below(96 * MIB):
        assert "y" not in folded(nodes, constants)


def test_constants_that_double_in_each_node_stop_at_the_budget() -> None:
    """Each is no more than twice its inputs; together they are no more than a request and twice the model may have."""
    nodes = [node(f"v{i + 1} = Concat(v{i}, v{i})", axis=0) for i in range(30)]

    with peak_below(32 * MIB):
        made = folded([*nodes, node("y = Identity(v30)")], {"v0": np.ones(MIB // 4, np.float32)}, memory_limit=8 * MIB)

    assert made == ["v1", "v2"]  # 2 and 4 MB of 10; 8 beside them are too much


def test_large_weights_are_folded_whatever_a_request_may_have() -> None:
    """Constants do not count as a request's: a model of a megabyte with a limit of a kilobyte."""
    weights = np.ones((512, 512), np.float32)

    assert folded([node("t = Transpose(w)"), node("y = MatMul(x, t)")], {"w": weights}, memory_limit=1024) == ["t"]


def test_what_the_system_refuses_while_loading_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant that could not be calculated is left to a request; elsewhere a typed error is raised."""

    def fails(*given: Any, **named: Any) -> Any:
        raise MemoryError("Unable to allocate 8.00 GiB")

    nodes, constants = [node("t = Transpose(w)"), node("y = MatMul(x, t)")], {"w": np.ones((4, 4), np.float32)}
    with monkeypatch.context() as patched:
        patched.setattr(fold_constants, "evaluate", fails)
        assert folded(nodes, constants) == []
    monkeypatch.setattr(building, "run_passes", fails)

    with pytest.raises(OutOfHostMemory, match="loading a model: the system gives no memory"):
        build_program(model(nodes, ["x f32[4]"], ["y"], constants), DeviceTraits(), RuntimeOptions())
