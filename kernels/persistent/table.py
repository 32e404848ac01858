"""The steps of a plan as the rows of a table, which the persistent kernel reads (`walker.py`).

A row holds which kernel a step is, how many work-groups of which size it has, where its buffers begin, and its argument
record. A buffer is an address of the device, or the number of an arena, which every launch brings anew.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

ROW_NBYTES = 512
"""Of a row: what work-items copy into local memory before they carry out the step."""
HEADER_NBYTES = 64
_MOST_LOCAL = 2  # `__local` arguments whose places are in the header
_HEADER = struct.Struct("=14i8x")
MOST_SLOTS = 15
"""Work-groups of a step side by side: there are 16 barriers, and all work-items meet at one of them."""
LAYOUT = f"{ROW_NBYTES} {_HEADER.format[1:]} {_MOST_LOCAL} {MOST_SLOTS}"
"""What `runtime/execute/_rows.c` was made for."""


class Row(NamedTuple):
    """A step.

    Attributes:
        kernel: Its place in the persistent kernel.
        groups: How many work-groups along each axis.
        group: Work-items of one along each axis.
        slots: How many of them a group of the persistent kernel carries out side by side.
        buffers: Addresses, or numbers of arenas: those from 0 on count up, what a sequence keeps counts down from -1.
        record: Its argument record.
        local: Bytes of each ``__local`` argument.
        own: Bytes of its own arrays in local memory.
    """

    kernel: int
    groups: tuple[int, int, int]
    group: tuple[int, int, int]
    slots: int
    buffers: tuple[int, ...]
    record: bytes
    local: tuple[int, ...]
    own: int

    @property
    def total(self) -> int:
        """Its work-groups."""
        return math.prod(self.groups)

    @property
    def nbytes(self) -> int:
        """What it takes of a row."""
        return HEADER_NBYTES + 8 * len(self.buffers) + len(self.record)

    @property
    def fits(self) -> bool:
        """Whether a row of the table has room for it and its ``__local`` arguments."""
        return self.nbytes <= ROW_NBYTES and len(self.local) <= _MOST_LOCAL

    @property
    def local_nbytes(self) -> int:
        """Bytes of local memory of one work-group."""
        return self.own + sum(-(-n // 16) * 16 for n in self.local)


def pack(rows: Sequence[Row]) -> bytes:
    """Return the table, rows of `ROW_NBYTES` each."""
    table = bytearray(len(rows) * ROW_NBYTES)
    for i, row in enumerate(rows):
        _HEADER.pack_into(
            table, i * ROW_NBYTES, row.kernel, row.total, *row.groups, *row.group, row.slots, math.prod(row.group),
            row.local_nbytes, *_offsets(row), 0,
        )  # fmt: skip
        struct.pack_into(f"={len(row.buffers)}q", table, i * ROW_NBYTES + HEADER_NBYTES, *row.buffers)
        begin = i * ROW_NBYTES + HEADER_NBYTES + 8 * len(row.buffers)
        table[begin : begin + len(row.record)] = row.record
    return bytes(table)


def _offsets(row: Row) -> tuple[int, int]:
    """Return where its ``__local`` arguments begin, of which there are `_MOST_LOCAL` at most."""
    first = row.own
    second = first + -(-row.local[0] // 16) * 16 if row.local else first
    return first, second
