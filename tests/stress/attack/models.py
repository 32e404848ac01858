"""One mutated model: it is refused with an error that says so, or runs and gives what it gives every time.

The same inputs are run with arenas filled with one pattern and another, after other inputs and beside them; the bytes
must be equal, so nothing of what others had in that memory is in them. A model that is right is loaded before, and
must be exact whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import onnx
import onnx.numpy_helper
import onnx.printer

import asyncrt
from asyncrt import AsyncrtError, HazardError, InternalError, KernelBuildError, Model, Runtime, RuntimeOptions
from asyncrt.devices.base import Device
from asyncrt.devices.find import open_device
from asyncrt.devices.simulated import SimulatedDevice
from asyncrt.layout import Array

from ...builders import model as build
from ...builders import node
from ...paths import drawn
from .answers import arrays_in, difference, exactly, shown
from .corpus import SECRET, Origin, origin, write
from .mutations import damage, graphs, mutate, repair, tensors
from .peer import Peer
from .requests import fitting
from .watching import Clock, Doors, Finding, Poison

LIMITS = {"opencl": 64 << 20, "host": 16 << 20, "simulated": 16 << 20}
"""Bytes: `memory_limit`, by device. References calculate in float64 and keep several of what they make."""

DEADLINE_S = 0.5
"""Of each request: a loop may say that it has no end. After a first that passed it no others are asked for."""

_DRAWS = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
_IN_FLOATS = frozenset({"ReduceMean"})
"""What ONNX Runtime calculates in floats also of integers, which hold sums that integers do not."""

Outputs = dict[str, Any]


@attrs.define
class Place:
    """Where cases of one process run.

    Attributes:
        folder: Holds the files that models name, and those that they may not.
        clock, doors, peer: See there.
        cache: Of kernels.
    """

    folder: Path
    cache: Path
    clock: Clock
    doors: Doors
    peer: Peer = attrs.field(factory=Peer)

    @property
    def models(self) -> Path:
        return write(self.folder)


@attrs.define
class Case:
    """A mutated model.

    Attributes:
        origin: What it was made from.
        source: What is loaded: a model, its bytes, or the path of a file.
        done: What was done to it.
        device: Where it runs.
        options: How.
        ran: Inputs and outputs of requests that were answered.
        late: Whether a request of it passed its deadline.
        ended: What became of it.
    """

    seed: int
    origin: Origin
    source: Any
    done: list[str]
    device: str
    options: RuntimeOptions
    ran: list[tuple[Outputs, Outputs]] = attrs.field(factory=list)
    late: bool = False
    ended: str = ""

    def __str__(self) -> str:
        how = f"{self.origin.name} on {self.device}: {', '.join(self.done)}\n{options_shown(self.options)}"
        return f"{how}\n{_text(self.source)}"


def device_of(seed: int) -> str:
    """On which device a seed's model runs. OpenCL's processes are others, because compilers take memory and time."""
    return "opencl" if seed % 8 == 7 else ("simulated", "host")[seed % 2]


def draw(seed: int, place: Place) -> Case:
    """Draw a model, mutate it, and decide how it is run."""
    chance = random.Random(seed)
    from_where = origin(chance)
    model = onnx.ModelProto.FromString(from_where.model.SerializeToString())
    damaged = chance.random() < 0.06
    count = 0 if damaged else chance.choice((1, 1, 1, 1, 2, 2, 3, 8))
    done = mutate(chance, model, count)
    if chance.random() < 0.8:
        repair(model)
    data = model.SerializeToString()
    if damaged:
        data = damage(chance, data)
        done.append("damaged bytes")
    source: Any = data
    kind = chance.choice(("path", "bytes", "model"))
    if kind == "path" or from_where.name == "external":
        source = place.models / "it.onnx"
        source.write_bytes(data)
    elif kind == "model" and not damaged:
        source = model
    device = device_of(seed)
    return Case(seed, from_where, source, done, device, _options(chance, device, place))


def options_shown(options: RuntimeOptions) -> str:
    """Return what of *options* is not as it is without being asked for."""
    usual = attrs.asdict(RuntimeOptions())
    return ", ".join(f"{name}={value!r}" for name, value in attrs.asdict(options).items() if value != usual[name])


def _options(chance: random.Random, device: str, place: Place) -> RuntimeOptions:
    exact = {"stand_in"} if chance.random() < 0.7 else set()
    return RuntimeOptions(
        memory_limit=LIMITS[device], max_model_bytes=8 << 20,
        max_folded_bytes=chance.choice((0, 1 << 16, 1 << 20, 16 << 20)),
        without=drawn(chance, 0.15) | exact,
        branches=chance.choice((None, True)), precision=chance.choice(("fp32", "fp32", "fp32", "fp32", "bf16")),
        warm=chance.random() < 0.4, check_hazards=chance.random() < 0.3, cache_dir=place.cache,
    )  # fmt: skip


def opened(name: str, seed: int, clock: Clock) -> Device:
    """Open a device, whose building of kernels is not counted."""
    if name == "simulated":
        return SimulatedDevice(seed, memory=1 << 28)
    return clock.watch(open_device(None if name == "opencl" else name))


def innocent() -> onnx.ModelProto:
    """Each element by itself, and a sum of all."""
    nodes = [node("a = Mul(x, x)"), node("t = Transpose(a)", perm=[1, 0]), node("y = Add(t, one)")]
    return build(nodes, ["x f32[n,m]"], ["y"], {"one": np.array(1, np.float32)})


async def infer_innocent(model: Model, number: int) -> None:
    """Ask the innocent model; raises `Finding` unless it is exact."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4) + 100 * number
    try:
        got = (await model.infer({"x": x}))["y"]
    except AsyncrtError as error:
        raise Finding("innocent", f"an innocent request failed: {error!r}") from error
    if (x * x + 1).T.tobytes() != got.tobytes():
        raise Finding("innocent", f"an innocent request got {got!r}")


