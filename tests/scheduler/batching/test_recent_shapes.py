"""Shapes that have run lately are taken again."""

from __future__ import annotations

from asyncrt.scheduler.batching import BatchShape
from asyncrt.scheduler.batching.recent_shapes import RecentShapes

from .world import text


def test_the_smallest_shape_that_fits_is_taken() -> None:
    """Of as many rows, as long as it is not more work than allowed; else the batch keeps its own."""
    ran = RecentShapes()
    for length, rows in ((100, 4), (24, 4), (20, 4), (17, 5), (15, 4)):
        ran.saw(text(length), rows)

    assert ran.fitting(text(17), 4, 4 * 30) == text(20)
    assert ran.fitting(text(22), 4, 4 * 30) == text(24)
    assert ran.fitting(text(25), 4, 4 * 30) == text(25)
    assert ran.fitting(text(17), 4, 4 * 19) == text(17)
    assert ran.fitting(text(15), 4, 4 * 30) == text(15)
    assert ran.fitting(text(17), 6, 6 * 30) == text(17)


def test_every_dim_must_fit_and_what_must_be_equal_is() -> None:
    """A shape that is larger in one dim and smaller in another is of no use."""
    terms = ((1, (0, 1)),)
    ran = RecentShapes()
    ran.saw(BatchShape("a", (9, 5), terms), 2)
    ran.saw(BatchShape("b", (8, 8), terms), 2)

    assert ran.fitting(BatchShape("a", (8, 6), terms), 2, 1000).sizes == (8, 6)
    assert ran.fitting(BatchShape("a", (8, 5), terms), 2, 1000).sizes == (9, 5)
    assert ran.fitting(BatchShape("b", (8, 6), terms), 2, 1000).sizes == (8, 8)


def test_what_ran_long_ago_is_forgotten() -> None:
    """And what runs again is not."""
    ran = RecentShapes()
    ran.saw(text(1000), 1)
    ran.saw(text(2000), 1)
    for length in range(1, 127):
        ran.saw(text(length), 1)
    ran.saw(text(1000), 1)

    ran.saw(text(500), 1)

    assert ran.fitting(text(900), 1, 5000) == text(1000)
    assert ran.fitting(text(1500), 1, 5000) == text(1500)
