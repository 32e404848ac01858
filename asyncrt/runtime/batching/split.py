"""The outputs of one inference as those of the requests in it, each without the padding.

An output's dim that holds the name of a padded one is, for each request, what its formula gives for that request's own
sizes; the first so many elements are the request's. Where that is not so, the check of pad_safety.py has found it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncrt.dims import Dim
from asyncrt.layout import Array

from .batch_axes import BatchAxes, TensorAxes


def split(
    axes: BatchAxes, outputs: Mapping[int, Array], requests: Sequence[tuple[int, Mapping[str, int]]]
) -> list[dict[int, Array]]:
    """Return each request's outputs, in memory of their own.

    Args:
        outputs: Of the inference, by value id.
        requests: Rows and sizes of the named dims of each, in the order in which they were joined.
    """
    answers: list[dict[int, Array]] = []
    begin = 0
    for rows, sizes in requests:
        answers.append({t.id: outputs[t.id][_place(t, axes, begin, rows, sizes)].copy() for t in axes.outputs})
        begin += rows
    return answers


def _place(tensor: TensorAxes, axes: BatchAxes, begin: int, rows: int, sizes: Mapping[str, int]) -> tuple[slice, ...]:
    place = []
    for axis, dim in enumerate(tensor.dims or ()):
        if axis == tensor.rows:
            place.append(slice(begin, begin + rows))
        elif isinstance(dim, Dim) and (names := dim.names()) <= sizes.keys() and not names.isdisjoint(axes.padded):
            place.append(slice(0, dim.evaluate(sizes)))
        else:
            place.append(slice(None))
    return tuple(place)
