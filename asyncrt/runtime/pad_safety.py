"""May requests of this model share a batch, and may they be padded to do so? Tried out, before any request.

Requests that run alone are compared with the same requests in batches: first of equal shapes, then with each dim that
could be padded, then with all of those that passed. What differs, or fails, is not done. That a comparison with a few
requests is no proof is why it goes by the model's real kernels, with several sizes and random contents.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs
import ml_dtypes
import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import AsyncrtError, DeviceLostError, RuntimeClosedError
from asyncrt.layout import Array

from .batch_axes import BatchAxes, learn_outputs, sizes_of
from .pad import join
from .split import split

Arrays: TypeAlias = "dict[int, Array]"
Run: TypeAlias = "Callable[[Arrays], Awaitable[Arrays]]"

#: Sizes that are tried, in this order; the first that the model takes for all its dims is the one to begin with.
SIZES = (8, 5, 13, 24, 32, 64, 96, 128)
_OTHERS = 2  # sizes that each dim is tried with beside that


@attrs.frozen
class PadSafety:
    """What was found.

    Attributes:
        batch: The name of the batch dim.
        rows: Whether requests of equal shapes may share a batch; if not, each runs alone.
        padded: The dims that are padded.
        refused: Why others are not, by name; and why no batches are made, under the name of the batch dim.
        error: The largest difference that was let pass, as a share of the largest element.
        compared: How many requests were compared.
    """

    batch: str
    rows: bool
    padded: tuple[str, ...]
    refused: dict[str, str]
    error: float
    compared: int

    def __str__(self) -> str:
        if not self.rows:
            return f"requests run alone: {self.refused[self.batch]}"
        exact = ", ".join(f"'{name}' must be equal: {why}" for name, why in self.refused.items())
        padded = ", ".join(f"'{name}'" for name in self.padded) or "nothing"
        return f"batches along '{self.batch}', padded: {padded}" + (f"; {exact}" if exact else "")


def tolerance(dtype: np.dtype[Any]) -> float:
    """Return how far elements of *dtype* may be from those of a request alone, as a share of the largest one.

    The square root of the distance from 1 to the next number, which leaves room for another order of additions; for
    integers and booleans nothing.
    """
    if dtype.kind == "f" or dtype == ml_dtypes.bfloat16:
        return float(np.sqrt(float(ml_dtypes.finfo(dtype).eps)))
    return 0.0


def difference(expected: Array, got: Array, *, exact: bool) -> float | None:
    """Return how far *got* is off, as a share of the largest element; None if that is too far, or the shapes differ."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return None
    if expected.tobytes() == got.tobytes():
        return 0.0
    allowed = 0.0 if exact else tolerance(expected.dtype)
    if not allowed:
        return None
    a, b = expected.astype(np.float64), got.astype(np.float64)
    special = ~np.isfinite(a)
    if not np.array_equal(a[special], b[special], equal_nan=True) or not np.isfinite(b[~special]).all():
        return None
    scale = np.abs(a[~special]).max(initial=0.0)
    off = np.abs(a[~special] - b[~special]).max(initial=0.0)
    share = float(off / scale) if scale else float(off)
    return share if share <= allowed else None


class _Trial:
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
                off = difference(expected[tensor.id], answer[tensor.id], exact=self._exact)
                if off is None:
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
) -> tuple[BatchAxes, PadSafety]:
    """Try it; returns the axes with what is safe to pad alone, and what was found.

    Args:
        run: Runs checked inputs.
        values: What inputs are padded with.
        samples: Requests to try it with. None draws some: floats and booleans at random, integers 0 and 1, masks of 1.
        exact: Whether every bit must be the same.
        problem: Why no batches can be made, if that is known already.
    """
    trial = _Trial(run, axes, values, exact=exact)
    problem = problem or await (_draw(trial) if samples is None else _take(trial, samples))
    learned = learn_outputs(axes.outputs, axes.batch, [(sizes, outputs) for _, sizes, outputs in trial.alone])
    trial.axes = attrs.evolve(axes, outputs=learned)
    if not problem:
        without = [t.name for t in learned if t.rows is None]
        problem = f"output '{without[0]}' has no axis '{axes.batch}'" if without else await _rows(trial)
    refused: dict[str, str] = {axes.batch: problem} if problem else {}
    padded: list[str] = []
    for name in () if problem else axes.padded:
        others = [tuple(s[n] for n in s if n not in (name, axes.batch)) for _, s, _ in trial.alone]
        differ = [
            (i, j) for i, j in itertools.permutations(range(len(others)), 2)
            if others[i] == others[j] and trial.alone[i][1][name] < trial.alone[j][1][name]
        ]  # fmt: skip
        why = await _all(trial, differ, (name,)) if differ else "no two requests that differ in it alone could be tried"
        if why:
            refused[name] = why
        else:
            padded.append(name)
    if len(padded) > 1:
        kept = tuple(padded)
        pairs = [
            (i, j) for i, j in itertools.combinations(range(len(trial.alone)), 2)
            if sum(trial.alone[i][1][n] != trial.alone[j][1][n] for n in kept) > 1
            and all(trial.alone[i][1][n] == s for n, s in trial.alone[j][1].items() if n not in (*kept, axes.batch))
        ]  # fmt: skip
        if why := await _all(trial, pairs, kept):
            refused.update(dict.fromkeys(padded[1:], f"together with '{padded[0]}', {why}"))
            padded = padded[:1]
    found = PadSafety(axes.batch, not problem, tuple(padded), refused, trial.error, trial.compared)
    return attrs.evolve(axes, outputs=learned, padded=found.padded, forms={}), found


