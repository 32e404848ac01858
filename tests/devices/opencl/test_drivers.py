"""How a driver that pip installed gets to the OpenCL loader, and what is said if it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import attrs
import platformdirs
import pytest

from asyncrt.devices.find import open_device
from asyncrt.devices.opencl import drivers
from asyncrt.devices.opencl.drivers import Preparation, find_intel_runtime

from ...environment import with_sources

LIBRARY = "libintelocl.so"


@attrs.define
class Machine:
    """Folders in place of a machine's."""

    prefix: Path
    system: Path
    cache: Path

    @property
    def library(self) -> Path:
        return self.prefix / "lib" / LIBRARY

    def prepare(self) -> Preparation:
        """Call `prepare` as if for the first time."""
        return drivers.prepare.__wrapped__()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with Intel's runtime in the environment and one driver of the system."""
    machine = Machine(tmp_path / "env", tmp_path / "vendors", tmp_path / "cache")
    machine.library.parent.mkdir(parents=True)
    machine.library.touch()
    machine.system.mkdir()
    (machine.system / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", "")  # so that it is put back afterwards
    monkeypatch.setattr(sys, "prefix", str(machine.prefix))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "python"))
    monkeypatch.setattr(drivers, "_user_prefix", lambda: ())
    monkeypatch.setattr(drivers, "SYSTEM_VENDORS", machine.system)
    monkeypatch.setattr(drivers, "_INTEL_NEEDS", ())
    monkeypatch.setattr(drivers, "try_loading", lambda library: "")  # the file is empty
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(machine.cache / name))
    return machine


def contents(folder: Path | None) -> dict[str, str]:
    assert folder is not None
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_the_loader_finds_the_environments_driver_beside_the_systems(machine: Machine) -> None:
    """A private folder has copies of the system's files and one more, and the loader is told of it."""
    preparation = machine.prepare()

    assert machine.library == preparation.bundled
    assert preparation.problems == ()
    assert str(preparation.vendors) == os.environ["OCL_ICD_VENDORS"]
    assert {
        "asyncrt-intel-cpu.icd": f"{machine.library}\n",
        "nvidia.icd": "libnvidia-opencl.so.1\n",
    } == contents(preparation.vendors)


