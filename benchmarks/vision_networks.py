"""Which small networks for pictures are measured, and what are they made of?

They are written down as PyTorch's exporter writes them in inference mode, with random weights: normalisations folded
into convolutions, `SiLU` as a Sigmoid and a Mul, attention as products and a Softmax. Any batch; any height and width
that are multiples of 32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from .models import Graph, value


class _Layers:
    """Convolutions and what surrounds them, with weights that keep numbers about as large as they are."""

    def __init__(self) -> None:
        self.graph = Graph()

    def conv(
        self, x: str, given: int, made: int, size: int = 1, stride: int = 1, groups: int = 1, act: str = "",
        gain: float = 1.0,
    ) -> str:  # fmt: skip
        """Add a convolution with a bias and an activation."""
        g, each = self.graph, given // groups
        kernel = g.weights(made, each, size, size, deviation=gain * math.sqrt(2 / (each * size * size)))
        bias, pads = g.weights(made, deviation=0.1), [size // 2] * 4
        x = g.add("Conv", x, kernel, bias, kernel_shape=[size, size], strides=[stride] * 2, pads=pads, group=groups)
        return self.activated(x, act)

    def activated(self, x: str, act: str) -> str:
        """Add an activation."""
        if act == "Silu":
            return self.graph.add("Mul", x, self.graph.add("Sigmoid", x))
        if act == "HardSigmoid":
            return self.graph.add(act, x, alpha=1 / 6)
        return self.graph.add(act, x) if act else x

    def linear(self, x: str, given: int, made: int) -> str:
        """Add a product with a bias, of the last axis."""
        g = self.graph
        product = g.add("MatMul", x, g.weights(given, made, deviation=given**-0.5))
        return g.add("Add", product, g.weights(made, deviation=0.02))

    def gated(self, x: str, channels: int, inner: int, act: str, gate: str) -> str:
        """Add a squeeze-and-excite block."""
        y = self.conv(self.graph.add("GlobalAveragePool", x), channels, inner, act=act)
        return self.graph.add("Mul", self.conv(y, inner, channels, act=gate), x)

    def classified(self, x: str, given: int) -> onnx.ModelProto:
        """Add classes of a picture, and return the model."""
        g = self.graph
        weights, bias = g.weights(1000, given, deviation=given**-0.5), g.weights(1000, deviation=0.1)
        g.add("Gemm", x, weights, bias, outputs=["logits"], transB=1)
        return self.model([value("logits", "batch", 1000)])

    def model(self, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """Return the model."""
        return self.graph.model([value("image", "batch", 3, "height", "width")], outputs)


# --- MobileNet-V3 and EfficientNet ------------------------------------------------------------------------------------

_MOBILENET = (  # size, inner channels, channels, squeeze and excite, activation, stride
    (3, 16, 16, False, "Relu", 1), (3, 64, 24, False, "Relu", 2), (3, 72, 24, False, "Relu", 1),
    (5, 72, 40, True, "Relu", 2), (5, 120, 40, True, "Relu", 1), (5, 120, 40, True, "Relu", 1),
    (3, 240, 80, False, "HardSwish", 2), (3, 200, 80, False, "HardSwish", 1), (3, 184, 80, False, "HardSwish", 1),
    (3, 184, 80, False, "HardSwish", 1), (3, 480, 112, True, "HardSwish", 1), (3, 672, 112, True, "HardSwish", 1),
    (5, 672, 160, True, "HardSwish", 2), (5, 960, 160, True, "HardSwish", 1), (5, 960, 160, True, "HardSwish", 1),
)  # fmt: skip
_EFFICIENTNET = (  # times as many inner channels, channels, how many blocks, stride, size
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip


def mobilenet_v3(blocks: int = len(_MOBILENET)) -> onnx.ModelProto:
    """Return MobileNet-V3 large, or its first *blocks*."""
    n, channels = _Layers(), 16
    x = n.conv("image", 3, channels, 3, 2, act="HardSwish")
    for size, inner, made, gated, act, stride in _MOBILENET[:blocks]:
        y = n.conv(x, channels, inner, act=act) if inner != channels else x
        y = n.conv(y, inner, inner, size, stride, groups=inner, act=act)
        y = n.gated(y, inner, _eighths(inner / 4), "Relu", "HardSigmoid") if gated else y
        y = n.conv(y, inner, made, gain=0.7)
        x, channels = n.graph.add("Add", x, y) if stride == 1 and made == channels else y, made
    x = n.conv(x, channels, 6 * channels, act="HardSwish")
    x = n.graph.add("Flatten", n.graph.add("GlobalAveragePool", x))
    return n.classified(n.activated(n.linear(x, 6 * channels, 1280), "HardSwish"), 1280)


def _eighths(channels: float) -> int:
    """Round as the authors do, to a multiple of 8."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def efficientnet_b0(stages: int = len(_EFFICIENTNET)) -> onnx.ModelProto:
    """Return EfficientNet-B0, or its first *stages*."""
    n, channels = _Layers(), 32
    x = n.conv("image", 3, channels, 3, 2, act="Silu")
    for wider, made, blocks, first, size in _EFFICIENTNET[:stages]:
        for block in range(blocks):
            stride, inner = first if not block else 1, wider * channels
            y = n.conv(x, channels, inner, act="Silu") if wider > 1 else x
            y = n.conv(y, inner, inner, size, stride, groups=inner, act="Silu")
            y = n.gated(y, inner, channels // 4, "Silu", "Sigmoid")
            y = n.conv(y, inner, made)
            x, channels = n.graph.add("Add", y, x) if stride == 1 and made == channels else y, made
    x = n.conv(x, channels, 4 * channels, act="Silu")
    return n.classified(n.graph.add("Flatten", n.graph.add("GlobalAveragePool", x)), 4 * channels)


# --- YOLO -------------------------------------------------------------------------------------------------------------

_CLASSES, _BINS = 80, 16


def yolo_n(width: int = 16) -> onnx.ModelProto:
    """Return YOLOv8n, or a narrower one: distances to the sides of boxes, and scores, of the cells of three grids."""
    n = _Layers()
    g = n.graph

    def block(x: str, given: int, made: int, times: int, *, shortcut: bool = True) -> str:
        """Return C2f: half of the channels go through bottlenecks, and everything between them is joined."""
        half = made // 2
        both = g.add("Split", n.conv(x, given, made, act="Silu"), outputs=2, axis=1)
        parts = [both, f"{both}.1"]
        for _ in range(times):
            y = n.conv(n.conv(parts[-1], half, half, 3, act="Silu"), half, half, 3, act="Silu", gain=0.7)
            parts.append(g.add("Add", parts[-1], y) if shortcut else y)
        return n.conv(g.add("Concat", *parts, axis=1), (2 + times) * half, made, act="Silu")

    def down(x: str, given: int, made: int) -> str:
        return n.conv(x, given, made, 3, 2, act="Silu")

    def joined(*parts: str) -> str:
        return g.add("Concat", *parts, axis=1)

    def up(x: str) -> str:
        scales = g.constant(np.array([1, 1, 2, 2], np.float32))
        return g.add("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                     nearest_mode="floor")  # fmt: skip

    w = width
    x = block(down(down("image", 3, w), w, 2 * w), 2 * w, 2 * w, 1)
    third = block(down(x, 2 * w, 4 * w), 4 * w, 4 * w, 2)
    fourth = block(down(third, 4 * w, 8 * w), 8 * w, 8 * w, 2)
    x = n.conv(block(down(fourth, 8 * w, 16 * w), 16 * w, 16 * w, 1), 16 * w, 8 * w, act="Silu")
    pooled = [x]
    for _ in range(3):
        pooled.append(g.add("MaxPool", pooled[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    fifth = n.conv(joined(*pooled), 32 * w, 16 * w, act="Silu")
    middle = block(joined(up(fifth), fourth), 24 * w, 8 * w, 1, shortcut=False)
    fine = block(joined(up(middle), third), 12 * w, 4 * w, 1, shortcut=False)
    middle = block(joined(down(fine, 4 * w, 4 * w), middle), 12 * w, 8 * w, 1, shortcut=False)
    coarse = block(joined(down(middle, 8 * w, 8 * w), fifth), 24 * w, 16 * w, 1, shortcut=False)
    heads: list[str] = []
    for x, given in ((fine, 4 * w), (middle, 8 * w), (coarse, 16 * w)):
        boxes, classes = max(16, w, 4 * _BINS), max(4 * w, min(_CLASSES, 100))
        y = n.conv(n.conv(x, given, boxes, 3, act="Silu"), boxes, boxes, 3, act="Silu")
        z = n.conv(n.conv(x, given, classes, 3, act="Silu"), classes, classes, 3, act="Silu")
        head = joined(n.conv(y, boxes, 4 * _BINS), n.conv(z, classes, _CLASSES))
        heads.append(g.add("Reshape", head, g.constant([0, 4 * _BINS + _CLASSES, -1])))
    cells = g.add("Concat", *heads, axis=2)
    sides = g.add("Split", cells, g.constant([4 * _BINS, _CLASSES]), outputs=2, axis=1)
    bins = g.add("Transpose", g.add("Reshape", sides, g.constant([0, 4, _BINS, -1])), perm=[0, 2, 1, 3])
    distance = g.weights(1, _BINS, 1, 1, deviation=1.0)
    expected = g.add("Conv", g.add("Softmax", bins, axis=1), distance, kernel_shape=[1, 1])
    g.add("Reshape", expected, g.constant([0, 4, -1]), outputs=["sides"])
    g.add("Sigmoid", f"{sides}.1", outputs=["scores"])
    return n.model([value("sides", "batch", 4, "cells"), value("scores", "batch", _CLASSES, "cells")])


# --- a vision transformer ---------------------------------------------------------------------------------------------

_PATCH, _HEAD, _POSITIONS = 16, 64, 1 + 24 * 24


def vit(layers: int = 12, hidden: int = 384) -> onnx.ModelProto:
    """Return ViT-S/16, or a smaller one; its table of positions is that of pictures of up to 384 by 384."""
    n = _Layers()
    g, heads = n.graph, hidden // _HEAD

    def normalize(x: str) -> str:
        scale, bias = g.weights(hidden, deviation=1.0), g.weights(hidden, deviation=0.02)
        return g.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-6)

    def number(scalar: float) -> str:
        return g.constant(np.array(scalar, np.float32))

    def split_heads(x: str) -> str:
        return g.add("Transpose", g.add("Reshape", x, g.constant([0, 0, heads, _HEAD])), perm=[0, 2, 1, 3])

    kernel = g.weights(hidden, 3, _PATCH, _PATCH, deviation=(3 * _PATCH * _PATCH) ** -0.5)
    bias = g.weights(hidden, deviation=0.1)
    x = g.add("Conv", "image", kernel, bias, kernel_shape=[_PATCH] * 2, strides=[_PATCH] * 2)
    x = g.add("Transpose", g.add("Reshape", x, g.constant([0, hidden, -1])), perm=[0, 2, 1])
    batch = g.add("Shape", x, start=0, end=1)
    token = g.weights(1, 1, hidden, deviation=1.0)
    x = g.add("Concat", g.add("Expand", token, g.add("Concat", batch, g.constant([1, 1]), axis=0)), x, axis=1)
    length = g.add("Shape", x, start=1, end=2)
    positions = g.weights(1, _POSITIONS, hidden, deviation=0.5)
    x = g.add("Add", x, g.add("Slice", positions, g.constant([0]), length, g.constant([1])))
    for _ in range(layers):
        y = normalize(x)
        query, key, content = (split_heads(n.linear(y, hidden, hidden)) for _ in range(3))
        scores = g.add("MatMul", query, g.add("Transpose", key, perm=[0, 1, 3, 2]))
        scores = g.add("Mul", scores, number(_HEAD**-0.5))
        mixed = g.add("Transpose", g.add("MatMul", g.add("Softmax", scores, axis=-1), content), perm=[0, 2, 1, 3])
        x = g.add("Add", n.linear(g.add("Reshape", mixed, g.constant([0, 0, hidden])), hidden, hidden), x)
        h = n.linear(normalize(x), hidden, 4 * hidden)
        erf = g.add("Add", g.add("Erf", g.add("Div", h, number(math.sqrt(2)))), number(1))
        h = g.add("Mul", g.add("Mul", h, erf), number(0.5))
        x = g.add("Add", n.linear(h, 4 * hidden, hidden), x)
    first = g.add("Gather", normalize(x), g.constant(np.array(0)), axis=1)
    return n.classified(first, hidden)
