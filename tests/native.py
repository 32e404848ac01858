"""Extensions in C, built of the sources at hand rather than those that were installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def submit(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """`asyncrt.devices.opencl._submit`."""
    return _built("asyncrt/devices/opencl/_submit", tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session")
def formulas(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """`asyncrt.runtime.plan._formulas`."""
    return _built("asyncrt/runtime/plan/_formulas", tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session")
def steps(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """`asyncrt.runtime.plan._steps`."""
    return _built("asyncrt/runtime/plan/_steps", tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """`asyncrt.memory._arena`."""
    return _built("asyncrt/memory/_arena", tmp_path_factory.mktemp("native"))


def _built(path: str, folder: Path) -> ModuleType:
    """Compile an extension with every warning an error, and import it; skip the test where that cannot be."""
    name = Path(path).name
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    headers = sysconfig.get_paths()["include"]
    if compiler is None or not Path(headers, "Python.h").is_file() or sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("there is no C compiler, or it has no limited API of Python to compile for")
    library = folder / f"{name}.abi3.so"
    warnings = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")
    subprocess.run(
        [compiler, "-O1", *warnings, "-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000", f"-I{headers}",
         str(ROOT / f"{path}.c"), "-o", str(library)],
        check=True,
    )  # fmt: skip
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
