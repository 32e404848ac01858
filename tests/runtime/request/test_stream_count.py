"""How many queues a runtime opens, by what the device is."""

from __future__ import annotations

import pytest

from asyncrt.devices.base import DeviceInfo
from asyncrt.runtime.request.session import stream_count


@pytest.mark.parametrize(
    ("kind", "cores", "count"),
    [("cpu", 1, 1), ("cpu", 2, 2), ("cpu", 4, 2), ("cpu", 8, 2), ("cpu", 16, 4), ("cpu", 128, 8), ("gpu", 132, 4)],
)
def test_each_queue_has_cores_enough(kind: str, cores: int, count: int) -> None:
    """Two at least, where there are two cores; then one for every four cores, and never more than eight."""
    info = DeviceInfo(spec=kind, name="", kind=kind, compute_units=cores)

    assert stream_count(info) == count
