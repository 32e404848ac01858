"""From `--input`, `--shape` and `--range` to arrays: what is given, what is drawn at random, and a word on how."""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import attrs
import numpy as np

from asyncrt.dims import Dim
from asyncrt.kinds import is_plain
from asyncrt.layout import BFLOAT16, BOOL, FLOAT32, STRING, Array, Layout, PartialLayout, dtype_of, show_shape

from .terminal import wrong

_DIGITS = 18  # of a size, which is below 2^63 then
_DRAWN_NBYTES = 8  # of an element, before it has the dtype that is wanted

Sizes: TypeAlias = Mapping[str, int]
"""Dynamic dims by name."""


@attrs.frozen
class Filled:
    """The inputs of a request, and for each a word on where its values come from."""

    arrays: dict[str, Array]
    sources: dict[str, str]


@attrs.frozen
class InputOptions:
    """What the user said about inputs.

    Attributes:
        shapes: Inputs given by their shape.
        files: Inputs given by a file.
        sizes: The sizes to try of each dynamic dim.
        ranges: Where values of an input are drawn from.
        seed: Of what is drawn.
    """

    shapes: Mapping[str, tuple[int, ...]]
    files: Mapping[str, Path]
    sizes: Mapping[str, tuple[int, ...]]
    ranges: Mapping[str, tuple[float, float]]
    seed: int = 0

    @classmethod
    def parse(
        cls,
        inputs: Sequence[str] | None,
        shapes: Sequence[str] | None,
        ranges: Sequence[str] | None,
        seed: int,
        *,
        several: bool = False,
    ) -> InputOptions:
        """Read the options.

        Args:
            several: Whether a dim may have more than one size.

        Raises:
            typer.BadParameter: Says which option, what was expected and what came.
        """
        given = _assignments("--input", inputs, "NAME=2x16, NAME=2,16 or NAME=FILE.npy")
        files = {name: Path(text) for name, text in given.items() if text.endswith(".npy")}
        return cls(
            shapes={name: _shape(name, text) for name, text in given.items() if name not in files},
            files=files,
            sizes={
                name: _sizes(name, text, several=several)
                for name, text in _assignments("--shape", shapes, "DIM=SIZE").items()
            },
            ranges={
                name: _range(name, text) for name, text in _assignments("--range", ranges, "NAME=LOW:HIGH").items()
            },
            seed=seed,
        )

    def combinations(self) -> list[Sizes]:
        """Return every combination of the dims' sizes, the last dim changing fastest."""
        return [dict(zip(self.sizes, sizes, strict=True)) for sizes in itertools.product(*self.sizes.values())]

    def fill(self, inputs: Mapping[str, PartialLayout], sizes: Sizes) -> Filled:
        """Return an array for each of a model's inputs.

        Args:
            inputs: What the model takes.
            sizes: One of `combinations()`.

        Raises:
            typer.BadParameter: An option names nothing in the model, or something is left open.
        """
        for option, names in (("--input", [*self.shapes, *self.files]), ("--range", [*self.ranges])):
            for name in names:
                if name not in inputs:
                    raise wrong(option, f"the model has no input '{name}'; {_signature(inputs)}")
        loaded = {name: _load(name, path, inputs[name]) for name, path in self.files.items()}
        shapes = {**self.shapes, **{name: array.shape for name, array in loaded.items()}}
        bound = _bind(inputs, shapes, sizes)
        arrays: dict[str, Array] = {}
        sources: dict[str, str] = {}
        for name, partial in inputs.items():
            if name in loaded:
                if name in self.ranges:
                    raise wrong("--range", f"the values of '{name}' come from {self.files[name]}")
                arrays[name], sources[name] = loaded[name], str(self.files[name])
            else:
                assert partial.dtype is not None  # the importer refuses inputs without a dtype
                declared = tuple(bound.get(str(d), 0) if isinstance(d, Dim) else d for d in partial.shape or ())
                layout = Layout(partial.dtype, shapes.get(name, declared))
                _check_size("--input" if name in shapes else "--shape", name, layout)
                random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
                arrays[name], sources[name] = _draw(name, layout, random, self.ranges.get(name))
        return Filled(arrays, sources)


def _check_size(option: str, name: str, layout: Layout) -> None:
    """Raise unless this machine's memory has room for an input, before any of it is drawn."""
    nbytes = math.prod(layout.shape) * max(layout.dtype.itemsize, _DRAWN_NBYTES)
    if nbytes > (room := memory_nbytes()):
        raise wrong(
            option,
            f"'{name}' would be {layout}, and drawing it take {nbytes / 2**30:.3g} GiB; "
            f"this machine has {room / 2**30:.3g} GiB",
        )