async def attack(case: Case, place: Place) -> None:
    """Load and run; what must not be is raised: `Finding`, or the exception that nobody has made typed."""
    chance = random.Random(-case.seed)
    poison = Poison() if chance.random() < 0.6 else None
    if poison is not None:  # what a thread carries out by itself goes by no stream that could be poisoned
        case.options = attrs.evolve(case.options, without=case.options.without | {"direct"})
    device = opened(case.device, case.seed, place.clock)
    async with Runtime(device, streams=chance.choice((1, 2, 3)), options=case.options) as rt:
        neighbour = await rt.load(innocent())
        if poison is not None:
            poison.put(rt)
        await infer_innocent(neighbour, 1)
        try:
            loaded = await expecting(rt.load(case.source), case)
            if loaded is not None:
                await _run(loaded, neighbour, case, poison, chance)
        finally:
            await infer_innocent(neighbour, 2)
    if (left := rt.statistics()).in_flight or left.memory.leases:
        raise Finding("left", f"{left.in_flight} in flight, {left.memory.leases} leases after close")


async def expecting(work: Any, case: Case) -> Any:
    """Return what *work* gives; None if it is refused as it should be."""
    try:
        return await work
    except HazardError as error:
        raise Finding("hazard", str(error)) from error
    except KernelBuildError as error:
        raise Finding("kernel", str(error)) from error
    except InternalError as error:
        raise Finding("internal", str(error)) from error
    except AsyncrtError as error:
        case.ended = type(error).__name__
        case.late |= isinstance(error, asyncrt.DeadlineExceeded)
        bare = _bare_cause(error)
        if bare is not None:
            raise Finding("bare", f"{error}; because of {bare!r}") from error
    except OSError as error:
        if not isinstance(case.source, Path):
            raise
        case.ended = type(error).__name__
    return None


def _bare_cause(error: BaseException) -> BaseException | None:
    """Return the exception of an operator that a device told of, where the operator should have said it itself."""
    cause = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    failed = isinstance(error, asyncrt.DeviceCommandError) and cause is not None
    return cause if failed and not isinstance(cause, AsyncrtError) else None


async def _run(loaded: Model, neighbour: Model, case: Case, poison: Poison | None, chance: random.Random) -> None:
    layouts = loaded.inputs
    case.ended = "loaded"
    for _ in range(2):
        a, b = (fitting(layouts, case.origin.inputs, chance) for _ in range(2))
        before = {n: exactly(i) for n, i in a.items() if sum(e.size for e in arrays_in(i)) < 1 << 20}

        def infer(inputs: Outputs) -> Any:
            return expecting(loaded.infer(inputs, deadline=DEADLINE_S), case)

        first = await infer(a)
        if not case.late:
            await infer(b)
        if case.late:
            return
        if poison is not None:
            poison.byte ^= 0xFF
        _same(case, first, await infer(a), "again")
        work = [infer(i) for i in (a, b, a)]
        *together, _ = await _all(*work, infer_innocent(neighbour, 3))
        _same(case, first, together[0], "beside others")
        _same(case, first, together[2], "beside others")
        if any(before[n] != exactly(a[n]) for n in before):
            raise Finding("changed", "an input was changed")
        if first is not None:
            case.ended = "ran"
            if any(SECRET[:16] in a.tobytes() for a in arrays_in(first)) or SECRET[:16].decode() in repr(first):
                raise Finding("read", "an output has the contents of a file outside of the model's folder")
            case.ran.append((a, first))


