"""Sequences of a group under whatever a seed decides: who waits for whom, who leaves, and what fails."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import numpy as np
import onnx
import pytest

from asyncrt import DeadlineExceeded, DeviceError, Model, Runtime, RuntimeOptions, Sequence, SequenceGroup, Sharing
from asyncrt.devices.faults import Fault
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.errors import OutOfDeviceMemory
from asyncrt.layout import Array

from ..builders import i64, model, node
from ..paths import AS_USERS_RUN_IT, CHECKED, drawn

SEEDS = {CHECKED: range(40), AS_USERS_RUN_IT: range(40, 80)}
_WIDTH = 4
_SITES = ("command", "launch", "write", "read", "fill", "allocate", "mark")


def decoder() -> onnx.ModelProto:
    """A head whose keys are masked, and a sum of all keys so far: one state that grows, and one that does not."""
    nodes = [
        node("present.key = Concat(past_key_values.key, x)", axis=1),
        node("t = Transpose(present.key)", perm=[0, 2, 1]), node("s = MatMul(x, t)"),
        node("m = Unsqueeze(mask, one)"), node("n = Sub(m, unit)"), node("b = Mul(n, large)"), node("a = Add(s, b)"),
        node("p = Softmax(a)"), node("z = MatMul(p, present.key)"),
        node("r = ReduceSum(x, one)"), node("next_sum = Add(sum, r)"), node("y = Add(z, next_sum)"),
    ]  # fmt: skip
    constants = {"one": i64(1), "unit": np.float32(1), "large": np.float32(1e9)}
    inputs = [f"x f32[batch,seq,{_WIDTH}]", "mask f32[batch,total]", f"past_key_values.key f32[batch,past,{_WIDTH}]",
              f"sum f32[batch,1,{_WIDTH}]"]  # fmt: skip
    return model(nodes, inputs, ["y", "present.key", "next_sum"], constants)


def expected(keys: Array, x: Array) -> Array:
    """What a step gives whose keys, its own included, are *keys*."""
    scores = x @ keys.T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = weights / weights.sum(-1, keepdims=True) @ keys + keys.sum(0)
    return result


class Storm:
    """A group, and what became of its steps."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def run(self, group: SequenceGroup, rt: Runtime) -> None:
        """Let sequences come and go."""
        number = self.chance.randrange(2, 9)
        await asyncio.gather(*(self.sequence(group, n) for n in range(number)))
        assert group.nbytes == 0
        assert rt.statistics().memory.leases == 0

    async def sequence(self, group: SequenceGroup, number: int) -> None:
        """Run steps, some of them more than once; each that ends is exact."""
        chance, random_floats = self.chance, np.random.default_rng((number, 1))
        keys = np.zeros((0, _WIDTH), np.float32)
        await self.turns(40)
        async with group.sequence() as sequence:
            for _ in range(chance.randrange(1, 12)):
                await self.turns(chance.choice((0, 0, 0, 3, 30)))
                x = random_floats.standard_normal((chance.choice((1, 1, 1, 2)), _WIDTH)).astype(np.float32)
                keys = np.concatenate([keys, x])
                y = await self.step(sequence, x, len(keys))
                np.testing.assert_allclose(y, expected(keys, x), rtol=1e-4, atol=1e-5)

    async def step(self, sequence: Sequence, x: Array, total: int) -> Array:
        """Run a step until it succeeds."""
        inputs = {"x": x[None], "mask": np.ones((1, total), np.float32)}
        for _ in range(20):
            deadline = self.chance.choice((None, None, None, 0.0))
            task = asyncio.ensure_future(sequence.infer(inputs, deadline=deadline))
            if self.chance.random() < 0.2:
                await self.turns(25)
                task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(result, dict):
                self.counts["succeeded"] += 1
                return np.asarray(result["y"][0])
            assert isinstance(result, asyncio.CancelledError | DeadlineExceeded | DeviceError), result
            self.counts[type(result).__name__] += 1
        raise AssertionError("a step failed twenty times")

    async def turns(self, most: int) -> None:
        for _ in range(self.chance.randint(0, most)):
            await asyncio.sleep(0)


async def random_group(seed: int, found: list[Sharing]) -> Counter[str]:
    """Run a storm on a device of its own; returns what became of the steps."""
    chance = random.Random(-seed)
    faults = [Fault(site, chance.randrange(1, 200), OutOfDeviceMemory if site == "allocate" else DeviceError)
              for site in chance.choices(_SITES, k=chance.choice((0, 2, 4, 8)))]  # fmt: skip
    device = SimulatedDevice(seed, faults=faults, spreads=chance.random() < 0.5)
    options = RuntimeOptions(
        warm=False,
        without={"disk_cache", *drawn(chance, 0.25)} - {"share_steps"},
        max_in_flight=chance.choice((1, 2, 64)),
    )
    async with Runtime(device, streams=chance.randrange(1, 4), options=options) as rt:
        loaded: Model = await rt.load(decoder())
        async with loaded.sequences({"past_key_values.key": "present.key", "sum": "next_sum"}) as group:
            storm = Storm(seed)
            await storm.run(group, rt)
            if group.sharing is not None:
                found.append(group.sharing.sharing)
            counted = group.statistics()
            storm.counts["steps"] += counted.steps
            storm.counts["inferences"] += counted.inferences
            storm.counts["gathered"] += counted.gathered
        storm.counts["prepared"] += rt.statistics().presets.replays
    assert device.allocated == 0
    return storm.counts


@pytest.mark.asyncio
async def test_sequences_under_random_cancellations_deadlines_and_faults_are_exact(either_path: str) -> None:
    """Every step that ends gives what it gives alone, and nothing is left; a seed that fails is named."""
    counts: Counter[str] = Counter()
    found: list[Sharing] = []

    for seed in SEEDS[either_path]:
        try:
            counts += await random_group(seed, found)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise

    assert min(counts["CancelledError"], counts["DeadlineExceeded"], counts["DeviceError"]) > 3
    assert counts["succeeded"] <= counts["steps"]
    assert counts["inferences"] < 0.8 * counts["steps"]
    assert counts["gathered"] > len(SEEDS[either_path])
    assert counts["prepared"] > len(SEEDS[either_path])
    assert Counter(found).most_common(1)[0][0] is Sharing.ANY_LENGTH
