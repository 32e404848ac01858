"""Which OpenCL devices are there, which of them is the best that works, and what is in the way of others?"""

from __future__ import annotations

import functools
import logging
from typing import Any

from asyncrt.devices.base import Binaries, DeviceReport
from asyncrt.errors import DeviceError, NoDeviceError

from . import drivers
from .device import FIRST, OpenCLDevice, every_device
from .info import KINDS, describe

_log = logging.getLogger(__name__)


@functools.cache
def find_devices() -> tuple[tuple[str, Any], ...]:
    """Return ``(spec, device)`` of every OpenCL device, best first: GPUs, then CPUs, PoCL last of its kind."""
    found: list[tuple[tuple[int, int], str, Any]] = []
    for spec, device in every_device():
        kind = next((i for i, (flag, _) in enumerate(KINDS) if device.type & flag), 2)
        portable = "portable computing language" in device.platform.name.lower()
        found.append(((kind, int(portable)), spec, device))
    return tuple((spec, device) for _, spec, device in sorted(found, key=lambda f: f[0]))


def problems() -> tuple[str, ...]:
    """Return what is in the way of a driver that is installed, as sentences."""
    preparation = drivers.prepare()
    unseen = all(device.platform.name.strip() != drivers.INTEL_PLATFORM for _, device in find_devices())
    if preparation.bundled is None or FIRST or not unseen:
        return preparation.problems
    late = f"pyopencl was used before asyncrt opened a device, so {preparation.bundled} is not used; open one first"
    return (*preparation.problems, late)


def open_opencl(
    kind: str | None, index: int | None, *, exact: str | None = None, kept: Binaries | None = None
) -> OpenCLDevice:
    """Open the best usable device.

    Args:
        kind: "gpu", "cpu" or "accelerator"; None is any.
        index: Which of that kind; None is the first that is usable.
        exact: An ``opencl:P:D`` spec instead.
        kept: Where what was built to try devices is kept.

    Raises:
        NoDeviceError: With what was found, what is wrong with each, and what to do.
    """
    every = find_devices()
    candidates = [(s, d) for s, d in every if exact in (None, s) and kind in (None, describe(d, s).kind)]
    if index is not None:
        candidates = candidates[index : index + 1]
    refused: list[str] = []
    for spec, cl_device in candidates:
        device = _tried(spec, cl_device, kept, refused)
        if device is not None:
            for problem in problems():
                _log.warning("using %s %s, and not what may be better: %s", spec, device.info.name, problem)
            for line in refused:
                _log.warning("using %s %s, because a better device does not work: %s", spec, device.info.name, line)
            return device
    raise _none(exact or (kind or "any device") + ("" if index is None else f":{index}"), refused)


def open_all(kind: str, kept: Binaries | None = None) -> list[OpenCLDevice]:
    """Open every usable device of a kind, best first.

    Args:
        kind: "gpu", "cpu" or "accelerator".
        kept: As for `open_opencl()`.

    Raises:
        NoDeviceError: None is usable, with what is wrong with each.
    """
    refused: list[str] = []
    candidates = [(s, d) for s, d in find_devices() if describe(d, s).kind == kind]
    opened = [device for s, d in candidates if (device := _tried(s, d, kept, refused)) is not None]
    if not opened:
        raise _none(f"{kind}:*", refused)
    for line in refused:
        _log.warning("one of the devices '%s:*' does not work, and is left out: %s", kind, line)
    return opened


def _tried(spec: str, cl_device: Any, kept: Binaries | None, refused: list[str]) -> OpenCLDevice | None:
    """Open a device that works; if it does not, say why in *refused*."""
    try:
        device = OpenCLDevice(cl_device, spec)
        device.probe(kept)
    except DeviceError as error:
        refused.append(f"{spec} {cl_device.name.strip()}: {error}")
        return None
    return device


def _none(wanted: str, refused: list[str]) -> NoDeviceError:
    """Return what says that there is no such device, or none that works."""
    if refused:
        return NoDeviceError(
            f"no usable OpenCL device for {wanted!r}",
            detail="\n".join(refused), hint="`asyncrt devices` shows them all",
        )
    every = find_devices()
    detail = "found: " + (", ".join(f"{s} {d.name.strip()}" for s, d in every) or "no OpenCL device at all")
    return NoDeviceError(
        f"no OpenCL device for {wanted!r}",
        detail="\n".join((detail, *problems())),
        hint=drivers.INSTALL_HINT if not every else "`asyncrt devices` shows them all",
    )


def report_devices() -> list[DeviceReport]:
    """Return a line for every device, after trying each. Blocks."""
    lines: list[DeviceReport] = []
    for spec, cl_device in find_devices():
        info = describe(cl_device, spec)
        note, hint = f"{info.compute_units} compute units, {info.memory / 2**30:.1f} GiB, driver {info.driver}", ""
        usable = True
        try:
            OpenCLDevice(cl_device, spec).probe()
        except DeviceError as error:
            usable, hint = False, error.hint
            note = error.message + (f": {error.detail.splitlines()[-1]}" if error.detail else "")
        lines.append(DeviceReport(spec, info.name, info.kind, info.platform, usable, note, hint))
    return lines
