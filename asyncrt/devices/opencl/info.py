"""What does an OpenCL driver say of a device, and what shows that it works? How many cores has the host?"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from asyncrt.devices.base import DeviceInfo

from .drivers import INTEL_PLATFORM, POCL_PLATFORM
from .nvidia.own_instructions import may_have
from .nvidia.persistent import local_memory
from .target import surroundings

KINDS = ((1 << 2, "gpu"), (1 << 1, "cpu"), (1 << 3, "accelerator"))
"""OpenCL's bits for types of devices, in the order in which devices are chosen."""

_OF_CPUS = {
    INTEL_PLATFORM: ("threads", *(("sched_yield",) if hasattr(os, "sched_yield") else ())),
    POCL_PLATFORM: ("threads",),
}
"""Features that CPU devices have by their driver."""


class Probe(NamedTuple):
    """The source of a kernel that shows whether a device works."""

    name: str = "asyncrt_probe"
    text: str = "__kernel void asyncrt_probe(__global float* x) {\n  x[get_global_id(0)] = 1.0f; }"


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(device: Any, spec: str) -> DeviceInfo:
    """Return what the driver says of a `pyopencl.Device`, named *spec*."""
    kind = next((name for flag, name in KINDS if device.type & flag), "accelerator")
    extensions = device.extensions.split()
    features = {
        name
        for name, extension in (
            ("fp64", "cl_khr_fp64"), ("fp16", "cl_khr_fp16"), ("command_buffer", "cl_khr_command_buffer"),
            ("local_thread", "cl_intel_exec_by_local_thread"),
        )
        if extension in extensions
    }  # fmt: skip
    local = device.local_mem_size
    if _has_tensor_cores(device, extensions):
        capability = device.compute_capability_major_nv, device.compute_capability_minor_nv
        features |= {"mma", "persistent", *(("wgmma",) if may_have(*capability) else ())}
        local = local_memory(*capability, local)
    platform = device.platform
    if kind == "cpu":
        features |= {"persistent", *_OF_CPUS.get(platform.name.strip(), ())}
    return DeviceInfo(
        spec=spec,
        name=device.name.strip(),
        kind=kind,
        platform=platform.name.strip(),
        driver=device.driver_version.strip(),
        compute_units=device.max_compute_units,
        memory=device.global_mem_size,
        max_allocation=device.max_mem_alloc_size,
        max_group=device.max_work_group_size,
        local_memory=local,
        features=frozenset(features),
        shares_memory=kind == "cpu" and bool(device.host_unified_memory),
        identity="|".join(
            (
                *(device.name, device.driver_version, device.version, platform.name, platform.version),
                surroundings(is_cpu=kind == "cpu"),
            )
        ),
    )


def _has_tensor_cores(device: Any, extensions: list[str]) -> bool:
    """Return whether it takes PTX that multiplies matrices of half precision, and copies beside: from sm_80 on."""
    return "cl_nv_device_attribute_query" in extensions and device.compute_capability_major_nv >= 8
