"""ONNX Runtime, where it is installed, as something to compare with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from asyncrt.errors import AsyncrtError
from asyncrt.layout import Array


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OnnxRuntime:
    """A model in ONNX Runtime, on the CPU, with as many threads for each inference as there are cores.

    Raises:
        AsyncrtError: ONNX Runtime is not installed, or refuses the model.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise AsyncrtError(
                "ONNX Runtime is not installed, so there is nothing to compare with", hint="pip install onnxruntime"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cores()
        options.log_severity_level = 3  # errors come as exceptions; warnings are not ours to show
        self.version: str = onnxruntime.__version__
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions share no class of their own
            raise AsyncrtError(f"ONNX Runtime does not load {path}", detail=str(error)) from error
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Run once; any number of threads may."""
        try:
            given = {n: a.astype(object) if a.dtype.kind == "T" else a for n, a in inputs.items()}
            return dict(zip(self._names, self._session.run(None, given), strict=True))
        except Exception as error:
            raise AsyncrtError("ONNX Runtime does not run this model on these inputs", detail=str(error)) from error


@attrs.frozen
class Difference:
    """How far an output is from what was expected.

    Attributes:
        largest: The largest absolute difference; infinite where one is not finite and the other is another value.
        allowed: What rounding may amount to.
        mismatch: The dtypes or shapes, if they differ; then nothing was compared.
    """

    largest: float
    allowed: float
    mismatch: str = ""

    @property
    def fits(self) -> bool:
        return not self.mismatch and self.largest <= self.allowed


def compare(expected: Array, got: Array) -> Difference:
    """Compare an output with what was expected.

    Allowed is, for floats, a thousandth of the largest expected value (at least of 1), a hundredth for those of 16
    bits; for everything else nothing.
    """
    if expected.dtype != got.dtype or expected.shape != got.shape:
        return Difference(np.inf, 0.0, f"expected {expected.dtype}{expected.shape}, got {got.dtype}{got.shape}")
    if expected.dtype.kind in "iub":
        if expected.dtype.kind == "b":
            expected, got = expected.astype(np.int8), got.astype(np.int8)
        # As Python's integers: a difference of int64 or uint64 may not fit them.
        unequal = expected != got
        pairs = zip(expected[unequal].tolist(), got[unequal].tolist(), strict=True)
        return Difference(float(max((abs(e - g) for e, g in pairs), default=0)), 0.0)
    relative = 1e-2 if expected.dtype.itemsize == 2 else 1e-3
    e, g = expected.astype(np.float64), got.astype(np.float64)
    both = np.isfinite(e) & np.isfinite(g)
    same = both | (np.isnan(e) & np.isnan(g)) | (e == g)
    largest = float(np.abs(e[both] - g[both]).max(initial=0.0)) if same.all() else np.inf
    return Difference(largest, relative * max(1.0, float(np.abs(e[both]).max(initial=0.0))))
