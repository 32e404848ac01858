"""Who may import whom: the contracts of pyproject.toml hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root), "NO_COLOR": "1"}
    command = [sys.executable, "-c", LINT, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_contracts_are_kept() -> None:
    """Layers, rooms inside them, one door to pyopencl, a scheduler that does not wait, programs by the front door."""
    done = lint(ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts: 11 kept, 0 broken." in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("memory/view.py", "import asyncrt.runtime.model", "layers"),
        ("scheduler/state.py", "import asyncio", "the scheduler decides, it does not wait"),
        ("runtime/model.py", "import pyopencl", "pyopencl has one door"),
        ("runtime/plan/planner.py", "import asyncrt.runtime.request.network", "rooms of the runtime"),
        ("kernels/codegen/source.py", "import asyncrt.kernels.patterns.copy", "rooms of the kernels"),
        ("serve/errors.py", "import asyncrt.serve.service", "rooms of the server"),
        ("onnx_backend.py", "import asyncrt.serve.errors", "the server is asked for by commands and Ray alone"),
        ("graph/ir.py", "import asyncrt.graph.importer", "rooms of the graph"),
        ("sync.py", "import asyncrt.compat.session", "layers"),
        ("compat/session.py", "import asyncrt.runtime.model", "programs of ONNX Runtime use what everybody may"),
    ],
)
def test_a_broken_contract_is_seen(file: str, line: str, contract: str, tmp_path: Path) -> None:
    """The contracts are about the code there is: an import too many breaks the one it should."""
    copy(ROOT / "asyncrt", tmp_path / "asyncrt")
    broken = tmp_path / "asyncrt" / file
    broken.write_text(broken.read_text() + f"\n{line}\n")

    done = lint(tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout


def copy(source: Path, target: Path) -> None:
    """Copy a package's Python files, following links as an import does."""
    for folder, _, files in os.walk(source, followlinks=True):
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True)
        for name in files:
            if name.endswith(".py"):
                (place / name).write_bytes((Path(folder) / name).read_bytes())
