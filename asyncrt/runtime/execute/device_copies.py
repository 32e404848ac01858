"""How is the state of several sequences laid side by side, so that one inference can take it?

New memory is allocated for each tensor, and the sequences' rows are copied to it on the device, as one request that has
no plan. What no row covers is filled with zeros: a past that is shorter than the longest one begins later, so that all
end at the same index, behind which the next step writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs

from asyncrt.devices.base import Stream
from asyncrt.events import Event
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, Launch, inp, out
from asyncrt.kernels.patterns.copy import copy_launch
from asyncrt.kernels.reach import check_launch
from asyncrt.layout import Layout, Shape
from asyncrt.memory.buffer import Lease
from asyncrt.memory.pool import Acquired
from asyncrt.memory.view import View
from asyncrt.runtime.loop.dispatcher import Dispatcher
from asyncrt.runtime.plan.accesses import Touch, strided
from asyncrt.runtime.plan.numpy_launches import reference_append
from asyncrt.runtime.plan.tools import Tools
from asyncrt.runtime.watch.watched import WatchedStream

Acquire: TypeAlias = Callable[[int, int, int], Awaitable[Acquired]]
"""Leases memory for a request: its number, how many bytes, and for which stream."""


class Box(NamedTuple):
    """Part of a tensor: from which index of each axis, and how many."""

    start: Shape
    shape: Shape


class _Copy(NamedTuple):
    """A launch from a source's memory to new memory.

    Attributes:
        source, target: Which of the sources, and of the new leases.
        launch: The kernel.
        record: Its arguments.
        touches: What it does with its buffers.
    """

    source: int
    target: int
    launch: Launch
    record: Any
    touches: tuple[Touch, ...]


@attrs.define(eq=False)
class DeviceCopies:
    """Memory to be allocated, and copies to it.

    Attributes:
        new: Bytes of each allocation.
        zeroed: Which of them are filled with zeros first.
        sources: Leases of the memory that is read.
        after: Where the streams must come before that.
        copies: In any order; no two write the same bytes.
    """

    tools: Tools
    after: tuple[Event, ...] = ()
    new: list[int] = attrs.field(factory=list)
    zeroed: list[int] = attrs.field(factory=list)
    sources: list[Lease] = attrs.field(factory=list)
    copies: list[_Copy] = attrs.field(factory=list)

    @property
    def kernels(self) -> list[Any]:
        """The sources of the kernels that it launches."""
        return list(dict.fromkeys(copy.launch.kernel for copy in self.copies))

    def allocate(self, nbytes: int, *, zeroed: bool) -> int:
        """Ask for memory; returns its number."""
        self.new.append(nbytes)
        if zeroed:
            self.zeroed.append(len(self.new) - 1)
        return len(self.new) - 1

    def copy(
        self, source: Lease, src: tuple[Shape, Box], target: int, dst: tuple[Shape, Box], layout: Layout
    ) -> None:
        """Copy a box of a tensor that lies in *source* to one of the tensor in the new memory *target*.

        Args:
            src, dst: What there is room for in that memory, and the box; both boxes are of *layout*'s shape.

        Raises:
            SizeLimitError: The tensor is larger than kernels can index.
        """
        itemsize = layout.dtype.itemsize
        view, part = _view(*src), _view(*dst)
        memory, offset, view = view, view.offset * itemsize, view._replace(offset=0)
        if not self.tools.takes_source:
            launch: Launch | None = reference_append(layout, view, part, dst[0])
        else:
            launch = copy_launch(inp(0), view, out(0), part, itemsize, self.tools.traits)
        if launch is None:
            return
        call = Call("state side by side", Attributes(), (layout,), (None,), (layout,), strided=(view,))
        check_launch(call, launch, Impl("copy", (launch,)), (part,), hint="lower `max_batch`, or keep fewer steps")
        others = len(launch.buffers) - 1
        record = self.tools.pack([offset, *[0] * others], launch.ints)
        read = Touch(strided(memory, 0, itemsize), write=False)
        written = Touch(strided(part, 0, itemsize), write=True)
        self.sources.append(source)
        self.copies.append(_Copy(len(self.sources) - 1, target, launch, record, (read, *[written] * others)))

    async def carry_out(
        self, request: int, dispatcher: Dispatcher, kernels: Mapping[Any, Any], acquire: Acquire
    ) -> tuple[list[Lease], tuple[Event, ...]]:
        """Do all of it as an admitted request.

        Returns:
            Leases of the new memory, and the events after which it may be used.
        """
        sources = [lease.hold() for lease in self.sources]
        leases: list[Lease] = []
        events: list[Event] = []
        try:
            stream = await dispatcher.place(request)
            waits = self.after
            for nbytes in self.new:
                acquired = await acquire(request, nbytes, stream)
                leases.append(acquired.lease)
                waits += acquired.waits
            await dispatcher.submissions.turn(stream)
            try:
                dispatcher.marks.wait_for(stream, waits)
                self._enqueue(request, dispatcher.streams[stream], kernels, leases)
            except BaseException:
                events.append(dispatcher.abandon(stream, kernels))
                raise
            events.append(dispatcher.launched(request, stream, kernels))
            await dispatcher.passed(request)
        except BaseException:
            for lease in leases:
                lease.drop(after=events)
            raise
        finally:
            for lease in sources:
                lease.drop(after=events)
        return leases, tuple(events)

    def _enqueue(
        self, request: int, stream: Stream, kernels: Mapping[Any, Any], leases: Sequence[Lease]
    ) -> None:
        if isinstance(stream, WatchedStream):
            with stream.launches(request, [copy.touches for copy in self.copies]):
                self._launch(stream, kernels, leases)
        else:
            self._launch(stream, kernels, leases)

    def _launch(self, stream: Stream, kernels: Mapping[Any, Any], leases: Sequence[Lease]) -> None:
        for index in self.zeroed:
            stream.fill(leases[index].allocation, 0, self.new[index], 0)
        for source, target, launch, record, _ in self.copies:
            memory = leases[target].allocation
            buffers = [self.sources[source].allocation, *[memory] * (len(launch.buffers) - 1)]
            stream.launch(kernels[launch.kernel], buffers, record, launch.grid, launch.group, launch.local)


def _view(room: Shape, box: Box) -> View:
    view = View.dense(room)
    for axis, (start, count) in enumerate(zip(*box, strict=True)):
        view = view.slice(axis, start, count)
    return view
