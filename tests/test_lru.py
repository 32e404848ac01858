"""What leaves a bounded cache, and what counts as a use."""

from __future__ import annotations

import random
from collections.abc import Callable

from asyncrt.lru import LruCache


def _filled(keys: str, entries: int = 3) -> LruCache[str, int]:
    cache: LruCache[str, int] = LruCache(entries)
    for index, key in enumerate(keys):
        cache.put(key, index)
    return cache


def _keys(cache: LruCache[str, int]) -> str:
    return "".join(key for key, _ in cache.items())


def test_what_was_used_longest_ago_leaves_first() -> None:
    """To get and to put are uses; one leaves for one."""
    cache = _filled("abc")

    assert cache.get("a") == 0
    cache.put("b", 7)
    cache.put("d", 3)

    assert _keys(cache) == "abd"
    assert list(cache.values()) == [0, 7, 3]


def test_to_look_at_values_is_no_use() -> None:
    """Who only asks what is there changes nothing about what leaves."""
    cache = _filled("abc")

    assert cache.peek("a") == 0
    assert "a" in cache
    assert list(cache.values()) == [0, 1, 2]
    assert cache.get("z") is None
    cache.put("d", 3)

    assert _keys(cache) == "bcd"


def test_bytes_are_bounded_but_the_newest_stays() -> None:
    """A value may take more than there is room for: all others leave for it, and it leaves for the next."""
    left: list[tuple[str, int]] = []
    cache: LruCache[str, int] = LruCache(8, 10, sized=lambda value: value, left=lambda *gone: left.append(gone))

    for key, nbytes in (("a", 4), ("b", 4), ("a", 6), ("c", 5)):
        cache.put(key, nbytes)
    assert (left, cache.nbytes, _keys(cache)) == ([("b", 4), ("a", 6)], 5, "c")

    cache.put("d", 99)
    assert (left[2:], cache.nbytes, _keys(cache)) == ([("c", 5)], 99, "d")

    cache.put("e", 1)
    assert (cache.nbytes, _keys(cache)) == (1, "e")

    cache.clear()
    assert (cache.nbytes, len(cache)) == (0, 0)


def test_any_sequence_of_calls_is_what_a_list_would_do() -> None:
    """Against a plain list in the order of use, whatever is got, put and forgotten."""
    generator = random.Random(1)
    cache: LruCache[int, int] = LruCache(5, 40, sized=lambda value: value)
    model: list[tuple[int, int]] = []

    def get(key: int) -> None:
        found = [pair for pair in model if pair[0] == key]
        assert cache.get(key) == (found[0][1] if found else None)
        model[:] = [pair for pair in model if pair[0] != key] + found

    def put(key: int) -> None:
        value = generator.randrange(1, 30)
        cache.put(key, value)
        model[:] = [*(pair for pair in model if pair[0] != key), (key, value)]
        while len(model) > 5 or (sum(value for _, value in model) > 40 and len(model) > 1):
            model.pop(0)

    calls: list[Callable[[int], None]] = [get, put]
    for _ in range(4000):
        generator.choice(calls)(generator.randrange(12))

        assert list(cache.items()) == model
        assert cache.nbytes == sum(value for _, value in model)
