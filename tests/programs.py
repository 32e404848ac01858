"""Runtimes of a process that share what the driver has loaded, as if they were one after the other on an open device.

A runtime opens a device with a context of its own, for which the driver loads each program again: a third of what tests
take that run a model in several ways. For tests that speak neither of building nor of loading.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pyopencl as cl
import pytest

from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.devices.opencl.gate import find_gate

_MOST = 1000  # programs that are kept


class _Programs(OrderedDict[bytes, Any]):
    """What `OpenCLDevice` has loaded, by the binaries' digests; the newest stay."""

    def __setitem__(self, digest: bytes, loaded: Any) -> None:
        super().__setitem__(digest, loaded)
        self.move_to_end(digest)
        if len(self) > _MOST:
            self.popitem(last=False)


_shared: dict[int, tuple[cl.Context, _Programs]] = {}
"""By the driver's device."""


@pytest.fixture
def shared_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that are opened meanwhile have the context and the programs of those opened before for such a test."""
    opened, load_ahead = OpenCLDevice.__init__, OpenCLDevice.load_ahead

    def open_shared(self: OpenCLDevice, device: cl.Device, spec: str) -> None:
        opened(self, device, spec)
        self.context, programs = _shared.setdefault(device.int_ptr, (self.context, _Programs()))
        self._programs = programs  # type: ignore[assignment]
        self.gate = find_gate(self.info.platform, self.info.kind, self.context.int_ptr)

    def load_what_is_missing(self: OpenCLDevice, programs: Sequence[tuple[bytes, str]]) -> Sequence[Any]:
        there = [p for binary, _ in programs if (p := self._programs.get(hashlib.sha256(binary).digest())) is not None]
        missing = [p for p in programs if hashlib.sha256(p[0]).digest() not in self._programs]
        return [*there, *load_ahead(self, missing)]

    monkeypatch.setattr(OpenCLDevice, "__init__", open_shared)
    monkeypatch.setattr(OpenCLDevice, "load_ahead", load_what_is_missing)
