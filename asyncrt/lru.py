"""Which of what is remembered leaves when there is no room: what was used longest ago.

All bounded caches are this one, so that a use means the same in each.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, ItemsView, ValuesView
from typing import Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """Values by key, bounded in number and, where that is asked for, in bytes.

    `get()` and `put()` are uses. `peek()`, `in`, `values()` and `items()` are not; the latter two begin with what was
    used longest ago. The value that was put last stays, even if it takes more bytes than there may be.

    Args:
        entries: Most values to keep; None keeps any number.
        nbytes: Most bytes that they may take; None counts none.
        sized: Returns what a value takes.
        left: Called with each key and value that leaves for another one.
    """

    __slots__ = ("_entries", "_held", "_left", "_most", "_sized", "evictions", "nbytes")

    def __init__(
        self,
        entries: int | None,
        nbytes: int | None = None,
        *,
        sized: Callable[[_V], int] = lambda value: 0,
        left: Callable[[_K, _V], object] | None = None,
    ) -> None:
        self._held: OrderedDict[_K, _V] = OrderedDict()
        self._entries, self._most = sys.maxsize if entries is None else entries, nbytes
        self._sized, self._left = sized, left
        #: What all values take.
        self.nbytes = 0
        #: How many have left for another one, all time.
        self.evictions = 0

    def __repr__(self) -> str:
        return f"<LruCache {len(self._held)} of {self._entries}>"

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: _K) -> bool:
        return key in self._held

    def get(self, key: _K) -> _V | None:
        """Return a value and note that it was used; None if it is not there."""
        value = self._held.get(key)
        if value is not None:
            self._held.move_to_end(key)
        return value

    def peek(self, key: _K) -> _V | None:
        """Return a value, or None if it is not there, and note nothing."""
        return self._held.get(key)

    def put(self, key: _K, value: _V) -> None:
        """Keep a value that is not None, in the place of another one of its key; others leave if there is no room."""
        held = self._held
        replaced = held.pop(key, None)
        held[key] = value
        if self._most is not None:
            self.nbytes += self._sized(value) - (0 if replaced is None else self._sized(replaced))
        while len(held) > self._entries or (self._most is not None and self.nbytes > self._most and len(held) > 1):
            gone, value = held.popitem(last=False)
            self.evictions += 1
            if self._most is not None:
                self.nbytes -= self._sized(value)
            if self._left is not None:
                self._left(gone, value)

    def values(self) -> ValuesView[_V]:
        """The values, those used longest ago first."""
        return self._held.values()

    def items(self) -> ItemsView[_K, _V]:
        """Keys and values, those used longest ago first."""
        return self._held.items()

    def clear(self) -> None:
        """Forget all values."""
        self._held.clear()
        self.nbytes = 0
