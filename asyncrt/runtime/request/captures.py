"""What a body takes from outside in every iteration lies on the device as long as its node runs, and goes up once.

A sequence keeps tensors on the device between its steps; so does a node between its iterations, except that these come
from outside and are only read. From the second iteration on: one that runs once takes them like a request's inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from asyncrt.events import Event
from asyncrt.graph.ir import Program
from asyncrt.layout import Array, layout_of
from asyncrt.memory.buffer import Lease
from asyncrt.runtime.execute.kept_state import KeptState
from asyncrt.runtime.plan.between_steps import between
from asyncrt.runtime.plan.chunk_plan import KeptTensor
from asyncrt.runtime.plan.memory_plan import STAGED
from asyncrt.runtime.watch.watched import WatchedStream

from .compiled_model import CompiledModel


class Captures:
    """What one body takes from outside while its node runs for one request.

    Args:
        model: The body's.
        request: The number of the request.
        captured: By the ids of the body's inputs.
    """

    def __init__(self, model: CompiledModel, request: int, captured: Mapping[int, Array]) -> None:
        self._model, self._request = model, request
        may_stay = stays_on_device(model.program)
        self._arrays = {id: a for id, a in captured.items() if id in may_stay and a.nbytes > STAGED}
        self._runs = 0
        self._kept: KeptState | None = None

    async def of_next(self, arrays: Mapping[int, Array]) -> tuple[Mapping[int, Array], KeptState | None]:
        """Return what the next iteration is given of *arrays*, all its inputs, and what it finds on the device."""
        self._runs += 1
        if self._runs < 2 or not self._arrays:
            return arrays, None
        if self._kept is None:
            self._kept = await self._bring()
        return {id: array for id, array in arrays.items() if id not in self._arrays}, self._kept

    def close(self) -> None:
        """Give the memory back, when the device has passed what reads it."""
        if self._kept is not None:
            self._kept.close()

    async def _bring(self) -> KeptState:
        dispatcher, request = self._model.session.dispatcher, self._request
        leases: list[Lease | None] = []
        events: list[Event] = []
        try:
            stream = await dispatcher.place(request)
            waits: tuple[Event, ...] = ()
            for array in self._arrays.values():
                acquired = await self._model.acquire(request, array.nbytes, stream)
                leases.append(acquired.lease)
                waits += acquired.waits
            await dispatcher.submissions.turn(stream)
            try:
                dispatcher.marks.wait_for(stream, waits)
                self._write(stream, leases)
            except BaseException:
                events.append(dispatcher.abandon(stream, leases))
                raise
            events.append(dispatcher.launched(request, stream, leases))
            await dispatcher.passed(request)
        except BaseException:
            for lease in leases:
                if lease is not None:
                    lease.drop(after=events)
            raise
        tensors = [KeptTensor(id, id, layout_of(a), a.shape) for id, a in self._arrays.items()]
        return KeptState(between(tensors), leases, tuple(events))

    def _write(self, number: int, leases: list[Lease | None]) -> None:
        stream = self._model.session.dispatcher.streams[number]
        watched = stream.launches(self._request, ()) if isinstance(stream, WatchedStream) else contextlib.nullcontext()
        with watched:
            for lease, array in zip(leases, self._arrays.values(), strict=True):
                assert lease is not None
                stream.write(lease.allocation, 0, array)


def stays_on_device(program: Program) -> frozenset[int]:
    """Return the inputs of a program of which nothing but kernels needs the contents."""
    elsewhere = {*program.outputs, *program.value_inputs}
    elsewhere.update(v for node in program.nodes if node.subgraphs for v in node.uses)
    return frozenset(program.inputs) - elsewhere
