"""From the word a user wrote to a device.

``None`` is the best device found, ``"cpu"``, ``"gpu"`` or ``"gpu:1"`` the best (or that) one of a kind,
``"opencl:0:1"`` a platform's device as `asyncrt devices` lists it, ``"host"`` NumPy, ``"simulated"`` a virtual clock.
``"gpu:*"`` is all of a kind, and ``"gpu:0,gpu:2"`` those that are named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import ModuleType

from asyncrt.arguments import shown
from asyncrt.errors import NoDeviceError

from .base import Binaries, Device, DeviceReport
from .host import HostDevice
from .opencl import drivers
from .simulated import SimulatedDevice

_SPECS = (
    "None, 'cpu', 'gpu', 'gpu:N', 'gpu:*', 'accelerator', 'opencl:P:D', 'host', 'simulated' or 'simulated:SEED', or "
    "several with commas between them"
)


def open_devices(
    wanted: Sequence[str | Device | None], kept: Callable[[], Binaries | None] = lambda: None
) -> list[Device]:
    """Open all devices that are named; one that is named twice is opened twice. Blocks as `open_device()` does.

    Args:
        wanted: Names, of which each may be all of a kind, or several with commas between them; or devices.
        kept: As for `open_device()`.

    Raises:
        NoDeviceError: One of them is not there, or does not work, or of a kind none does. None is left open.
    """
    opened: list[Device] = []
    mine: list[Device] = []
    try:
        for one in wanted:
            if not (one is None or isinstance(one, str)):
                opened.append(one)
                continue
            for name in (one,) if one is None else one.split(","):
                match = None if name is None else re.fullmatch(r"(cpu|gpu|accelerator):\*", name)
                found = _opencl().open_all(match[1], kept()) if match else [open_device(name, kept)]
                opened += found
                mine += found
    except BaseException:
        for device in mine:
            device.close()
        raise
    return opened


def open_device(spec: str | None, kept: Callable[[], Binaries | None] = lambda: None) -> Device:
    """Open the device that *spec* names. Blocks while a kernel is built to try it.

    Args:
        spec: Its name; None is the best found.
        kept: Returns where such kernels are kept. Asked only for a device that builds some.

    Raises:
        NoDeviceError: There is none, or none that works, with the reasons.
    """
    if spec == "host":
        return HostDevice()
    if spec is not None and (match := re.fullmatch(r"simulated(?::(\d{1,18}))?", spec)):
        return SimulatedDevice(int(match[1] or 0))
    kind, index, exact = None, None, None
    if spec is not None:
        match = re.fullmatch(r"(cpu|gpu|accelerator)(?::(\d{1,9}))?", spec)
        if match:
            kind, index = match[1], None if match[2] is None else int(match[2])
        elif re.fullmatch(r"opencl:\d{1,9}:\d{1,9}", spec):
            exact = spec
        else:
            raise NoDeviceError(f"device {shown(spec)} is not a device's name", hint=f"use {_SPECS}")
    device: Device = _opencl().open_opencl(kind, index, exact=exact, kept=kept())
    return device


def list_devices() -> list[DeviceReport]:
    """Return every device found, usable or not, with the reason. Blocks while each is tried."""
    reports: list[DeviceReport] = []
    try:
        reports += _opencl().report_devices()
    except NoDeviceError as error:
        reports.append(DeviceReport("opencl", "OpenCL", "-", "-", False, error.message, error.hint))
    host = HostDevice().info
    reports.append(DeviceReport("host", host.name, "host", "-", True, "operators' references; slow, for comparison"))
    reports.append(DeviceReport("simulated", "virtual clock", "simulated", "-", True, "for tests"))
    return reports


def driver_problems() -> tuple[str, ...]:
    """Return what is in the way of a driver that is installed, as sentences."""
    try:
        found: tuple[str, ...] = _opencl().problems()
    except NoDeviceError:
        return drivers.prepare().problems
    return found


def why_launched_from_python() -> str:
    """Return why plans that are replayed are not enqueued by the loop in C; empty if they are."""
    from .opencl import submit as opencl_submit

    return opencl_submit.why_not_built()


def _opencl() -> ModuleType:
    """Import pyopencl's door, which loads the OpenCL loader, only when OpenCL is wanted."""
    try:
        from .opencl import find as opencl_find
    except ImportError as error:
        raise NoDeviceError(
            "pyopencl does not import, so there is no OpenCL", detail=str(error), hint="reinstall pyopencl"
        ) from error
    return opencl_find
