"""Programs that `import onnxruntime` get asyncrt, whether ONNX Runtime is installed or not."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt.compat import install, shared, uninstall
from asyncrt.compat.environment import VERSION

from .api import RELU

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import sys
import numpy as np
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

def main():
    session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    x = np.array([[-1, 0, 1]], np.float32)
    print(ort.__file__, __name__, session.run(["y"], {"x": x, "i": np.array([1, 2])})[0].tolist())
    try:
        session.run(None, {"x": x, "i": x})
    except InvalidArgument as error:
        print(type(error).__name__)
    sys.exit(3)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def installed() -> Iterator[None]:
    """While a test runs, `import onnxruntime` means asyncrt on the host's device."""
    before = shared.configuration()
    install("host")
    yield
    uninstall()
    shared.configure(*before)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-W", "error", "-m", "asyncrt.compat", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("how", [["program.py"], ["-m", "program"]], ids=["script", "module"])
def test_a_program_runs_unchanged(how: list[str], tmp_path: Path) -> None:
    """With its arguments, as the main module, and with the code that it exits with."""
    (tmp_path / "program.py").write_text(PROGRAM)
    onnx.save(RELU, tmp_path / "model.onnx")

    done = run(tmp_path, "--device", "host", *how, "model.onnx")

    assert done.stderr == ""
    expected = ROOT / "asyncrt" / "compat" / "onnxruntime" / "__init__.py"
    assert done.stdout.splitlines() == [f"{expected} __main__ [[0.0, 0.0, 1.0]]", "InvalidArgument"]
    assert done.returncode == 3


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    """As Python tells it; without a program, how to give one."""
    assert "No such file" in run(tmp_path, "nothing.py").stderr
    assert "No module named nothing" in run(tmp_path, "-m", "nothing").stderr
    assert "usage: python -m asyncrt.compat" in run(tmp_path).stderr


def test_other_modules_find_the_package_and_its_version(installed: None) -> None:
    """As libraries ask whether it is there before they import it."""
    spec = importlib.util.find_spec("onnxruntime")

    assert spec is not None
    assert importlib.util.find_spec("onnxruntime.capi") is not None
    assert importlib.metadata.version("onnxruntime") == VERSION
    assert importlib.metadata.distribution("ONNXRuntime").metadata["Name"] == "onnxruntime"
    assert importlib.metadata.version("numpy") == np.__version__
    assert "onnxruntime" in [d.metadata["Name"] for d in importlib.metadata.distributions()]


def test_the_package_is_what_was_asked_for(installed: None) -> None:
    """Modules have ONNX Runtime's names, and the classes are those of asyncrt."""
    ort = importlib.import_module("onnxruntime")
    collection = importlib.import_module("onnxruntime.capi.onnxruntime_inference_collection")

    assert ort.__name__ == "onnxruntime"
    assert ort.get_build_info().startswith("asyncrt ")
    assert collection.InferenceSession is ort.InferenceSession
    made = ort.InferenceSession(RELU.SerializeToString())
    assert made.run(["z"], {"x": np.zeros((1, 3), np.float32), "i": np.array([1, 2])})[0] == 3


def test_onnx_runtime_need_not_be_installed(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What asyncrt does not have is not found then."""
    found: Any = PathFinder.find_spec
    monkeypatch.setattr(PathFinder, "find_spec", lambda n, *a, **k: None if n == "onnxruntime" else found(n, *a, **k))

    ort = importlib.import_module("onnxruntime")

    assert ort.get_build_info().startswith("asyncrt ")
    with pytest.raises(ModuleNotFoundError, match=r"onnxruntime\.quantization"):
        importlib.import_module("onnxruntime.quantization")


def test_what_asyncrt_does_not_have_is_the_installed_packages(installed: None) -> None:
    """Its modules in Python, such as the data sets, are found, and what they import is asyncrt's."""
    spec = PathFinder.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("ONNX Runtime is not installed")

    datasets = importlib.import_module("onnxruntime.datasets")

    assert Path(datasets.__file__ or "").is_relative_to(Path(spec.origin).parent)
    assert sys.modules["onnxruntime"].get_build_info().startswith("asyncrt ")


def test_after_it_is_uninstalled_everything_is_as_before() -> None:
    """A module that was imported before is that module again; doing it twice changes nothing."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "onnxruntime"}
    finders = list(sys.meta_path)
    prepared = spawn.get_preparation_data
    device, options = shared.configuration()

    for _ in range(2):
        install(device, options=options)
    assert len(sys.meta_path) == len(finders) + 1
    importlib.import_module("onnxruntime.capi")
    for _ in range(2):
        uninstall()

    after = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "onnxruntime"}
    assert after == before
    assert sys.meta_path == finders
    assert spawn.get_preparation_data is prepared


SPAWNED = """\
import multiprocessing, sys
import numpy as np
import onnxruntime as ort

def work(path):
    made = ort.InferenceSession(path)
    return ort.get_build_info()[:7], made.run(["z"], {"x": np.ones((1, 3), np.float32), "i": np.array([1, 2])})[0]

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1) as pool:
        print(*pool.apply(work, ("model.onnx",)))
"""


@pytest.mark.parametrize(
    "method", sorted({"spawn", "forkserver"}.intersection(multiprocessing.get_all_start_methods()))
)
def test_a_process_that_is_spawned_gets_the_package_as_well(method: str, tmp_path: Path) -> None:
    """It begins anew, and imports the program by itself."""
    (tmp_path / "program.py").write_text(SPAWNED)
    onnx.save(RELU, tmp_path / "model.onnx")

    done = run(tmp_path, "--device", "host", "program.py", method)

    assert (done.stdout.split(), done.stderr) == (["asyncrt", "3"], "")


FORKED = """\
import os, sys
import numpy as np
import onnxruntime as ort

session = ort.InferenceSession("model.onnx")
feed = {"x": np.ones((1, 3), np.float32), "i": np.array([1, 2])}
session.run(None, feed)
child = os.fork()
if child == 0:
    try:
        session.run(None, feed)
    except Exception as error:
        print(type(error).__name__, flush=True)
    print(ort.InferenceSession("model.onnx").run(["z"], feed)[0], flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(session.run(["z"], feed)[0])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork() here")
def test_a_forked_process_has_a_runtime_of_its_own(tmp_path: Path) -> None:
    """The parent's sessions are refused there, new ones run; the parent goes on."""
    (tmp_path / "program.py").write_text(FORKED)
    onnx.save(RELU, tmp_path / "model.onnx")

    done = run(tmp_path, "--device", "host", "program.py")

    assert (done.stdout.split(), done.stderr) == (["Fail", "3", "3"], "")
