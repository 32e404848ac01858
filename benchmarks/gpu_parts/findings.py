"""What was found, beside what, and is it what it is meant to be?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import attrs
import numpy as np

from .. import measure as m

OURS, EAGER, GRAPH, COMPILED = "asyncrt", "eager", "CUDA graph", "torch.compile"


@attrs.frozen
class Unit:
    """What a figure is of.

    Attributes:
        name: As the table has it.
        scale: What samples are multiplied by.
        less: Whether less is better.
    """

    name: str
    scale: float = 1.0
    less: bool = False


MS = Unit("ms", 1e3, less=True)
REQUESTS, TOKENS = Unit("requests/s"), Unit("tokens/s")
TFLOPS, BANDWIDTH = Unit("TFLOP/s", 1e-12), Unit("GB/s", 1e-9)
DIFFERENCE = Unit("difference", less=True)


@attrs.frozen
class Aim:
    """A bound of a ratio, which is to be at least that; or of asyncrt's own figure, in the unit of its table.

    Attributes:
        bound: The bound.
        of: What it is of.
        at_most: Whether the figure is to be less.
    """

    bound: float
    of: Literal["ratio", "figure"] = "ratio"
    at_most: bool = False

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}{' ×' if self.of == 'ratio' else ''}"

    def met(self, ratio: float | None, figure: float) -> bool | None:
        """Whether it is met; None where there is nothing to compare with."""
        value = ratio if self.of == "ratio" else figure
        if value is None:
            return None
        return value <= self.bound if self.at_most else value >= self.bound


@attrs.frozen(kw_only=True)
class Finding:
    """A line of the table.

    Attributes:
        part: Which part found it.
        case: What was done.
        unit: What the samples are of.
        samples: By peer; asyncrt's are among them.
        against: The peer with which asyncrt's are compared; left out if it has no samples.
        aim: What is promised.
        first_s: Seconds of the first request of this kind.
    """

    part: str
    case: str
    unit: Unit
    samples: Mapping[str, m.Samples]
    against: str = GRAPH
    aim: Aim | None = None
    first_s: float | None = None

    @property
    def pair(self) -> tuple[m.Samples, m.Samples] | None:
        """The samples whose ratio is above 1 where asyncrt is better; None if it is compared with nothing."""
        ours, theirs = self.samples[OURS], self.samples.get(self.against)
        if theirs is None:
            return None
        return (theirs, ours) if self.unit.less else (ours, theirs)

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None where there is none, or nothing to compare with."""
        if self.aim is None:
            return None
        ratio = None if self.pair is None else m.Ratio.of(*self.pair).ratio
        return self.aim.met(ratio, self._figure(OURS) or 0.0)

    @property
    def cost_of_first(self) -> float:
        """Seconds by which the first request took longer than those behind it."""
        return max(0.0, (self.first_s or 0.0) - float(np.median(self.samples[OURS])))

    @property
    def row(self) -> m.Row:
        """The line, by heading."""
        return {
            "part": self.part,
            "case": self.case,
            "unit": self.unit.name,
            "asyncrt": self._figure(OURS),
            "eager": self._figure(EAGER),
            "beside": self._figure(self.against),
            "which is": self.against if self.against in self.samples else "",
            "times as good": None if self.pair is None else m.Ratio.of(*self.pair),
            "aim": None if self.aim is None else str(self.aim),
            "met": None if self.met is None else "yes" if self.met else "no",
            "first ms": None if self.first_s is None else self.first_s * 1e3,
        }

    def after(self, first_s: float) -> Finding:
        """Return the same with another first request."""
        return attrs.evolve(self, first_s=first_s)

    def _figure(self, peer: str) -> float | None:
        samples = self.samples.get(peer)
        return None if samples is None else float(np.median(samples)) * self.unit.scale


def summary(findings: Iterable[Finding]) -> m.Row:
    """Return how many aims are met, and how each part does against CUDA graphs."""
    findings = list(findings)
    judged = [finding.met for finding in findings if finding.met is not None]
    found: m.Row = {"aims met": f"{sum(judged)} of {len(judged)}"}
    for part in dict.fromkeys(finding.part for finding in findings):
        pairs = [f.pair for f in findings if f.part == part and f.against == GRAPH and f.pair is not None]
        if pairs:
            found[f"{part}: times as fast as the CUDA graph (geometric mean)"] = m.Ratio.geometric_mean(pairs)
    return found
