"""From a model and options to open-loop load: which requests, at which rates, and what both ways make of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from asyncrt.errors import AsyncrtError
from asyncrt.layout import PartialLayout

from .arrivals import Draw, Pattern, draw_sizes, times
from .inputs import Filled, InputOptions
from .open_loop import Inputs, Point, measure
from .terminal import wrong

if TYPE_CHECKING:
    from asyncrt.runtime.batching.batched import Batched
    from asyncrt.runtime.model import Model

MOST_REQUESTS = 200_000  # of one rate: they are drawn beforehand
_SOLO = 24  # requests that tell how long one takes alone


@attrs.define
class Traffic:
    """What requests are like.

    Attributes:
        inputs: What the model takes.
        options: What the user said about inputs; dims with several sizes take each as often.
        lengths: How other dims are drawn.
        pattern: How requests come.
    """

    inputs: Mapping[str, PartialLayout]
    options: InputOptions
    lengths: Mapping[str, Draw]
    pattern: Pattern = "poisson"
    _filled: dict[tuple[tuple[str, int], ...], Filled] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        both = sorted(set(self.lengths) & set(self.options.sizes))
        if both:
            raise wrong("--lengths", f"'{both[0]}' has sizes by --shape already")

    def draw(self, count: int, seed: int = 0) -> list[Inputs]:
        """Return the inputs of *count* requests; those of equal sizes are the same arrays."""
        random = np.random.default_rng([self.options.seed, seed])
        return [self._of(dict(sizes)).arrays for sizes in draw_sizes(count, self.options.sizes, self.lengths, random)]

    def _of(self, sizes: dict[str, int]) -> Filled:
        key = tuple(sizes.items())
        if key not in self._filled:
            self._filled[key] = self.options.fill(self.inputs, sizes)
        return self._filled[key]

    def sources(self) -> dict[str, str]:
        """Return a word on where each input's values come from."""
        self.draw(1)
        return next(iter(self._filled.values())).sources

    def at_rate(self, rate: float, seconds: float, seed: int = 0) -> list[tuple[float, Inputs]]:
        """Return requests with the times at which they come.

        Raises:
            AsyncrtError: They are too many to be drawn beforehand.
        """
        if rate * seconds > MOST_REQUESTS:
            raise AsyncrtError(
                f"{rate:.6g} requests/s for {seconds:g} s are more than {MOST_REQUESTS} requests",
                hint="ask for a lower --rate, or fewer --seconds",
            )
        at = times(self.pattern, rate, seconds, np.random.default_rng([self.options.seed, seed, 1]))
        return list(zip(at, self.draw(len(at), seed), strict=True))


async def solo_rate(model: Model, traffic: Traffic) -> float:
    """Return how many requests a second a caller gets who sends one after the other, shapes known."""
    requests = traffic.draw(_SOLO)
    for inputs in requests:
        await model.infer(inputs)
    start = time.perf_counter()
    for inputs in requests:
        await model.infer(inputs)
    return len(requests) / (time.perf_counter() - start)


@attrs.frozen
class Ways:
    """A model whose requests are batched, and the same model without.

    Attributes:
        alone: None leaves it out.
    """

    batched: Batched
    alone: Model | None
    traffic: Traffic
    seconds: float
    deadline: float | None

    async def warm_up(self, rate: float) -> None:
        """Let both meet the shapes once, so that neither plans while it is measured."""
        await self.at(rate, self.seconds / 2)

    async def at(self, rate: float, seconds: float | None = None, seed: int = 0) -> list[Point]:
        """Measure both at a rate, with the same requests at the same times."""
        requests = self.traffic.at_rate(rate, seconds or self.seconds, seed)
        points = [
            await measure("batched", self.batched.infer, rate, requests, self.deadline, self.batched.statistics)
        ]
        if self.alone is not None:
            points.append(await measure("alone", self.alone.infer, rate, requests, self.deadline))
        return points


def default_rates(solo: float) -> Sequence[float]:
    """Return rates from a quiet time to one that is too much without batches."""
    return [float(f"{solo * part:.2g}") for part in (0.25, 0.5, 1, 2, 4)]
