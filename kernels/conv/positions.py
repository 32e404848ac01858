"""A tile of a convolution whose vectors hold positions: its sums, and how they are stored.

A tile is some channels of the result × 32 or 16 neighbouring positions of a row. Results are stored as they lie in the
tile, and channels are counted in steps of a tile's few rows. The last positions and the last channels are moved back:
what was calculated before is not stored again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from asyncrt.kernels.codegen.tiles import RegisterTile

from .interface import ConvForm


class Results(NamedTuple):
    """Where a tile's results go, as text.

    Attributes:
        begin: The row of the tile's first channel.
        length: How many positions it has.
        apart: How far that of the next channel is.
        row: Which row of the result channel ``i`` of the tile has.
        short: Whether rows end so often that their last tiles are worth statements of their own.
    """

    begin: str
    length: str
    apart: str
    row: str
    short: bool = False


def computed(
    form: ConvForm, tile: RegisterTile, results: Results, products: Callable[[RegisterTile, bool], str]
) -> str:
    """Return statements that compute and store a tile, or at the end of a row one of half as many positions, if they do.

    They find in ``from`` and ``left`` the first position and how many there are from it on, in ``oc`` the first channel,
    and in ``skipped`` how many of its channels were stored before. `codegen.tiles.FETCH` has what they call.

    Args:
        products: Returns the statements that add to the sums ``a<channel>_<vector>`` of a tile; they find its first
            position in ``p0``. The second argument is whether the tile is a whole one.
    """
    whole = _computed(form, tile, results, products, whole=True)
    if tile.columns == 16:
        return whole
    half = _computed(form, tile._replace(columns=16), results, products, whole=False)
    return f"if (left > 16) {{ {whole} }} else {{ {half} }}"


def multiplied(tile: RegisterTile, weight: Callable[[int], str], loads: Callable[[int], str]) -> str:
    """Return statements that multiply the positions of one element by the weight of each channel.

    Args:
        weight: Returns the weight of a channel of the tile.
        loads: Returns a vector of positions.
    """
    vectors = range(tile.columns // 16)
    loaded = ", ".join(f"b{v} = {loads(v)}" for v in vectors)
    each = " ".join(
        f"e = {weight(i)}; " + " ".join(f"a{i}_{v} = fma(e, b{v}, a{i}_{v});" for v in vectors) for i in range(tile.rows)
    )
    return f"const float16 {loaded}; float16 e; {each}"


def _computed(
    form: ConvForm, tile: RegisterTile, results: Results, products: Callable[[RegisterTile, bool], str], *, whole: bool
) -> str:
    vectors = range(tile.columns // 16)
    zero = " ".join(
        f"const float s{i} = {f'bias[oc + {i}]' if form.bias else '0.0f'}; "
        + " ".join(f"float16 a{i}_{v} = s{i};" for v in vectors)
        for i in range(tile.rows)
    )
    return f"""
        const int p0 = min(from, {results.length} - {tile.columns}), done = from - p0;
        __global float* const to = {results.begin} + p0;
        {_fetched(form, tile, results) if whole else ""}
        {zero}
        {products(tile, whole)}
        {_stored(form, tile, results, whole)}"""


def _fetched(form: ConvForm, tile: RegisterTile, results: Results) -> str:
    """Return statements that fetch where the results go, and what they meet there: each channel has lines of its own."""
    last, end, at = form.last, tile.columns - 1, f"to + i * {results.apart}"
    meets = last.fetched("p0", end)
    return f"""for (int i = 0; i < {tile.rows}; i++) {{
          ASYNCRT_FETCH_TO_WRITE({at}); ASYNCRT_FETCH_TO_WRITE({at} + {end});
          {f"{last.rows(results.row)} {meets}" if meets else ""}
        }}"""


def _stored(form: ConvForm, tile: RegisterTile, results: Results, whole: bool) -> str:
    """Return statements that store a tile, but for its first ``skipped`` rows and its first ``done`` columns."""
    last, columns, vectors, apart = form.last, tile.columns, range(tile.columns // 16), results.apart
    if last.vector:
        one = last.stored_some(f"to + i * {apart} + k", "p0 + k", "vload16(0, sums + k)", f"{columns} - k")
        some = f"for (int k = done; k < {columns}; k += 16) {one}"
    else:
        one = last.element(form.dtype, "to", f"i * {apart} + k", "p0 + k", "sums[k]")
        some = f"for (int k = done; k < {columns}; k++) {one}"
    spill = " ".join(f"vstore16(a{i}_{v}, {i * len(vectors) + v}, t);" for i in range(tile.rows) for v in vectors)
    part = f"""float t[{tile.rows * columns + 16}] __attribute__((aligned(64)));
          {spill}
          for (int i = skipped; i < {tile.rows}; i++) {{
            const float* const sums = t + i * {columns};
            {last.rows(results.row)}
            {some}
          }}"""
    if not last.vector or not (whole or results.short):
        return f"{{ {part} }}"
    each = " ".join(
        f"{{ const int i = {i}; {last.rows(results.row)} "
        + " ".join(last.stored_vector(f"to + i * {apart} + {16 * v}", f"p0 + {16 * v}", f"a{i}_{v}") for v in vectors)
        + " }"
        for i in range(tile.rows)
    )
    return f"""if (skipped == 0 && done == 0) {{ {each} }} else {{
          {part}
        }}"""
