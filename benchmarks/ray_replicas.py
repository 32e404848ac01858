"""How much do two replicas of Ray Serve answer, beside two servers that nobody stands in front of?

MiniLM, in rows of texts. A fixed number of callers ask, each its next request when its last is answered: two processes
of `asyncrt serve` over HTTP, half of the callers each, and a deployment of two replicas through Ray's proxy over HTTP,
and by `asyncrt.ray.Client`. All are there for the whole run and take turns, on the same cores; none does anything out
of its turn but for what Ray's own processes do. The more work a request is, the less it matters who hands it on.

Ray's proxy is HAProxy, which hands requests to the replicas themselves; RAY_SERVE_ENABLE_HA_PROXY=0 in the environment
measures the one in Python, through which each takes a few milliseconds of a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import asyncrt
from asyncrt.cli.v2_client import V2Client

from . import command, models
from . import measure as m
from .serving import free_port, running_asyncrt

CALLERS = 8
SIZES = {"1 text of 16 tokens": (1, 16), "16 texts of 64 tokens": (16, 64)}
SERVERS, PROXY, CLIENT = "two servers", "Ray, HTTP", "Ray, Client"

Asks = Sequence[Callable[[m.Inputs], Awaitable[object]]]
"""Ways to ask, which callers take in turn; each keeps to its own."""


async def bench(settings: m.Settings, model: Path, seconds: float | None = None) -> m.Report:
    """Let each have turns of *seconds*."""
    seconds = seconds or (0.5 if settings.quick else 3.0)
    rows: list[m.Row] = []
    summary: m.Row = {}
    async with contextlib.AsyncExitStack() as up:
        ways = {SERVERS: await up.enter_async_context(_servers(model, settings))}
        ways |= await up.enter_async_context(_replicas(model, settings))
        for name, (batch, length) in SIZES.items():
            inputs = models.tokens(batch, length)
            peers = {way: _turn(asks, inputs, seconds) for way, asks in ways.items()}
            answered = await m.interleave(peers, settings)
            for way, samples in answered.items():
                ratio = m.Ratio.of(samples, answered[SERVERS])
                texts = batch * statistics.median(samples)
                rows.append({"requests": name, "asked": way, "texts /s": texts, "of two servers": ratio})
                m.progress(f"{name}, {way}: {ratio}")
            best = max((PROXY, CLIENT), key=lambda way: sum(answered[way]))
            summary[f"{name}, {best}"] = m.Ratio.of(answered[best], answered[SERVERS])
    async with asyncrt.Runtime(settings.device) as rt:
        info = rt.info
    return m.Report(
        name="ray_replicas", command=f"python -m benchmarks.ray_replicas{settings.flags}",
        environment=m.environment(info), rows=rows, summary=summary,
        notes=[
            f"{CALLERS} callers at the same time, {settings.blocks} turns of {seconds:g} s each, batched.",
            f"Ray's proxy is {'HAProxy' if os.environ['RAY_SERVE_ENABLE_HA_PROXY'] == '1' else 'in Python'}.",
            "Ray's processes, replicas included, are not this one's, and count as others'.",
        ],
    )  # fmt: skip


def _turn(asks: Asks, inputs: m.Inputs, seconds: float) -> m.Block:
    """Return a turn in which all callers ask for so long; it gives answers in a second."""

    async def block() -> float:
        loop = asyncio.get_running_loop()
        begin, answers = loop.time(), 0

        async def caller(number: int) -> None:
            nonlocal answers
            while loop.time() < begin + seconds:
                await asks[number % len(asks)](inputs)
                answers += 1

        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        return answers / (loop.time() - begin)

    return block


@contextlib.asynccontextmanager
async def _servers(model: Path, settings: m.Settings) -> AsyncIterator[Asks]:
    async with contextlib.AsyncExitStack() as up:
        clients: list[V2Client] = []
        for _ in range(2):
            server = up.enter_context(running_asyncrt(model, settings))
            clients.append(await up.enter_async_context(V2Client(server.http, "minilm")))
        yield [partial(client.infer, deadline=None) for client in clients]


@contextlib.asynccontextmanager
async def _replicas(model: Path, settings: m.Settings) -> AsyncIterator[Mapping[str, Asks]]:
    """Deploy the model in two replicas while this lasts; gives the ways to ask them."""
    os.environ.setdefault("RAY_SERVE_ENABLE_HA_PROXY", "1")  # before Ray is imported
    try:
        import ray
        import ray.serve

        import asyncrt.ray
    except ImportError as error:
        raise m.BenchmarkError(f"there is no {error.name} here: pip install 'asyncrt[ray]'") from error
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(m.ROOT), os.environ.get("PYTHONPATH"))))
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20, _temp_dir=folder
        )  # fmt: skip
        try:
            ray.serve.start(http_options={"host": "127.0.0.1", "port": port})
            app = asyncrt.ray.deployment(
                model, name="minilm", num_replicas=2, num_cpus=0.5, batched=True, devices=settings.device or ()
            )
            asked = asyncrt.ray.Client(await asyncio.to_thread(ray.serve.run, app))
            async with V2Client(f"http://127.0.0.1:{port}", "minilm") as client:
                yield {PROXY: [partial(client.infer, deadline=None)], CLIENT: [asked.infer]}
        finally:
            await asyncio.to_thread(_end)


def _end() -> None:
    import ray.serve

    ray.serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    command.run(bench)
