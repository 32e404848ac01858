"""For how many rows is a product's kernel chosen? Fake alignment, as OpenVINO calls it.

Shapes differ by a row from request to request. Rounded up, many of them share one choice of kernel, one grid and one
specialised variant. Only the choice is rounded: the kernel gets the number of rows that there are, reads none beyond
them and writes none, so no memory is padded (there, producers allocate the padded rows and kernels calculate them).
"""

from __future__ import annotations

from asyncrt.kernels.arithmetic import below, either, least


def fake_alignment(rows: int, tile: int) -> int:
    """Return the number of rows to choose for: a whole number of tiles, or of fewer than a tile a power of two.

    Args:
        rows: How many there are.
        tile: Rows of the largest tile.
    """
    few = step = 1
    while step < tile:
        few += step * below(step, rows)
        step *= 2
    return either(below(rows, tile), least(few, tile), -(-rows // tile) * tile)
