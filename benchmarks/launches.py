"""Who enqueues the kernels of a plan fastest?

The same launches, with their arguments set, by a loop of pyopencl, by the two loops that asyncrt has for it, in Python
and in C, and as a command buffer that the driver has recorded. From the first call until the device is done.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any, cast

import numpy as np

import asyncrt
from asyncrt.devices.base import Device
from asyncrt.devices.find import why_launched_from_python

from . import capture, command, per_node
from . import measure as m
from .command_buffer import CommandBuffer

NODES = 200
PYOPENCL, PYTHON, C, RECORDED = "pyopencl", "asyncrt's loop in Python", "asyncrt's loop in C", "command buffer"


async def bench(settings: m.Settings, nodes: int = NODES) -> m.Report:
    """Measure a chain of *nodes* nodes."""
    notes = ["Below 1, a peer takes less time than asyncrt's loop in Python."]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        options = asyncrt.RuntimeOptions(cache_dir=Path(folder), without={"fuse", "replay"})
        device = capture.open_capturing(settings.device)
        # `Capturing` gives everything that a device has, some of it through `__getattr__`, which types cannot say.
        async with asyncrt.Runtime(cast(Device, device), streams=1, options=options) as rt:
            model = await rt.load(per_node.graph(nodes))
            captured = await capture.capture(device, model, per_node.given(per_node.LENGTH))
            blocks = {PYOPENCL: m.called(captured.enqueue, settings.block_s)}
            for name, native in ((PYTHON, False), (C, True)):
                if native and (why := why_launched_from_python()):
                    notes.append(f"The loop in C is left out: {why}.")
                    continue
                blocks[name] = m.called(_Prepared(device.device, captured.launches, native).call, settings.block_s)
            try:
                recorded = CommandBuffer(device.device, captured.launches)
            except m.BenchmarkError as error:
                notes.append(f"The command buffer is left out: {error}.")
            else:
                stack.callback(recorded.close)
                blocks[RECORDED] = m.called(recorded.call, settings.block_s)
            samples = await m.interleave(blocks, settings)
            info = rt.info
    base = samples[PYTHON]
    return m.Report(
        name="launches",
        command=f"python -m benchmarks.launches{settings.flags}",
        environment=m.environment(info),
        rows=[
            {
                "who": name,
                "µs per launch": float(np.median(seconds)) / len(captured.launches) * 1e6,
                "against the loop in Python": m.Ratio.of(seconds, base),
            }
            for name, seconds in samples.items()
        ],
        notes=notes,
    )


class _Prepared:
    """Launches as asyncrt prepares them, on a stream of their own."""

    def __init__(self, device: Device, launches: tuple[capture.Launched, ...], native: bool) -> None:
        prepared = device.prepare(launches, (), native)
        if prepared is None:
            raise m.BenchmarkError("this device sets no arguments beforehand")
        self._prepared = prepared
        self._stream: Any = device.open_stream()

    def call(self) -> None:
        """Enqueue them, and wait for the last."""
        self._prepared.launch(self._stream)
        self._stream.mark().wait()


if __name__ == "__main__":
    command.run(bench)
