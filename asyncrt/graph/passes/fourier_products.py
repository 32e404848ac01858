"""Which Fourier transforms can be products with a constant, so that a kernel calculates them?

A transform of a length that loading knows multiplies by a matrix of cosines and sines. Of an STFT, whose window is part
of that matrix, it is a convolution of the signal; of a DFT along the last axis of its signal it is a MatMul. Up to some
length that takes less time than a transform on the host, with what it takes to bring the signal there and the spectrum
back. The matrix is rounded once, from float64; sums are in float32, as those of any product.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.graph.ir import Graph, ProgramNode
from asyncrt.graph.replacement import Replacement
from asyncrt.layout import FLOAT32, Array

LONGEST = 2048
"""Elements of a transform that is a product at most: its matrix has as many rows, and columns."""


def fourier_products(graph: Graph) -> None:
    """Replace such nodes by products and what only moves axes."""
    replaced: dict[ProgramNode, list[ProgramNode]] = {}
    for node in graph.nodes:
        for sub in node.subgraphs:
            fourier_products(sub.graph)
        if node.operator.domain or node.operator.name not in ("STFT", "DFT"):
            continue
        if graph.values[node.outputs[0]].layout.dtype is FLOAT32 and graph.values[node.outputs[0]].constant is None:
            nodes = _stft(node, graph) if node.operator.name == "STFT" else _dft(node, graph)
            if nodes is not None:
                replaced[node] = nodes
    if not replaced:
        return
    graph.keep(kept for node in graph.nodes for kept in replaced.get(node, [node]))
    for node in replaced:
        for value in (graph.values[v] for v in node.uses):
            if not value.readers and value.id not in graph.outputs:
                value.constant = value.partial = None  # the matrix stands for it


def _stft(node: ProgramNode, graph: Graph) -> list[ProgramNode] | None:
    signal, result = graph.values[_first(node)].layout.shape, graph.values[node.outputs[0]].layout.shape
    step, window, given = (_constant(node, index, graph) for index in (1, 2, 3))
    if signal is None or result is None or step is None or (window is None and _has(node, 2)):
        return None
    lengths = window if window is not None else given
    if lengths is None:
        return None
    if len(signal) == 3 and (isinstance(signal[2], Dim) or signal[2] != 1):
        return None
    length = len(lengths) if lengths is window else int(np.reshape(lengths, -1)[0])
    if not 0 < length <= LONGEST:
        return None
    bins = length // 2 + 1 if node.attributes.get("onesided", 1) else length
    matrix = _matrix(length, bins)
    if window is not None:
        matrix = matrix * window.astype(np.float64)[:, None]
    make = Replacement(node, graph)
    batch, frames = result[0], result[1]
    if len(signal) == 3:
        rows = make.add("Transpose", (_first(node),), (batch, 1, signal[1]), {"perm": (0, 2, 1)})
    else:
        rows = make.add("Unsqueeze", (_first(node), make.constant(np.array([1]))), (batch, 1, signal[1]))
    weights = make.constant(np.ascontiguousarray(matrix.T[:, None, :]).astype(np.float32))
    stride = int(np.reshape(step, -1)[0])
    attributes = {
        "auto_pad": "NOTSET", "dilations": (1,), "group": 1, "kernel_shape": (length,), "pads": (0, 0),
        "strides": (stride,),
    }  # fmt: skip
    spectrum = make.add("Conv", (rows, weights), (batch, 2 * bins, frames), attributes)
    turned = make.add("Transpose", (spectrum,), (batch, frames, 2 * bins), {"perm": (0, 2, 1)})
    return make.end("Reshape", (turned, make.constant(np.array([0, 0, bins, 2]))), {"allowzero": 0})


def _dft(node: ProgramNode, graph: Graph) -> list[ProgramNode] | None:
    signal, result = graph.values[_first(node)].layout.shape, graph.values[node.outputs[0]].layout.shape
    if signal is None or result is None or len(signal) < 2:
        return None
    axis = _axis(node, graph)
    count, parts, bins = signal[-2], signal[-1], result[-2]
    if axis is None or axis % len(signal) != len(signal) - 2:
        return None
    if isinstance(count, Dim) or isinstance(parts, Dim) or isinstance(bins, Dim):
        return None
    inverse, onesided = bool(node.attributes.get("inverse", 0)), bool(node.attributes.get("onesided", 0))
    given = _constant(node, 1, graph)
    if (inverse and onesided) or (given is None and _has(node, 1)):
        return None
    length = count if given is None else int(np.reshape(given, -1)[0])
    if not 0 < max(length, count) * parts <= LONGEST:
        return None
    matrix = np.zeros((count, parts, bins, 2))
    used = min(count, length)
    cosine, sine = np.moveaxis(_matrix(length, bins)[:used].reshape(used, bins, 2), -1, 0)
    if inverse:
        cosine, sine = cosine / length, -sine / length
    matrix[:used, 0, :, 0], matrix[:used, 0, :, 1] = cosine, sine
    if parts == 2:
        matrix[:used, 1, :, 0], matrix[:used, 1, :, 1] = -sine, cosine
    make = Replacement(node, graph)
    before = signal[:-2]
    keep = [0] * len(before)
    flat = make.add(
        "Reshape", (_first(node), make.constant(np.array([*keep, count * parts]))), (*before, count * parts),
        {"allowzero": 0},
    )  # fmt: skip
    weights = make.constant(matrix.reshape(count * parts, bins * 2).astype(np.float32))
    spectrum = make.add("MatMul", (flat, weights), (*before, bins * 2))
    return make.end("Reshape", (spectrum, make.constant(np.array([*keep, bins, 2]))), {"allowzero": 0})


def _matrix(length: int, bins: int) -> Any:
    """Return the cosines and sines of a transform, a row for each element; real and imaginary parts take turns."""
    # The product of the numbers modulo the length is exact, which that of large angles is not.
    turns = np.outer(np.arange(length), np.arange(bins)) % length * (2 * np.pi / length)
    return np.stack([np.cos(turns), -np.sin(turns)], axis=-1).reshape(length, 2 * bins)


def _first(node: ProgramNode) -> int:
    id = node.inputs[0]
    assert id is not None
    return id


def _has(node: ProgramNode, index: int) -> bool:
    return len(node.inputs) > index and node.inputs[index] is not None


def _constant(node: ProgramNode, index: int, graph: Graph) -> Array | None:
    id = node.inputs[index] if len(node.inputs) > index else None
    return None if id is None else graph.values[id].constant


def _axis(node: ProgramNode, graph: Graph) -> int | None:
    """Return the axis of a DFT, if loading knows it: an attribute before opset 20, and an input from then on."""
    if node.attributes.opset < 20:
        return int(node.attributes.get("axis", 1))
    if not _has(node, 2):
        return -2
    given = _constant(node, 2, graph)
    return None if given is None else int(np.reshape(given, -1)[0])