def test_the_next_process_uses_the_same_folder(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file in it is written again; other drivers make another folder."""
    first = machine.prepare().vendors
    assert first is not None
    (first / "nvidia.icd").write_bytes(b"\xff\xfe damaged")
    monkeypatch.setenv("OCL_ICD_VENDORS", "")
    second = machine.prepare().vendors
    found = contents(second)
    (machine.system / "amd.icd").write_text("libamdocl64.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", "")
    third = machine.prepare().vendors

    assert first == second
    assert found["nvidia.icd"] == "libnvidia-opencl.so.1\n"
    assert first != third
    assert "amd.icd" in contents(third)


def test_an_unreadable_file_hides_no_other_driver(machine: Machine) -> None:
    """Here one is a folder and one a link to nothing; a name that is no UTF-8 is copied as it is."""
    (machine.system / "a.icd").mkdir()
    (machine.system / "b.icd").symlink_to(machine.system / "nothing")
    (machine.system / "c.icd").write_bytes(b"/opt/\xe9/lib.so\n")

    vendors = machine.prepare().vendors

    assert vendors is not None
    assert {"asyncrt-intel-cpu.icd", "c.icd", "nvidia.icd"} == {path.name for path in vendors.iterdir()}
    assert (vendors / "c.icd").read_bytes() == b"/opt/\xe9/lib.so\n"


def test_a_machine_without_any_driver_is_no_error(machine: Machine) -> None:
    """The loader's own folder counts, whatever is in it."""
    machine.library.unlink()

    assert Preparation(None, None) == machine.prepare()
    assert os.environ["OCL_ICD_VENDORS"] == ""


def test_without_a_system_folder_there_is_the_environments_driver(machine: Machine) -> None:
    """As in a container."""
    (machine.system / "nvidia.icd").unlink()
    machine.system.rmdir()

    assert list(contents(machine.prepare().vendors)) == ["asyncrt-intel-cpu.icd"]


def test_a_library_that_is_missing_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence that says what to do; the system's drivers stay as they are."""
    monkeypatch.setattr(drivers, "_INTEL_NEEDS", ("libirng.so",))

    preparation = machine.prepare()

    assert (preparation.vendors, preparation.bundled) == (None, None)
    (problem,) = preparation.problems
    assert problem.startswith("Intel's CPU runtime is installed but libirng.so does not load:")
    assert problem.endswith("reinstall asyncrt[cpu]")
    assert os.environ["OCL_ICD_VENDORS"] == ""


def test_a_runtime_that_does_not_load_is_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader would leave it out without a word, and everything would run on another device."""
    monkeypatch.undo()

    problem = drivers.try_loading(machine.library)

    assert problem.startswith("Intel's CPU runtime is installed but does not load:")
    assert "open a device before that package is used" in problem


OPEN = """
from asyncrt.devices.find import open_device
from asyncrt.devices.opencl.drivers import prepare
device = open_device("cpu")
assert not prepare().problems, prepare().problems
assert device.info.platform == "Intel(R) OpenCL", device.info.platform
device.close()
"""
OPENVINO = "import openvino\nopenvino.Core().available_devices"


@pytest.mark.skipif(not find_intel_runtime(), reason="it takes Intel's runtime")
@pytest.mark.parametrize(
    "steps",
    [
        ("import pyopencl", "import asyncrt", OPEN),
        ("import asyncrt", "import pyopencl", OPEN),
        (OPENVINO, "import asyncrt", OPEN),
        (OPENVINO, "import pyopencl", "import asyncrt", OPEN),
        ("import asyncrt", OPENVINO, OPEN),
        ("import asyncrt", OPEN, OPENVINO),
        (OPENVINO, OPEN, OPENVINO, OPEN),
    ],
    ids=lambda steps: "-".join({OPEN: "open", OPENVINO: "openvino"}.get(s, s.rpartition(" ")[2]) for s in steps),
)
def test_the_order_in_which_packages_are_imported_does_not_matter(steps: tuple[str, ...]) -> None:
    """pyopencl may be there first, and OpenVINO, whose older libtbb has the name that Intel's runtime asks for."""
    if OPENVINO in steps and not find_spec("openvino"):
        pytest.skip("OpenVINO is not installed")
    environment = {name: value for name, value in with_sources().items() if name != "OCL_ICD_VENDORS"}

    done = subprocess.run([sys.executable, "-c", "\n".join(steps)], env=environment, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_opening_another_device_than_the_drivers_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asks for the best device is told what may have been better, and why it is not."""
    monkeypatch.setattr(drivers, "prepare", lambda: Preparation(None, None, ("a library does not load",)))

    device = open_device(None)

    device.close()
    assert "and not what may be better: a library does not load" in caplog.text


def test_what_the_user_chose_is_left_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who sets the variable knows why."""
    monkeypatch.setenv("OCL_ICD_VENDORS", "/opt/vendors")

    assert Preparation(Path("/opt/vendors"), None) == machine.prepare()
    assert not machine.cache.exists()


@pytest.mark.skipif(not find_intel_runtime(), reason="it takes a driver that pip installed")
@pytest.mark.parametrize(
    ("before", "problems"),
    [
        ("import pyopencl, asyncrt", 0),
        ("import asyncrt, pyopencl", 0),
        ("import pyopencl\ntry: pyopencl.get_platforms()\nexcept pyopencl.Error: pass\nimport asyncrt", 1),
    ],
)
def test_pyopencl_may_be_imported_first_but_not_used(before: str, problems: int) -> None:
    """The loader reads its folder when it is first asked for something; if that was too early, a sentence says so."""
    script = (
        f"{before}\nfrom asyncrt.devices.find import driver_problems, list_devices\n"
        "print(*driver_problems(), sep='\\n')\n"
        "print('Intel(R) OpenCL' in [r.platform for r in list_devices() if r.usable])"
    )
    environment = {name: value for name, value in with_sources().items() if name != "OCL_ICD_VENDORS"}

    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )

    *said, found = done.stdout.split("\n")[:-1]
    assert found == str(not problems)
    assert problems == sum("pyopencl was used before asyncrt opened a device" in line for line in said)


def test_a_cache_folder_that_cannot_be_written_is_replaced(machine: Machine) -> None:
    """By one in the system's folder for temporary files."""
    machine.cache.write_text("a file is in the way")

    preparation = machine.prepare()

    assert machine.library == preparation.bundled
    assert {"asyncrt-intel-cpu.icd", "nvidia.icd"} == set(contents(preparation.vendors))


def test_if_nothing_can_be_written_that_is_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a problem of this driver, not of the others."""
    machine.cache.write_text("a file is in the way")

    def full(prefix: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(drivers.tempfile, "mkdtemp", full)

    (problem,) = machine.prepare().problems

    assert "No space left on device" in problem
    assert str(machine.library) in problem


def test_the_runtime_is_found_in_the_first_environment_that_has_it(tmp_path: Path) -> None:
    """An environment may see its base's packages."""
    prefixes = tuple(str(tmp_path / name) for name in ("env", "base"))
    for prefix in prefixes:
        (Path(prefix) / "lib").mkdir(parents=True)
    assert find_intel_runtime(prefixes) is None

    (tmp_path / "base" / "lib" / LIBRARY).touch()

    assert tmp_path / "base" / "lib" / LIBRARY == find_intel_runtime(prefixes)


def test_a_process_without_drivers_says_what_to_install(tmp_path: Path) -> None:
    """A real loader, on a folder without drivers."""
    script = (
        "from asyncrt.devices.find import open_device\n"
        "from asyncrt.errors import NoDeviceError\n"
        "try: open_device(None)\n"
        "except NoDeviceError as error: print(error)"
    )
    environment = with_sources(OCL_ICD_VENDORS=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )

    assert "no OpenCL device at all" in done.stdout
    assert "pip install asyncrt[cpu]" in done.stdout
