"""Recurrent layers whose units are shared by work-items that wait for each other.

The truth is the same layer walked by one work-item for each block of rows, to the bit.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from asyncrt.devices.base import AVX512
from asyncrt.kernels.impl import Impl
from asyncrt.kernels.operator import Example
from asyncrt.kernels.recurrent import tiles
from asyncrt.kernels.recurrent.interface import CellForm, OptionalInputs
from asyncrt.kernels.recurrent.tiles import cut_into_walks
from asyncrt.kernels.registry import operators
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array

from ..run import arrays, assert_close, best_device, make_call, reference, run_impl, traits_of

_LENGTHS = np.array([0, 7, 3, 5, 1, 7, 6, 2, 4, 7], np.int32)
_BOTH: dict[str, Any] = {"direction": "bidirectional"}
CASES = [
    ("LSTM", Example(("f32[9,1,4]", "f32[1,480,4]", "f32[1,480,120]"), {"hidden_size": 120}, 3)),
    ("LSTM", Example(
        ("f32[7,10,4]", "f32[2,280,4]", "f32[2,280,70]", "f32[2,560]", _LENGTHS, "f32[2,10,70]", "f32[2,10,70]",
         "f32[2,210]"), {"hidden_size": 70, **_BOTH}, 3)),
    ("GRU", Example(("f32[7,10,4]", "f32[1,210,4]", "f32[1,210,70]", None, _LENGTHS), {"hidden_size": 70}, 2)),
    ("GRU", Example(
        ("f32[6,2,4]", "f32[1,390,4]", "f32[1,390,130]", "f32[1,780]"),
        {"hidden_size": 130, "linear_before_reset": 1}, 2)),
    ("RNN", Example(
        ("f32[7,10,4]", "f32[2,96,4]", "f32[2,96,96]", None, _LENGTHS), {"hidden_size": 96, **_BOTH}, 2)),
    ("RNN", Example(("f32[0,2,4]", "f32[1,96,4]", "f32[1,96,96]"), {"hidden_size": 96}, 2)),
]  # fmt: skip


def small(example: Example) -> list[Array | None]:
    return [a * np.float32(0.3) if a is not None and a.dtype == np.float32 else a for a in arrays(example)]


def cpu(**changes: Any) -> DeviceTraits:
    """The best device, as one of CPUs whose work-groups may wait for each other if it is one."""
    return attrs.evolve(traits_of(best_device()), kind="cpu", **changes)


def layer(name: str, example: Example, traits: DeviceTraits) -> tuple[Impl, Any]:
    it, inputs = operators()["", name], small(example)
    call = make_call(it, example, inputs, reference(it, example, inputs), constant=True)
    assert it.implement is not None
    return it.implement(call, traits), call


@pytest.fixture(params=[True, False], ids=["gives way", "pauses"])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DeviceTraits:
    """A CPU of twelve cores, for which layers of any size are worth sharing, and whose kernels give way or pause."""
    features = best_device().info.features
    if "threads" not in features:
        pytest.skip("work-groups of this device may not wait for each other")
    monkeypatch.setattr(tiles, "_LEAST_SHARE", 1)
    return cpu(compute_units=12, features=features if request.param else features - {"sched_yield"})


@pytest.mark.parametrize(("name", "example"), CASES)
def test_who_has_a_share_changes_no_bit(name: str, example: Example, shared: DeviceTraits) -> None:
    """A layer that is shared has the bits of one that is not."""
    impl, call = layer(name, example, shared)
    alone, _ = layer(name, example, attrs.evolve(shared, features=frozenset()))
    assert (impl.name, alone.name) == ("tiles of rows and units", "tiles of rows")
    inputs = small(example)
    expected = run_impl(alone, call, inputs)

    for e, truth in zip(expected, reference(operators()["", name], example, inputs), strict=True):
        assert_close(truth, e, name)
    for _ in range(20):
        for e, g in zip(expected, run_impl(impl, call, inputs), strict=True):
            assert np.array_equal(e, g)


@pytest.mark.parametrize(("name", "example"), [CASES[0], CASES[3]])
def test_nobody_waits_for_a_work_item_that_never_begins(name: str, example: Example, shared: DeviceTraits) -> None:
    """The only work-item of a walk that there is does all shares."""
    impl, call = layer(name, example, shared)
    walk = impl.launches[-1]
    assert walk.grid > (1,)
    only = impl._replace(launches=(*impl.launches[:-1], walk._replace(grid=(1,))))
    inputs = small(example)

    for e, g in zip(run_impl(impl, call, inputs), run_impl(only, call, inputs), strict=True):
        assert np.array_equal(e, g)


_NONE = OptionalInputs(False, False, False, False, False)
_FORM = CellForm("LSTM", 4, "", "0", _NONE, 1, False, False, False, AVX512)


@pytest.mark.parametrize(
    ("cores", "batch", "directions", "hidden", "cut"),
    [
        (2, 1, 1, 512, (1, 1, 2)),
        (2, 2, 1, 512, (1, 2, 2)),
        (2, 1, 2, 512, (1, 1, 1)),
        (2, 16, 1, 512, (2, 8, 1)),
        (2, 2, 1, 64, (2, 1, 1)),
        (16, 1, 2, 512, (1, 1, 8)),
        (16, 3, 1, 256, (1, 3, 4)),
        (1, 3, 1, 512, (1, 3, 1)),
    ],
)
def test_how_layers_are_cut(cores: int, batch: int, directions: int, hidden: int, cut: tuple[int, int, int]) -> None:
    """Units are shared where a step reads many weights and there are cores for it; else rows are."""
    traits = DeviceTraits(compute_units=cores, features=frozenset({"threads"}))

    walks = cut_into_walks(_FORM, batch, directions, hidden, traits)

    assert (walks.blocks, walks.height, walks.shares) == cut


def test_layers_are_not_shared_where_work_groups_may_not_wait() -> None:
    """Without threads that all go on, a work-item that waits may wait for ever."""
    walks = cut_into_walks(_FORM, 1, 1, 512, DeviceTraits(compute_units=2))

    assert walks.shares == 1
