"""What is imported when: a program that only names something does not wait for what runs models."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import asyncrt
from asyncrt import public

from ..environment import ROOT, with_sources

SAY = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules} | set(sys.modules)))"
LATER = {"onnx", "rich", "typer", "pyopencl", "numpy.testing", "asyncrt.kernels", "asyncrt.graph"}


def modules_after(program: str) -> set[str]:
    """Return the modules that a new process has imported after a program."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{SAY}"], env=with_sources(), capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_imports_nothing_else() -> None:
    """Neither does an error, or the version, need more than itself."""
    assert {"asyncrt"} == {name for name in modules_after("import asyncrt") if name.startswith("asyncrt")}
    for name in ("__version__", "__all__", "InputError"):
        assert not (LATER | {"numpy", "asyncio", "attrs"}) & modules_after(f"import asyncrt; asyncrt.{name}")


@pytest.mark.parametrize("name", ["Runtime", "RuntimeOptions", "Model", "SyncModel", "load_sync"])
def test_a_program_that_names_what_it_will_use_does_not_import_what_runs_models(name: str) -> None:
    """That is imported while the device is opened, on a thread."""
    assert not LATER & modules_after(f"from asyncrt import {name}")


def test_help_imports_nothing_that_runs_models() -> None:
    """It is there in a third of a second."""
    program = "import sys\nsys.argv[1:] = ['--help']\nfrom asyncrt.cli import main\n"
    program += "try: main()\nexcept SystemExit: pass"

    assert not (LATER - {"rich", "typer"}) & modules_after(program)


def test_each_public_name_is_imported_from_where_type_checkers_see_it() -> None:
    """The table that says it at run time and the imports that they read are the same."""
    tree = ast.parse((ROOT / "asyncrt" / "public.py").read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert {name: public.HOMES.get(name, "asyncrt.errors") for name in asyncrt.__all__} == seen


def test_what_there_is_not_is_an_attribute_error() -> None:
    """And a module of the package is an attribute of it, imported or not."""
    with pytest.raises(AttributeError, match="has no attribute 'Runtme'"):
        asyncrt.Runtme  # type: ignore[attr-defined]  # noqa: B018

    modules_after("import asyncrt; assert asyncrt.errors.InputError is asyncrt.InputError")
