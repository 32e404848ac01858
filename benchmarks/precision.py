"""What do bfloat16 weights and 8-bit products give, and what do they cost in accuracy?

MiniLM, and one token of a decoder shaped as GPT-2 behind a cache of some length: in float32, with
`RuntimeOptions(precision="bf16")`, and quantised dynamically, which ONNX Runtime runs as well. Differences and cosines
are between the first output and that of float32; they stand beside the speed that they buy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

import asyncrt

from . import command, models, networks, peers
from . import measure as m
from .quantized import quantized

SIZES = [(1, 8), (1, 32), (1, 128), (8, 32)]
QUICK = [(1, 32)]
CACHED = [16, 128, 512]
QUICK_CACHED = [64]
FP32, BF16, INT8 = "fp32", "bf16", "int8"


class Case(NamedTuple):
    """A request, and which of the two models it is to."""

    network: str
    shape: str
    inputs: m.Inputs


async def bench(
    settings: m.Settings,
    model: Path,
    decoder: onnx.ModelProto | None = None,
    sizes: Sequence[tuple[int, int]] | None = None,
    cached: Sequence[int] | None = None,
) -> m.Report:
    """Measure MiniLM of *sizes*, (batch, tokens), and *decoder* behind caches of so many tokens."""
    decoder = decoder or networks.decoder()
    cases = [
        *(
            Case("MiniLM", f"{batch} x {length}", models.tokens(batch, length))
            for batch, length in sizes or (QUICK if settings.quick else SIZES)
        ),
        *(
            Case("decoder", f"1 behind {length}", {**networks.next_token(length), **networks.cache(decoder, length)})
            for length in cached or (QUICK_CACHED if settings.quick else CACHED)
        ),
    ]
    sources = {"MiniLM": onnx.load(model), "decoder": decoder}
    rows: list[m.Row] = []
    means: dict[str, list[tuple[m.Samples, m.Samples]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        wide = asyncrt.RuntimeOptions(cache_dir=Path(folder))
        narrow = asyncrt.RuntimeOptions(cache_dir=Path(folder), precision="bf16")
        async with asyncrt.Runtime(settings.device, options=wide) as rt, asyncrt.Runtime(
            settings.device, options=narrow
        ) as rt16:
            ours: dict[tuple[str, str], asyncrt.Model] = {}
            theirs: dict[tuple[str, str], peers.Run] = {}
            notes: list[str] = []
            for name, source in sources.items():
                plain, small = source.SerializeToString(), quantized(source).SerializeToString()
                ours[name, FP32], ours[name, BF16] = await rt.load(plain), await rt16.load(plain)
                ours[name, INT8] = await rt.load(small)
                for kind, given in ((FP32, plain), (INT8, small)):
                    loaded = peers.load(given, [peers.ONNX_RUNTIME])
                    if (run := loaded.runs.get(peers.ONNX_RUNTIME.name)) is not None:
                        theirs[name, kind] = run
                    notes += [note for note in loaded.notes if note not in notes]
            for case in cases:
                rows += await _measured(case, ours, theirs, settings, means)
            info = rt.info
    return m.Report(
        name="precision",
        command=f"python -m benchmarks.precision{settings.flags}",
        environment=m.environment(info),
        rows=rows,
        summary={heading: m.Ratio.geometric_mean(pairs) for heading, pairs in means.items()},
        notes=[
            "Over fp32, or over ONNX Runtime at the same precision: its median latency over asyncrt's; above 1, this "
            "is faster. ONNX Runtime has no bfloat16 on CPUs.",
            *notes,
        ],
    )


async def _measured(
    case: Case,
    ours: Mapping[tuple[str, str], asyncrt.Model],
    theirs: Mapping[tuple[str, str], peers.Run],
    settings: m.Settings,
    means: dict[str, list[tuple[m.Samples, m.Samples]]],
) -> list[m.Row]:
    """Return the rows of a case, and add its samples to those that *means* has."""
    network, shape, inputs = case
    results = {
        kind: next(iter((await ours[network, kind].infer(inputs)).values())) for kind in (FP32, BF16, INT8)
    }
    others = {kind: run(inputs)[0] for (name, kind), run in theirs.items() if name == network}
    if FP32 in others:
        m.check_equal(f"{network}, {shape}", [results[FP32]], [others[FP32]])
    blocks = {kind: m.awaited(partial(ours[network, kind].infer, inputs), settings.block_s) for kind in results}
    blocks |= {
        f"ONNX Runtime {kind}": m.called(partial(theirs[network, kind], inputs), settings.block_s) for kind in others
    }
    samples = await m.interleave(blocks, settings)
    rows: list[m.Row] = []
    for kind, result in results.items():
        peer = samples.get(f"ONNX Runtime {kind}")
        rows.append(
            {
                "network": network,
                "tokens": shape,
                "weights": kind,
                "ms": float(np.median(samples[kind])) * 1e3,
                "over fp32": None if kind == FP32 else m.Ratio.of(samples[FP32], samples[kind]),
                "ONNX Runtime ms": None if peer is None else float(np.median(peer)) * 1e3,
                "over ONNX Runtime": None if peer is None else m.Ratio.of(peer, samples[kind]),
                "largest difference": float(np.abs(result - results[FP32]).max()),
                "cosine": cosine(result, results[FP32]),
                "ONNX Runtime's cosine": cosine(others[kind], results[FP32]) if kind in others else None,
            }
        )
        if kind != FP32:
            means.setdefault(f"{network}: {kind}, times as fast as fp32", []).append((samples[FP32], samples[kind]))
        if peer is not None:
            heading = f"{network}: {kind}, times as fast as ONNX Runtime"
            means.setdefault(heading, []).append((peer, samples[kind]))
    took = ", ".join(f"{row['weights']} {m.show(row['ms'])} ms" for row in rows)
    m.progress(f"{network}, {shape}: {took}")
    return rows


def cosine(a: m.Array, b: m.Array) -> float:
    """Return the cosine of the angle between two results, each taken as one vector."""
    x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


if __name__ == "__main__":
    command.run(bench)
