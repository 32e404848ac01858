"""How is a model run of which inputs or results are on the device? As a step of a sequence that has no other steps.

What a sequence keeps is taken from where it lies and left where the next step finds it (`KeptState`). Here inputs are
kept that nothing but kernels reads, and outputs that nothing but kernels makes; the host has the others as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrt.errors import InputError
from asyncrt.events import Event, latest
from asyncrt.graph.branches import JOIN
from asyncrt.graph.ir import Placement, Program
from asyncrt.kinds import is_plain
from asyncrt.layout import Array, Layout, layout_of
from asyncrt.memory.buffer import Lease
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.plan.between_steps import between
from asyncrt.runtime.plan.chunk_plan import KeptTensor

from .captures import stays_on_device
from .device_tensor import DeviceTensor
from .inputs import as_dict, take_inputs
from .network import Network
from .replicas import Replicas

_NO_INPUT = -1  # of what is kept of a request and was nothing before


def names_device_tensors(inputs: Any) -> bool:
    """Whether any of what a caller gave is on a device."""
    return isinstance(inputs, Mapping) and any(isinstance(given, DeviceTensor) for given in inputs.values())


async def infer_from_device(
    model: Network | Replicas, inputs: Mapping[str, Any], priority: int, until: float | None
) -> dict[str, Array]:
    """Run a model once where its inputs are, and read its results, by name.

    Raises:
        InputError: A tensor is of another runtime; else as `Network.infer()`.
    """
    network, results, _ = await _infer(model, inputs, priority, until, stay=False)
    return {network.program.values[id].name: array for id, array in results.items()}


async def infer_on_device(
    model: Network | Replicas, inputs: Mapping[str, Any], priority: int, until: float | None
) -> dict[str, DeviceTensor]:
    """Run a model once where its inputs are, and leave its results there, by name; raises as `infer_from_device()`."""
    network, results, left = await _infer(model, inputs, priority, until, stay=True)
    on_host = {id: DeviceTensor(network.session, layout_of(a), network.read, host=a) for id, a in results.items()}
    every = on_host | left
    return {network.program.values[id].name: every[id] for id in network.program.outputs}


async def _infer(
    model: Network | Replicas, inputs: Mapping[str, Any], priority: int, until: float | None, *, stay: bool
) -> tuple[Network, dict[int, Array], dict[int, DeviceTensor]]:
    """Run a model once where its inputs are; returns where, what the host gets, and what is left on the device."""
    given = as_dict(inputs)
    network = _where(model, {name: t for name, t in given.items() if isinstance(t, DeviceTensor)})
    program = network.program
    there, on_host = await _shared_out(network, given)
    layouts = {id: tensor.layout for id, tensor in there.items()}
    arrays = await take_inputs(program, on_host, layouts, frozenset(layouts), limit=network.tools.host_limit)
    outputs = keepable(program) if stay else ()
    kept = _kept(program, there, outputs)
    try:
        results, records = await network.infer(arrays, priority, kept=kept, deadline=until)
        network.note(records)
        left = {id: _tensor(network, kept, slot) for slot, id in enumerate(outputs, len(there))}
        return network, results, left
    finally:
        kept.close()


async def _shared_out(network: Network, given: Mapping[str, Any]) -> tuple[dict[int, DeviceTensor], dict[str, Any]]:
    """Return the inputs that the device has, by value id, and the others, by name: read from where they are."""
    program = network.program
    ids = {program.values[i].name: i for i in program.inputs}
    may_stay = stays_on_device(program)
    there: dict[int, DeviceTensor] = {}
    on_host: dict[str, Any] = {}
    for name, tensor in given.items():
        if not isinstance(tensor, DeviceTensor):
            on_host[name] = tensor
        elif tensor.session is network.session and tensor.device != "host" and ids.get(name) in may_stay:
            there[ids[name]] = tensor
        else:
            on_host[name] = await tensor.numpy()
    for id, tensor in there.items():
        wanted = program.values[id].layout.dtype
        if wanted is not tensor.layout.dtype:
            raise InputError(f"input '{program.values[id].name}': expected {wanted}, got {tensor.layout}")
    return there, on_host


def _where(model: Network | Replicas, tensors: Mapping[str, DeviceTensor]) -> Network:
    """Return the model on the device where most of the inputs are."""
    sessions = {network.session: network for network in model.each}
    nbytes = dict.fromkeys(sessions, 0)
    for name, tensor in tensors.items():
        if tensor.session not in sessions:
            raise InputError(
                f"input '{name}' is on a device of another runtime",
                hint="read it with `await tensor.numpy()`, or load both models into one runtime",
            )
        if tensor.device != "host":
            nbytes[tensor.session] += tensor.nbytes
    best = max(nbytes, key=lambda session: nbytes[session])
    return sessions[best] if nbytes[best] else model.for_request()


def keepable(program: Program) -> tuple[int, ...]:
    """Return the outputs of a program that can stay on the device: those that kernels make at its end."""
    last = program.chunks[-1]
    if last.control is not None or not last.nodes:
        return ()
    inside = [node for node in program.nodes if node.subgraphs or node.guards or node.operator is JOIN]
    elsewhere = {v for node in inside for v in (*node.uses, *node.outputs)}
    elsewhere.update(v for node in program.nodes if node.place is Placement.HOST for v in node.outputs)
    elsewhere.update(program.inputs)
    values = program.values
    return tuple([
        id
        for id in dict.fromkeys(program.outputs)
        if id not in elsewhere
        and values[id].constant is None
        and (dtype := values[id].layout.dtype) is not None
        and is_plain(dtype)
        and not dtype.is_on_host
    ])


def _kept(program: Program, there: Mapping[int, DeviceTensor], outputs: tuple[int, ...]) -> KeptState:
    """Return what a request finds on the device, with claims on its memory, and what it is to leave there."""
    tensors = [KeptTensor(id, id, t.layout, t.layout.shape) for id, t in there.items()]
    for id in outputs:
        dtype = program.values[id].layout.dtype
        assert dtype is not None
        tensors.append(KeptTensor(_NO_INPUT, id, Layout(dtype, (0,)), (0,)))
    leases: list[Lease | None] = []
    after: tuple[Event, ...] = ()
    for tensor in there.values():
        held = tensor.held()
        assert held is not None
        leases.append(held[0])
        after = latest((*after, *held[1]))
    return KeptState(between(tensors), leases + [None] * len(outputs), after, last=True)


def _tensor(network: Network, kept: KeptState, slot: int) -> DeviceTensor:
    """Return a result that stays on the device; its memory is the tensor's from now on."""
    layout, lease = kept.tensors[slot].layout, kept.leases[slot]
    kept.leases[slot] = None
    if lease is not None:
        return DeviceTensor(network.session, layout, network.read, lease, kept.after)
    return DeviceTensor(network.session, layout, network.read, host=np.empty(layout.shape, layout.dtype.numpy))
