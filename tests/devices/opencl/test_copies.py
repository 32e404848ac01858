"""By which call bytes are copied, and that no driver keeps something of each array for good."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from asyncrt.devices.opencl.copies import LEAST, NOTES_ADDRESSES, find_copies
from asyncrt.devices.opencl.device import OpenCLDevice


class Functions:
    """Those of pyopencl; each notes that it was called, and with what."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, is_blocking: self.calls.append((name, *given[3:], is_blocking))


def test_a_driver_that_notes_addresses_copies_rectangles_of_one_row() -> None:
    """From as many bytes on as it notes addresses for, in both directions; shorter copies are flat."""
    functions = Functions()
    copies = find_copies("Intel(R) OpenCL", "cpu", functions)

    for copy in (copies.read, copies.write):
        copy("queue", "buffer", 64, np.empty(LEAST - 1, np.uint8))
        copy("queue", "buffer", 64, np.empty(LEAST, np.uint8))

    assert functions.calls == [
        ("_enqueue_read_buffer", 64, False),
        ("_enqueue_read_buffer_rect", (64,), (0,), (LEAST,), False),
        ("_enqueue_write_buffer", 64, False),
        ("_enqueue_write_buffer_rect", (64,), (0,), (LEAST,), False),
    ]


def test_other_drivers_copy_flat() -> None:
    """Whatever the size, for a rectangle may take another way there."""
    functions = Functions()
    copies = find_copies("NVIDIA CUDA", "gpu", functions)

    copies.read("queue", "buffer", 0, np.empty(1 << 16, np.uint8))

    assert functions.calls == [("_enqueue_read_buffer", 0, False)]


@pytest.mark.parametrize("nbytes", [1, LEAST - 1, LEAST, LEAST + 1, 70_001])
def test_copies_of_any_size_take_their_bytes_alone(device: OpenCLDevice, nbytes: int) -> None:
    """What is before and behind them stays, in the buffer and in the array."""
    stream = device.open_stream(pinned=False)
    buffer = device.allocate(nbytes + 128)
    source = np.random.default_rng(0).integers(1, 255, nbytes + 2, np.uint8)
    target = np.zeros(nbytes + 2, np.uint8)

    stream.fill(buffer, 0, nbytes + 128, 0)
    stream.write(buffer, 64, source[1:-1])
    stream.read(buffer, 64, target[1:-1])
    whole = np.empty(nbytes + 128, np.uint8)
    stream.read(buffer, 0, whole)
    stream.mark().wait()

    assert target.tolist() == [0, *source[1:-1].tolist(), 0]
    assert whole.tolist() == [0] * 64 + source[1:-1].tolist() + [0] * 64
    device.release(buffer)


def test_nothing_is_kept_of_arrays_that_were_copied(device: OpenCLDevice) -> None:
    """Results at thousands of addresses leave the C library with no more memory in use than a few did."""
    used = memory_in_use()
    if used is None or (device.info.platform, device.info.kind) not in NOTES_ADDRESSES:
        pytest.skip("this C library does not tell, or this driver notes no addresses")
    stream = device.open_stream()
    buffer = device.allocate(1 << 12)
    arrays = np.empty(1 << 22, np.uint8)
    count, each = 4000, 1024

    def copy(begin: int, end: int) -> None:
        for start in range(begin, end):
            stream.read(buffer, 0, arrays[start * each : (start + 1) * each])
            if start % 50 == 49:
                stream.mark().wait()
        stream.mark().wait()

    copy(0, 50)
    before = used()
    copy(50, count)

    assert used() - before < 40 * count  # 110 bytes for each address where they are noted
    device.release(buffer)


def memory_in_use() -> Any:
    """Return what says how many bytes the C library has given out, where it says so."""

    class Info(ctypes.Structure):
        _fields_ = [
            (name, ctypes.c_size_t)
            for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
        ] + [("keepcost", ctypes.c_size_t)]

    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo.restype = Info
    return lambda: mallinfo().uordblks + mallinfo().hblkhd
