"""Memory in huge pages: where it begins, what is in it, and that it goes back to the system."""

from __future__ import annotations

import mmap
import sys

import pytest

from asyncrt.devices.huge_pages import HUGE, give_back, grown, huge_pages, touch

needs_huge_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has none to ask for")


@needs_huge_pages
def test_memory_begins_with_a_huge_page_and_may_end_within_one() -> None:
    """A page table's entry serves 2 MiB only where memory begins at a multiple of that."""
    memory = huge_pages(2 * HUGE + 100)

    assert memory is not None
    assert memory.nbytes == 2 * HUGE + 100
    assert memory.ctypes.data % HUGE == 0
    assert not memory.any()


@needs_huge_pages
def test_what_would_waste_most_of_a_huge_page_gets_none() -> None:
    """A model has hundreds of small constants, and each would take 2 MiB."""
    assert huge_pages(HUGE // 2 - 1) is None
    assert huge_pages(HUGE // 2) is not None


@needs_huge_pages
def test_memory_that_is_given_back_is_the_systems_again_though_somebody_refers_to_it() -> None:
    """What is released counts as free, so it must not stay in memory until the last reference to it is gone."""
    memory = huge_pages(HUGE)
    assert memory is not None
    memory[:] = 1

    give_back(memory)

    assert not memory.any()


@needs_huge_pages
def test_memory_that_grows_begins_where_it_began_with_what_was_in_it() -> None:
    """What is behind it is new; there is room for some times as much, and then no more."""
    memory = huge_pages(HUGE, grows=True)
    assert memory is not None
    memory[:] = 1

    larger = grown(memory, 3 * HUGE + 100)

    assert larger is not None
    assert larger.ctypes.data == memory.ctypes.data
    assert larger[:HUGE].all()
    assert not larger[HUGE:].any()
    assert grown(larger, 64 * HUGE) is None


@needs_huge_pages
def test_memory_that_was_not_to_grow_lies_beside_that_of_others() -> None:
    """Weights are as large as they are, and take no more addresses than that."""
    memory = huge_pages(HUGE)
    assert memory is not None

    assert grown(memory, 4 * HUGE) is None


@needs_huge_pages
@pytest.mark.skipif(sys.platform != "linux", reason="others do not say how often")
def test_the_system_has_pages_that_were_touched_at_hand() -> None:
    """Who uses them first does not wait for them, and finds what was in those that were in use."""
    import resource

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    memory = huge_pages(16 * HUGE, grows=True)
    assert memory is not None
    memory[:HUGE] = 1

    touch(memory)
    before = faults()
    memory[HUGE:] = 2
    used = faults() - before

    assert memory[:HUGE].all()
    assert used < 15 or not _populates()


def _populates() -> bool:
    """Whether the system can find pages before they are used; it can from Linux 5.14 on."""
    area = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        area.madvise(23)
    except OSError:
        return False
    return True
