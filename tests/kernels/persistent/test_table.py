"""Rows of the table that the persistent kernel reads."""

from __future__ import annotations

import struct

from asyncrt.kernels.persistent.table import HEADER_NBYTES, ROW_NBYTES, Row, pack


def test_each_step_is_a_row() -> None:
    """What the kernel reads is where it reads it: sizes, then buffers, then the record."""
    row = Row(3, (4, 5, 6), (32, 2, 1), 2, (1 << 40, 7), b"record..", (24, 8), 96)

    table = pack([row, row._replace(kernel=1)])

    assert len(table) == 2 * ROW_NBYTES
    assert struct.unpack_from("13i", table) == (3, 120, 4, 5, 6, 32, 2, 1, 2, 64, 96 + 32 + 16, 96, 96 + 32)
    assert struct.unpack_from("2q", table, HEADER_NBYTES) == (1 << 40, 7)
    assert table[HEADER_NBYTES + 16 :].startswith(b"record..")
    assert struct.unpack_from("i", table, ROW_NBYTES) == (1,)
