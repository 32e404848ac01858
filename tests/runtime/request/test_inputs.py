"""Inputs that fit as they are are told from others as the whole check does it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from asyncrt.errors import InputError
from asyncrt.graph.build import build_program
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Layout
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.request.inputs import Checked, check_inputs

from ...builders import model, node

LIMIT = 1 << 20  # bytes


@pytest.fixture(scope="module")
def program() -> Any:
    source = model([node("s = Add(x, z)"), node("y = Mul(s, s)")], ["x f32[n,3]", "z f32[n,3]"], ["y"])
    return build_program(source, DeviceTraits("cpu", 1, 1, frozenset()), RuntimeOptions())


def fine(rows: int) -> dict[str, Any]:
    return {"x": np.ones((rows, 3), np.float32), "z": np.zeros((rows, 3), np.float32)}


WRONG: dict[str, Mapping[str, Any]] = {
    "another dtype": {**fine(2), "x": np.ones((2, 3))},
    "another byte order": {**fine(2), "x": np.ones((2, 3), ">f4")},
    "another rank": {**fine(2), "x": np.ones((2, 3, 1), np.float32)},
    "another static dim": {**fine(2), "z": np.ones((2, 4), np.float32)},
    "dims of one name that differ": {"x": fine(2)["x"], "z": fine(3)["z"]},
    "one that is missing": {"x": fine(2)["x"]},
    "one too many": {**fine(2), "w": fine(2)["x"]},
    "another name": {"x": fine(2)["x"], "w": fine(2)["z"]},
    "no array": {**fine(2), "x": [[object()]]},
    "None": {**fine(2), "x": None},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_in_the_same_words(name: str, program: Any) -> None:
    """Every time, whatever has fitted before."""
    checked, messages = Checked(program, LIMIT), []
    for rows in (2, 3, 2):
        checked.check(fine(rows))

    for check in (lambda g: check_inputs(program, g, limit=LIMIT), checked.check, checked.check):
        with pytest.raises(InputError) as caught:
            check(WRONG[name])
        messages.append(str(caught.value))

    assert messages == [messages[0]] * 3


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(fine(2), id="arrays"),
        pytest.param(dict(reversed(fine(2).items())), id="in another order"),
        pytest.param({**fine(2), "x": np.ones((3, 2), np.float32).T}, id="not contiguous"),
        pytest.param({**fine(2), "x": np.ones((2, 6), np.float32)[:, ::2]}, id="strided"),
        pytest.param({**fine(2), "x": np.ones((2, 3), np.float32).view(np.matrix)}, id="a subclass"),
        pytest.param(MappingProxyType(fine(2)), id="another mapping"),
    ],
)
def test_what_fits_is_given_on_as_it_is_without(given: Mapping[str, Any], program: Any) -> None:
    """Contiguous, of the class that kernels get, and of the same bytes; also the second time."""
    checked = Checked(program, LIMIT)
    expected = check_inputs(program, given, limit=LIMIT)

    for _ in range(2):
        got = checked.check(given)

        assert got.keys() == expected.keys()
        for id, array in got.items():
            assert array.flags.c_contiguous
            assert (array.dtype, array.shape, array.tobytes()) == (
                expected[id].dtype, expected[id].shape, expected[id].tobytes(),
            )  # fmt: skip


def test_what_fitted_before_says_nothing_of_other_shapes(program: Any) -> None:
    """Each request is refused or taken by its own shapes, whichever came before it."""
    checked = Checked(program, LIMIT)
    wrong = {**fine(2), "x": np.ones((3, 3), np.float32)}

    for given, fits in [(fine(2), True), (wrong, False), (fine(2), True), (fine(3), True), (wrong, False)]:
        assert (checked.fitting(given) is not None) == fits


def kept(shape: tuple[int, ...]) -> dict[str, Layout]:
    """What is on the device already."""
    return {"z": Layout(FLOAT32, shape)}


@pytest.mark.parametrize(
    ("given", "kept", "fits"),
    [
        pytest.param({"x": fine(2)["x"]}, kept((2, 3)), True, id="what is given and what is kept"),
        pytest.param({"x": fine(2)["x"]}, kept((3, 3)), False, id="dims of one name that differ"),
        pytest.param({"x": fine(2)["x"]}, kept((2, 4)), False, id="another static dim"),
        pytest.param({"x": fine(2)["x"]}, kept((2, 3, 1)), False, id="another rank"),
        pytest.param(fine(2), kept((2, 3)), False, id="given though it is kept"),
        pytest.param({}, kept((2, 3)), False, id="one that is missing"),
        pytest.param({"w": fine(2)["x"]}, kept((2, 3)), False, id="another name"),
    ],
)
def test_inputs_that_are_kept_are_checked_by_their_layouts(
    given: dict[str, Any], kept: dict[str, Layout], fits: bool, program: Any
) -> None:
    """As `check_inputs()` does, which is asked about all that does not fit."""
    ids = {program.values[i].name: i for i in program.inputs}

    got = Checked(program, LIMIT).fitting(given, {ids[name]: layout for name, layout in kept.items()})

    assert (got is not None) == fits
    if got is not None:
        assert list(got) == [ids["x"]]
        assert got[ids["x"]] is given["x"]
