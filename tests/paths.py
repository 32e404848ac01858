"""Which path a test takes: with the order of commands checked, as most do, or as users run it.

Checking watches the streams and switches nothing off; what is left to differ is who calls the device. Tests of what a
runtime does as a whole run both ways: `pytestmark = pytest.mark.usefixtures("either_path")`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import attrs
import pytest

from asyncrt import RuntimeOptions
from asyncrt.runtime.execute import prepared_launches as preset
from asyncrt.runtime.runtime import RuntimeStatistics

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


@attrs.frozen
class Mechanism:
    """An option that leaves results the same bit for bit.

    Attributes:
        other: Its value where it is not what users have.
        streams: How many a runtime needs so that it makes a difference.
        uses: How often it was used, where statistics can tell.
    """

    other: bool = False
    streams: int = 2
    uses: Callable[[RuntimeStatistics], int] | None = None

    def options(self, name: str) -> RuntimeOptions:
        """Return options with the one of that name changed."""
        alone = {"max_in_flight": 1} if name == "branches" else {}  # the others' streams have to be idle
        return RuntimeOptions(**{name: self.other, "warm": False, **alone})


MECHANISMS: Mapping[str, Mechanism] = {
    "skip": Mechanism(uses=lambda s: s.skipped),
    "views": Mechanism(),
    "in_place": Mechanism(),
    "replay": Mechanism(uses=lambda s: s.replays),
    "recipes": Mechanism(uses=lambda s: s.by_recipe),
    "foresee": Mechanism(uses=lambda s: s.foreseen),
    "preset": Mechanism(uses=lambda s: s.presets.replays),
    "native_submit": Mechanism(uses=lambda s: s.native),
    "hold_tiny": Mechanism(),
    "native_callbacks": Mechanism(other=True),
    "pinned": Mechanism(),
    "branches": Mechanism(other=True, streams=4),
    "pool": Mechanism(),
    "preallocate": Mechanism(),
    "map_files": Mechanism(),
    "page_constants": Mechanism(),
}
"""Those that docs/options.md names: a test compares the two, and others switch each of them."""
