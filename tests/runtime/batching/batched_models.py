"""Models of which it is known what batching may do with them."""

from __future__ import annotations

import numpy as np
import onnx

from asyncrt.layout import Array

from ...builders import i64, model, node


def floats(*shape: int, seed: int = 0) -> Array:
    """Return normally distributed numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def elementwise() -> onnx.ModelProto:
    """Each element by itself; safe to pad with whatever."""
    nodes = [node("two = Add(x, x)"), node("y = Neg(two)")]
    return model(nodes, ["x f32[batch,seq,4]"], ["y"])


def masked_mean() -> onnx.ModelProto:
    """A mean over the sequence, of what the mask lets through."""
    nodes = [
        node("m = Cast(attention_mask)", to=1),
        node("wide = Unsqueeze(m, last)"),
        node("kept = Mul(x, wide)"),
        node("total = ReduceSum(kept, one)", keepdims=0),
        node("count = ReduceSum(m, one)", keepdims=1),
        node("mean = Div(total, count)"),
    ]
    constants = {"last": i64(-1), "one": i64(1)}
    return model(nodes, ["x f32[batch,seq,4]", "attention_mask i64[batch,seq]"], ["mean", "kept"], constants)


def unmasked_mean() -> onnx.ModelProto:
    """A mean over all there is: padding would be part of it."""
    nodes = [node("y = ReduceMean(x, one)", keepdims=0)]
    return model(nodes, ["x f32[batch,seq,4]"], ["y"], {"one": i64(1)})


def across_rows() -> onnx.ModelProto:
    """Each row minus the mean of all rows: no two requests may share a batch."""
    nodes = [node("mean = ReduceMean(x, zero)", keepdims=1), node("y = Sub(x, mean)")]
    return model(nodes, ["x f32[batch,seq,4]"], ["y"], {"zero": i64(0)})


def batch_in_the_middle() -> onnx.ModelProto:
    """Time first: the batch is the second axis."""
    return model([node("y = Tanh(x)")], ["x f32[time,batch,4]"], ["y"])


def picks() -> onnx.ModelProto:
    """A row of a table of five for each index; another index is out of range."""
    nodes = [node("y = Gather(table, i)")]
    return model(nodes, ["i i64[batch,seq]"], ["y"], {"table": floats(5, 3)})
