"""Data in files that nobody else has: what is in memory of it, and what becomes of the files."""

from __future__ import annotations

import errno
import mmap
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncrt.layout import Array
from asyncrt.memory.paged import PagedFile, forget, mapping_of, page_out, pages_of

DATA: list[Array] = [
    np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    np.arange(3 * mmap.PAGESIZE, dtype=np.uint8),
    np.array([[True, False]]),
    np.array(1.5, ml_dtypes.bfloat16),
    np.zeros((0, 3), np.int64),
    np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
]


def test_data_comes_back_as_it_was(tmp_path: Path) -> None:
    """Of every dtype and shape, in row-major order; nobody may write to it."""
    paged = page_out(DATA, tmp_path)

    assert paged is not None
    for found, data in zip(paged, DATA, strict=True):
        assert (found.dtype, found.shape, found.tobytes()) == (data.dtype, data.shape, data.tobytes())
        assert found.flags.c_contiguous
        assert not found.flags.writeable


def test_all_are_in_one_file_that_has_no_name(tmp_path: Path) -> None:
    """A process may have few files open; and nobody can change it, and a process that is killed leaves none behind."""
    paged = page_out(DATA, tmp_path)

    assert paged is not None
    assert len({id(mapping_of(data)) for data in paged}) == 1
    assert isinstance(mapping_of(paged[0]), PagedFile)
    assert list(tmp_path.iterdir()) == []


def test_whole_pages_are_what_a_device_is_given(tmp_path: Path) -> None:
    """They begin where the data does; behind it there are zeros. What begins in a page, or is in memory, has none."""
    paged = page_out(DATA, tmp_path)
    assert paged is not None

    for found, data in zip(paged, DATA, strict=True):
        pages = pages_of(found)
        assert pages is not None
        assert pages.ctypes.data % mmap.PAGESIZE == pages.nbytes % mmap.PAGESIZE == 0
        assert pages.tobytes() == data.tobytes() + bytes(-data.nbytes % mmap.PAGESIZE)

    assert pages_of(paged[0][1:]) is None
    assert pages_of(DATA[0]) is None
    assert mapping_of(DATA[0]) is None


def test_where_no_file_can_be_written_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder, or no space on the disk."""

    class Full:
        def __init__(self, **given: Any) -> None:
            pass

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def seek(self, offset: int) -> int:
            return offset

        def write(self, data: memoryview) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    missing = page_out(DATA, tmp_path / "missing")
    monkeypatch.setattr("asyncrt.memory.paged.tempfile.TemporaryFile", Full)
    full = page_out(DATA, tmp_path)

    assert missing is None
    assert full is None


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells what is resident in /proc")
def test_only_what_is_looked_at_is_in_memory(tmp_path: Path) -> None:
    """And what was looked at may be forgotten."""
    data = np.arange(1 << 23, dtype=np.int64)  # systems read ahead, some of them megabytes
    (paged,) = page_out([data], tmp_path) or ()
    fresh = resident(paged)

    assert paged[500_000] == 500_000
    few = resident(paged)
    assert paged.sum() == data.sum()
    every = resident(paged)
    forget(paged)

    assert fresh <= few < data.nbytes // 8 < every
    assert every >= data.nbytes
    assert resident(paged) == 0
    assert (paged == data).all()


def resident(array: Array) -> int:
    """How many bytes of the mapping that an array begins are in this process's memory."""
    start, inside = f"{array.ctypes.data:x}-", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        inside = line.startswith(start) or (inside and line[0].isupper())
        if inside and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the array begins no mapping")
