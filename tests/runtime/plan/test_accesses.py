"""Kernels keep to the bytes that the plan says they use: what the checker of hazards takes for granted.

Each launch of a model is surrounded: all bytes of its buffers that are not in its regions become noise before it. After
it they are the same noise, and the model's outputs are the same bytes as without any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.base import Allocation, Kernel, Record, Stream
from asyncrt.devices.host import HostMark
from asyncrt.errors import InternalError
from asyncrt.layout import Array
from asyncrt.memory.hazards import Region
from asyncrt.runtime.plan.accesses import Touch, touches
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, PlanStep
from asyncrt.runtime.watch.watched import WatchedStream

from ...zoo import ZooModel, some, zoo


def flags(regions: Sequence[Region], nbytes: int) -> Array:
    """Whether each byte of a buffer is in one of the regions."""
    inside = np.zeros(nbytes, bool)
    for region in regions:
        if region.bounds[1] > nbytes:
            inside[:] = True  # packed weights: all of it
        elif not region.shape:
            inside[region.offset : region.offset + region.nbytes] = True
        else:
            for start in np.ndindex(region.shape):
                begin = region.offset + sum(i * s for i, s in zip(start, region.strides, strict=True))
                inside[begin : begin + region.nbytes] = True
    return inside


class Surrounds(WatchedStream):
    """A stream on which everything around a launch is noise."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.launches = 0
        self.noise = np.random.default_rng(0)
        self.sizes: dict[int, int] = {}
        self.told = touches

    def begin(self, plan: ChunkPlan, arenas: Sequence[Allocation]) -> None:
        self.sizes = {id(a): plan.arena_nbytes for a in arenas[plan.chunk :] if a is not None}

    def contents(self, buffer: Allocation) -> Array:
        found = np.empty(self.sizes[id(buffer)], np.uint8)
        self.stream.read(buffer, 0, found)
        self.finish()
        return found

    def finish(self) -> None:
        mark = self.stream.mark()
        if isinstance(mark, HostMark):
            mark.done.wait()
        else:
            mark.wait()  # type: ignore[attr-defined]

    def arenas(self, step: PlanStep, buffers: Sequence[Allocation]) -> Iterator[tuple[Allocation, list[Touch]]]:
        """The buffers that are this chunk's arena, each once; constants and earlier arenas are left alone."""
        told: dict[int, tuple[Allocation, list[Touch]]] = {}
        for buffer, touch in zip(buffers, self.told(step), strict=True):
            if id(buffer) in self.sizes:
                told.setdefault(id(buffer), (buffer, []))[1].append(touch)
        yield from told.values()

    def launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Allocation],
        record: Record,
        grid: tuple[int, ...],
        group: tuple[int, ...] | None,
        local: tuple[int, ...],
    ) -> None:
        found = self.next_step()
        assert found is not None
        step, name = found
        before: list[tuple[Allocation, Array, Array, Array, Array]] = []
        for buffer, told in self.arenas(step, buffers):
            kept = self.contents(buffer)
            used = flags([t.region for t in told], kept.size)
            written = flags([t.region for t in told if t.write], kept.size)
            noisy = self.noise.integers(0, 256, kept.size, np.uint8)
            np.copyto(noisy, kept, where=used)
            self.stream.write(buffer, 0, noisy)
            before.append((buffer, kept, noisy, used, written))
        super().launch(kernel, buffers, record, grid, group, local)
        self.launches += 1
        for buffer, kept, noisy, used, written in before:
            after = self.contents(buffer)
            assert not ((noisy != after) & ~written).any(), f"{name}: it wrote elsewhere"
            np.copyto(after, kept, where=~used)
            self.stream.write(buffer, 0, after)
        self.finish()


async def outputs(
    device: str | None, example: ZooModel, *, surrounded: bool, told: Callable[[PlanStep], tuple[Touch, ...]] = touches
) -> tuple[list[bytes], int]:
    """The outputs of a model's cases, on the host of `some`, and how many launches were surrounded."""
    found: list[bytes] = []
    options = RuntimeOptions(warm=False, check_hazards=True, without=() if surrounded else {"recipes"})
    async with Runtime(device, streams=1, options=options) as rt:
        loaded = await rt.load(example.path)
        (checked,) = rt.session.dispatcher.streams
        assert isinstance(checked, WatchedStream)
        around = Surrounds(checked.stream)
        around.told = told
        if surrounded:
            checked.stream = around
        for case in some(range(example.cases), 2 if device == "host" else 1):
            results = await loaded.infer(example.inputs(case))
            found += [results[name].tobytes() for name in sorted(results)]
    return found, around.launches


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["host", None], ids=lambda d: d or "opencl")
@pytest.mark.parametrize("example", zoo(), ids=lambda z: z.name)
@pytest.mark.usefixtures("shared_programs")
async def test_a_kernel_uses_the_bytes_that_its_step_says_and_no_others(device: str | None, example: ZooModel) -> None:
    """On every model of the zoo and each of its cases, bit for bit; on the host, whose kernels are NumPy's, on some."""
    plain, _ = await outputs(device, example, surrounded=False)
    noisy, launches = await outputs(device, example, surrounded=True)

    assert plain == noisy
    assert launches > 0


def a_byte_less(write: bool) -> Callable[[PlanStep], tuple[Touch, ...]]:
    """What a step is said to use, but without the last byte of what it reads, or writes."""

    def told(step: PlanStep) -> tuple[Touch, ...]:
        return tuple(
            t._replace(region=t.region._replace(nbytes=t.region.nbytes - 1)) if t.write == write else t
            for t in touches(step)
        )

    return told


@pytest.mark.asyncio
@pytest.mark.parametrize("device", ["host", None], ids=lambda d: d or "opencl")
async def test_a_byte_too_few_is_seen(device: str | None) -> None:
    """The test above can fail: of what is written by the noise that is gone, of what is read by the outputs."""
    example = next(z for z in zoo() if z.name == "resnet_bn_ts13")
    plain, _ = await outputs(device, example, surrounded=False)

    with pytest.raises(InternalError) as caught:
        await outputs(device, example, surrounded=True, told=a_byte_less(write=True))
    assert "it wrote elsewhere" in str(caught.value.__cause__)
    assert plain != (await outputs(device, example, surrounded=True, told=a_byte_less(write=False)))[0]
