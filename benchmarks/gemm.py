"""How fast is a matrix product with constant weights, beside NumPy's BLAS with the same cores?

M rows times a constant matrix of K x N in float32. The product alone is measured by launching the kernel that asyncrt
chose for it again and again; `infer` is a whole inference of that one node, from array to array.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import onnx

import asyncrt
from asyncrt.devices.base import Device

from . import capture, command, models
from . import measure as m

ROWS = (1, 8, 32, 128, 512)
SIZES = (384, 768, 1536)
_LAUNCHES_S = 0.002  # launches are timed together, in batches of about this long


async def bench(
    settings: m.Settings, rows_of: Sequence[int] = ROWS, sizes: Sequence[int] | None = None
) -> m.Report:
    """Measure every combination of M in *rows_of* with N and K in *sizes*."""
    sizes = sizes or (SIZES[::2] if settings.quick else SIZES)
    rows: list[m.Row] = []
    products: list[tuple[m.Samples, m.Samples]] = []
    inferences: list[tuple[m.Samples, m.Samples]] = []
    with tempfile.TemporaryDirectory() as folder:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder), without={"replay"})
        device = capture.open_capturing(settings.device)
        # `Capturing` gives everything that a device has, some of it through `__getattr__`, which types cannot say.
        async with (
            asyncrt.Runtime(settings.device, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt,
            asyncrt.Runtime(cast(Device, device), streams=1, options=options) as walking,
        ):
            for n, k in itertools.product(sizes, sizes):
                weights = np.random.default_rng((n, k)).standard_normal((k, n), np.float32)
                model = graph(weights)
                loaded, walked = await rt.load(model), await walking.load(model)
                for rows_count in rows_of:
                    x = np.random.default_rng(rows_count).standard_normal((rows_count, k), np.float32)
                    y = np.empty((rows_count, n), np.float32)
                    captured = await capture.capture(device, walked, {"x": x})
                    outputs = await loaded.infer({"x": x})
                    m.check_equal(f"{rows_count}x{k}x{n}", outputs.values(), [x @ weights])
                    peers = {
                        "product": repeated(captured, settings.block_s),
                        "infer": m.awaited(partial(loaded.infer, {"x": x}), settings.block_s),
                        "numpy": m.called(partial(np.matmul, x, weights, out=y), settings.block_s),
                    }
                    samples = await m.interleave(peers, settings)
                    gflop = 2e-9 * rows_count * n * k
                    products.append((samples["numpy"], samples["product"]))
                    inferences.append((samples["numpy"], samples["infer"]))
                    rows.append(
                        {
                            "M": rows_count,
                            "N": n,
                            "K": k,
                            "asyncrt GFLOP/s": gflop / float(np.median(samples["product"])),
                            "infer GFLOP/s": gflop / float(np.median(samples["infer"])),
                            "NumPy GFLOP/s": gflop / float(np.median(samples["numpy"])),
                            "asyncrt over NumPy": m.Ratio.of(*products[-1]),
                        }
                    )
                    m.progress(f"{rows_count}x{k}x{n}: {rows[-1]['asyncrt over NumPy']}")
            info = rt.info
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return m.Report(
        name="gemm",
        command=f"python -m benchmarks.gemm{settings.flags}",
        environment={**m.environment(info), "BLAS": f"{blas['name']} {blas['version']}"},
        rows=rows,
        summary={
            "geometric mean, product over NumPy": m.Ratio.geometric_mean(products),
            "geometric mean, whole inference over NumPy": m.Ratio.geometric_mean(inferences),
        },
    )


def repeated(captured: capture.Captured, seconds: float) -> m.Block:
    """Return a block that launches a product many times before it waits, and gives the median seconds of one."""
    times = 1

    async def block() -> float:
        nonlocal times
        one = m.called(partial(captured.enqueue, times), seconds)
        each = await one() / times
        times = max(1, round(_LAUNCHES_S / each))
        return each

    return block


def graph(weights: m.Array) -> onnx.ModelProto:
    """Return a model of one product with constant *weights*."""
    chain = models.Chain()
    chain.add("MatMul", "weights")
    return models.model(chain.nodes, ["rows", weights.shape[0]], {"weights": weights}, chain.value)


if __name__ == "__main__":
    command.run(bench)
