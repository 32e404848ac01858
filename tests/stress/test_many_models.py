"""A short form of models that are loaded one after the other, and what it is made of."""

from __future__ import annotations

from pathlib import Path

from ..zoo import FOLDER
from .many_models import Left, in_turn

MIB = 1 << 20


def test_models_that_are_loaded_one_after_the_other_leave_nothing(tmp_path: Path) -> None:
    """No thread, no file, and no more memory than the process had."""
    small = sorted(FOLDER.rglob("*.onnx"), key=lambda path: (path.stat().st_size, path.name))[:4]

    turned = in_turn(small, 12, tmp_path)

    assert turned.models == 12
    assert turned.findings == []


def test_what_is_left_is_said() -> None:
    """Of each thing, how much there is and was."""
    before = Left(100 * MIB, 3, 10)

    assert Left(119 * MIB, 2, 9).findings(before, 40) == []
    assert Left(121 * MIB, 4, 11).findings(before, 40) == [
        "21.0 MiB more than before", "4 threads, 3 before", "11 files, 10 before"
    ]  # fmt: skip