async def _all(*work: Awaitable[Any]) -> list[Any]:
    """Return what each gives, once all have ended; raises what the first that failed has raised."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _same(case: Case, first: Outputs | None, then: Outputs | None, how: str) -> None:
    if first is None and then is None:
        return
    if first is None or then is None:
        # Memory may be short beside others, and there alone; time may be so at any time.
        if how == "beside others" or case.late:
            return
        raise Finding("differs", f"refused once, and run {how}: {first is None}")
    if case.device == "opencl" and case.options.uses("stand_in"):
        # NumPy may have answered the one and a kernel the other, which add in another order.
        wrong = difference(first, then)
        if wrong is not None:
            raise Finding("differs", f"{how}: {wrong}")
        return
    for name, e in first.items():
        if exactly(e) != exactly(then[name]):
            raise Finding("differs", f"'{name}' is other bits {how}: {shown(e)} and {shown(then[name])}")


def judge(case: Case, place: Place) -> int:
    """Compare what was answered with ONNX Runtime's answers; returns how many there were.

    Where those differ, onnx.reference decides who is right, if it has an answer.
    """
    agreed = 0
    if case.options.precision != "fp32" or isinstance(case.source, Path) or not case.ran:
        return 0
    data = case.source if isinstance(case.source, bytes) else case.source.SerializeToString()
    model = onnx.ModelProto.FromString(data)
    # What a function is that has an operator's name, ONNX leaves to the runtime.
    if any(f.domain in ("", "ai.onnx") for f in model.functions) or not all(map(_is_modest, _constants(model))):
        return 0
    names = {n.op_type for graph in graphs(model) for n in graph.node}
    # Runtimes draw other numbers, also from the same seed.
    if names & _DRAWS:
        return 0
    for inputs, outputs in case.ran:
        given = arrays_in(inputs)
        if sum(a.nbytes for a in given) > 1 << 22 or not all(map(_is_modest, given)):
            continue
        if names & _IN_FLOATS and any(a.dtype.itemsize == 8 and a.dtype.kind in "iu" for a in given):
            continue
        theirs = place.peer.ask("ONNX Runtime", data, inputs)
        if theirs is not None and theirs.keys() == outputs.keys():
            wrong = difference(theirs, outputs, indefinite=True)
            if wrong is not None and not _excused(place.peer.ask("reference", data, inputs), inputs, outputs):
                raise Finding("wrong", f"{wrong}\nfor {_short(inputs)}")
            agreed += 1
    return agreed


def _excused(theirs: Outputs | None, inputs: Outputs, ours: Outputs) -> bool:
    """Whether onnx.reference says the same, or has no answer to inputs of no elements, of which ONNX says little."""
    if theirs is None:
        return any(i.size == 0 if isinstance(i, np.ndarray) else not i for i in inputs.values())
    return theirs.keys() == ours.keys() and difference(theirs, ours) is None


def _is_modest(array: Array) -> bool:
    """Whether no sum of its elements overflows, and none is a NaN, which every runtime orders as it likes."""
    if array.dtype.kind in "iubOTU":
        return True
    return bool(np.all(np.abs(array.astype(np.float64)) < 1e6))


def _constants(model: onnx.ModelProto) -> Iterator[Array]:
    for tensor in tensors(model):
        with contextlib.suppress(Exception):  # one that asyncrt reads in another way, or not at all
            yield onnx.numpy_helper.to_array(tensor)


def _short(inputs: Mapping[str, Any]) -> str:
    return ", ".join(f"{n}: {shown(a)}" for n, a in inputs.items())[:3000]


def _text(source: Any) -> str:
    """Return a model as text, as far as it can be one."""
    model = source if isinstance(source, onnx.ModelProto) else onnx.ModelProto()
    try:
        if isinstance(source, Path):
            model.ParseFromString(source.read_bytes())
        elif isinstance(source, bytes):
            model.ParseFromString(source)
        return str(onnx.printer.to_text(model))[:4000]
    except Exception as error:
        return f"(no text: {error!r})"[:500]


async def warm_up(place: Place, devices: Sequence[str]) -> None:
    """Do once what is done only once in a process, so that it is not counted as a case's time and memory."""
    for name in devices:
        async with Runtime(opened(name, 0, place.clock), options=RuntimeOptions(cache_dir=place.cache)) as rt:
            loaded = await rt.load(innocent())
            await asyncio.gather(*(infer_innocent(loaded, n) for n in range(8)))
