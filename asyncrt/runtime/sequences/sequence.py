"""A sequence of inferences with state: an output of one step is an input of the next.

Caches of keys and values, and recurrent states, stay on the device between the steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from asyncrt.arguments import check_names, check_priority, shown
from asyncrt.dims import Dim
from asyncrt.errors import ArgumentError, InputError, SequenceError
from asyncrt.graph.branches import JOIN
from asyncrt.graph.ir import Program
from asyncrt.layout import Array, Layout, show_shape
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.loop.trio_bridge import Elsewhere, anywhere
from asyncrt.runtime.plan.between_steps import Between, between
from asyncrt.runtime.plan.chunk_plan import KeptTensor
from asyncrt.runtime.request.inputs import as_dict, take_inputs
from asyncrt.runtime.request.network import Network

#: How exporters name what goes out to what comes in again: a part of the output's name, and what the input has there.
NAMES = (
    ("present", "past_key_values"),
    ("present", "past"),
    ("new_", ""),
    ("next_", ""),
    ("_next", ""),
    ("_new", ""),
    ("_out", "_in"),
    ("_out", ""),
    ("hn", "h0"),
    ("cn", "c0"),
)


def find_state(program: Program) -> dict[str, str]:
    """Return the inputs that are outputs of the step before, each with that output, going by their names."""
    inputs = {program.values[i].name for i in program.inputs}
    found: dict[str, str] = {}
    for id in program.outputs:
        output = program.values[id].name
        for part, other in NAMES:
            name = output.replace(part, other, 1)
            if part in output and name in inputs and name not in found:
                found[name] = output
                break
    return found


class Sequence:
    """Steps of one model that share state. Made by `Model.sequence()`; use it in ``async with``.

    Steps run one after the other; different sequences, and other inferences, run beside them.
    """

    def __init__(self, network: Network, state: Mapping[str, str] | None) -> None:
        self._network = network
        self._program = network.program
        pairs = find_pairs(self._program, state)
        #: Value ids of the inputs that are kept.
        self._inputs = [i for i, _ in pairs]
        self._kept = nothing(self._program, pairs)
        self._lock = asyncio.Lock()
        self._steps = 0
        self._under_way = False
        self._closed = False
        network.sequences.add(self)

    def __repr__(self) -> str:
        if self._closed:
            return f"<Sequence closed after {self._steps} steps>"
        return f"<Sequence {self._steps} steps, {len(self._inputs)} tensors, {self._kept.nbytes} bytes on the device>"

    @property
    def state(self) -> dict[str, Layout]:
        """What is kept now: layout by the name of the input that it is in the next step."""
        return {self._program.values[t.input].name: t.layout for t in self._between.tensors}

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that it keeps."""
        return self._kept.nbytes

    @property
    def _between(self) -> Between:
        """What is kept."""
        return self._kept.between

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Where its runtime runs if that is not the loop of its callers."""
        return self._network.session.elsewhere

    @anywhere
    async def infer(
        self, inputs: Mapping[str, Any], *, priority: int = 0, deadline: float | None = None
    ) -> dict[str, Array]:
        """Run one step.

        If it fails or is cancelled, the state is what it was before, and the step may be tried again.

        Args:
            inputs: An array for each input that is not kept. The first step may be given those that are kept as well;
                without, they are empty along the axes that no other input tells, and zeros.
            priority: Lower goes first among requests that wait.
            deadline: Seconds from now within which it has to be launched, the steps before it included.

        Returns:
            An array for each output that is not kept.

        Raises:
            InputError: The inputs do not fit the model or the state; nothing was enqueued.
            SequenceError: The sequence was closed; else as `Model.infer()`.
        """
        self._network.session.check_here()
        priority, until = check_priority(priority), self._network.until(deadline)
        async with self._lock:
            self._check_open()
            arrays = await self._arrays(inputs)
            given = not self._steps and any(self._program.values[i].name in inputs for i in self._inputs)
            self._under_way = True
            try:
                results = await self._step(arrays, given, priority, until)
                self._steps += 1
            finally:
                self._under_way = False
                if self._closed:
                    self._release()
            return {self._program.values[id].name: array for id, array in results.items()}

    async def _step(
        self, arrays: Mapping[int, Array], given: bool, priority: int, deadline: float | None
    ) -> dict[int, Array]:
        """Run a step; *given* says whether the caller has given any of the state."""
        outcome = None
        if not given:
            outcome = await self._network.attempt_in_turn(arrays, priority, deadline, kept=self._kept)
        if outcome is None:
            outcome = await self._network.infer(arrays, priority, kept=self._kept, deadline=deadline)
        results, records = outcome
        self._network.note(records)
        return results

    def _release(self) -> None:
        """Give the state's memory back."""
        self._kept.close()
        self._network.sequences.discard(self)

    async def steps(
        self,
        first: Mapping[str, Any],
        following: Callable[[dict[str, Array]], Mapping[str, Any] | None],
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> AsyncIterator[dict[str, Array]]:
        """Run step after step, and give the outputs of each.

        Args:
            first: The inputs of the first step.
            following: Returns the inputs of the next step, going by the outputs of the one before; None ends it. It is
                asked when the next outputs are wanted.
            priority: Of each step, as for `infer()`.
            deadline: Of each step, likewise.
        """
        if not callable(following):
            raise ArgumentError(f"following must be a function of the outputs, got {shown(following)}")
        inputs: Mapping[str, Any] | None = first
        while inputs is not None:
            outputs = await self.infer(inputs, priority=priority, deadline=deadline)
            yield outputs
            inputs = following(outputs)

    async def _arrays(self, inputs: Mapping[str, Any]) -> dict[int, Array]:
        """Check a step's inputs; those that are kept, and empty so far, are arrays as well."""
        kept = self._between
        if len(kept.layouts) == len(self._inputs):
            fitting = self._network.checked.fitting(inputs, kept.layouts)
            if fitting is not None:
                return fitting
        inputs = as_dict(inputs)
        tensors = {t.input: t for t in kept.tensors}
        names = {self._program.values[i].name: i for i in self._inputs}
        again = [name for name in names if self._steps and name in inputs]
        if again:
            raise InputError(
                f"input '{again[0]}' is kept on the device and came again in step {self._steps + 1}",
                hint="give it to the first step only, or begin another sequence",
            )
        there = {i: t.layout for i, t in tensors.items() if t.layout.count or self._steps}
        limit = self._network.tools.host_limit
        arrays = await take_inputs(self._program, inputs, there, frozenset(self._inputs), limit=limit)
        empty = [i for i in self._inputs if i not in arrays and not tensors[i].layout.count]
        if empty:
            sizes, budget = _sizes(self._program, arrays, there), HostBudget(limit)
            for id in empty:
                layout = there.get(id) or _resolved(self._program, id, sizes)
                budget.take(layout.nbytes, f"zeros for the first '{self._program.values[id].name}'")
                arrays[id] = np.zeros(layout.shape, layout.dtype.numpy)
        return arrays

    @anywhere
    async def close(self) -> None:
        """Give the state's memory back, when a step that is under way is over, which this waits for; steps that wait
        for that one are refused. If this is cancelled, that step gives it back all the same."""
        self._closed = True
        if self._network.session.left_behind:
            return
        if not self._under_way:
            self._release()
        async with self._lock:
            pass

    def _check_open(self) -> None:
        if self._closed:
            raise SequenceError("the sequence is closed", hint="begin another one with `model.sequence()`")

    async def __aenter__(self) -> Sequence:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def find_pairs(program: Program, state: Mapping[str, str] | None) -> list[tuple[int, int]]:
    """Return the value ids of the inputs and outputs that are one tensor from step to step.

    Args:
        state: By name; None goes by what exporters call them.

    Raises:
        SequenceError: The names say nothing, or a tensor of the state cannot stay on the device.
    """
    state = find_state(program) if state is None else check_names("state", state, texts=True)
    inputs = {program.values[i].name: i for i in program.inputs}
    outputs = {program.values[i].name: i for i in program.outputs}
    if not state:
        raise SequenceError(
            f"'{program.name}' has no state that could be told from its names",
            detail=f"inputs   {', '.join(inputs)}\noutputs  {', '.join(outputs)}",
            hint="say which output is which input of the next step: model.sequence({'past': 'present'})",
        )
    unknown = [name for name in state if name not in inputs] + [name for name in state.values() if name not in outputs]
    if unknown:
        raise SequenceError(
            f"the model has no {shown(unknown[0])}",
            detail=f"inputs   {', '.join(inputs)}\noutputs  {', '.join(outputs)}",
            hint="state is a mapping of inputs to the outputs that they are in the next step",
        )
    inside = [node for node in program.nodes if node.subgraphs or node.guards or node.operator is JOIN]
    taken = {v for node in inside for v in (*node.uses, *node.outputs)}
    pairs = [(inputs[i], outputs[o]) for i, o in state.items()]
    for i, o in pairs:
        mine, other = program.values[i], program.values[o]
        if mine.layout.dtype is not other.layout.dtype:
            raise SequenceError(f"'{mine.name}' is {mine.layout.dtype}, but '{other.name}' {other.layout.dtype}")
        if i in program.value_inputs or i in taken or o in taken:
            raise SequenceError(
                f"'{mine.name}' cannot stay on the device: its value decides shapes, or a subgraph takes it",
                hint="leave it out of the state, and give it to each step",
            )
    if len({o for _, o in pairs}) < len(pairs):
        raise SequenceError("an output is the state of two inputs", hint="each input of the state has its own output")
    return pairs


def nothing(program: Program, pairs: Iterable[tuple[int, int]]) -> KeptState:
    """Return the state before the first step."""
    tensors: list[KeptTensor] = []
    for input, output in pairs:
        dtype, shape = program.values[input].layout
        assert dtype is not None
        empty = Layout(dtype, (0,) * len(shape or (0,)))
        tensors.append(KeptTensor(input, output, empty, empty.shape))
    return KeptState(between(tensors), [None] * len(tensors))


def _sizes(program: Program, arrays: Mapping[int, Array], kept: Mapping[int, Layout]) -> dict[str, int]:
    """The dims that a step's inputs tell, by name."""
    shapes = {**{i: a.shape for i, a in arrays.items()}, **{i: layout.shape for i, layout in kept.items()}}
    return {
        dim.name: size
        for i, actual in shapes.items()
        for dim, size in zip(program.values[i].layout.shape or actual, actual, strict=True)
        if isinstance(dim, Dim) and dim.name is not None
    }


def _resolved(program: Program, id: int, sizes: Mapping[str, int]) -> Layout:
    """The layout of a state before the first step: an axis that no input tells is empty."""
    dtype, shape = program.values[id].layout
    name = program.values[id].name
    if dtype is None or shape is None:
        raise InputError(f"input '{name}' has no shape in the model", hint="give it to the first step")
    dims: list[int] = []
    for dim in shape:
        if isinstance(dim, Dim) and dim.name is None:
            raise InputError(f"input '{name}' is {show_shape(shape)} in the model", hint="give it to the first step")
        dims.append(sizes.get(dim.name or "", 0) if isinstance(dim, Dim) else dim)
    return Layout(dtype, tuple(dims))
