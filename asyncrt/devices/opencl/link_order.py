"""How is a library loaded so that it uses certain others, where older ones of the same names are there already?

The dynamic linker takes a library that another one needs by its name, so whoever loaded a ``libtbb.so.12`` first has
chosen for everybody. But it looks for symbols in the order of a root that it was asked to load: so an empty library is
made that needs the right one and then the one that uses it, both by their full paths. What was there before stays as
it is. The empty library is an anonymous file; nothing is left on disk.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # as the ELF specification has them, of 64 bits
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<QQ")
_SYMBOL_NBYTES = 24
_SHARED, _X86_64 = 3, 62
_LOAD, _DYNAMIC, _STACK, _READ_WRITE = 1, 2, 0x6474E551, 6
_END, _NEEDED, _STRTAB, _SYMTAB, _STRSZ, _SYMENT = 0, 1, 5, 6, 10, 11


def load_in_order(libraries: Sequence[Path]) -> None:
    """Load libraries; each finds the symbols of those before it first, unless it has been loaded before.

    Raises:
        OSError: One of them does not load.
    """
    handle = os.memfd_create("asyncrt-link-order")
    try:
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(empty_library(libraries))
        ctypes.CDLL(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def empty_library(needed: Sequence[Path]) -> bytes:
    """Return a shared library for x86-64 that has no symbols and needs others, in this order."""
    names, strings = [], b"\0"
    for library in needed:
        names.append(len(strings))
        strings += os.fsencode(library) + b"\0"
    dynamic_at = _HEADER.size + 3 * _SEGMENT.size
    dynamic_nbytes = _ENTRY.size * (len(names) + 5)
    symbols_at = dynamic_at + dynamic_nbytes
    strings_at = symbols_at + _SYMBOL_NBYTES
    nbytes = strings_at + len(strings)
    dynamic = [(_NEEDED, name) for name in names]
    dynamic += [(_STRTAB, strings_at), (_STRSZ, len(strings)), (_SYMTAB, symbols_at), (_SYMENT, _SYMBOL_NBYTES)]
    segments = (
        (_LOAD, _READ_WRITE, 0, 0, 0, nbytes, nbytes, 4096),  # the linker writes addresses into it
        (_DYNAMIC, _READ_WRITE, dynamic_at, dynamic_at, dynamic_at, dynamic_nbytes, dynamic_nbytes, 8),
        (_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16),  # without it, stacks would have to be executable
    )
    magic = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    return b"".join((
        _HEADER.pack(magic, _SHARED, _X86_64, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 3, 64, 0, 0),
        *(_SEGMENT.pack(*segment) for segment in segments),
        *(_ENTRY.pack(*entry) for entry in (*dynamic, (_END, 0))),
        bytes(_SYMBOL_NBYTES),
        strings,
    ))  # fmt: skip
