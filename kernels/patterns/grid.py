"""How work over rows of elements is cut into work-items.

On CPU devices a work-item walks many elements in a loop that the compiler (or explicit vectors) can vectorise, and
there are a few work-items per core. On GPUs there is one work-item per element.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.kernels.arithmetic import greatest, least
from asyncrt.kernels.traits import DeviceTraits

_MIN_ELEMENTS = 4096  # per work-item on a CPU: about a microsecond of work, several times what starting one costs
GPU_GROUP = 256


class RowCut(NamedTuple):
    """A cut of *rows* × *inner* elements.

    Attributes:
        chunk: Inner elements per work-item.
        rows_per_item: Rows per work-item.
        grid: ``(chunks, row blocks)``.
    """

    chunk: int
    rows_per_item: int
    grid: tuple[int, int]


def cut_rows(rows: int, inner: int, traits: DeviceTraits, *, align: int = 16) -> RowCut:
    """Cut for a CPU device: whole rows where there are enough of them, else pieces of rows.

    Args:
        align: Pieces of rows are multiples of this many elements.
    """
    items = greatest(1, least(4 * traits.compute_units, rows * inner // _MIN_ELEMENTS))
    rows_per_item = -(-rows // items)  # 1 where there are fewer
    pieces = greatest(1, items // rows)
    chunk = least(inner, round_up(-(-inner // pieces), align))
    return RowCut(chunk, rows_per_item, (greatest(1, -(-inner // greatest(1, chunk))), -(-rows // rows_per_item)))


def over_rows(row: str, one: str, cpu: bool) -> str:
    """Return a kernel's body over rows of elements, for the sizes ``rows, n, chunk, per_item`` of a cut.

    Args:
        row: OpenCL C once for each row ``r``.
        one: OpenCL C for its element ``c``.
        cpu: Walk the rows and elements of a cut; else there is one work-item for each element.
    """
    if cpu:
        return f"""
  const int r1 = min(((int)get_global_id(1) + 1) * per_item, rows);
  const int c0 = (int)get_global_id(0) * chunk, c1 = min(c0 + chunk, n);
  for (int r = (int)get_global_id(1) * per_item; r < r1; r++) {{
    {row}
    for (int c = c0; c < c1; c++) {{ {one} }}
  }}"""
    return f"""
  const int id = (int)get_global_id(0);
  if (id >= rows * n) return;
  const int r = id / n, c = id - r * n;
  {row}
  {one}"""


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of *multiple* that is not less than *value*."""
    return -(-value // multiple) * multiple
