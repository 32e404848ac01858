"""Slices out of range, against onnxruntime, and slices of symbolic dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from asyncrt.dims import Dim, Undetermined
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.decide import Decision, Empty, Run, Skip, decide
from asyncrt.kernels.ops.tensor.slice import OPERATOR
from asyncrt.layout import FLOAT32, Layout

from ...second_opinion import onnxruntime_session

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
SEQ = Dim.named("seq")


@pytest.fixture(scope="module")
def session() -> Any:
    names = ["x", "starts", "ends", "axes", "steps"]
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])]
    infos += [helper.make_tensor_value_info(n, TensorProto.INT64, [1]) for n in names[1:]]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])]
    graph = helper.make_graph([helper.make_node("Slice", names, ["y"])], "slice", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return onnxruntime_session(model)


@pytest.mark.parametrize("dim", [0, 1, 4])
@pytest.mark.parametrize("step", [1, 3, -1, -2])
def test_bounds_are_brought_into_range_as_by_onnxruntime(dim: int, step: int, session: Any) -> None:
    """Whatever the bounds, the same elements are left."""
    x = np.arange(dim, dtype=np.float32)
    bounds = [-6, -4, -1, 0, 1, 3, 4, 6, INT_MIN, 2**63 - 1, -(2**63) + 1]
    for start in bounds:
        for end in [*bounds[:-2], *([2**63 - 1, INT_MAX] if step > 0 else [-(2**63) + 1])]:
            inputs = [x, *(np.array([v], np.int64) for v in (start, end, 0, step))]
            (wanted,) = session.run(None, dict(zip(["x", "starts", "ends", "axes", "steps"], inputs, strict=True)))
            (got,) = OPERATOR.reference(Attributes(), inputs)

            np.testing.assert_array_equal(got, wanted, err_msg=f"[{start}:{end}:{step}] of {dim}")


def _call(shape: tuple[int, ...], start: int, end: int, axis: int, step: int = 1) -> Call:
    values = (None, *(np.array([v], object) for v in (start, end, axis, step)))
    call = Call("slice", Attributes(), (Layout(FLOAT32, shape), *(Layout(FLOAT32, (1,)),) * 4), values)
    return call._replace(outputs=(Layout(FLOAT32, tuple(OPERATOR.infer(call)[0])),))


def _length(start: int, end: int, step: int = 1, dim: int = SEQ) -> int:  # type: ignore[assignment]
    return _call((dim,), start, end, 0, step).outputs[0].shape[0]


def _decision(shape: tuple[int, ...], start: int, end: int, axis: int, step: int = 1) -> Decision:
    return decide(OPERATOR, _call(shape, start, end, axis, step))


def test_a_symbolic_dim_is_taken_to_hold_what_is_sliced() -> None:
    """Lengths follow from the bounds where these are far out, near an end, or symbolic themselves."""
    assert _length(0, INT_MAX) == SEQ
    assert _length(2, INT_MAX) == SEQ - 2
    assert _length(1, -1) == SEQ - 2
    for one in (_length(-1, INT_MAX), _length(0, 1)):
        assert [one.evaluate({"seq": n}) for n in range(4)] == [0, 1, 1, 1]  # type: ignore[attr-defined]
    assert _length(0, SEQ, dim=512) == SEQ  # type: ignore[arg-type]
    assert _length(-1, INT_MIN, -1) == SEQ
    assert _length(0, INT_MAX, 2, dim=4 * SEQ) == 2 * SEQ  # type: ignore[operator]


def test_what_only_a_request_can_tell_is_not_guessed() -> None:
    """An end inside the dim may or may not cut something off, and of a number nothing would notice."""
    for start, end, step in ((0, 5, 1), (-2, INT_MAX, 1), (3, INT_MIN, -1), (0, INT_MAX, SEQ)):
        with pytest.raises(Undetermined):
            _length(start, end, step)  # type: ignore[arg-type]
    with pytest.raises(Undetermined):
        _length(SEQ, SEQ + 3, dim=512)  # type: ignore[arg-type, operator]


def test_skips() -> None:
    """A slice is skipped if it is one piece of its input: all of it, or of one row."""
    assert isinstance(_decision((4, 5), 0, INT_MAX, 1), Skip)
    assert isinstance(_decision((4, 5), 1, 3, 1), Run)
    assert isinstance(_decision((4, 5), 3, 3, 1), Empty)
    assert isinstance(_decision((4, 5), 1, 2, 0, 3), Skip)
    assert isinstance(_decision((4, SEQ), 0, INT_MAX, 1), Skip)  # type: ignore[arg-type]
    assert _decision((4, 5), 1, 3, 0) == Skip((0,), (20,), OPERATOR.why)
    assert _decision((1, 5), 2, INT_MAX, 1) == Skip((0,), (8,), OPERATOR.why)
    with pytest.raises(Undetermined):
        _decision((SEQ, 5), 1, 3, 1)  # type: ignore[arg-type]
