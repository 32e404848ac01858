"""Every small call of every operator that moves data (see tests/kernels/exhaustive_skips.py)."""

from __future__ import annotations

import pytest

from tests.kernels.exhaustive_skips import FAMILIES, check


@pytest.mark.parametrize("name", FAMILIES)
def test_every_small_call_is_skipped_if_and_only_if_it_moves_nothing(name: str) -> None:
    """All shapes with dims 0 to 3, up to 4 axes: a skipped output is its source's bytes, one that is run is not."""
    count = check(name, 4)

    print(f"{name}: {count.cases} cases, {count.skipped} skipped")
    assert count.unsound == []
    assert count.missed == []
    assert count.cases > 50
    assert count.skipped > 10
