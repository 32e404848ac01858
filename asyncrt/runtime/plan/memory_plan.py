"""Where each value of a chunk lies: tensors of one arena, parts of tensors, views of them, constants.

While a chunk is planned, launches are listed with the places of their buffers; offsets come when it ends, so that a
tensor may become part of another after the launch that makes it was listed.
"""

from __future__ import annotations

import struct

import numpy as np

from asyncrt.errors import SizeLimitError
from asyncrt.graph.ir import FOREVER, Chunk, Program, ProgramNode
from asyncrt.kernels.call import Call
from asyncrt.kernels.decide import Skip
from asyncrt.kernels.impl import Impl, Launch
from asyncrt.kernels.indices import FINDING, Indices
from asyncrt.kernels.reach import check_launch, unfit
from asyncrt.kernels.resident.weights import Packing, Stored
from asyncrt.layout import Array, Layout, show_shape
from asyncrt.memory.arena import ALIGNMENT, Interval, plan_arena
from asyncrt.memory.view import View
from asyncrt.runtime.cooperative import LONG, Slices

from .chunk_plan import (
    ChunkPlan,
    Fetch,
    Home,
    Kept,
    Looked,
    NodeRecord,
    Origin,
    Pack,
    PlanStep,
    ReadBlock,
    State,
    Upload,
)
from .parallel_lanes import Branches
from .tensors import Closed, Fetched, Listed, Location, PlannedTensor

_SLICE = 12  # launches that are given their places without an interruption
STAGED = 4096  # bytes: larger inputs, and results, are not worth a copy to travel with the others
# Bytes of a result that comes down with what was found about indices. A transfer costs the host some 6 µs, one on its
# caller's thread, which is little for a larger one; and its bytes are then no others' for as long as the chunk lasts.
TOGETHER = 1 << 18


