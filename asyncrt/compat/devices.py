"""Where does ONNX Runtime say that memory is? Here always in the host's memory: asyncrt moves it where it is needed."""

from __future__ import annotations

from typing import Any

import attrs

from .enums import ArenaExtendStrategy, OrtAllocatorType, OrtDeviceMemoryType, OrtDeviceVendorId, OrtMemType
from .errors import Refused

_TYPES = {"cpu": 0, "cuda": 1, "gpu": 1, "webgpu": 1, "fpga": 2, "cann": 3, "npu": 3, "dml": 4}
_VENDORS = {"cuda": OrtDeviceVendorId.NVIDIA, "dml": OrtDeviceVendorId.MICROSOFT, "cann": OrtDeviceVendorId.HUAWEI}


class OrtDevice:
    """A kind of device and its number."""

    def __init__(self, device_type: int, mem_type: int, *rest: int) -> None:
        self._type, self._mem_type = device_type, mem_type
        self._vendor, self._id = rest if len(rest) == 2 else (0, *rest)

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return the device of a name, such as "cpu"."""
        vendor = int(vendor_id) if vendor_id >= 0 else int(_VENDORS.get(ort_device_name, 0))
        return OrtDevice(device_type(ort_device_name), 0, vendor, device_id)

    def device_id(self) -> int:
        return self._id

    def device_type(self) -> int:
        return self._type

    def device_vendor_id(self) -> int:
        return self._vendor

    vendor_id = device_vendor_id

    def device_mem_type(self) -> int:
        return self._mem_type

    mem_type = device_mem_type

    def _get_c_device(self) -> OrtDevice:
        return self

    @staticmethod
    def default_memory() -> int:
        return 0


for _name in ("cpu", "cuda", "cann", "dml", "fpga", "gpu", "npu", "webgpu"):
    setattr(OrtDevice, _name, staticmethod(lambda number=_TYPES[_name]: number))


class UnknownDevice(Refused):
    """ONNX Runtime has no such device; it says so with a plain `Exception`."""


def device_type(name: str) -> int:
    """Return the number of a kind of device."""
    if name not in _TYPES:
        raise UnknownDevice(f"Unsupported device type: {name}")
    return _TYPES[name]


def check_on_host(name: str) -> None:
    """Raise unless values may lie on a device of this name, which is the host's alone."""
    if device_type(name.lower()) != _TYPES["cpu"]:
        raise Refused(
            f"Can't allocate memory on the device '{name}'",
            hint="keep values on 'cpu': asyncrt brings them to its device and back",
        )


@attrs.define
class OrtMemoryInfo:
    """Which allocator memory is from."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0


class OrtArenaCfg:
    """How an arena of ONNX Runtime would grow; accepted, and of no meaning here."""

    def __init__(self, *settings: Any) -> None:
        names = (
            "max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk",
            "initial_growth_chunk_size_bytes", "max_power_of_two_extend_bytes",
        )  # fmt: skip
        given = dict(settings[0]) if len(settings) == 1 else dict(zip(names, settings, strict=False))
        for name in names:
            setattr(self, name, given.get(name, -1))


kNextPowerOfTwo = ArenaExtendStrategy.kNextPowerOfTwo
kSameAsRequested = ArenaExtendStrategy.kSameAsRequested
