"""Batched requests with patterns of their own, poisoned padding, and callers that leave, hurry and err at random.

    python -m tests.stress.batching --requests 100000
    python -m tests.stress.batching --requests 10000 --seed 17

Every element of a request says whose it is and where it was; padding is NaN. So an answer that has anything of another
request, or of the padding, shows. Runs on the simulated device and a virtual clock: a seed repeats exactly.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Annotated, Any

import attrs
import numpy as np
import onnx
import typer

import asyncrt
from asyncrt import BatchOptions, Runtime, RuntimeOptions
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.layout import Array

from .. import virtual_loop
from ..builders import i64, model, node
from ..paths import prepared_soon

WAVE = 60  # callers that come at about the same time, at most
NUMBERS, EACH = 16_000, 256


def canary() -> onnx.ModelProto:
    """Each element by itself, and whose row it is in; a request whose key is 9 or more fails where it runs."""
    nodes = [
        node("odd = Add(x, one)"),
        node("y = Mul(odd, two)"),
        node("found = Gather(table, key)"),
        node("wide = Unsqueeze(found, last)"),
        node("z = Add(y, wide)"),
    ]
    constants = {
        "one": np.float32(1), "two": np.float32(2), "table": np.arange(9, dtype=np.float32), "last": i64(-1),
    }  # fmt: skip
    return model(nodes, ["x f32[batch,seq,2]", "key i64[batch,seq]"], ["y", "z"], constants)


@attrs.define
class Storm:
    """What became of the callers; `launched` are the requests of which anything reached the device, `prepared` is how
    many chunks had their launches prepared."""

    counts: Counter[str] = attrs.field(factory=Counter)
    launched: set[int] = attrs.field(factory=set)
    statistics: asyncrt.BatchingStatistics | None = None
    prepared: int = 0


def request(number: int, length: int, rows: int, key: int) -> dict[str, Array]:
    """Return inputs of which no element is in another request's, of `NUMBERS`; at most `EACH` of them."""
    assert rows * length * 2 <= EACH
    x = np.arange(rows * length * 2, dtype=np.float32).reshape(rows, length, 2) + number % NUMBERS * EACH
    return {"x": x, "key": np.full((rows, length), key, np.int64)}


async def storm(seed: int, count: int) -> Storm:
    """Let *count* callers come; raises AssertionError if one of them gets what is not its own, or nothing at all."""
    chance = random.Random(seed)
    told = Storm()
    options = BatchOptions(
        max_batch=chance.choice((2, 8, 32)),
        max_delay=chance.choice((0.0, 0.0005, 0.01)),
        mode=chance.choice(("cost", "cost", "exact", "buckets")),
        max_waste=chance.choice((0.25, 0.6)),
        max_queue=chance.choice((20, 1024)),
        ageing_s=0.01,
    )
    runtime = Runtime(SimulatedDevice(seed), streams=chance.randrange(1, 4), options=RuntimeOptions(warm=False))
    with prepared_soon():
        await _storm(runtime, options, count, seed, chance, told)
    return told


async def _storm(
    runtime: Runtime, options: BatchOptions, count: int, seed: int, chance: random.Random, told: Storm
) -> None:
    async with runtime as rt:
        loaded = await rt.load(canary())
        nan = {"x": np.nan}
        async with loaded.batched(config=options, pad_values=nan) as batched:
            assert batched.pad_safety.padded == ("seq",)
            watch(loaded, told)
            begin = 0
            while begin < count:
                end = min(begin + chance.randrange(1, WAVE), count)
                async with asyncio.timeout(1000), asyncio.TaskGroup() as group:
                    for number in range(begin, end):
                        group.create_task(caller(batched, number, random.Random(f"{seed}/{number}"), told))
                begin = end
            assert batched.state.idle
            batched.state.check()
            told.statistics = batched.statistics()
        assert len(asyncio.all_tasks()) == 1
    after = rt.statistics()
    assert (after.in_flight, after.memory.leases, after.memory.active) == (0, 0, 0)
    told.prepared = after.presets.replays


def ten_thousand(seed: int) -> Storm:
    """A storm of so many callers."""
    return virtual_loop.run(storm(seed, 10_000))


def watch(loaded: asyncrt.Model, told: Storm) -> None:
    """Note which requests reach the device."""
    network = loaded.network
    infer = network.infer
    x = next(i for i in network.program.inputs if network.program.values[i].name == "x")

    async def noting(arrays: dict[int, Array], *args: Any, **known: Any) -> Any:
        told.launched.update(int(first) // EACH for first in arrays[x][:, 0, 0])
        return await infer(arrays, *args, **known)

    network.infer = noting  # type: ignore[method-assign]


async def caller(batched: asyncrt.Batched, number: int, chance: random.Random, told: Storm) -> None:
    """One request, and what its caller does beside waiting for it."""
    for _ in range(chance.randrange(8)):
        await asyncio.sleep(0)
    length, rows = chance.choice((1, 3, 4, 5, 9, 12, 13, 40)), chance.choice((1, 1, 1, 2, 3))
    what = chance.choices(
        ("waits", "cancels", "times out", "has a deadline", "errs", "fails"), (60, 15, 8, 8, 5, 4)
    )[0]
    inputs = request(number, length, rows, 11 if what == "fails" else number % 9)
    if what == "errs":
        inputs["x"] = inputs["x"].astype(np.float64)
    deadline = chance.choice((0.0, 0.0002, 0.01)) if what == "has a deadline" else None
    task = asyncio.ensure_future(batched.infer(inputs, priority=chance.choice((0, 0, 1)), deadline=deadline))
    try:
        if what == "cancels":
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            before = number % NUMBERS in told.launched
            ended = task.done()
            task.cancel()
            outputs = await task
            assert ended
        elif what == "times out":
            async with asyncio.timeout(chance.choice((0.0, 0.0001, 0.0005))):
                outputs = await task
        else:
            outputs = await task
    except asyncio.CancelledError:
        assert what == "cancels"
        assert before or number % NUMBERS not in told.launched, f"{number} was cancelled, and ran all the same"
        told.counts["cancelled"] += 1
    except asyncrt.Overloaded as error:
        told.counts["refused" if error.retry_after_s > 0 else "refused for ever"] += 1
    except TimeoutError:
        assert what in ("times out", "has a deadline")
        told.counts["timed out"] += 1
    except asyncrt.InputError:
        assert what == "errs"
        told.counts["erred"] += 1
    except asyncrt.IndexOutOfRange:
        assert what == "fails"
        told.counts["failed"] += 1
    else:
        assert what not in ("errs", "fails")
        y = (inputs["x"] + 1) * 2
        assert y.tobytes() == outputs["y"].tobytes()
        assert (y + inputs["key"][..., None].astype(np.float32)).tobytes() == outputs["z"].tobytes()
        told.counts["answered"] += 1


def main(
    requests: Annotated[int, typer.Option(help="In all.")] = 100_000,
    seed: Annotated[int | None, typer.Option(help="This one alone; else one after the other.")] = None,
) -> None:
    """Let many callers come, and print what became of them."""
    counts: Counter[str] = Counter()
    each = requests if seed is not None else min(requests, 10_000)
    for number in range(requests // each) if seed is None else (seed,):
        told = virtual_loop.run(storm(number, each))
        counts += told.counts
        print(f"seed {number}: {dict(told.counts)}\n  {told.statistics}")
    print(f"{sum(counts.values())} callers: {dict(counts)}; nobody got what was not its own")


if __name__ == "__main__":
    typer.run(main)
