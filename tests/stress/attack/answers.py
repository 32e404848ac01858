"""Values as callers have them: whether two are the same to the last bit, or nearly, and their text.

Beside arrays of numbers there are texts (arrays of dtype object), sequences (lists), optionals (None, or what is in
them) and maps (dicts).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrt.layout import Array

TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-3, "float64": 1e-4}
"""Relative to the largest element, for what may add in another order."""


def exactly(value: Any) -> Any:
    """Return what equals that of another value if and only if both have the same kinds, dtypes, shapes and bits."""
    if isinstance(value, Mapping):
        return dict, [(key, exactly(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return list, [exactly(each) for each in value]
    if not isinstance(value, np.ndarray):
        return type(value), repr(value)
    return value.dtype, value.shape, value.reshape(-1).tolist() if value.dtype.kind in "OT" else value.tobytes()


def arrays_in(value: Any) -> list[Array]:
    """Return the arrays of numbers that a value is or holds."""
    if isinstance(value, Mapping):
        return arrays_in(list(value.values()))
    if isinstance(value, list | tuple):
        return [array for each in value for array in arrays_in(each)]
    return [value] if isinstance(value, np.ndarray) and value.dtype.kind not in "OT" else []


def difference(expected: Mapping[str, Any], got: Mapping[str, Any], *, indefinite: bool = False) -> str | None:
    """Say where two results differ by more than rounding; None if they do not.

    With *indefinite* the least integer may be expected of anything: it is what processors make of a float that no
    integer is, and ONNX Runtime calculates powers of integers in floats.

    Where there are no elements, runtimes differ in dims that nothing tells, such as those of a loop without trips, and
    in how many those are if the model says one thing of a loop's value and gives it another.
    """
    found = (_differing(e, got[name], f"'{name}'", indefinite) for name, e in expected.items())
    return next((wrong for wrong in found if wrong is not None), None)


def _differing(expected: Any, got: Any, what: str, indefinite: bool) -> str | None:
    if isinstance(expected, np.ndarray) and isinstance(got, np.ndarray):
        return _arrays_differ(expected, got, what, indefinite)
    theirs, ours = (list(map(list, v.items())) if isinstance(v, dict) else v for v in (expected, got))
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours, strict=True))
        found = (_differing(e, g, f"{what}[{i}]", indefinite) for i, (e, g) in pairs)
        return next((wrong for wrong in found if wrong is not None), None)
    same = repr(theirs) == repr(ours)
    if isinstance(theirs, float | np.floating) and isinstance(ours, float | np.floating):
        same = bool(np.isclose(theirs, ours, TOLERANCES["float32"], equal_nan=True))
    return None if same else f"{what} is {shown(got)}, elsewhere {shown(expected)}"


def _arrays_differ(expected: Array, got: Array, what: str, indefinite: bool) -> str | None:
    texts = [a.dtype.kind in "OTU" for a in (expected, got)]
    if expected.size == got.size == 0 and (expected.dtype == got.dtype or all(texts)):
        return None
    if expected.shape != got.shape or (expected.dtype != got.dtype and not all(texts)):
        return f"{what} is {got.dtype}{list(got.shape)}, elsewhere {expected.dtype}{list(expected.shape)}"
    tolerance = TOLERANCES.get(expected.dtype.name)
    with np.errstate(all="ignore"):
        if tolerance is None:
            same: Array = np.asarray(expected == got)
            if indefinite and expected.dtype in (np.int32, np.int64):
                same = same | (expected == np.iinfo(expected.dtype).min)
        else:
            a, b = expected.astype(np.float64), got.astype(np.float64)
            largest = float(np.max(np.abs(a), where=np.isfinite(a), initial=1.0))
            # What overflows does so here or there, depending on the order in which others add.
            same = (a == b) | ~np.isfinite(a) | (np.abs(a - b) <= tolerance * largest)
    if same.all():
        return None
    first = tuple(int(i) for i in np.argwhere(~same)[0])
    wrong = int((~same).sum())
    return f"{what}{list(first)} is {got[first]!r}, elsewhere {expected[first]!r}; {wrong} of {same.size} elements"


def shown(value: Any) -> str:
    """Return a value's text, the dtypes and shapes of its arrays included, cut short."""
    with np.printoptions(threshold=40, edgeitems=3):
        text = f"{value.dtype}{list(value.shape)} {value!r}" if isinstance(value, np.ndarray) else repr(value)
    return text[:3000]
