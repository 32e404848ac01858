"""Where in the device's memory does a buffer begin? A kernel that is given it knows."""

from __future__ import annotations

from asyncrt.kernels.codegen.source import kernel
from asyncrt.layout import INT64, UINT8

FINDER = kernel(
    "find_address", (("buffer", UINT8, "r"), ("addresses", INT64, "w")), ("place",), "  addresses[place] = (long)buffer;"
)
"""Writes where a buffer begins to a place among addresses."""
