"""What the package is made of: its folders, its public names, and rooms that one can take in at a glance."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncrt
from asyncrt.events import Event
from asyncrt.scheduler.happenings import Ended, Launched, Reached, Ready, Submitted
from asyncrt.scheduler.instructions import LaunchChunk
from asyncrt.scheduler.policies import make_policy, policy_names
from asyncrt.scheduler.state import SchedulerState

ROOT = Path(__file__).parents[2]
MOST = 20  # modules of a folder


def sources() -> Iterator[Path]:
    """Every Python file of the package, each once, by where it is imported from."""
    for folder, _, files in os.walk(ROOT / "asyncrt", followlinks=True):
        yield from (Path(folder) / name for name in sorted(files) if name.endswith(".py"))


def test_every_folder_with_code_is_packaged() -> None:
    """A folder that is missing in pyproject.toml is missing in what users install."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {".".join(p.parent.relative_to(ROOT).parts) for p in sources() if p.name == "__init__.py"}

    assert found == set(configuration["packages"])
    for package, folder in configuration["package-dir"].items():
        assert (ROOT / folder).samefile(ROOT / package.replace(".", "/"))


def test_every_file_that_a_module_reads_is_packaged() -> None:
    """What lies beside the modules and is no code is named in pyproject.toml, and what is named there exists."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    beside = {
        Path(folder, name).relative_to(ROOT)
        for folder, _, files in os.walk(ROOT / "asyncrt", followlinks=True)
        for name in files
        if Path(name).suffix not in (".py", ".pyi", ".pyc", ".c", ".h", ".so", ".pyd")
    }

    packaged = {
        path.relative_to(ROOT)
        for package, patterns in configuration["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }

    assert beside == packaged
    assert all(
        any(ROOT.joinpath(*package.split(".")).glob(pattern))
        for package, patterns in configuration["package-data"].items()
        for pattern in patterns
    )


def test_every_folder_of_the_package_is_one() -> None:
    """Code in a folder without `__init__.py` would not be packaged, and nobody would notice."""
    folders = {p.parent for p in sources()}

    assert [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_every_module_can_be_imported() -> None:
    """Also those that nothing imports yet, and each alone says what it is for."""
    for path in sources():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__main__":
            continue
        if parts[:2] == ("asyncrt", "ray") and importlib.util.find_spec("ray") is None:
            continue  # it says what to install
        module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))

        assert module.__doc__ or not path.read_text().strip(), path


def test_every_public_name_exists_and_is_documented() -> None:
    """What is in `asyncrt.__all__` is sorted, each once, is there and has a docstring of its own."""
    assert sorted(set(asyncrt.__all__)) == list(asyncrt.__all__)
    for name in asyncrt.__all__:
        thing = getattr(asyncrt, name)
        if name != "__version__":
            assert thing.__dict__.get("__doc__") or (inspect.isfunction(thing) and thing.__doc__), name


@pytest.mark.parametrize("name", [n for n in asyncrt.__all__ if inspect.isclass(getattr(asyncrt, n))])
def test_every_public_method_is_documented(name: str) -> None:
    """A person in an editor sees what it promises."""
    members = vars(getattr(asyncrt, name)).items()
    methods = {n: m for n, m in members if not n.startswith("_") and (inspect.isfunction(m) or isinstance(m, property))}

    assert [n for n, m in methods.items() if not m.__doc__] == []


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_runs_a_request(name: str) -> None:
    """A file in `scheduler/policies` is all that a policy needs."""
    state = SchedulerState(2, make_policy(name))
    state.handle(Submitted(1))
    (launch,) = state.handle(Ready(1))
    assert isinstance(launch, LaunchChunk)
    event = Event(launch.stream, 1)
    for happening in (Launched(1, event), Reached(event), Ended(1)):
        state.handle(happening)
        state.check()

    assert state.idle
    assert importlib.import_module(f"asyncrt.scheduler.policies.{name}").__doc__


def test_no_folder_has_more_than_one_takes_in_at_a_glance() -> None:
    """Modules side by side, of the package and of its tests; folders inside it do not count."""
    modules = [*sources(), *(ROOT / "tests").rglob("*.py")]
    counts = Counter(str(p.parent.relative_to(ROOT)) for p in modules if p.name != "__init__.py")

    assert {folder: count for folder, count in counts.items() if count > MOST} == {}


def test_every_folder_of_tests_is_named_as_a_room() -> None:
    """Whoever looks for the tests of `asyncrt/runtime/plan` finds them in `tests/runtime/plan`."""
    outside = {"architecture", "benchmarks", "models", "ops", "public", "stress"}  # see tests/README.md
    folders = [p.parent.relative_to(ROOT / "tests") for p in (ROOT / "tests").rglob("__init__.py")]
    rooms = [f for f in folders if f.parts and f.parts[0] not in outside]

    assert [str(f) for f in rooms if not (ROOT / "asyncrt" / f / "__init__.py").is_file()] == []
    operators = [f.relative_to("ops") for f in folders if f.parts[:1] == ("ops",)]
    assert [str(f) for f in operators if not (ROOT / "kernels" / "ops" / f / "__init__.py").is_file()] == []


def test_no_file_evaluates_its_annotations() -> None:
    """So types cost nothing at run time and may name what comes later."""
    missing = []
    for path in sources():
        tree = ast.parse(path.read_text())
        annotated = any(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign) for n in ast.walk(tree))
        future = any(isinstance(s, ast.ImportFrom) and s.module == "__future__" for s in tree.body)
        if annotated and not future:
            missing.append(str(path.relative_to(ROOT)))

    assert missing == []
