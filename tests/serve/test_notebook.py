"""The notebook about serving runs from its first cell to its last, as it stands."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from ..environment import ROOT, with_sources


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own assertions hold, and it says what the server did."""
    book = json.loads((ROOT / "examples" / "serve.ipynb").read_text(encoding="utf-8"))
    for name, value in with_sources().items():
        monkeypatch.setitem(os.environ, name, value)
    names: dict[str, Any] = {}

    for i, cell in enumerate(book["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {i}", "exec"), names)

    assert book["nbformat"] == 4
    assert all(cell.get("outputs", []) == [] for cell in book["cells"])
    said = capsys.readouterr().out
    assert "'data': [2.0, 4.0]" in said
    assert "204 requests in " in said
