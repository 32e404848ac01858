"""Which kernels are worth building again for the sizes they are launched with?

Every kernel takes its sizes as arguments and runs at all of them. A variant has some as numbers in its text, so that
the driver can unroll, and divide by a constant; whether that makes it faster differs by kernel and driver, so it is
measured, once for each variant, and remembered for each kernel. Everything here is pure: nothing is built or measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from asyncrt.kernels.impl import KernelSource
from asyncrt.lru import LruCache

from .source import specialised

LEAST_GAIN = 0.03  # share of a kernel's time; less may be noise
_COUNTED = 4096  # variants whose launches are counted; those not seen for longest are forgotten
_BUILD_S = 0.03  # until a build was timed
_LAUNCH_S = 30e-6  # until a kernel was timed
_GAIN = 0.1  # until a kernel's variants were measured


class Variant(NamedTuple):
    """A kernel with the sizes, by index, that are numbers in its text."""

    kernel: KernelSource
    fixed: tuple[tuple[int, int], ...]

    def source(self) -> KernelSource:
        """Return its text."""
        return specialised(self.kernel, self.fixed)


def variant_of(kernel: KernelSource, ints: Sequence[int], varying: Sequence[int]) -> Variant:
    """Return the variant for launches with these sizes."""
    return Variant(kernel, tuple((i, n) for i, n in enumerate(ints) if i not in varying))


@attrs.frozen
class Learned:
    """What is known of a kernel.

    Attributes:
        launch_s: Seconds for a launch, as last measured or guessed.
        gain: Mean share of that saved by its variants; a guess counts as one of them.
        tried: Variants measured.
        kept: Those among them that were faster.
    """

    launch_s: float = _LAUNCH_S
    gain: float = _GAIN
    tried: int = 0
    kept: int = 0


def learn(before: Learned, generic_s: float, special_s: float, *, kept: bool) -> Learned:
    """Return what is known after one more variant was measured."""
    gain = max(0.0, 1.0 - special_s / generic_s)
    tried = before.tried + 1
    return Learned(generic_s, before.gain + (gain - before.gain) / (tried + 1), tried, before.kept + kept)


def is_faster(generic_s: Sequence[float], special_s: Sequence[float]) -> bool:
    """Return whether interleaved timings show a gain: in their medians, and in two of three pairs."""
    gain = 1.0 - _median(special_s) / _median(generic_s)
    won = sum(s < g for g, s in zip(generic_s, special_s, strict=True))
    return gain >= LEAST_GAIN and 3 * won >= 2 * len(special_s)


def _median(seconds: Sequence[float]) -> float:
    from statistics import median  # takes milliseconds to import, which a first answer would wait for

    return median(seconds)


def is_worth(launches: int, learned: Learned, build_s: float) -> bool:
    """Return whether to build: when what the variant would have saved so far has come to the price of its build.

    Whatever comes after that, at most twice the price of the better choice is paid. A kernel whose first variant gained
    nothing gets no other.
    """
    if learned.tried and not learned.kept:
        return False
    return launches * learned.launch_s * learned.gain >= build_s


def choose(launches: Mapping[Variant, int], learned: Mapping[KernelSource, Learned], build_s: float) -> Variant | None:
    """Return the variant that promises most, if one is worth its build."""

    def saved(variant: Variant) -> float:
        known = learned.get(variant.kernel, Learned())
        return launches[variant] * known.launch_s * known.gain

    worth = [v for v, n in launches.items() if is_worth(n, learned.get(v.kernel, Learned()), build_s)]
    return max(worth, key=saved, default=None)


class Variants:
    """What has been launched and learned so far."""

    def __init__(self) -> None:
        #: What was measured or could not be.
        self.done: set[Variant] = set()
        self._launches: LruCache[Variant, int] = LruCache(_COUNTED, left=lambda gone, _: self.done.discard(gone))
        self._learned: dict[KernelSource, Learned] = {}
        self.build_s = _BUILD_S

    def __repr__(self) -> str:
        tried = sum(known.tried for known in self._learned.values())
        kept = sum(known.kept for known in self._learned.values())
        return f"<Variants {len(self._launches)} counted, {tried} tried, {kept} kept>"

    def saw(self, variants: Iterable[Variant], times: int) -> None:
        """Note launches: each of *variants*, as often as it is there, *times* times."""
        variants = list(variants)
        for variant in variants:
            self._launches.get(variant)  # none that is counted leaves for another of them
        for variant in variants:
            self._launches.put(variant, (self._launches.peek(variant) or 0) + times)

    def next(self, among: Iterable[Variant]) -> Variant | None:
        """Return what to build and measure now, of *among*."""
        open_ = {v: n for v in among if v not in self.done and (n := self._launches.peek(v)) is not None}
        return choose(open_, self._learned, self.build_s)

    def built(self, seconds: float) -> None:
        """Note what a build took."""
        self.build_s += (seconds - self.build_s) / 4

    def measured(self, variant: Variant, generic_s: Sequence[float], special_s: Sequence[float]) -> bool:
        """Note what was measured, and return whether the variant is to be used. It is not chosen again."""
        kept = is_faster(generic_s, special_s)
        before = self._learned.get(variant.kernel, Learned())
        medians = _median(generic_s), _median(special_s)
        self._learned[variant.kernel] = learn(before, *medians, kept=kept)
        self.done.add(variant)
        return kept

    def failed(self, variant: Variant) -> None:
        """Note that a variant could not be built or launched. No variant of its kernel is tried again."""
        self._learned[variant.kernel] = Learned(tried=1)
        self.done.add(variant)
