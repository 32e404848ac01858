"""Recurrent layers that multiply several batch rows by packed weights, against the operator's reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.registry import find_operator
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, layout_of

from ...ops.run import run_impl

CPU = DeviceTraits("cpu", 2)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class Case(NamedTuple):
    """A layer; *given* are the optional inputs that there are."""

    operator: str
    batch: int
    hidden: int
    given: tuple[int, ...] = ()
    outputs: int = 2
    attributes: Mapping[str, Any] = {}
    directions: int = 1


BOTH = {"direction": "bidirectional"}
CASES = {
    "one row": Case("LSTM", 1, 32),
    "two rows, a panel left over": Case("LSTM", 4, 40, (3,)),
    "as many rows as a tile has, and one": Case("LSTM", 17, 64, (3,), 3),
    "lengths, states and peepholes, both ways": Case("LSTM", 5, 20, (3, 4, 5, 6, 7), 3, BOTH, 2),
    "the forget gate is one less the input gate": Case("LSTM", 3, 16, (3, 4), 3, {"input_forget": 1, "clip": 0.5}),
    "batch first, and backwards": Case("LSTM", 3, 33, (3, 5, 6), 3, {"layout": 1, "direction": "reverse"}),
    "other activations": Case("LSTM", 2, 24, (3,), 3, {"activations": ("HardSigmoid", "Softsign", "ScaledTanh")}),
    "a GRU": Case("GRU", 5, 47, (3, 4, 5)),
    "a GRU of one row, both ways": Case("GRU", 1, 64, (3,), 2, BOTH, 2),
    "a GRU that resets after the product": Case("GRU", 9, 50, (3, 4, 5), 2, {"linear_before_reset": 1}),
    "plain recurrence": Case("RNN", 6, 31, (3, 4, 5), 2, BOTH, 2),
    "an activation with a parameter": Case("RNN", 2, 32, (), 2, {"activations": ("LeakyRelu",)}),
    "plain recurrence, nothing given": Case("RNN", 2, 16, (), 1, {"activations": ("Relu",)}),
}  # fmt: skip


def data(case: Case, steps: int = 5, width: int = 7) -> list[Array | None]:
    random = np.random.default_rng(case.hidden)
    columns, d, n, h = GATES[case.operator] * case.hidden, case.directions, case.batch, case.hidden
    first = bool(case.attributes.get("layout"))
    state = (n, d, h) if first else (d, n, h)
    shapes = {
        0: (n, steps, width) if first else (steps, n, width), 1: (d, columns, width), 2: (d, columns, h),
        3: (d, 2 * columns), 5: state, 6: state, 7: (d, 3 * h),
    }  # fmt: skip
    inputs: list[Array | None] = []
    for i in range(max(2, *case.given, 2) + 1):
        if i == 4 and i in case.given:
            inputs.append((np.arange(n) * 2 % (steps + 1)).astype(np.int32))  # none, some, and all of the steps
        elif i < 3 or i in case.given:
            inputs.append((random.standard_normal(shapes[i]) * 0.4).astype(np.float32))
        else:
            inputs.append(None)
    return inputs


def carried_out(case: Case, inputs: list[Array | None], traits: DeviceTraits) -> tuple[str, list[Array]]:
    """Return the name of the kernel, and its results."""
    operator = find_operator("", case.operator)
    assert operator is not None
    assert operator.implement is not None
    layouts = tuple(None if x is None else layout_of(x) for x in inputs)
    constants = tuple(i in (1, 2, 3, 7) for i in range(len(inputs)))
    types = (layout_of(inputs[0]).dtype,) * case.outputs  # type: ignore[arg-type]  # there is data
    attributes = Attributes({"hidden_size": case.hidden, **case.attributes}, 14, case.outputs)
    call = Call(case.operator, attributes, layouts, (None,) * len(inputs), (), types, constants)
    shapes = operator.infer(call)
    call = call._replace(outputs=tuple(Layout(t, tuple(s)) for t, s in zip(types, shapes, strict=True)))
    impl = operator.implement(call, traits)
    return impl.name, run_impl(impl, call, inputs)


@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items()])
def test_rows_that_are_walked_together_give_what_the_reference_gives(case: Case) -> None:
    """Rows end at different steps, and a state need not fill its panels."""
    operator = find_operator("", case.operator)
    assert operator is not None
    inputs = data(case)
    attributes = Attributes({"hidden_size": case.hidden, **case.attributes}, 14, case.outputs)

    kernel, results = carried_out(case, inputs, CPU)

    expected = operator.reference(attributes, inputs)[: case.outputs]
    assert kernel == "tiles of rows"
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("operator", GATES)
def test_a_row_does_not_depend_on_those_beside_it(operator: str) -> None:
    """However many rows there are, and on how many work-items, the first one's bytes are those that it has alone."""
    case = Case(operator, 11, 48, (3,))
    inputs = data(case)
    x = inputs[0]
    assert x is not None

    together, apart = (carried_out(case, inputs, DeviceTraits("cpu", units))[1] for units in (1, 4))
    alone = carried_out(case._replace(batch=1), [np.ascontiguousarray(x[:, :1]), *inputs[1:]], CPU)[1]

    assert [r.tobytes() for r in together] == [r.tobytes() for r in apart]
    for one, every in zip(alone, together, strict=True):
        assert one.tobytes() == np.ascontiguousarray(every[..., :1, :]).tobytes()


@pytest.mark.parametrize(
    ("case", "traits"),
    [
        (Case("LSTM", 2, 32), DeviceTraits("cpu", 2, packed_weights=False)),
        (Case("LSTM", 2, 15), CPU),
    ],
    ids=["weights may not be packed", "few units"],
)
def test_other_layers_walk_each_row_alone(case: Case, traits: DeviceTraits) -> None:
    """With the same result."""
    operator = find_operator("", case.operator)
    assert operator is not None
    inputs = data(case)

    kernel, results = carried_out(case, inputs, traits)

    attributes = Attributes({"hidden_size": case.hidden, **case.attributes}, 14, case.outputs)
    assert kernel == "rows"
    for got, want in zip(results, operator.reference(attributes, inputs)[: case.outputs], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)
