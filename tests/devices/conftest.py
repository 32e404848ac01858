"""What tests of devices share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncrt.devices.find import open_device
from asyncrt.devices.opencl.device import OpenCLDevice


@pytest.fixture
def device() -> Iterator[OpenCLDevice]:
    """The best OpenCL device, opened for one test."""
    device = open_device(None)
    assert isinstance(device, OpenCLDevice)
    yield device
    device.close()
