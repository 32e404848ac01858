"""How much of the host's time does a node take?

A chain of tiny nodes, whose kernels take next to no time: what is left is the runtime. Beside asyncrt, with a shape it
knows and with one it sees for the first time, the same kernels launched by pyopencl in a loop, once as its examples do,
with the arguments in the call, and once with arguments set beforehand; and the same model in others.
"""

from __future__ import annotations

import itertools
import tempfile
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import onnx

import asyncrt
from asyncrt.devices.base import Device

from . import capture, command, models, peers
from . import measure as m

NODES = 200
CHANNELS = 16
LENGTH = 4


async def bench(settings: m.Settings, nodes: int = NODES) -> m.Report:
    """Measure a chain of *nodes* nodes."""
    chain = graph(nodes)
    inputs = given(LENGTH)
    others = peers.load(chain.SerializeToString())
    with tempfile.TemporaryDirectory() as folder:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder), without={"fuse"})
        walk = asyncrt.RuntimeOptions(cache_dir=Path(folder), without={"fuse", "replay"})
        device = capture.open_capturing(settings.device)
        # `Capturing` gives everything that a device has, some of it through `__getattr__`, which types cannot say.
        async with (
            asyncrt.Runtime(settings.device, options=options) as rt,
            asyncrt.Runtime(cast(Device, device), streams=1, options=walk) as walking,
        ):
            loaded = await rt.load(chain)
            captured = await capture.capture(device, await walking.load(chain), inputs)
            others.check("the chain", inputs, list((await loaded.infer(inputs)).values()))
            lengths = itertools.count(LENGTH + 1)
            fresh = (given(length) for length in lengths)
            samples = await m.interleave(
                {
                    "asyncrt, known shape": m.awaited(partial(loaded.infer, inputs), settings.block_s),
                    "asyncrt, new shape": m.awaited(lambda: loaded.infer(next(fresh)), settings.block_s),
                    "pyopencl, arguments in each call": m.called(captured.call, settings.block_s),
                    "pyopencl, arguments set beforehand": m.called(captured.enqueue, settings.block_s),
                    **others.blocks(inputs, settings.block_s),
                },
                settings,
            )
            before = rt.statistics().launches
            await loaded.infer(inputs)
            launches = rt.statistics().launches - before
            info = rt.info
    known, called = samples["asyncrt, known shape"], samples["pyopencl, arguments in each call"]
    return m.Report(
        name="per_node",
        command=f"python -m benchmarks.per_node{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "who": name,
                "µs per node": float(np.median(seconds)) / nodes * 1e6,
                "against asyncrt, known shape": m.Ratio.of(seconds, known),
            }
            for name, seconds in samples.items()
        ],
        summary={
            "asyncrt's time over a plain pyopencl loop's": m.Ratio.of(known, called),
            "kernels that asyncrt launches": f"{launches} for {nodes} nodes",
        },
        notes=[
            "From the call to the answer, divided by the number of nodes; asyncrt's includes the transfers of the "
            f"input and the output. The loops launch the {len(captured.launches)} kernels of the same inference.",
            *others.notes,
        ],
    )


def graph(nodes: int) -> onnx.ModelProto:
    """Return a chain of additions and maxima."""
    chain = models.Chain()
    for step in range(nodes):
        if step % 2:
            chain.add("Relu")
        else:
            chain.add("Add", "bias")
    bias = np.random.default_rng(0).standard_normal(CHANNELS, np.float32)
    return models.model(chain.nodes, ["length", CHANNELS], {"bias": bias}, chain.value)


def given(length: int) -> m.Inputs:
    """Return an input."""
    return {"x": np.random.default_rng(length).standard_normal((length, CHANNELS), np.float32)}


if __name__ == "__main__":
    command.run(bench)
