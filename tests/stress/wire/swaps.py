"""Does a server have what it had once a model was exchanged? Swaps under traffic, and its memory after each.

Two versions of a model take turns, whose weights are most of what the process has: one that stayed would show. Callers
ask meanwhile, and each answer must be that of the version that it names. Memory is measured when nothing is on its way,
after requests of every size, so that what the arenas and the driver keep for those is there each time.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from ...builders import model, node
from ...serve.running import Running, running
from .fuzz import MEASURED, PATIENCE_S, Report, mistakes_in, resident

MOST = 1.05
"""Of the memory before the swaps, that the server may have after them."""

_LAYERS = 10
_WIDTH = 1000
_ROWS = range(1, 9)
_CALLERS = 4


def weighty(factor: float, width: int) -> onnx.ModelProto:
    """y = x times a factor, by products with matrices of which each has 4 bytes times the square of the width."""
    names = ["x", *(f"x{i}" for i in range(1, _LAYERS)), "y"]
    nodes = [node(f"{after} = MatMul({before}, w{i})") for i, (before, after) in enumerate(itertools.pairwise(names))]
    weights = {f"w{i}": np.eye(width, dtype=np.float32) for i in range(_LAYERS)}
    weights["w0"] *= np.float32(factor)
    return model(nodes, [f"x f32[n,{width}]"], ["y"], weights)


def swaps(
    count: int, folder: Path, progress: Callable[[int], object] = lambda done: None, *,
    device: str | None = None, width: int = _WIDTH,
) -> Report:  # fmt: skip
    """Exchange a model so often.

    Args:
        folder: Empty; models go there.
        device: Where the server runs; None is the best.
    """
    swapping = _Swaps(folder, width)
    swapping.put(1)
    with running(folder, device=device, first=MEASURED, PYTHONMALLOC="malloc") as server:
        report = asyncio.run(swapping.swap(server, count, progress))
        server.end()
        server.ended()
        report.findings += mistakes_in(server.all_said())
    return report


class _Swaps:
    """Exchanges a model in a folder, and asks for it.

    Args:
        width: Of the model, which gives a version's number times its input.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self._folder, self._width = folder, width
        self._report = Report()

    def put(self, version: int) -> None:
        """Write a version of the model."""
        path = self._folder / "weighty" / str(version) / "model.onnx"
        path.parent.mkdir(parents=True)
        onnx.save(weighty(version, self._width), path)

    async def swap(self, server: Running, count: int, progress: Callable[[int], object]) -> Report:
        """Exchange it so often, and measure the server's memory before and after each time."""
        report, begun = self._report, time.monotonic()
        async with InferenceServerClient(server.grpc) as client:
            report.resident.append(await self._at_rest(server, client, 1))
            for version in range(2, count + 2):
                self.put(version)
                over = asyncio.Event()
                callers = [asyncio.create_task(self._caller(client, over)) for _ in range(_CALLERS)]
                await client.load_model("weighty")
                over.set()
                await asyncio.gather(*callers)
                report.resident.append(await self._at_rest(server, client, version))
                report.cases += 1
                progress(report.cases)
        report.seconds = time.monotonic() - begun
        before, after = report.resident[0], report.resident[-1]
        if after > MOST * before:
            report.findings.append(f"{after >> 20} MiB after {count} swaps, {before >> 20} MiB before them")
        return report

    async def _at_rest(self, server: Running, client: InferenceServerClient, version: int) -> int:
        for rows in _ROWS:
            await asyncio.gather(*(self._ask(client, rows, version) for _ in range(_CALLERS)))
        return await resident(server)

    async def _caller(self, client: InferenceServerClient, over: asyncio.Event) -> None:
        for rows in itertools.cycle(_ROWS):
            if over.is_set():
                return
            await self._ask(client, rows)

    async def _ask(self, client: InferenceServerClient, rows: int, version: int | None = None) -> None:
        """Ask once, and compare; if a version is given, it has to be that one's answer."""
        x = np.arange(rows * self._width, dtype=np.float32).reshape(rows, self._width)
        given = InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        try:
            found = await client.infer("weighty", [given], client_timeout=PATIENCE_S)
        except InferenceServerException as error:
            self._report.findings.append(f"a request failed: {error}")
            return
        self._report.answers["answered"] += 1
        answered = int(found.get_response().model_version)
        if version not in (None, answered) or not np.array_equal(found.as_numpy("y"), x * answered):
            self._report.findings.append(f"asked of version {version}, {answered} gave {found.as_numpy('y')} of {x}")
