"""What tests of operators share."""

from __future__ import annotations

import pytest

from asyncrt.devices.base import Device

from .run import best_device


@pytest.fixture
def device() -> Device:
    """The device on which `run_impl` carries kernels out."""
    return best_device()
