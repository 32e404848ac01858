"""The outputs of one inference as those of the requests in it, each without the padding.

An output's dim that holds the name of a padded one is, for each request, what its formula gives for that request's own
sizes; the first so many elements are the request's. Where that is not so, the check of pad_safety.py has found it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from operator import itemgetter

from asyncrt.dims import Dim
from asyncrt.layout import Array
from asyncrt.memory.host import allocating
from asyncrt.runtime.cooperative import off_loop

from .batch_axes import BatchAxes, TensorAxes


def split(
    axes: BatchAxes, outputs: Mapping[int, Array], requests: Sequence[tuple[int, Mapping[str, int]]]
) -> list[dict[int, Array]]:
    """Return each request's outputs, as parts of those of the inference.

    Args:
        outputs: Of the inference, by value id.
        requests: Rows and sizes of the named dims of each, in the order in which they were joined.
    """
    answers: list[dict[int, Array]] = [{} for _ in requests]
    known = requests[0][1].keys()
    for tensor in axes.outputs:
        whole, place, begin = outputs[tensor.id], [slice(None)] * len(tensor.dims or ()), 0
        cuts = _cuts(tensor, axes, known)
        for answer, (rows, sizes) in zip(answers, requests, strict=True):
            if tensor.rows is not None:
                place[tensor.rows] = slice(begin, begin + rows)
                begin += rows
            for axis, length in cuts:
                place[axis] = slice(0, length(sizes))
            answer[tensor.id] = whole[tuple(place)]
    return answers


async def owned(answer: Mapping[int, Array]) -> dict[int, Array]:
    """Return a request's outputs in memory of their own, so that none holds the others'.

    Raises:
        OutOfHostMemory: There is none left for them.
    """
    nbytes = sum([part.nbytes for part in answer.values()])
    with allocating(f"an answer of {nbytes} bytes"):
        return await off_loop(nbytes, lambda: {id: part.copy() for id, part in answer.items()})


def _cuts(
    tensor: TensorAxes, axes: BatchAxes, known: Set[str]
) -> list[tuple[int, Callable[[Mapping[str, int]], int]]]:
    """Return the axes of an output that padding makes longer, and what tells how long each is for a request's sizes."""
    return [
        (axis, dim.evaluate if dim.name is None else itemgetter(dim.name))
        for axis, dim in enumerate(tensor.dims or ())
        if axis != tensor.rows and isinstance(dim, Dim)
        and dim.names() <= known and not dim.names().isdisjoint(axes.padded)
    ]  # fmt: skip
