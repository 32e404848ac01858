"""PyTorch beside asyncrt on a GPU: the same weights, eager, compiled, and as a CUDA graph recorded for one shape.

Each takes arrays of the host and gives one back, as `Model.infer` does. Where there is no GPU that PyTorch knows, it
runs on the CPU, without graphs: to see that benchmarks work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

from . import networks
from .measure import Array, Inputs

Run = Callable[[Inputs], Array]

CUDA: bool = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

torch.backends.cudnn.allow_tf32 = False  # as its products are, and ours


class Encoder(torch.nn.Module):  # type: ignore[misc]  # it is Any
    """What `networks.encoder` is, of its weights."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        self.weights = _weights(model)
        self.layers = (len(self.weights) - 4) // 16

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        each = iter(self.weights)
        x = F.embedding(ids, next(each)) + next(each)[: ids.shape[1]]
        x = _normalized(x, each)
        seen = mask[:, None, None, :].bool()
        batch, length, hidden = x.shape
        for _ in range(self.layers):
            heads = [_linear(x, each).view(batch, length, -1, networks.ENCODER_HEAD).transpose(1, 2) for _ in range(3)]
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
            weights = _there(numpy_helper.to_array(constant))
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


class Decoder(torch.nn.Module):  # type: ignore[misc]  # it is Any
    """What `networks.decoder` is, of its weights, with a cache that has room for *total* tokens from the start.

    Each step takes one token of each of *batch* texts, all of them equally long, and sees the whole cache, of which a
    mask hides what is not there yet: so all steps are of one shape, and one CUDA graph is enough.
    """

    def __init__(self, model: onnx.ModelProto, batch: int, total: int) -> None:
        super().__init__()
        self.weights = _weights(model)
        shapes = {
            i.name: [dim.dim_value for dim in i.type.tensor_type.shape.dim]
            for i in model.graph.input
            if i.name.startswith("past.")
        }
        dtype = self.weights[0].dtype
        self.cache = {
            name: torch.zeros(batch, heads, total, size, dtype=dtype, device=DEVICE)
            for name, (_, heads, _, size) in shapes.items()
        }
        self.places = torch.arange(total, device=DEVICE)

    def fill(self, past: Mapping[str, Array]) -> None:
        """Begin with a cache, which is that of each text."""
        for name, given in past.items():
            self.cache[name][:, :, : given.shape[2]] = _there(given)

    def forward(self, ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        each = iter(self.weights)
        x = F.embedding(ids, next(each)) + next(each)[position]
        seen = (self.places <= position)[None, None, None]
        batch, _, hidden = x.shape
        for layer in range(len(self.cache) // 2):
            keys, values = self.cache[f"past.{layer}.key"], self.cache[f"past.{layer}.value"]
            heads = _linear(_normalized(x, each), each).view(batch, 3, keys.shape[1], 1, keys.shape[3])
            query, key, value = heads.unbind(1)
            keys.index_copy_(2, position, key)
            values.index_copy_(2, position, value)
            mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
            x = x + _linear(mixed.reshape(batch, 1, hidden), each)
            x = x + _linear(F.gelu(_linear(_normalized(x, each), each), approximate="tanh"), each)
        return _normalized(x, each) @ next(each)


class Products(torch.nn.Module):  # type: ignore[misc]  # it is Any
    """As many products as *terms*, one behind the other, with the right-hand sides in turn."""

    def __init__(self, right_hand_sides: Sequence[Array], terms: int) -> None:
        super().__init__()
        self.weights, self.terms = [_there(w) for w in right_hand_sides], terms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for term in range(self.terms):
            x = x @ self.weights[term % len(self.weights)]
        return x


def _weights(model: onnx.ModelProto) -> list[torch.Tensor]:
    """Return a network's weights in the order in which they were made."""
    floats = [numpy_helper.to_array(c) for c in model.graph.initializer if c.data_type != onnx.TensorProto.INT64]
    return [_there(w) for w in floats if w.ndim]


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


def compiled(module: Callable[..., torch.Tensor]) -> Run:
    """Return a call of kernels that `torch.compile` has made, for any shape."""
    return eager(torch.compile(module, dynamic=True))


def recorded(module: Callable[..., torch.Tensor], inputs: Inputs) -> Run:
    """Return a call that plays a CUDA graph, which takes inputs of these shapes alone."""
    graph, places, made = _record(module, inputs)
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


def played(module: Callable[..., torch.Tensor], inputs: Inputs) -> Callable[[], None]:
    """Return a call that plays a CUDA graph of inputs that are there already, and leaves its result there."""
    if not CUDA:
        places = _on_device(inputs)

        def run() -> None:
            with torch.inference_mode():
                module(*places)

        return run
    recording = _record(module, inputs)  # its inputs stay, too

    def play() -> None:
        recording[0].replay()
        torch.cuda.synchronize()

    return play


def memory_rate(nbytes: int) -> float:
    """Return how many bytes a second the device's memory reads and writes while *nbytes* are copied."""
    source, target = (torch.ones(nbytes, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    times = 10
    target.copy_(source)
    _wait()
    start = time.perf_counter()
    for _ in range(times):
        target.copy_(source)
    _wait()
    return 2 * nbytes * times / (time.perf_counter() - start)


def _record(module: Callable[..., torch.Tensor], inputs: Inputs) -> tuple[Any, list[torch.Tensor], torch.Tensor]:
    """Return a CUDA graph, where it takes its inputs, and where it leaves its result."""
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
    return graph, places, made


def _on_device(inputs: Inputs) -> list[torch.Tensor]:
    return [_there(value) for value in inputs.values()]


def _there(value: Array) -> torch.Tensor:
    """Return a tensor of an array on PyTorch's device."""
    return torch.from_numpy(np.array(value)).to(DEVICE)


def _wait() -> None:
    if CUDA:
        torch.cuda.synchronize()
