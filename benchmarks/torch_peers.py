"""PyTorch beside asyncrt on a GPU: the same weights, eager, compiled, and as a CUDA graph recorded for one shape.

Each takes arrays of the host and gives one back, as `Model.infer` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

from . import networks
from .measure import Array, Inputs

Run = Callable[[Inputs], Array]


class Encoder(torch.nn.Module):  # type: ignore[misc]  # it is Any
    """What `networks.encoder` is, of its weights."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        floats = [numpy_helper.to_array(c) for c in model.graph.initializer if c.data_type != onnx.TensorProto.INT64]
        self.weights = [torch.from_numpy(np.array(w)).cuda() for w in floats if w.ndim]

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        each = iter(self.weights)
        x = F.embedding(ids, next(each)) + next(each)[: ids.shape[1]]
        x = _normalized(x, each)
        seen = mask[:, None, None, :].bool()
        batch, length, hidden = x.shape
        for _ in range(networks.ENCODER_LAYERS):
            heads = [_linear(x, each).view(batch, length, networks.ENCODER_HEADS, -1).transpose(1, 2) for _ in range(3)]
            mixed = F.scaled_dot_product_attention(*heads, attn_mask=seen)
            x = _normalized(x + _linear(mixed.transpose(1, 2).reshape(batch, length, hidden), each), each)
            x = _normalized(x + _linear(F.gelu(_linear(x, each)), each), each)
        return x


class Residual(torch.nn.Module):  # type: ignore[misc]  # it is Any
    """What `networks.resnet` is, of its weights; channels are innermost, as cuDNN likes them best."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        self.nodes = list(model.graph.node)
        self.weights: dict[str, torch.Tensor] = {}
        for constant in model.graph.initializer:
            weights = torch.from_numpy(np.array(numpy_helper.to_array(constant))).cuda()
            if weights.ndim == 4:
                weights = weights.to(memory_format=torch.channels_last)
            self.weights[constant.name] = weights

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        values = {"image": image.to(memory_format=torch.channels_last), **self.weights}
        for node in self.nodes:
            x, *more = (values[name] for name in node.input)
            match node.op_type:
                case "Conv":
                    a = {a.name: list(a.ints) for a in node.attribute}
                    y = F.conv2d(x, *more, stride=a["strides"], padding=a["pads"][:2])
                case "Relu":
                    y = F.relu(x)
                case "MaxPool":
                    y = F.max_pool2d(x, 3, 2, 1)
                case "Add":
                    y = x + more[0]
                case "GlobalAveragePool":
                    y = x.mean((2, 3))
                case "Flatten":
                    y = x
                case _:
                    y = F.linear(x, *more)
            values[node.output[0]] = y
        return values["logits"]


def _linear(x: torch.Tensor, each: Iterator[torch.Tensor]) -> torch.Tensor:
    weights, bias = next(each), next(each)
    return torch.addmm(bias, x.flatten(0, -2), weights).view(*x.shape[:-1], -1)


def _normalized(x: torch.Tensor, each: Iterator[torch.Tensor]) -> torch.Tensor:
    scale, bias = next(each), next(each)
    return F.layer_norm(x, x.shape[-1:], scale, bias, 1e-5)


def eager(module: Callable[..., torch.Tensor]) -> Run:
    """Return a call that launches each kernel."""

    def run(inputs: Inputs) -> Array:
        with torch.inference_mode():
            found: Array = module(*_on_device(inputs)).cpu().numpy()
        return found

    return run


def recorded(module: Callable[..., torch.Tensor], inputs: Inputs) -> Run:
    """Return a call that plays a CUDA graph, which takes inputs of these shapes alone."""
    stream = torch.cuda.Stream()
    places = _on_device(inputs)
    with torch.inference_mode():
        with torch.cuda.stream(stream):
            for _ in range(3):
                module(*places)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            made = module(*places)
    pinned: Any = torch.empty(made.shape, dtype=made.dtype, pin_memory=True)

    def run(inputs: Inputs) -> Array:
        with torch.inference_mode():
            for place, value in zip(places, inputs.values(), strict=True):
                place.copy_(torch.from_numpy(value), non_blocking=True)
            graph.replay()
            pinned.copy_(made, non_blocking=True)
            torch.cuda.synchronize()
            found: Array = pinned.numpy().copy()
        return found

    return run


def _on_device(inputs: Inputs) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(value)).cuda() for value in inputs.values()]
