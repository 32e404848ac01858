"""May requests of this model share a batch, and may they be padded to do so? Tried out, before any request.

Requests that run alone are compared with the same requests in batches: first of equal shapes, then with each dim that
could be padded, then with all of those that passed. What differs, or fails, is not done. That a comparison with a few
requests is no proof is why it goes by the model's real kernels, with several sizes and random contents.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from asyncrt.errors import AsyncrtError, DeviceLostError, RuntimeClosedError
from asyncrt.layout import Array
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.numerics import difference, tolerance

from .batch_axes import BatchAxes, learn_outputs, sizes_of
from .pad import join
from .samples import draw_samples, take_samples
from .split import split

Arrays: TypeAlias = "dict[int, Array]"
Run: TypeAlias = "Callable[[Arrays], Awaitable[Arrays]]"

@attrs.frozen
class PadSafety:
    """What was found.

    Attributes:
        batch: The name of the batch dim.
        rows: Whether requests of equal shapes may share a batch; if not, each runs alone.
        padded: The dims that are padded.
        refused: Why others are not, by name; and why no batches are made, under the name of the batch dim.
        holes: Why requests in whose masks some elements are 0 are not padded; "" if they are.
        error: The largest difference that was let pass, as a share of the largest element.
        compared: How many requests were compared.
    """

    batch: str
    rows: bool
    padded: tuple[str, ...]
    refused: dict[str, str]
    holes: str
    error: float
    compared: int

    def __str__(self) -> str:
        if not self.rows:
            return f"requests run alone: {self.refused[self.batch]}"
        told = [f"batches along '{self.batch}', padded: " + (", ".join(map(repr, self.padded)) or "nothing")]
        told += [f"'{name}' must be equal: {why}" for name, why in self.refused.items()]
        told += [f"where a mask has zeros, all must be equal: {self.holes}"] if self.holes else []
        return "; ".join(told)


class _PaddingTrial:
    """Requests, what each gave alone, and what becomes of them in batches."""

    def __init__(self, run: Run, axes: BatchAxes, values: Mapping[int, Any], *, exact: bool) -> None:
        self.axes = axes
        self.error = 0.0
        self.compared = 0
        self._run, self._values, self._exact = run, values, exact
        #: Inputs, sizes of the dims, and the outputs when it ran alone.
        self.alone: list[tuple[Arrays, dict[str, int], Arrays]] = []

    async def add(self, *twins: Arrays) -> str:
        """Run two requests of one shape, each alone; "" or why that cannot be."""
        ran = []
        for arrays in twins:
            try:
                ran.append((arrays, sizes_of(self.axes.inputs, arrays), await self._run(arrays)))
            except AsyncrtError as error:
                return _why(error)
        self.alone += ran
        return ""

    def pairs(self, names: tuple[str, ...]) -> list[tuple[int, int]]:
        """Which requests differ in all of these dims, and in no other but the batch."""
        sizes = [s for _, s, _ in self.alone]
        kept = [n for n in (sizes[0] if sizes else ()) if n not in (*names, self.axes.batch)]
        return [
            (i, j) for i, j in itertools.combinations(range(len(sizes)), 2)
            if all(sizes[i][n] != sizes[j][n] for n in names) and all(sizes[i][n] == sizes[j][n] for n in kept)
        ]  # fmt: skip

    async def together(self, requests: Iterable[int], padded: tuple[str, ...]) -> str:
        """Run some as one, and compare; "" or what was wrong."""
        members = [self.alone[i] for i in requests]
        sizes = {name: max(s[name] for _, s, _ in members) for name in padded}
        axes = attrs.evolve(self.axes, padded=padded)
        try:
            outputs = await self._run(join(axes, [arrays for arrays, _, _ in members], sizes, self._values))
            answers = split(axes, outputs, [(s[axes.batch], s) for _, s, _ in members])
        except (AsyncrtError, IndexError) as error:
            return f"a batch failed: {_why(error)}"
        for (_, own, expected), answer in zip(members, answers, strict=True):
            self.compared += 1
            for tensor in axes.outputs:
                alone, got = expected[tensor.id], answer[tensor.id]
                off = difference(alone, got)
                other_bits = self._exact and alone.tobytes() != got.tobytes()  # 0.0 and -0.0 do not differ
                if other_bits or off > tolerance(alone.dtype):
                    at = ", ".join(f"{n}={own[n]} in {sizes[n]}" for n in padded) or "equal shapes"
                    return f"output '{tensor.name}' is another in a batch ({at})"
                self.error = max(self.error, off)
        return ""


def _why(error: Exception) -> str:
    if isinstance(error, DeviceLostError | RuntimeClosedError):
        raise error
    return error.message if isinstance(error, AsyncrtError) else repr(error)


async def check_pad_safety(
    run: Run,
    axes: BatchAxes,
    values: Mapping[int, Any],
    samples: list[Arrays] | None = None,
    *,
    exact: bool = False,
    problem: str = "",
    limit: int,
) -> tuple[BatchAxes, PadSafety]:
    """Try it; returns the axes with what is safe to pad alone, and what was found.

    Args:
        run: Runs checked inputs.
        values: What inputs are padded with.
        samples: Requests to try it with; None draws some.
        exact: Whether every bit must be the same.
        problem: Why no batches can be made, if that is known already.
        limit: Bytes that requests may have that are drawn.
    """
    trial = _PaddingTrial(run, axes, values, exact=exact)
    if not problem and samples is None:
        problem = await draw_samples(axes, trial.add, HostBudget(limit))
    elif not problem:
        problem = await take_samples(axes, samples or [], trial.add)
    learned = learn_outputs(axes.outputs, axes.batch, [(sizes, outputs) for _, sizes, outputs in trial.alone])
    trial.axes = attrs.evolve(axes, outputs=learned)
    if not problem:
        without = [t.name for t in learned if t.rows is None]
        problem = f"output '{without[0]}' has no axis '{axes.batch}'" if without else await _rows(trial)
    refused: dict[str, str] = {axes.batch: problem} if problem else {}
    padded: list[str] = []
    holes = ""
    for name in () if problem else axes.padded:
        pairs = trial.pairs((name,))
        why, other = await _padded(trial, pairs, (name,))
        if why or not pairs:
            refused[name] = why or "no two requests that differ in it alone could be tried"
        else:
            padded.append(name)
            holes = holes or other
    if len(padded) > 1:
        kept = tuple(padded)
        pairs = trial.pairs(kept)
        why, other = await _padded(trial, pairs, kept)
        why, holes = why or ("" if pairs else "no two requests could be tried"), holes or other
        if why:
            refused.update(dict.fromkeys(padded[1:], f"together with '{padded[0]}', {why}"))
            padded = padded[:1]
    found = PadSafety(axes.batch, not problem, tuple(padded), refused, holes, trial.error, trial.compared)
    return attrs.evolve(axes, outputs=learned, padded=found.padded, holes=not holes, forms={}), found


async def _padded(trial: _PaddingTrial, pairs: list[tuple[int, int]], padded: tuple[str, ...]) -> tuple[str, str]:
    """Try requests in pairs; returns what was wrong, and what was wrong only of those with zeros in their masks."""
    whole = [all(arrays[mask].all() for mask in trial.axes.masks) for arrays, _, _ in trial.alone]
    why = await _all(trial, [(i, j) for i, j in pairs if whole[i] and whole[j]], padded)
    return why, why or await _all(trial, [(i, j) for i, j in pairs if not (whole[i] and whole[j])], padded)


async def _rows(trial: _PaddingTrial) -> str:
    """Try each request with the twin that follows it, which has its shape, in both orders and threefold."""
    for i in range(0, len(trial.alone), 2):
        for order in ((i, i + 1), (i + 1, i), (i, i + 1, i)):
            if why := await trial.together(order, ()):
                return why
    return ""


async def _all(trial: _PaddingTrial, pairs: list[tuple[int, int]], padded: tuple[str, ...]) -> str:
    for pair in pairs:
        if why := await trial.together(pair, padded):
            return why
    return ""
