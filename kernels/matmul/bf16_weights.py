"""Weights as bfloat16, the upper half of a float32: how they are rounded, and how they are packed for kernels.

The model's weights are rounded while it is loaded (`graph/passes/round_weights.py`), so that results do not depend on
which kernel carries out which shape. Packing rounded weights loses nothing. Sums are float32.
"""

from __future__ import annotations

import numpy as np

from asyncrt.layout import BFLOAT16, Array

from . import cpu as matmul_cpu

_LARGEST = np.float32(np.frombuffer(np.uint32(0x7F7F0000).tobytes(), np.float32)[0])


def rounded(array: Array) -> Array:
    """Return float32 *array* with each number rounded to the nearest bfloat16, ties to even.

    Finite numbers stay finite: those beyond the largest bfloat16 become that one.
    """
    finite = np.isfinite(array)
    kept = np.where(finite, np.clip(array, -_LARGEST, _LARGEST), array)
    return np.asarray(kept.astype(BFLOAT16.numpy).astype(np.float32))


def bits(array: Array) -> Array:
    """Return the bfloat16 that float32 *array* is rounded to, as uint16."""
    wide = np.ascontiguousarray(rounded(array)).view(np.uint32)
    return np.asarray(wide >> 16).astype(np.uint16)


def pack_panels(matrix: Array) -> Array:
    """Return a ``[K, N]`` matrix as `matmul_cpu.pack_panels` does, columns i and i + 16 of a panel in one uint32."""
    panels = bits(matmul_cpu.pack_panels(matrix)).astype(np.uint32)
    return np.asarray(panels[..., :16] | (panels[..., 16:] << 16))


def pack_transposed(matrix: Array) -> Array:
    """Return the transpose of a ``[N, K]`` matrix as `pack_panels` does."""
    return pack_panels(matrix.T)
