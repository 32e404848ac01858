"""A device that builds what it is told, when it is told, and counts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.errors import KernelBuildError
from asyncrt.kernels.impl import KernelSource


def source(name: str, text: str = "") -> KernelSource:
    return KernelSource(name, text or f"text of {name}", (), 0)


class Kernel:
    """What a fake build gives; it can be watched going."""

    def __init__(self, name: str) -> None:
        self.name = name


class Builder(SimulatedDevice):
    """Builds sources on a worker thread; a build waits while `gate` is closed, one of `hanging` while `freed` is."""

    def __init__(self) -> None:
        super().__init__()
        self.info = attrs.evolve(self.info, takes_source=True, identity="builder")
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)  # released at the beginning of each build
        self.seen = 0
        self.batches: list[list[str]] = []
        self.binaries: list[bytes | None] = []
        self.broken: set[str] = set()
        self.hanging: set[str] = set()
        self.freed = threading.Event()
        self.refuses_binaries = False

    def build(self, sources: Sequence[Any], binary: bytes | None) -> tuple[Mapping[Any, Kernel], bytes | None]:
        self.batches.append([s.name for s in sources])
        self.binaries.append(binary)
        self.begun.release()
        assert self.gate.wait(10), "nobody opened the gate"
        if self.hanging & {s.name for s in sources}:
            assert self.freed.wait(10), "nobody freed the build"
        if self.broken & {s.name for s in sources}:
            raise KernelBuildError("the driver does not build it")
        kernels = {s: Kernel(s.name) for s in sources}
        if binary is not None and not self.refuses_binaries:
            return kernels, None
        return kernels, "|".join(s.name for s in sources).encode()
