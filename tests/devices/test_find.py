"""From a word to a device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from asyncrt.devices import find
from asyncrt.devices.find import list_devices, open_device, open_devices
from asyncrt.devices.host import HostDevice
from asyncrt.devices.opencl import drivers
from asyncrt.devices.opencl import find as opencl_find
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.errors import NoDeviceError
from asyncrt.kernels.resident.store import BinaryStore


def test_the_devices_that_are_always_there() -> None:
    """NumPy, and the virtual clock with a seed or without."""
    assert isinstance(open_device("host"), HostDevice)
    assert isinstance(open_device("simulated"), SimulatedDevice)
    assert open_device("simulated:41").info.name == "simulated (seed 41)"


def test_every_device_opens_by_its_own_spec() -> None:
    """What `asyncrt devices` lists can be typed."""
    for report in list_devices():
        if report.usable:
            device = open_device(report.spec)
            device.close()
            assert report.spec == device.info.spec
            assert report.name in (device.info.name, "virtual clock")


def test_none_is_the_best_opencl_device() -> None:
    """GPUs before CPUs."""
    device = open_device(None)
    device.close()

    assert device.info.spec == opencl_find.find_devices()[0][0]


def test_what_was_built_to_try_a_device_is_kept(tmp_path: Path) -> None:
    """Where the caller says, and then nothing is built again; who builds nothing asks for no such place."""
    store = BinaryStore(tmp_path)

    device = open_device(None, lambda: store)
    device.close()
    open_device("host", lambda: pytest.fail("a device without a compiler has nothing to keep")).close()

    kept = sorted(tmp_path.iterdir())
    open_device(None, lambda: store).close()

    assert len(kept) == 1 or (kept and not device.info.is_cpu)
    assert sorted(tmp_path.iterdir()) == kept


def test_a_kind_is_the_best_of_its_kind() -> None:
    """With and without a number."""
    for spec, cl_device in opencl_find.find_devices():
        kind = opencl_find.describe(cl_device, spec).kind
        of_kind = [s for s, d in opencl_find.find_devices() if opencl_find.describe(d, s).kind == kind]
        for word in (kind, f"{kind}:0"):
            device = open_device(word)
            device.close()
            assert of_kind[0] == device.info.spec


@pytest.mark.parametrize(
    "spec",
    ["nonsense", "", "CPU", "cpu:", "cpu:x", "gpu:-1", "opencl", "opencl:0", "opencl:0:0:0", "simulated:x", " cpu"],
)
def test_a_word_that_names_no_device_is_refused(spec: str) -> None:
    """The error has the word, the hint all that can be said."""
    with pytest.raises(NoDeviceError, match="is not a device's name") as caught:
        open_device(spec)

    assert repr(spec) in caught.value.message
    assert "'gpu:N'" in caught.value.hint


@pytest.mark.parametrize("spec", ["cpu:99", "gpu:99", "accelerator:99", "opencl:98:99"])
def test_a_device_that_is_not_there_is_refused(spec: str) -> None:
    """The error says what there is."""
    with pytest.raises(NoDeviceError, match=spec) as caught:
        open_device(spec)

    assert opencl_find.find_devices()[0][0] in caught.value.detail
    assert "asyncrt devices" in caught.value.hint


def test_several_devices_are_named_at_once() -> None:
    """With commas, as a sequence, and as all of a kind; an object is one as well, and a name twice is two."""
    mine = SimulatedDevice(3)
    opened = open_devices(["host,simulated:2", mine, "host"])
    assert [d.info.spec for d in opened] == ["host", "simulated:2", "simulated:3", "host"]

    best, cl_device = opencl_find.find_devices()[0]
    kind = opencl_find.describe(cl_device, best).kind
    every = open_devices([f"{kind}:*"])
    for device in every:
        device.close()
    working = [r.spec for r in list_devices() if r.kind == kind and r.usable]
    assert [d.info.spec for d in every] == working


def test_of_several_devices_none_is_left_open_if_one_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """But one that the caller has opened is the caller's."""
    closed: list[str] = []
    monkeypatch.setattr(SimulatedDevice, "close", lambda self: closed.append(self.info.spec))

    with pytest.raises(NoDeviceError, match="cpu:99"):
        open_devices([SimulatedDevice(1), "simulated:2,simulated:3,cpu:99"])

    assert closed == ["simulated:2", "simulated:3"]


def test_all_of_a_kind_are_those_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """If none does, the error says what is wrong with each."""
    monkeypatch.setattr(opencl_find, "find_devices", lambda: ())

    with pytest.raises(NoDeviceError, match=r"'cpu:\*'"):
        open_devices(["cpu:*"])


@pytest.mark.parametrize("spec", [None, "cpu", "gpu", "accelerator", "opencl:0:0"])
def test_without_any_driver_the_hint_says_what_to_install(spec: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is in the way of a driver that is installed."""
    monkeypatch.setattr(opencl_find, "find_devices", lambda: ())
    problem = drivers.Preparation(None, None, ("libirng.so does not load",))
    monkeypatch.setattr(drivers, "prepare", lambda: problem)

    with pytest.raises(NoDeviceError) as caught:
        open_device(spec)

    assert "pip install asyncrt[cpu]" in caught.value.hint
    assert "no OpenCL device at all" in caught.value.detail
    assert "libirng.so does not load" in caught.value.detail
    assert find.driver_problems() == ("libirng.so does not load",)


def test_without_pyopencl_there_is_still_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of devices says why there is no OpenCL."""
    monkeypatch.delattr("asyncrt.devices.opencl.find")
    monkeypatch.setitem(sys.modules, "asyncrt.devices.opencl.find", None)

    with pytest.raises(NoDeviceError, match="pyopencl does not import"):
        open_device(None)
    assert [(r.spec, r.usable) for r in list_devices()] == [("opencl", False), ("host", True), ("simulated", True)]