def memory_nbytes() -> int:
    """Return the bytes of this machine's memory, or of an address space where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def _assignments(option: str, texts: Iterable[str] | None, form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise wrong(option, f"expected {form}, got '{text}'")
        if name in found:
            raise wrong(option, f"'{name}' is given twice")
        found[name] = value
    return found


def _shape(name: str, text: str) -> tuple[int, ...]:
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if inner == "" and text == "[]":
        return ()
    if not re.fullmatch(r"\d+([x,]\s*\d+)*", inner):
        forms = f"{name}=2x16, {name}=2,16, {name}=[] for a scalar or {name}=FILE.npy"
        raise wrong("--input", f"expected {forms}, got '{text}'")
    return tuple(_size("--input", name, d.strip()) for d in re.split(r"[x,]", inner))


def _sizes(name: str, text: str, *, several: bool) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*" if several else r"\d+", text):
        expected = f"{name}=16 or {name}=8,16,128" if several else f"one size, as {name}=16"
        raise wrong("--shape", f"expected {expected}, got '{text}'")
    return tuple(_size("--shape", name, size) for size in text.split(","))


def _size(option: str, name: str, digits: str) -> int:
    """Return a size from its digits, of which there may be any number."""
    if len(digits.lstrip("0")) > _DIGITS:
        raise wrong(option, f"expected sizes of up to {_DIGITS} digits, got {len(digits)} digits for '{name}'")
    return int(digits)


def _range(name: str, text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        limits = float(low), float(high)
    except ValueError:
        limits = (0.0, 0.0)
    if not colon or not limits[0] < limits[1] or not np.isfinite((*limits, limits[1] - limits[0])).all():
        raise wrong("--range", f"expected {name}=LOW:HIGH with LOW less than HIGH, as {name}=0:100, got '{text}'")
    return limits


def _load(name: str, path: Path, wanted: PartialLayout) -> Array:
    try:
        with open(path, "rb") as file:
            array = np.load(file, allow_pickle=False)
    except Exception as error:  # whatever a file that is no array makes of NumPy
        raise wrong("--input", f"'{name}': {path} does not load: {error}") from error
    if not isinstance(array, np.ndarray):
        raise wrong("--input", f"'{name}': {path} is an archive; expected a file of one array")
    if wanted.dtype is BFLOAT16 and dtype_of(array.dtype) is FLOAT32:
        return array.astype(BFLOAT16.numpy)  # .npy has no bfloat16
    return array


def _bind(inputs: Mapping[str, PartialLayout], shapes: Mapping[str, tuple[int, ...]], sizes: Sizes) -> dict[str, int]:
    """Return the size of every dynamic dim, from what the user said of it or of an input that has it."""
    known = [str(d) for layout in inputs.values() for d in layout.shape or () if isinstance(d, Dim)]
    for named in sizes:
        if named not in known:
            has = ", ".join(dict.fromkeys(known)) or "no dynamic dim"
            raise wrong("--shape", f"no input has a dim '{named}'; the model has {has}")
    bound = dict(sizes)
    for name, shape in shapes.items():
        for dim, size in zip(inputs[name].shape or (), shape, strict=False):  # other ranks are refused by the runtime
            if isinstance(dim, Dim) and bound.setdefault(str(dim), size) != size:
                raise wrong("--input", f"'{name}' is {show_shape(shape)}, but '{dim}' is {bound[str(dim)]} already")
    missing: dict[str, None] = {}
    for name, layout in inputs.items():
        if name in shapes:
            continue
        if layout.shape is None:
            raise wrong("--input", f"the model does not declare the rank of '{name}'; give it, as --input {name}=2x16")
        missing.update(dict.fromkeys(str(d) for d in layout.shape if isinstance(d, Dim) and str(d) not in bound))
    if missing:
        example = " ".join(f"--shape {named}=1" for named in missing)
        raise wrong("--shape", f"give the size of {', '.join(missing)}, as {example}; {_signature(inputs)}")
    return bound


_WORDS = ("a", "word", "or", "two")


def _draw(
    name: str, layout: Layout, random: np.random.Generator, limits: tuple[float, float] | None
) -> tuple[Array, str]:
    dtype, shape = layout.dtype, layout.shape
    if limits is not None:
        low, high = limits
        if dtype.is_float:
            return random.uniform(low, high, shape).astype(dtype.numpy), f"uniform from {low:g} to {high:g}"
        if dtype is BOOL:
            raise wrong("--range", f"'{name}' is bool, which has no range")
        if dtype.is_on_host:
            raise wrong("--range", f"'{name}' is {dtype}, which has no range here")
        info = np.iinfo(dtype.name)
        if not (low.is_integer() and high.is_integer() and info.min <= low and high <= info.max + 1):
            raise wrong("--range", f"'{name}' is {dtype}; expected integers from {info.min} to {info.max + 1}")
        first, end = int(low), int(high)
        return random.integers(first, end, shape, dtype.numpy), f"random from {first} to {end - 1}"
    if dtype.is_float:
        return random.standard_normal(shape).astype(dtype.numpy), "normal"
    if "mask" in name.lower():
        return np.ones(shape, dtype.numpy), "ones, as it is a mask"
    if dtype is BOOL:
        return random.random(shape) < 0.5, "random true or false"
    if dtype is STRING:
        return random.choice(_WORDS, shape).astype(dtype.numpy), "random words"
    if not is_plain(dtype):
        raise wrong("--input", f"'{name}' is {dtype}, which the command line cannot give; a program can")
    if dtype.is_narrow:
        return random.integers(0, 2, shape).astype(dtype.numpy), "random 0 or 1"
    return random.integers(0, 2, shape, dtype.numpy), "random 0 or 1"


def _signature(inputs: Mapping[str, PartialLayout]) -> str:
    return "it takes " + (", ".join(f"{name} {layout}" for name, layout in inputs.items()) or "no inputs")
