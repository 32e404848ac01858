"""How long does a sentence embedding take on a GPU, beside PyTorch there?

A BERT of the size of MiniLM, random weights, float32 and float16; from arrays of the host to an array of the host.
PyTorch runs it eagerly, and as a CUDA graph, which is recorded for each shape; asyncrt prepares nothing for a shape.
"""

from __future__ import annotations

import functools
import time

import numpy as np

import asyncrt

from . import command, models, networks
from . import measure as m

SIZES = [(1, 8), (1, 16), (1, 64), (1, 256), (8, 128), (32, 128), (64, 256)]
_TOLERANCES = {np.float32: 2e-3, np.float16: 5e-2}  # PyTorch multiplies in float32 without tensor cores unless asked


async def bench(settings: m.Settings) -> m.Report:
    """Measure `SIZES`: (batch, tokens)."""
    try:
        import torch

        from . import torch_peers
    except ImportError as error:
        raise m.BenchmarkError(f"{error}; pip install torch, for a GPU that PyTorch knows") from error
    if not torch.cuda.is_available():
        raise m.BenchmarkError("PyTorch finds no GPU here; asyncrt's own figures: asyncrt bench MODEL --device gpu")
    rows: list[m.Row] = []
    ratios: list[tuple[m.Samples, m.Samples]] = []
    async with asyncrt.Runtime(settings.device or "gpu") as rt:
        for dtype in (np.float32, np.float16):
            network = networks.encoder(dtype)
            loaded, module = await rt.load(network.SerializeToString()), torch_peers.Encoder(network)
            for batch, length in SIZES:
                inputs = models.tokens(batch, length)
                start = time.perf_counter()
                mine = (await loaded.infer(inputs))["hidden"]
                first = time.perf_counter() - start
                runs = {"eager": torch_peers.eager(module), "CUDA graph": torch_peers.recorded(module, inputs)}
                for name, run in runs.items():
                    off = float(np.abs(mine.astype(np.float64) - run(inputs)).max())
                    if not off <= _TOLERANCES[dtype]:
                        size = f"({batch}, {length}) in {dtype.__name__}"
                        raise m.BenchmarkError(f"{size}: asyncrt and PyTorch's {name} differ by {off}")
                blocks = {"asyncrt": m.awaited(functools.partial(loaded.infer, inputs), settings.block_s)}
                blocks |= {n: m.called(functools.partial(run, inputs), settings.block_s) for n, run in runs.items()}
                samples = await m.interleave(blocks, settings)
                ratios.append((samples["CUDA graph"], samples["asyncrt"]))
                rows.append(
                    {
                        "dtype": dtype.__name__, "batch": batch, "tokens": length, "first ms": first * 1e3,
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
