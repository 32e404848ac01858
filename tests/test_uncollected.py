"""Collections of unreachable objects while asyncrt is imported and opened."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from asyncrt.uncollected import uncollected


def test_nothing_is_collected_meanwhile() -> None:
    """Python collects nothing by itself while it lasts, and does so again afterwards, whatever was raised."""
    meanwhile = []

    def fails() -> None:
        meanwhile.append(gc.isenabled())
        raise RuntimeError("within")

    with pytest.raises(RuntimeError, match="within"), uncollected():
        fails()
    assert (meanwhile, gc.isenabled()) == ([False], True)


def test_what_it_leaves_is_old() -> None:
    """What was made by an import is in the oldest generation, which young collections leave alone."""
    program = (  # in a process of its own: this one has frozen what it holds
        "import gc; from asyncrt.uncollected import uncollected\n"
        "with uncollected(): import decimal; made = [[]]\n"
        "print([g for g in range(3) if any(one is made for one in gc.get_objects(generation=g))])"
    )
    assert subprocess.check_output((sys.executable, "-c", program), text=True).split() == ["[2]"]


def test_what_is_frozen_is_not_counted_where_nothing_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python goes through all of it for that, however often a runtime is opened."""
    counted: list[int] = []

    def count() -> int:
        counted.append(0)
        return 0

    monkeypatch.setattr(gc, "get_freeze_count", count)

    with uncollected():
        pass
    assert not counted

    with uncollected():
        monkeypatch.setitem(sys.modules, "asyncrt_of_this_test", sys)
    assert counted


def test_who_switched_collections_off_finds_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that collects by itself, and has frozen what it holds, is left as it was."""
    gc.disable()
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with uncollected():
            monkeypatch.setitem(sys.modules, "asyncrt_of_this_test", sys)
            made: list[object] = [[]]
        assert not gc.isenabled()
        assert frozen - 1000 < gc.get_freeze_count() <= frozen  # what other threads let go is frozen no more
        assert any(one is made for one in gc.get_objects(generation=0))
    finally:
        gc.unfreeze()
        gc.enable()
