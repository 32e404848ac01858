"""Thousands of tests are frozen, and how many objects those are is not counted for each runtime that is opened.

`asyncrt.uncollected` asks whether somebody has frozen something, and ``gc`` walks through all of it to say so, which
takes longer than what most tests do. Here it is counted again only after somebody has frozen or unfrozen.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

_COUNT, _FREEZE, _UNFREEZE = gc.get_freeze_count, gc.freeze, gc.unfreeze


class _Frozen:
    """What ``gc`` is asked in its place; what was freed since the last count counts as frozen."""

    def __init__(self) -> None:
        self._known: int | None = None

    def count(self) -> int:
        if self._known is None:
            self._known = _COUNT()
        return self._known

    def freeze(self) -> None:
        self._known = None
        _FREEZE()

    def unfreeze(self) -> None:
        self._known = None
        _UNFREEZE()


def count_once() -> None:
    """From now on, ask ``gc`` only where the answer may be another one."""
    frozen = _Frozen()
    for name, function in (
        ("get_freeze_count", frozen.count), ("freeze", frozen.freeze), ("unfreeze", frozen.unfreeze),
    ):  # fmt: skip
        setattr(gc, name, function)


@pytest.fixture
def counted_each_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests that speak of what is frozen."""
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", _COUNT)
        yield
