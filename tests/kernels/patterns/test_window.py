"""Windows of any size: which of their cells are inside the input is calculated, not counted."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from asyncrt.errors import ShapeError
from asyncrt.kernels.ops.nn.pool import _cells
from asyncrt.kernels.patterns.indexing import progression
from asyncrt.kernels.patterns.window import MAX_CELLS, Window, output_dims

ROOT = Path(__file__).parents[3]


def counted(w: Window) -> tuple[int, int] | None:
    """What `_cells` is to return, by looking at each cell of each window."""
    (size,), (stride,), (dilation,), (before,) = w.size, w.strides, w.dilations, w.before
    found: list[int] = []
    for position in range(w.outs[0]):
        inside = [c for k in range(size) if 0 <= (c := position * stride - before + k * dilation) < w.spatial[0]]
        if len(inside) != 1:
            return None
        found += inside
    return progression(found, w.spatial[0])


def test_the_one_cell_of_a_window_is_where_counting_finds_it() -> None:
    """For all small windows, paddings, strides and dilations."""
    with_one = 0
    sizes = itertools.product(range(1, 5), range(1, 5), (1, 2, 3), (1, 2, 5), range(4), range(4))
    for dim, size, stride, dilation, before, after in sizes:
        outs = (dim + before + after - (size - 1) * dilation - 1) // stride + 1
        if outs < 1:
            continue
        w = Window((size,), (stride,), (dilation,), (before,), (after,), (dim,), (outs,))
        if size == 1 and before == 0:
            continue  # told without looking
        expected = counted(w)
        with_one += expected is not None

        assert expected == _cells(w, 0), w

    assert with_one > 100


def test_a_window_of_too_many_cells_is_refused() -> None:
    """Each position would go through all of them; what is as large as the limit is not."""
    side = 1 << 12
    assert side * side == MAX_CELLS
    assert output_dims("pool", {}, (side, side), (side, side)) == (1, 1)

    with pytest.raises(ShapeError, match=r"'pool': a window of \[4096, 4097\] has more than 16777216 cells"):
        output_dims("pool", {}, (side, 5000), (side, side + 1))


LOADS = """
    import asyncio, itertools
    import asyncrt
    from tests.builders import model, node

    async def main():
        count = 0
        async with asyncrt.Runtime("host", options=asyncrt.RuntimeOptions(memory_limit=1 << 26)) as rt:
            for operator, size, more, dims in itertools.product(
                ("MaxPool", "AveragePool", "LpPool"), (1, 2, 2**24, 2**31 - 1, 2**31, 2**60, 2**63 - 1),
                ("kernel", "pads", "same", "dilations", "strides"), ("1,1,1,1", "1,1,4,4", "n,c,h,w"),
            ):
                extra = {
                    "kernel": {}, "same": {"auto_pad": "SAME_UPPER"}, "pads": {"pads": [size - 1] * 4},
                    "dilations": {"dilations": [size] * 2, "kernel_shape": [2, 2]}, "strides": {"strides": [size] * 2},
                }[more]
                attributes = {"kernel_shape": [size, size], **extra}
                try:
                    await rt.load(model([node(f"y = {operator}(x)", **attributes)], [f"x f32[{dims}]"], ["y"]))
                except asyncrt.AsyncrtError:
                    pass
                count += 1
        print("all of", count)

    asyncio.run(main())
"""


def test_loading_never_goes_through_the_cells_of_a_window() -> None:
    """The process ends: each model is loaded or refused, whatever its window, padding, dilation and stride."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOADS)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    assert done.stdout.strip() == "all of 315", done.stderr