class MemoryPlan:
    """The memory of one chunk at one set of shapes.

    Args:
        state: What is known before the chunk.
        layouts, values: Of every value as far as they are known; they grow while the chunk is planned.
        pack: The device's packing of a launch's offsets and sizes.
        origins: Whether steps keep what they were made from.
        branches: Whether branches run side by side; None: one after the other.
        apart: See `Tools`.
    """

    def __init__(
        self,
        program: Program,
        chunk: Chunk,
        state: State,
        layouts: list[Layout | None],
        values: list[Array | None],
        pack: Pack,
        *,
        origins: bool = False,
        branches: Branches | None = None,
        apart: int = 0,
    ) -> None:
        self._apart = apart
        self.program, self.chunk, self.inputs = program, chunk, program.arriving
        self.layouts, self.values, self._pack, self._origins = layouts, values, pack, origins
        self.places: list[Location | None] = [
            None if h is None else Location(h, 0, state.views.get(v)) for v, h in enumerate(state.homes)
        ]
        self.kept = list(state.kept)
        self.branches = branches
        self.tensors: list[PlannedTensor] = []
        self.launches: list[Listed] = []
        self.packings: dict[Stored, Packing] = {}
        #: The findings of launches that look at indices, and what each of those looks at.
        self.findings = PlannedTensor(0, -1, FOREVER)
        self.looked: list[Looked] = []
        #: What the nodes make of branches that are not taken.
        self.absent: set[int] = set()

    def read(self, place: Location, at: int) -> None:
        """Note that a kernel of node *at* reads what lies there."""
        base = place.base
        if isinstance(base, PlannedTensor):
            base.used = True
            base.last = max(base.last, at)
        elif isinstance(base.buffer, Stored):
            self.packings.setdefault(base.buffer, Packing(base.buffer))

    def tensor(self, nbytes: int, first: int, value: int) -> PlannedTensor:
        """A new tensor for *value*, made by node *first*."""
        tensor = PlannedTensor(nbytes, first, max(self.program.last_use[value], first))
        self.tensors.append(tensor)
        return tensor

    def place_of(self, id: int | None) -> Location:
        """Where a value lies; what only the host has so far is uploaded at the chunk's start."""
        assert id is not None
        place = self.places[id]
        if place is None:
            layout = self.layouts[id]
            assert layout is not None
            if self.program.values[id].constant is not None:
                place = Location(Home(Stored(id), 0), 0)
            else:
                source = id if id in self.inputs else None
                tensor = PlannedTensor(layout.nbytes, -1, self.program.last_use[id], source)
                if source is None:
                    tensor.array = self.values[id]
                    assert tensor.array is not None, self.program.values[id].name
                place = Location(tensor, 0)
                self.tensors.append(tensor)
            self.places[id] = place
        return place

    def scratch(self, nbytes: int, node: int) -> Location:
        """A place that only *node* uses."""
        tensor = PlannedTensor(nbytes, node, node)
        self.tensors.append(tensor)
        return Location(tensor, 0)

    def finding(self, node: ProgramNode, indices: Indices) -> Location:
        """Where a launch of *node* that looks at *indices* leaves what it finds; zeros when the chunk begins."""
        finding = PlannedTensor(FINDING.nbytes, -1, FOREVER, offset=self.findings.nbytes, whole=self.findings)
        self.findings.nbytes += FINDING.nbytes
        self.looked.append(Looked(node.name, indices))
        return Location(finding, 0)

    def launch(
        self,
        node: int,
        call: Call,
        launch: Launch,
        places: tuple[Location, ...],
        *,
        impl: Impl | None = None,
        written: tuple[View, ...] = (),
    ) -> None:
        """List a launch of *node*; offsets come when the chunk ends.

        Args:
            impl: What it is part of; None: it is a copy.
            written: How each of its outputs lies, where not all are dense.

        Raises:
            SizeLimitError: Its kernel cannot index what it touches.
        """
        impl = impl or Impl("copy", (launch,))
        check_launch(call, launch, impl, written)
        self.launches.append(Listed(node, call, launch, places, impl.scratch, written))

    def finish(self, records: list[NodeRecord]) -> Slices[ChunkPlan]:
        """Lay all tensors out in one arena and return the plan."""
        closed = self.close()
        staging, parts = closed.staging, []
        for tensor in closed.staged:
            tensor.offset = staging.nbytes
            staging.nbytes += aligned(tensor.nbytes)
        for tensor in closed.up:
            parts.append(staged_bytes(tensor.array, tensor.nbytes))
        spread, noted = None, None
        if self.branches is not None:
            spread, noted = self.branches.spread(self.program, self.launches, closed, records)
        if spread is None:
            arena = plan_arena([Interval(max(t.nbytes, 1), t.first, t.last) for t in closed.roots])
        else:
            arena = spread.lifetimes.place([max(t.nbytes, 1) for t in closed.roots])
        yield
        for tensor, offset in zip(closed.roots, arena.offsets, strict=True):
            tensor.offset = offset
        for tensor in closed.staged:
            tensor.offset += staging.offset
        staged = set(closed.staged)
        uploads = tuple(
            Upload(-1 if t.source is None else t.source, t.position - (staging.offset if t in staged else 0), t.nbytes,
                   t in staged, t.array)
            for t in self.tensors
            if t.used and t.nbytes and (t.source is not None or (t.array is not None and t not in staged))
        )  # fmt: skip
        steps: list[PlanStep] = []
        for listed in self.launches:
            steps.append(self._step(listed))
            if len(steps) % _SLICE == 0:
                yield
        homes = tuple([None if p is None or not self._stays(p) else self._home(p) for p in self.places])
        views = {v: p.view for v, p in enumerate(self.places) if p is not None and p.view is not None and homes[v]}
        return ChunkPlan(
            chunk=self.chunk.index,
            arena_nbytes=arena.nbytes,
            staging=b"".join(parts),
            staging_offset=staging.offset,
            uploads=uploads,
            steps=tuple(steps),
            packings=tuple(self.packings.values()),
            fetches=tuple(self._bind_fetch(f, closed) for f in closed.fetches),
            records=noted or tuple(records),
            skipped=sum(isinstance(r.decision, Skip) for r in records),
            after=State(tuple(self.layouts), tuple(self.values), homes, tuple(self.kept), views),
            lanes=None if spread is None else spread.lanes,
            block=self._block(closed),
        )

    def _block(self, closed: Closed) -> ReadBlock | None:
        if not closed.down:
            return None
        begin = closed.down[0].offset
        return ReadBlock(begin, closed.staging.offset + closed.staging.nbytes - begin, tuple(self.looked))

    def close(self) -> Closed:
        """Note what outlives the chunk and what travels together; no launch may be listed any more."""
        fetches = [self._fetch(v) for v in self.chunk.reads if v not in self.absent]
        if self.chunk is self.program.chunks[-1]:
            kept = {k.output for k in self.kept}
            fetches += [self._fetch(v) for v in self.program.outputs if v not in kept]
        else:
            self._keep_aliases()
        # Small host values and inputs lie side by side, so that they travel in one transfer.
        uploads = [t for t in self.tensors if t.used and (t.array is not None or t.source is not None)]
        up = [t for t in uploads if (t.nbytes <= STAGED if t.array is None else t.array.nbytes < LONG)]
        looked = [self.findings] if self.looked else []
        # A few of them are not worth a copy where a transfer is no more than a call.
        if not looked and len(up) <= self._apart and all(t.array is None for t in up):
            up = []
        down = looked + self._together(fetches, with_findings=bool(looked))
        up += looked
        staged = up + down
        staging = PlannedTensor(0, -1, max((t.last for t in staged), default=-1))
        apart = set(staged)
        tensors = [t for t in self.tensors if t not in apart and (t.used or (t.source is None and t.array is None))]
        if staged:
            tensors.append(staging)
        for tensor in tensors:
            whole = tensor.whole
            while whole is not None:
                whole.first, whole.last = min(whole.first, tensor.first), max(whole.last, tensor.last)
                whole = whole.whole
        return Closed(fetches, up, down, staging, [t for t in tensors if t.whole is None])

    def _together(self, fetches: list[Fetched], *, with_findings: bool) -> list[PlannedTensor]:
        """The tensors of results that are made to lie side by side, so that they travel in one transfer: small ones,
        and one that is not, behind the findings, where there is none that is."""
        read = [place.base for _, _, place, _ in fetches if place is not None]
        if len(read) < 2 and not with_findings:
            return []
        made = [
            base
            for base in dict.fromkeys(read)
            if isinstance(base, PlannedTensor) and base.whole is None and base.source is None and base.array is None
        ]
        small = [base for base in made if len(read) > 1 and base.nbytes <= STAGED]
        if with_findings and not small:
            return [base for base in made if base.nbytes <= TOGETHER and read.count(base) == 1][:1]
        return small if with_findings or len(small) > self._apart else []

    @staticmethod
    def _stays(place: Location) -> bool:
        """Whether a later chunk can have the value where it lies."""
        return place.view is None or (isinstance(place.base, Home) and isinstance(place.base.buffer, Kept))

    def _keep_aliases(self) -> None:
        """A later chunk can upload a host value itself, but not the part of one that an alias stands for."""
        for v, place in enumerate(self.places):
            if place is not None and isinstance(place.base, PlannedTensor) and self.program.last_use[v] == FOREVER:
                place.base.used |= v not in self.inputs and self.values[v] is None

    def _fetch(self, id: int) -> Fetched:
        """How the host gets a value: it has it already, or reads it."""
        layout = self.layouts[id]
        assert layout is not None
        if layout.count == 0:
            return id, layout, None, _nothing(self.program.values[id].name, layout)
        if self.places[id] is None and id not in self.inputs and self.values[id] is not None:
            return id, layout, None, self.values[id]
        place = self.place_of(id)
        base = place.base
        if isinstance(base, PlannedTensor):
            base.last = FOREVER
            if base.array is not None and not base.used:
                return id, layout, None, _part(base.array, place.offset, layout)
        elif isinstance(base.buffer, Stored) and not base.buffer.layout:
            constant = self.program.values[base.buffer.value].constant
            assert constant is not None
            return id, layout, None, _part(constant, base.offset + place.offset, layout)
        return id, layout, place, None

    def _bind_fetch(self, fetch: Fetched, closed: Closed) -> Fetch:
        id, layout, place, array = fetch
        if place is None:
            return Fetch(id, layout, array=array)
        if isinstance(place.base, PlannedTensor) and place.base.source is not None:
            return Fetch(id, layout, source=place.base.source, offset=place.offset)
        return Fetch(id, layout, home=self._home(place), together=place.base in closed.down)

    def _home(self, place: Location) -> Home | None:
        if isinstance(place.base, PlannedTensor):
            if not place.base.used and (place.base.source is not None or place.base.array is not None):
                return None  # nothing was uploaded; a later chunk that wants it uploads it
            return Home(self.chunk.index, place.base.position + place.offset)
        return Home(place.base.buffer, place.base.offset + place.offset)

    def _step(self, listed: Listed) -> PlanStep:
        node, call, launch, places, scratch, written = listed
        homes = [self._home(p) for p in places]
        offsets = [h.offset for h in homes if h is not None]
        try:
            record = self._pack(offsets, launch.ints)
        except struct.error as error:
            raise unfit(call, launch) from error
        buffers = tuple([h.buffer for h in homes if h is not None])
        origin = Origin(call, scratch, launch, tuple(offsets), written) if self._origins else None
        return PlanStep(
            node, launch.kernel, buffers, record, launch.grid, launch.group, launch.local,
            origin, launch.ints, launch.varying,
        )  # fmt: skip


def staged_bytes(array: Array | None, nbytes: int) -> bytes:
    """Return the bytes of a tensor that travels with others, with what is between it and the next."""
    data = b"" if array is None else np.ascontiguousarray(array).tobytes()
    return data.ljust(aligned(nbytes), b"\0")


def aligned(nbytes: int) -> int:
    """Return how many bytes there are from a tensor that travels with others to the next."""
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


def _nothing(name: str, layout: Layout) -> Array:
    """An array of no elements."""
    try:
        return np.empty(layout.shape, layout.dtype.numpy)
    except ValueError as error:  # NumPy multiplies what is not 0
        raise SizeLimitError(f"'{name}': no array has the shape {show_shape(layout.shape)}") from error


def _part(array: Array, offset: int, layout: Layout) -> Array:
    """The tensor of *layout* that lies *offset* bytes into *array*."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat[offset : offset + layout.nbytes].view(layout.dtype.numpy).reshape(layout.shape)
