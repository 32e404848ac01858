"""Hostile calls among innocent callers: whoever asks for nothing wrong gets exactly what is theirs, and soon.

Each of sixteen innocent callers has numbers that nobody else has, in every element of every request, through `infer`,
a batched model, sequences and a group. Meanwhile others call whatever is public with one argument exchanged, leave at
random, and close what they use while they wait for it. They get what Python or asyncrt says of such an argument.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import attrs
import numpy as np

from asyncrt import AsyncrtError, HazardError, KernelBuildError, Runtime, RuntimeOptions
from asyncrt.layout import Array
from asyncrt.scheduler.policies import policy_names

from ...paths import drawn
from ..batching import canary, request
from .doors import DOORS, STATE, Door, Stage, keeping, some_door
from .models import LIMITS, Place, device_of, opened, options_shown
from .values import Their, hostile_inputs, odd
from .watching import Finding, Poison

CALLS = 20
"""Hostile calls of one case."""

CALLERS = 16
ROUNDS = 4


@attrs.define
class Storm:
    """A case.

    Attributes:
        tried: What hostile callers did, in order.
        errors: What must not be, an innocent's first.
    """

    seed: int
    chance: random.Random
    device: str
    options: RuntimeOptions
    tried: list[str] = attrs.field(factory=list)
    errors: list[BaseException] = attrs.field(factory=list)

    def __str__(self) -> str:
        return f"{self.device}: {options_shown(self.options)}\n" + "\n".join(self.tried)


def draw(seed: int, place: Place) -> Storm:
    """Decide how the case of a seed is run."""
    chance = random.Random(f"hostile {seed}")
    device = device_of(seed)
    options = RuntimeOptions(
        memory_limit=LIMITS[device], cache_dir=place.cache, warm=False, check_hazards=chance.random() < 0.3,
        max_in_flight=chance.choice((2, 8, 64)), policy=chance.choice(policy_names()),
        without=drawn(chance, 0.1),
    )  # fmt: skip
    return Storm(seed, chance, device, options)


async def attack(storm: Storm, place: Place) -> Counter[str]:
    """Run the case; what must not be is in its errors."""
    chance, counts = storm.chance, Counter[str]()
    device = opened(storm.device, storm.seed, place.clock)
    async with Runtime(device, streams=chance.choice((1, 2, 3)), options=storm.options) as rt:
        if chance.random() < 0.6:
            Poison().put(rt)
        model, keeper = await rt.load(canary()), await rt.load(keeping())
        async with (
            model.batched(pad_values={"x": np.nan}) as batched,
            keeper.sequences(STATE) as group,
            model.batched() as theirs,
            keeper.sequences(STATE) as their_group,
        ):
            source = canary().SerializeToString()
            sequences = keeper.sequence(STATE), their_group.sequence()
            stage = Stage(rt, model, keeper, theirs, sequences[0], their_group, sequences[1], place.folder, source)
            doors = model.infer, batched.infer
            innocent = [_asking(doors[n % 2], n, counts) for n in range(CALLERS // 2)]
            kept = [keeper.sequence(STATE) if n % 2 else group.sequence() for n in range(CALLERS // 2)]
            innocent += [_stepping(s, n, counts) for n, s in enumerate(kept)]
            hostile = [_hostile(storm, stage, number, counts) for number in range(CALLS)]
            ended = await asyncio.gather(*innocent, *hostile, return_exceptions=True)
            storm.errors += [e for e in ended if e is not None]
            if chance.random() < 0.4:
                storm.errors += await _closed_upon(stage, chance, counts)
            for sequence in (*kept, *sequences):
                await sequence.close()
    if (left := rt.statistics()).in_flight or left.memory.leases:
        storm.errors.append(Finding("left", f"{left.in_flight} in flight, {left.memory.leases} leases after close"))
    return counts


async def _closed_upon(stage: Stage, chance: random.Random, counts: Counter[str]) -> list[BaseException]:
    """Close the runtime while others wait for each kind of answer; returns what they got that nobody should."""
    group = stage.keeping.sequences(STATE)
    one, grouped = stage.keeping.sequence(STATE), group.sequence()
    doors: list[Any] = [stage.canary.infer, stage.batched.infer] * 4
    asked = [asyncio.ensure_future(infer(stage.inputs())) for infer in doors]
    asked += [asyncio.ensure_future(s.infer(stage.step())) for s in (one, grouped, one, grouped, one, grouped)]
    await _turns(chance, 30)
    await stage.rt.close()
    ended = await asyncio.gather(*asked, return_exceptions=True)
    counts["closed upon"] += len(ended)
    for thing in (one, grouped, group):
        await thing.close()
    return [e for e in ended if isinstance(e, BaseException) and not isinstance(e, AsyncrtError)]


async def _turns(chance: random.Random, most: int) -> None:
    for _ in range(chance.randrange(most)):
        await asyncio.sleep(0)


async def _asking(infer: Any, caller: int, counts: Counter[str]) -> None:
    """An innocent caller of requests."""
    chance = random.Random(caller)
    for turn in range(ROUNDS):
        await _turns(chance, 30)
        inputs = request(caller * 100 + turn, chance.choice((1, 2, 3, 5, 8)), chance.choice((1, 1, 2)), turn)
        outputs = await _answered(infer, inputs, f"request {turn} of caller {caller}")
        y = (inputs["x"] + 1) * 2
        _exact("y", y, outputs["y"])
        _exact("z", y + inputs["key"][..., None].astype(np.float32), outputs["z"])
        counts["innocent"] += 1


async def _stepping(sequence: Any, caller: int, counts: Counter[str]) -> None:
    """An innocent sequence."""
    chance = random.Random(100 + caller)
    seen = np.zeros((1, 0, 2), np.float32)
    for turn in range(ROUNDS):
        await _turns(chance, 30)
        x = np.array([[[1 + caller * 100 + turn, -1 - caller * 100 - turn]]], np.float32)
        outputs = await _answered(sequence.infer, {"x": x}, f"step {turn} of sequence {caller}")
        seen = np.concatenate([seen, x], axis=1)
        _exact("y", seen + seen, outputs["y"])
        _exact("z", -seen.sum(1, keepdims=True, dtype=np.float32), outputs["z"])
        counts["innocent"] += 1


async def _answered(infer: Any, inputs: dict[str, Array], what: str) -> dict[str, Array]:
    try:
        outputs: dict[str, Array] = await infer(inputs)
    except Exception as error:
        raise Finding("innocent", f"{what}, which is innocent, failed: {error!r}") from error
    return outputs


def _exact(name: str, expected: Array, got: Array) -> None:
    if (expected.shape, expected.tobytes()) != (got.shape, got.tobytes()):
        raise Finding("innocent", f"'{name}' of an innocent request is {got!r}, not {expected!r}")


async def _hostile(storm: Storm, stage: Stage, number: int, counts: Counter[str]) -> None:
    """One hostile call, which may be left, or whose thing may be closed while it waits."""
    chance = random.Random(f"{storm.seed}/{number}")
    await _turns(chance, 120)
    name = some_door(chance)
    door = DOORS[name]
    given = door.right(stage)
    exchanged = chance.choice(door.parameters)
    wrong: Any = odd(chance)
    if exchanged == "inputs" and chance.random() < 0.9:
        wrong = hostile_inputs(given["inputs"], chance)
    what = f"{number}: {name}({exchanged}={_shown(wrong)})"
    storm.tried.append(what)
    task = asyncio.ensure_future(door.call(stage, **{**given, exchanged: wrong}))
    leaves = chance.random() < 0.25
    if leaves:
        await _turns(chance, 60)
        task.cancel()
    elif chance.random() < 0.05:
        await _turns(chance, 20)
        await chance.choice((stage.sequence, stage.grouped, stage.batched, stage.group)).close()
        counts["closed"] += 1
    try:
        outputs = await task
    except asyncio.CancelledError:
        if not leaves:
            raise
    except BaseException as error:
        _judge(error, door, what)
        counts["refused"] += 1
    else:
        counts["taken"] += 1
        if outputs is not None:
            _is_theirs(wrong if exchanged == "inputs" else given["inputs"], outputs)


def _judge(error: BaseException, door: Door, what: str) -> None:
    """Raise unless *error* is one that says what is wrong with the argument."""
    if isinstance(error, HazardError | KernelBuildError):
        raise Finding("hazard" if isinstance(error, HazardError) else "kernel", f"{what}: {error}") from error
    if isinstance(error, AsyncrtError | Their) or (door.files and isinstance(error, OSError)):
        return
    error.add_note(what)
    raise error


def _is_theirs(inputs: Any, outputs: dict[str, Array]) -> None:
    """A hostile caller's answer has nothing of others in it: it is what the caller's own inputs make."""
    if not isinstance(inputs, dict) or not isinstance(inputs.get("x"), np.ndarray) or inputs["x"].size > 1 << 20:
        return
    with np.errstate(all="ignore"), contextlib.suppress(TypeError, ValueError):
        y = ((inputs["x"].astype(np.float32) + np.float32(1)) * np.float32(2)).astype(np.float32)
        if not np.array_equal(y, outputs["y"], equal_nan=True):
            raise Finding("foreign", f"a hostile request got {outputs['y']!r}, not {y!r}")


def _shown(thing: Any) -> str:
    with np.printoptions(threshold=10, edgeitems=2):
        try:
            return repr(thing)[:200]
        except Exception:
            return object.__repr__(thing)