async def _rows(trial: _Trial) -> str:
    """Try each request with the twin that follows it, which has its shape, in both orders and threefold."""
    for i in range(0, len(trial.alone), 2):
        for order in ((i, i + 1), (i + 1, i), (i, i + 1, i)):
            if why := await trial.together(order, ()):
                return why
    return ""


async def _all(trial: _Trial, pairs: list[tuple[int, int]], padded: tuple[str, ...]) -> str:
    for pair in pairs:
        if why := await trial.together(pair, padded):
            return why
    return ""


async def _take(trial: _Trial, samples: list[Arrays]) -> str:
    random = np.random.default_rng(0)
    for sample in samples:
        if why := await trial.add(sample, _shuffled(trial.axes, sample, random)):
            return f"a sample does not run: {why}"
    return "" if samples else "there are no samples"


def _shuffled(axes: BatchAxes, arrays: Arrays, random: np.random.Generator) -> Arrays:
    """A request of the same shape with other contents: the same elements elsewhere. Masks stay as they are."""
    return {
        t.id: arrays[t.id] if t.rows is None or t.id in axes.masks
        else random.permutation(arrays[t.id].reshape(-1)).reshape(arrays[t.id].shape)
        for t in axes.inputs
    }  # fmt: skip


async def _draw(trial: _Trial) -> str:
    """Draw requests, two of each shape: one shape to begin with, and each dim with other sizes."""
    axes = trial.axes
    if any(t.dims is None or any(isinstance(d, Dim) and d.name is None for d in t.dims) for t in axes.inputs):
        return "the model does not say what shapes it takes; give samples"
    random = np.random.default_rng(0)
    names = sorted({n for t in axes.inputs for n in t.names()} - {axes.batch})
    why = ""
    for size in SIZES:
        base = {**dict.fromkeys(names, size), axes.batch: 1}
        if not (why := await trial.add(_random(axes, base, random), _random(axes, base, random))):
            break
    else:
        return f"it takes none of the sizes that were tried; give samples ({why})"
    for name in axes.padded:
        found = 0
        for rows, size in _sizes_but(base[name]):
            sizes = {**base, axes.batch: rows, name: size}
            found += not await trial.add(_random(axes, sizes, random), _random(axes, sizes, random))
            if found == _OTHERS:
                break
    if not axes.padded:
        sizes = {**base, axes.batch: 2}
        why = await trial.add(_random(axes, sizes, random), _random(axes, sizes, random))
        return f"it does not take two rows: {why}" if why else ""
    return ""


def _sizes_but(size: int) -> Iterator[tuple[int, int]]:
    yield from ((1 + i % 2, s) for i, s in enumerate(s for s in SIZES if s != size))


def _random(axes: BatchAxes, sizes: Mapping[str, int], random: np.random.Generator) -> Arrays:
    """Draw a request; an input without a batch axis is the same in all of them."""
    arrays: Arrays = {}
    for tensor in axes.inputs:
        assert tensor.dtype is not None
        shape = [sizes[d.name or ""] if isinstance(d, Dim) else d or 0 for d in tensor.dims or ()]
        source = np.random.default_rng(tensor.id) if tensor.rows is None else random
        if tensor.id in axes.masks:
            drawn: Any = np.ones(shape)
        elif tensor.dtype.is_float:
            drawn = source.standard_normal(shape)
        else:
            drawn = source.integers(0, 2, shape)
        arrays[tensor.id] = np.asarray(drawn).astype(tensor.dtype.numpy)
    return arrays
