"""Where do peers run whose packages would not go with ours? In virtual environments of their own, which are kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .measure import BenchmarkError
from .wheels import CACHE

VENVS = CACHE / "venvs"


def environment(name: str, requirements: Sequence[str], folder: Path = VENVS) -> Path:
    """Return the folder of programs of an environment that has packages; it is made if it is not there.

    Raises:
        BenchmarkError: It cannot be made; the message says why.
    """
    programs = folder / name / "bin"
    done = folder / name / "installed"
    if done.exists() and done.read_text() == "\n".join(requirements):
        return programs
    subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    if installed.returncode:
        said = [line for line in installed.stderr.splitlines() if line.startswith("ERROR")]
        raise BenchmarkError(f"{name}: {said[0] if said else 'pip failed'}; connect to a package index")
    done.write_text("\n".join(requirements))
    return programs
