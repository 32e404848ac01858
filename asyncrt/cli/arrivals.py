"""When do requests come, and how large is each, if nobody waits for the answer before the next one comes?

Open-loop load: callers come at times that are fixed beforehand, so a slow answer holds no later caller back, and its
cost shows (a closed loop would hide it by coming less often).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from .inputs import Sizes
from .terminal import wrong

Pattern: TypeAlias = Literal["poisson", "burst"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
BURST = 8  # requests that come together
_ENDLESS = 2.0**62

Draw: TypeAlias = Callable[[np.random.Generator], int]
"""Returns a size."""


def times(pattern: Pattern, rate: float, seconds: float, random: np.random.Generator) -> list[float]:
    """Return when requests come, in seconds from the start: *rate* a second on average, at least one.

    "poisson": each at random, whatever the others do; "burst": so do groups of `BURST`, whose members come at once.
    """
    together = BURST if pattern == "burst" else 1
    found: list[float] = []
    at = 0.0
    while at < seconds:
        found += [at] * together
        at += float(random.exponential(together / rate))
    return found


def parse_lengths(texts: Sequence[str] | None) -> dict[str, Draw]:
    """Read `--lengths`: for each dim, how its sizes are drawn.

    Raises:
        typer.BadParameter: Says what was expected and what came.
    """
    found: dict[str, Draw] = {}
    for text in texts or ():
        name, equals, spec = text.partition("=")
        if not (name and equals and spec):
            raise wrong("--lengths", f"expected {_FORMS}, got '{text}'")
        if name in found:
            raise wrong("--lengths", f"'{name}' is given twice")
        found[name] = _draw(name, spec)
    return found


_FORMS = "DIM=lognormal:MEDIAN:SIGMA:MOST, DIM=uniform:LEAST:MOST or DIM=FILE with one size on each line"


def _draw(name: str, spec: str) -> Draw:
    kind, *numbers = spec.split(":")
    if kind not in ("lognormal", "uniform"):
        return _choice(_from_file(name, Path(spec)))
    try:
        parameters = [float(n) for n in numbers]
    except ValueError:
        parameters = []
    if kind == "uniform" and len(parameters) == 2 and 1 <= parameters[0] <= parameters[1] < _ENDLESS:
        least, greatest = map(int, parameters)
        return lambda random: int(random.integers(least, greatest + 1))
    if kind == "lognormal" and len(parameters) == 3 and 1 <= parameters[0] <= parameters[2] < _ENDLESS:
        median, sigma, most = parameters
        if 0 <= sigma < math.inf:
            return lambda random: int(min(max(random.lognormal(math.log(median), sigma), 1), most))
    raise wrong("--lengths", f"expected {_FORMS}, got '{name}={spec}'")


def _from_file(name: str, path: Path) -> list[int]:
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeError) as error:
        raise wrong("--lengths", f"expected {_FORMS}; '{name}={path}' is none, and no file: {error}") from error
    bad = [word for word in words if not re.fullmatch(r"[1-9]\d{,17}", word)]
    if bad or not words:
        came = f"got {bad[0][:40]!r}" if bad else "it is empty"
        raise wrong("--lengths", f"{path}: expected one size on each line, {came}")
    return [int(word) for word in words]


def _choice(sizes: Sequence[int]) -> Draw:
    return lambda random: int(sizes[int(random.integers(len(sizes)))])


def draw_sizes(
    count: int, choices: Mapping[str, Sequence[int]], lengths: Mapping[str, Draw], random: np.random.Generator
) -> list[Sizes]:
    """Return the sizes of dims of *count* requests: as *lengths* say, and else one of the *choices*, all as often."""
    draws: dict[str, Any] = {name: _choice(sizes) for name, sizes in choices.items()} | dict(lengths)
    return [{name: draw(random) for name, draw in draws.items()} for _ in range(count)]
