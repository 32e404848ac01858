"""Large arrays that are needed for a moment: what they hold, and that nothing of them is left."""

from __future__ import annotations

import mmap
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

from asyncrt.memory.own_pages import same_bytes, zeros

from ..stress.soak import resident

_MIB = 1 << 20


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("columns", [0, 3, 1_000_003], ids=["none", "few", "many"])
def test_it_is_what_numpys_zeros_is(dtype: type, columns: int) -> None:
    """Small or large, of whatever type: its shape and type are as asked for, all is zero, and it may be written."""
    array, expected = zeros((2, columns), dtype), np.zeros((2, columns), dtype)

    assert (array.shape, array.dtype, array.flags.c_contiguous) == (expected.shape, expected.dtype, True)
    assert not array.any()
    array[:] = 1
    assert array.astype(np.float32).sum() == 2 * columns


@pytest.mark.skipif(
    not hasattr(mmap, "MADV_HUGEPAGE") or not sys.platform.startswith("linux"), reason="NumPy has its memory there"
)
def test_what_a_thread_has_packed_and_dropped_is_the_systems_again() -> None:
    """It is not kept for the thread's next allocation, however many megabytes larger ones have had before."""
    before = []

    def pack() -> None:
        for _ in range(2):  # from the first large one that is freed on, glibc keeps such
            large = zeros((30, _MIB), np.uint8)
            large[:] = 1
            before.append(resident())
            del large

    thread = threading.Thread(target=pack)
    thread.start()
    thread.join()

    assert resident() < min(before) - 20 * _MIB


def test_bytes_are_compared_to_the_last_one() -> None:
    """Wherever one differs it is found, and so is one that is missing; what they mean makes no difference."""
    a = np.random.default_rng(0).integers(0, 256, 1 << 19, np.uint8)
    for at in (0, (1 << 18) - 1, 1 << 18, a.size - 1):
        b = a.copy()
        b[at] ^= 1
        assert not same_bytes(a, b)
    assert same_bytes(a, a.view(np.float32).reshape(2, -1))
    assert same_bytes(a[::2], a[::2].copy())
    assert not same_bytes(a, a[:-1])
