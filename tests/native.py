"""Extensions in C, built of the sources at hand rather than those that were installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def _extension(path: str) -> Callable[[pytest.TempPathFactory], ModuleType]:
    """Return a fixture that is the extension of a file."""

    @pytest.fixture(scope="session", name=Path(path).name.lstrip("_"))
    def extension(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
        return _built(path, tmp_path_factory.mktemp("native"))

    return extension


submit = _extension("asyncrt/devices/opencl/_submit")
launcher = _extension("asyncrt/devices/opencl/_launcher")
formulas = _extension("asyncrt/runtime/plan/_formulas")
steps = _extension("asyncrt/runtime/plan/_steps")
rows = _extension("asyncrt/runtime/execute/_rows")
arena = _extension("asyncrt/memory/_arena")
boxes = _extension("asyncrt/kernels/ops/image/_boxes")


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
        [compiler, "-O1", "-ffp-contract=off", *warnings, "-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000",
         f"-I{headers}", str(ROOT / f"{path}.c"), "-o", str(library)],
        check=True,
    )  # fmt: skip
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
