"""A short form of the soak, and what it is made of."""

from __future__ import annotations

import asyncio

import pytest

from asyncrt.memory.buffer import Lease

from .soak import growth, soak


@pytest.mark.parametrize("device", [None, "simulated"], ids=lambda d: d or "opencl")
def test_nothing_is_left_after_many_requests_of_many_shapes(device: str | None) -> None:
    """More shapes than plans are kept, and some callers cancelled; results are right."""
    soaked = asyncio.run(soak(400, 300, 60, device=device))

    assert soaked.cancelled > 20
    assert dict.fromkeys(soaked.left, 0) == soaked.left


def test_a_lease_that_is_kept_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a hundred that does not end is in the count."""
    drop, count = Lease.drop, iter(range(1 << 30))
    monkeypatch.setattr(Lease, "drop", lambda lease, after=(): drop(lease, after) if next(count) % 100 else None)

    soaked = asyncio.run(soak(300, 10, 0, device="simulated"))

    assert soaked.left["leases"] > 0
    assert soaked.left["allocations"] > 0


def test_growth_is_told_from_noise() -> None:
    """The estimate is the slope, outliers or not; and a bound below it would be none."""
    flat = [(n * 1000, 5_000_000 + 4096 * (n * 7919 % 13)) for n in range(30)]
    rising = [(n, rss + 3 * n) for n, rss in flat]
    rising[7] = (rising[7][0], 90_000_000)

    assert abs(growth(flat)[0]) < 0.5
    slope, bound = growth(rising)
    assert 2.5 < slope < 3.5
    assert bound >= slope
