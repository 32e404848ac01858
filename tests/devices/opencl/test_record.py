"""The argument record: its bytes are those of the struct that kernels declare."""

from __future__ import annotations

import struct

import pytest

from asyncrt.devices.opencl.record import pack_record, record_slots


@pytest.mark.parametrize("buffers", range(4))
@pytest.mark.parametrize("ints", range(5))
def test_offsets_are_long_and_sizes_int(buffers: int, ints: int) -> None:
    """Without empty arrays, which C does not have, and of a size that needs no padding at its end."""
    offsets, sizes = list(range(1 << 40, (1 << 40) + buffers)), [-1 - i for i in range(ints)]
    longs, fours = record_slots(buffers, ints)
    packed = pack_record(offsets, sizes)

    assert 8 * longs + 4 * fours == len(packed)
    assert len(packed) % 8 == 0
    assert min(longs, fours) >= 1
    assert tuple(offsets) == struct.unpack_from(f"={buffers}q", packed)
    assert tuple(sizes) == struct.unpack_from(f"={ints}i", packed, 8 * longs)


def test_a_size_beyond_32_bits_is_refused() -> None:
    """It is not cut off."""
    with pytest.raises(struct.error):
        pack_record([0], [1 << 31])
