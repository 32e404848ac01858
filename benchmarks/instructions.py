"""Which vector instructions of the processor were measured?

A driver for CPUs may be told to compile for less than the processor has, and some of the peers, too, so that one
machine shows how fast others are. Reports of different instructions stand side by side.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import asyncrt
from asyncrt.devices.base import DeviceInfo, Registers

_NAMES = {
    Registers(16, 32): "AVX-512",
    Registers(8, 16): "AVX2",
    Registers(4, 16): "SSE4.2",
    Registers(4, 32): "NEON",
}  # fmt: skip
_OURS = "CL_CONFIG_CPU_TARGET_ARCH"
"""The variable that tells Intel's runtime what to compile for."""

_OF_PEERS = ("ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE")
"""Variables that tell OpenVINO's and NumPy's products what to use.

ONNX Runtime has none. OpenVINO obeys in what oneDNN calculates, but not in what MLAS does: its profile calls that
``gemm_mlas_f32``, and in a BERT it is 24 of 36 products.
"""


def of(info: DeviceInfo) -> str:
    """Return what a device compiles for; "" if it is no processor, or compiles nothing."""
    if not (info.kind == "cpu" and info.takes_source):
        return ""
    return _NAMES.get(info.registers, f"{info.registers.number} of {info.registers.floats * 32} bits")


async def of_device(device: str | None) -> str:
    """Return what `of` says of the device that benchmarks get; opens it."""
    async with asyncrt.Runtime(device) as rt:
        return of(rt.info)


def chosen(environment: Mapping[str, str] = os.environ) -> str:
    """Return the variables that choose asyncrt's instructions, and the peers', as a command begins with them.

    "" where asyncrt's are not chosen: then nobody means to measure another processor than this one.
    """
    if not environment.get(_OURS):
        return ""
    return " ".join(f"{name}={environment[name]}" for name in (_OURS, *_OF_PEERS) if environment.get(name))


def stem(benchmark: str, instructions: str) -> str:
    """Return how files of a benchmark's report are called: those of other instructions are kept beside it."""
    return f"{benchmark}.{instructions.lower().replace(' ', '-')}" if instructions else benchmark
