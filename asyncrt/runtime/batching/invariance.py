"""Does a batch give, bit for bit, what its members give alone? Tried for each shape in a batch of each shape.

Kernels are chosen by sizes, and sizes of tiles may decide in which order numbers are added; so what was found out about
a few small requests on opening says nothing of large ones. A request of which it is not known yet is run alone as well,
and compared; what differs once is never batched so again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence

from asyncrt.layout import Array
from asyncrt.lru import LruCache

_KINDS = 1 << 16  # remembered; the one unused longest is compared again


class Invariance:
    """What is known of requests of a shape in batches of a shape.

    Args:
        run: Runs checked inputs.
    """

    def __init__(self, run: Callable[[dict[int, Array]], Awaitable[dict[int, Array]]]) -> None:
        self._run = run
        self._found: LruCache[Hashable, bool] = LruCache(_KINDS)

    def refuses(self, batch: Hashable, shapes: Sequence[Hashable]) -> bool:
        """Return whether requests of one of these shapes gave other results in such a batch."""
        return any(self._found.peek((batch, shape)) is False for shape in shapes)

    async def holds(
        self,
        batch: Hashable,
        shapes: Sequence[Hashable],
        requests: Sequence[dict[int, Array]],
        answers: Sequence[dict[int, Array]],
    ) -> bool:
        """Return whether each request gets the same answer alone, as far as that is not known already."""
        same = True
        for shape, arrays, answer in zip(shapes, requests, answers, strict=True):
            kind = batch, shape
            if self._found.get(kind) is not None:
                continue
            alone = await self._run(arrays)
            found = all(
                array.shape == answer[id].shape and array.tobytes() == answer[id].tobytes()
                for id, array in alone.items()
            )
            self._found.put(kind, found)
            same = same and found
        return same
