"""How long do a sentence embedding and the class of a picture take on a GPU, beside PyTorch there?

A BERT of the size of MiniLM and ResNet-50, random weights, float32 and float16; from arrays of the host to an array of
the host. PyTorch runs them eagerly, and as a CUDA graph, which is recorded for each shape; asyncrt prepares nothing for
one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx

import asyncrt

from . import command, models, networks
from . import measure as m

SIZES = [(1, 8), (1, 16), (1, 64), (1, 256), (8, 128), (32, 128), (64, 256)]
PICTURES = [(1, 224, 224), (32, 224, 224)]
# PyTorch multiplies in float32 without tensor cores unless asked.
_TOLERANCES: dict[type[np.floating[Any]], float] = {np.float32: 2e-3, np.float16: 5e-2}


class _Case(NamedTuple):
    """A network, its only output, and what it is given: by the size that is shown."""

    name: str
    dtype: type[np.floating[Any]]
    network: onnx.ModelProto
    output: str
    inputs: dict[str, m.Inputs]


def _cases() -> Iterator[_Case]:
    for dtype in _TOLERANCES:
        texts = {f"{batch} x {length}": models.tokens(batch, length) for batch, length in SIZES}
        yield _Case("BERT", dtype, networks.encoder(dtype), "hidden", texts)
        pictures = {" x ".join(map(str, size)): networks.image(*size, dtype=dtype) for size in PICTURES}
        yield _Case("ResNet-50", dtype, networks.resnet(dtype=dtype), "logits", pictures)


async def bench(settings: m.Settings) -> m.Report:
    """Measure `SIZES`: (batch, tokens), and `PICTURES`: (batch, height, width)."""
    try:
        import torch

        from . import torch_peers
    except ImportError as error:
        raise m.BenchmarkError(f"{error}; pip install torch, for a GPU that PyTorch knows") from error
    if not torch.cuda.is_available():
        raise m.BenchmarkError("PyTorch finds no GPU here; asyncrt's own figures: asyncrt bench MODEL --device gpu")
    torch.backends.cudnn.allow_tf32 = False  # as its products are, and ours
    rows: list[m.Row] = []
    ratios: list[tuple[m.Samples, m.Samples]] = []
    modules: dict[str, Any] = {"BERT": torch_peers.Encoder, "ResNet-50": torch_peers.Residual}
    async with asyncrt.Runtime(settings.device or "gpu") as rt:
        for case in _cases():
            loaded = await rt.load(case.network.SerializeToString())
            module = modules[case.name](case.network)
            for size, inputs in case.inputs.items():
                start = time.perf_counter()
                mine = (await loaded.infer(inputs))[case.output]
                first = time.perf_counter() - start
                runs = {"eager": torch_peers.eager(module), "CUDA graph": torch_peers.recorded(module, inputs)}
                for name, run in runs.items():
                    off = float(np.abs(mine.astype(np.float64) - run(inputs)).max())
                    if not off <= _TOLERANCES[case.dtype]:
                        what = f"{case.name} of {size} in {case.dtype.__name__}"
                        raise m.BenchmarkError(f"{what}: asyncrt and PyTorch's {name} differ by {off}")
                blocks = {"asyncrt": m.awaited(functools.partial(loaded.infer, inputs), settings.block_s)}
                blocks |= {n: m.called(functools.partial(run, inputs), settings.block_s) for n, run in runs.items()}
                samples = await m.interleave(blocks, settings)
                ratios.append((samples["CUDA graph"], samples["asyncrt"]))
                rows.append(
                    {
                        "network": case.name, "dtype": case.dtype.__name__, "size": size, "first ms": first * 1e3,
                        **{f"{name} ms": float(np.median(found)) * 1e3 for name, found in samples.items()},
                        "CUDA graph over asyncrt": m.Ratio.of(*ratios[-1]),
                    }
                )  # fmt: skip
                m.progress(" ".join(f"{k}={m.show(v)}" for k, v in rows[-1].items()))
        info = rt.info
    return m.Report(
        name="gpu",
        command=f"python -m benchmarks.gpu{settings.flags}",
        environment={**m.environment(info), "PyTorch": torch.__version__, "GPU": torch.cuda.get_device_name()},
        rows=rows,
        summary={"times as fast as the CUDA graph": m.Ratio.geometric_mean(ratios)},
        notes=["Above 1, asyncrt is faster. `first ms` is the first request of its shape, which may wait for kernels."],
    )


if __name__ == "__main__":
    command.run(bench)
