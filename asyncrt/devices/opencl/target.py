"""What does the code that an OpenCL driver compiles depend on, besides its text, the driver and the device's name?

A driver for CPUs compiles for the processor that it is on, and the name says too little of that: "AMD EPYC" is one with
AVX-512 or without. Environment variables and a file of settings steer it. `surroundings` returns all of that, as part
of the key under which compiled code is kept.

Intel's runtime is also steered by the programs it loads: one that was compiled for a lesser processor makes it compile
for that from then on, in the whole process. So the target of each program is read from it (`compiled_for`), and a
program with another target than the driver's own is not loaded.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from asyncrt.devices.base import AVX512, Registers

CPUINFO = Path("/proc/cpuinfo")
MAPS = Path("/proc/self/maps")

STEERING = ("CL_CONFIG_", "POCL_", "IGC_", "NEO", "SYCL_", "AMD_OCL_", "RUSTICL_", "LP_")
"""How names of environment variables begin that tell drivers how to compile: Intel's for CPUs, PoCL, Intel's for GPUs,
AMD's, Mesa's."""

HARMLESS = frozenset(
    {
        "CL_CONFIG_CPU_TBB_NUM_WORKERS", "CL_CONFIG_LOG_FILE", "CL_CONFIG_USER_LOGGER",
        "POCL_CACHE_DIR", "POCL_CPU_MAX_CU_COUNT", "POCL_DEBUG", "POCL_MAX_PTHREAD_COUNT",
    }
)  # fmt: skip
"""Those among them that do not change what is compiled."""

_SAYS = frozenset(
    {
        "vendor_id", "cpu family", "model", "flags",  # x86
        "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",  # Arm
        "isa", "uarch",  # RISC-V
        "cpu", "features", "machine",  # POWER, IBM Z
    }
)  # fmt: skip
_NUMPY = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")  # since 2.0, and before
_INTEL_LIBRARY, _INTEL_SETTINGS = "libintelocl.so", "cl.cfg"
_ELF, _INTEL_PROGRAM = b"\x7fELF\x02\x01", b"\x04\xff"


@functools.cache
def surroundings(*, is_cpu: bool) -> str:
    """Return a digest of what steers the drivers of this process, and of its processor if that is the device.

    Drivers read their settings when they are first used, so a later change has no effect on them or on this digest.
    """
    parts = [*steering(os.environ), settings(), *(processor() if is_cpu else ())]
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]


def steering(environment: Mapping[str, str]) -> list[str]:
    """Return the variables that steer drivers."""
    return sorted(
        f"{name}={value}"
        for name, value in environment.items()
        if name.startswith(STEERING) and name not in HARMLESS
    )


def processor(path: Path = CPUINFO) -> list[str]:
    """Return what the system says that this machine's processor is and has."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:  # another system than Linux
        lines = []
    pairs = ([part.strip() for part in line.split(":", 1)] for line in lines if ":" in line)
    said = {f"{name}={value}" for name, value in pairs if name in _SAYS}  # all cores: they need not be alike
    return sorted(said or {platform.machine(), platform.processor(), *_numpy_features()})


def _numpy_features() -> list[str]:
    """Return what NumPy found the processor to have, on every system."""
    for name in _NUMPY:
        with contextlib.suppress(ImportError, AttributeError):
            found: Mapping[str, bool] = importlib.import_module(name).__cpu_features__
            return [feature for feature, there in found.items() if there]
    return []


def settings(maps: Path = MAPS) -> str:
    """Return what is set in the file beside Intel's runtime for CPUs, as far as that is loaded."""
    try:
        mapped = maps.read_text(errors="surrogateescape").splitlines()
        library = next((line.split(maxsplit=5)[-1] for line in mapped if _INTEL_LIBRARY in line), None)
        if library is None:
            return ""
        lines = (Path(library).parent / _INTEL_SETTINGS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    return "\n".join(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def compiled_for(program: bytes) -> str:
    """Return what Intel's runtime for CPUs compiled a program for, as a number of its own; "" of any other driver's.

    It is in the program's header, an ELF header of a type of its own, where processors have their flags.
    """
    if len(program) < 52 or not program.startswith(_ELF) or program[16:18] != _INTEL_PROGRAM:
        return ""
    return str(int.from_bytes(program[48:52], "little"))


#: By what `compiled_for` says: SSE4.2, AVX and AVX2; what is above has AVX-512.
_INTEL_REGISTERS = {1: Registers(4, 16), 2: Registers(8, 16), 3: Registers(8, 16)}
_ARM = ("aarch64", "arm64")


def registers_of(target: str, native_floats: int, machine: str) -> Registers:
    """Return the vector registers that code of a CPU driver has.

    Args:
        target: What `compiled_for` says of its programs.
        native_floats: The driver's CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, which is of the processor, also where the
            driver was told to compile for less.
        machine: `platform.machine()`.
    """
    if target:
        return _INTEL_REGISTERS.get(int(target), AVX512)
    if native_floats >= AVX512.floats:
        return AVX512
    return Registers(max(native_floats, 4), 32 if machine.lower() in _ARM else 16)


_usual: dict[str, str] = {}


def usual_target(identity: str, target: str) -> str:
    """Return what a driver was compiling for when this process first asked, which is now if it has not."""
    return _usual.setdefault(identity, target)
