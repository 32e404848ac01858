"""What a sequence keeps between two steps, as the plan of the next one sees it. Data; the memory is `KeptState`'s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from asyncrt.layout import Layout, Shape

from .chunk_plan import Kept, KeptTensor


@attrs.frozen(cache_hash=True)
class Signature:
    """What plans depend on: for each tensor its input, its output, its shape and its capacity."""

    tensors: tuple[tuple[int, int, Shape, Shape], ...]


@attrs.frozen(eq=False)
class Between:
    """What a sequence keeps between two steps, in the forms that a step needs. Made once for each plan that leaves it.

    Attributes:
        tensors: By slot.
        layouts: Of those that are not empty, by the input.
        outputs: What stays on the device.
    """

    tensors: tuple[KeptTensor, ...]
    layouts: Mapping[int, Layout]
    outputs: frozenset[int]
    signature: Signature


def between(tensors: Iterable[KeptTensor]) -> Between:
    """Return the tensors that a step leaves as the next step finds them."""
    settled = tuple([
        KeptTensor(t.input, t.output, t.layout, t.capacity if t.layout.count else t.layout.shape) for t in tensors
    ])
    return Between(
        settled,
        {t.input: t.layout for t in settled if t.layout.count},
        frozenset([t.output for t in settled]),
        Signature(tuple([(t.input, t.output, t.layout.shape, t.capacity) for t in settled])),
    )


NOTHING = between(())
"""That of a request that is not a step of a sequence."""


def place(kept: Kept) -> int:
    """Return where among a request's buffers, counted from the end, a kept tensor's memory is."""
    return -1 - 2 * kept.slot - kept.new
