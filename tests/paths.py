"""Which path a test takes: with the order of commands checked, as most do, or as users run it.

Checking watches the streams and switches nothing off; what is left to differ is who calls the device. Tests of what a
runtime does as a whole run both ways: `pytestmark = pytest.mark.usefixtures("either_path")`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import pytest

from asyncrt import RuntimeOptions
from asyncrt.mechanisms import MECHANISMS, Mechanism
from asyncrt.mechanisms import mechanisms as known_mechanisms
from asyncrt.runtime.execute import prepared_launches as preset
from asyncrt.runtime.statistics import RuntimeStatistics

CHECKED, AS_USERS_RUN_IT = "checked", "as users run it"


@pytest.fixture(params=[CHECKED, AS_USERS_RUN_IT])
def either_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let the test's runtimes take both, one after the other, with launches `prepared_soon`."""
    path: str = request.param
    monkeypatch.setenv("ASYNCRT_CHECK_HAZARDS", str(int(path == CHECKED)))
    with prepared_soon():
        yield path


@pytest.fixture
def users_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is checked, and launches are `prepared_soon`."""
    monkeypatch.setenv("ASYNCRT_CHECK_HAZARDS", "0")
    with prepared_soon():
        yield


@contextlib.contextmanager
def prepared_soon() -> Iterator[None]:
    """Prepare launches from a plan's second use on, as long as this lasts: few tests use one nine times."""
    before, preset.OFTEN = preset.OFTEN, 1
    try:
        yield
    finally:
        preset.OFTEN = before


def on_path(options: RuntimeOptions) -> RuntimeOptions:
    """Return options that were made before the path was known, on the path that the test takes."""
    return attrs.evolve(options, check_hazards=None)


def off(**mechanisms: bool) -> frozenset[Mechanism]:
    """Return those that are False, for `RuntimeOptions.without`."""
    return known_mechanisms(name for name, on in mechanisms.items() if not on)


def drawn(chance: random.Random, odds: float) -> frozenset[Mechanism]:
    """Return mechanisms to do without, each with these odds; kernels on disk stay, because building them takes long."""
    return frozenset(name for name in MECHANISMS if chance.random() < odds and name != "disk_cache")


ELSEWHERE: Mapping[Mechanism, str] = {
    "fuse": "other kernels, whose last bits may differ: tests/graph/fusions/test_fusions.py, tests/stress/compare.py",
    "widen_floats": "what was rounded between nodes is not: tests/graph/passes/test_widen_floats.py",
    "flush_weights": "results below normal numbers may differ: tests/graph/passes/test_flush_weights.py",
    "packed_weights": "other kernels, whose last bits may differ: tests/ops/test_every_operator.py",
    "winograd": "other kernels, whose results differ within a tolerance: tests/kernels/conv/test_winograd.py",
    "split_floats": "other kernels, whose last bits may differ: tests/kernels/matmul/test_gpu_regimes.py",
    "integer_products": "results may differ by one step: tests/graph/passes/quantized/test_products.py",
    "quantized_steps": "results may differ by one step: tests/graph/passes/quantized/test_tables.py",
    "stand_in": "NumPy's results may differ in the last bits: tests/runtime/request/test_stand_in.py",
    "disk_cache": "every kernel is built again, which takes long: tests/kernels/resident/test_store.py",
}
"""Mechanisms that `EXACT` leaves out, and why and where they are compared."""

EXACT: Sequence[Mechanism] = [name for name in MECHANISMS if name not in ELSEWHERE]
"""Mechanisms with and without which results are the same bit for bit."""

COUNTED: Mapping[Mechanism, Callable[[RuntimeStatistics], int]] = {
    "skip": lambda s: s.skipped,
    "replay": lambda s: s.replays,
    "recipes": lambda s: s.by_recipe,
    "next_plan": lambda s: s.foreseen,
    "prepared_launches": lambda s: s.presets.replays,
    "native_submit": lambda s: s.native,
}
"""How often a mechanism was used, where statistics can tell."""


@attrs.frozen
class Change:
    """Other options than users have, with which results are the same bit for bit.

    Attributes:
        streams: How many a runtime needs so that they make a difference.
        uses: What must be 0 with them.
    """

    name: str
    options: RuntimeOptions
    streams: int = 2
    uses: Callable[[RuntimeStatistics], int] = lambda statistics: 0


def changes() -> list[Change]:
    """Return those that tests compare: each mechanism of `EXACT` off, and branches side by side.

    It is called in a test, so that the test's path is known.
    """
    without = [
        Change(f"without {name}", RuntimeOptions(without={name}, warm=False), uses=COUNTED.get(name, lambda s: 0))
        for name in EXACT
    ]
    alone = RuntimeOptions(branches=True, max_in_flight=1, warm=False)  # the others' streams have to be idle
    return [*without, Change("with branches", alone, streams=4)]
