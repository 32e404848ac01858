"""How is a shape planned that was never seen? By the formulas that planning another shape has left.

Planning once with ints that remember how they were calculated (`traced_int.py`) leaves formulas for every size, stride
and offset of the plan, and the answers that its decisions relied on. For other sizes with the same answers, a recipe
gives in a fraction of the time the plan that planning would give: the same launches, with other numbers.

A recipe is trusted only after its plans were compared with those that planning gave: at once at the sizes that it was
made from, for which it then may be used; and twice at others, for all sizes of which those that have not varied are as
they were. A recipe that was wrong is dropped, and none is made for that model again.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import AsyncrtError
from asyncrt.graph.ir import Program
from asyncrt.kernels.decide import Skip
from asyncrt.kernels.impl import KernelChoice
from asyncrt.kernels.indices import Indices
from asyncrt.kernels.resident.weights import Packing
from asyncrt.layout import Array, DataType, Layout, Shape
from asyncrt.memory.arena import Lifetimes
from asyncrt.runtime.cooperative import Slices, finished

from .chunk_plan import (
    BufferName,
    ChunkPlan,
    Deferred,
    Fetch,
    Home,
    KeptTensor,
    Looked,
    NodeRecord,
    Pack,
    PlanStep,
    ReadBlock,
    State,
    Upload,
    start_state,
)
from .memory_plan import MemoryPlan, aligned, staged_bytes
from .parallel_lanes import Cost, LaneFinder, LanePlan, costs_of
from .planner import list_chunk
from .step_table import StepRecipe, StepTable, step_table
from .tensors import Closed, Location, PlannedTensor
from .tools import Tools
from .traced_int import MARK, Recording, Unfollowed, Witness, text

_CHECKS = 2
_SLICE = 16  # steps that are written down without an interruption
_BOUND_SLICE = 64  # and that are made by recipe, which takes some 50 us, or in C
_NATIVE_SLICE = 512


_Pick: TypeAlias = Callable[[Sequence[int]], tuple[int, ...]]


def _pick(places: tuple[int, ...]) -> _Pick:
    """Return what takes the numbers at those places out of all, in less time than a loop."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    first = places[0] if places else 0
    return operator.itemgetter(slice(first, first + len(places)))


class _Picks(NamedTuple):
    """What takes the numbers of a step out of all."""

    bases: _Pick
    offsets: _Pick
    ints: _Pick
    grid: _Pick
    local: _Pick


class _Made(NamedTuple):
    """The steps that a recipe gave last, and what they were made of."""

    numbers: tuple[int, ...]
    base: tuple[int, ...]
    steps: tuple[PlanStep, ...]


class _StagedRecipe(NamedTuple):
    """A tensor that travels with others: bytes that are known, or ints of a dtype; then how many bytes it has, and
    whether it goes up."""

    data: bytes | None
    elements: tuple[int, ...]
    dtype: Any
    nbytes: int
    up: bool = True


class _BlockRecipe(NamedTuple):
    """What comes down together: the first of the tensors that travel together, and of each launch that looks at
    indices the node, the input, and the least and the greatest of each range."""

    first: int
    looked: tuple[tuple[str, int, tuple[tuple[int, int | None], ...]], ...]

    def block(self, offset: int, nbytes: int, numbers: Sequence[int]) -> ReadBlock:
        return ReadBlock(offset, nbytes, tuple([
            Looked(node, Indices(index, tuple([(numbers[a], None if b is None else numbers[b]) for a, b in ranges])))
            for node, index, ranges in self.looked
        ]))  # fmt: skip


class _KeptRecipe(NamedTuple):
    tensor: KeptTensor
    shape: tuple[int, ...]
    capacity: tuple[int, ...]
    new: int


class _Staging(NamedTuple):
    """What travels together: where each tensor begins in it, how many bytes it has, and those that go up."""

    offsets: list[int]
    nbytes: int
    data: bytes


@attrs.define(eq=False)
class Recipe:
    """How to make plans.

    Attributes:
        numbers: Gives all numbers for sizes; the other attributes speak of them by their places.
        lifetimes, roots: Of the tensors that get a place in the arena; -1 stands for what travels together.
        staged: What travels together.
        uploads: Value, tensor, offset, bytes, and whether it travels with others.
        steps: Launches.
        fetches: Value, dtype, shape, buffer, tensor, offset, the input whose bytes it is, and whether it comes with the
            findings.
        block: What comes down with it.
        kept: What a sequence keeps.
        packings, skipped: As the plan's.
        pack: The device's packing of a launch's offsets and sizes.
        spreading: Finds lanes for the steps; None where there is to be one.
        costs: Of each step, its work-groups and the bytes that it reads, for that.
        witness: The sizes that it was made from.
        unseen: Which of them have not been others yet in what it was compared with.
        table: Makes the launches in C, where that was built.
    """

    numbers: Callable[..., tuple[int, ...] | None]
    lifetimes: Lifetimes
    roots: tuple[int, ...]
    staged: tuple[_StagedRecipe, ...]
    uploads: tuple[tuple[int, int, int, int, bool], ...]
    steps: tuple[StepRecipe, ...]
    fetches: tuple[tuple[int, Layout, tuple[int, ...], BufferName | None, int, int, int | None, bool], ...]
    block: _BlockRecipe | None
    kept: tuple[_KeptRecipe, ...]
    packings: tuple[Packing, ...]
    skipped: int
    pack: Pack
    spreading: LaneFinder | None
    costs: tuple[tuple[int, int], ...]
    witness: tuple[int, ...]
    unseen: set[int]
    table: StepTable | None = None
    _checks: int = 0
    _witnessed: bool = False
    #: Most steps of a decoder are the same at its next length.
    _latest: _Made | None = None
    _readers: dict[int, frozenset[int]] | None = None
    _picks: list[_Picks] | None = None

    @property
    def trusted(self) -> bool:
        """Whether what it gives for any sizes has been compared often enough."""
        return self._checks >= _CHECKS and not self.unseen

    def trusted_for(self, sizes: tuple[int, ...]) -> bool:
        """Whether what it gives for *sizes* has been compared often enough.

        Decisions may hold for few sizes, and others that they hold for need not exist: then some sizes never vary.
        """
        if self._checks < _CHECKS:
            return sizes == self.witness and self._witnessed
        return not self.unseen or all(sizes[i] == self.witness[i] for i in self.unseen)

    def checked(self, sizes: tuple[int, ...]) -> None:
        """Note that it gave the right plan for *sizes*."""
        if sizes == self.witness:
            self._witnessed = True
            return
        self._checks += 1
        self.unseen -= {i for i, (a, b) in enumerate(zip(sizes, self.witness, strict=True)) if a != b}

    def let_go(self) -> None:
        """Hold no plan that it has given: nobody is to ask for one that is nearly the same."""
        self._latest = None

    def learns_by(self, sizes: tuple[int, ...]) -> bool:
        """Return whether `checked()` at *sizes* would tell something new, and the recipe holds for them."""
        if sizes == self.witness:
            return False
        new = self._checks < _CHECKS or any(sizes[i] != self.witness[i] for i in self.unseen)
        return new and self._numbers(sizes) is not None

    def plan(self, sizes: tuple[int, ...], records: Callable[[], tuple[NodeRecord, ...]]) -> ChunkPlan | None:
        """Return what `plan_in_slices()` does."""
        return finished(self.plan_in_slices(sizes, records))

    def plan_in_slices(
        self, sizes: tuple[int, ...], records: Callable[[], tuple[NodeRecord, ...]]
    ) -> Slices[ChunkPlan | None]:
        """Return the plan; None if planning would take other decisions, or says what is wrong with these sizes.

        Args:
            sizes: In the order of `sizes_of`.
            records: Makes the plan's records, if somebody asks for them.
        """
        try:
            return (yield from self._filled_in(self._numbers(sizes), records))
        except (OverflowError, struct.error):  # a number that does not fit where it belongs
            return None

    def _numbers(self, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return all numbers of the plan for *sizes*; None where planning would take other decisions."""
        try:
            return self.numbers(*sizes)
        except ZeroDivisionError:
            return None

    def _filled_in(
        self, numbers: tuple[int, ...] | None, records: Callable[[], tuple[NodeRecord, ...]]
    ) -> Slices[ChunkPlan | None]:
        """Return the plan that has these numbers."""
        if numbers is None:
            return None
        staged = self._stage(numbers)
        spread = self._spread(numbers)
        lengths = [staged.nbytes if r < 0 else numbers[r] for r in self.roots]
        arena = (self.lifetimes if spread is None else spread.lifetimes).place(lengths)
        yield
        staging = arena.offsets[-1] if staged.offsets else 0
        # Where each tensor begins: those of the arena, those that travel together, and 0 for memory of others.
        base = (*arena.offsets, *(staging + s for s in staged.offsets), 0)
        steps, shared = yield from self._bound_steps(numbers, base)
        return ChunkPlan(
            chunk=0,
            arena_nbytes=arena.nbytes,
            staging=staged.data,
            staging_offset=staging,
            uploads=tuple([
                Upload(v, base[b] + numbers[o] - (staging if together else 0), numbers[n], together)
                for v, b, o, n, together in self.uploads
            ]),
            steps=steps,
            shared=shared,
            packings=self.packings,
            fetches=self._bound_fetches(numbers, base),
            records=Deferred(records),
            skipped=self.skipped,
            after=State((), (), (), self._kept_tensors(numbers)),
            lanes=None if spread is None else spread.lanes,
            block=None if self.block is None else self.block.block(
                staging + staged.offsets[self.block.first], staged.nbytes - staged.offsets[self.block.first], numbers
            ),
        )  # fmt: skip

    def _stage(self, numbers: tuple[int, ...]) -> _Staging:
        """Lay out what travels together, and write what goes up.

        Raises:
            OverflowError: A number does not fit the dtype of the tensor that it is an element of.
        """
        offsets: list[int] = []
        parts: list[bytes] = []
        nbytes = 0
        for data, elements, dtype, size, up in self.staged:
            offsets.append(nbytes)
            nbytes += aligned(numbers[size])
            if up and data is None:
                array = np.array([numbers[e] for e in elements], dtype) if elements else None
                data = staged_bytes(array, numbers[size])
            if data is not None:
                parts.append(data)
        return _Staging(offsets, nbytes, b"".join(parts))

    def _spread(self, numbers: tuple[int, ...]) -> LanePlan | None:
        """Find lanes for the steps, if there are to be several."""
        if self.spreading is None:
            return None
        return self.spreading.spread([Cost(numbers[groups], numbers[nbytes]) for groups, nbytes in self.costs])

    def _bound_steps(
        self, numbers: tuple[int, ...], base: tuple[int, ...]
    ) -> Slices[tuple[tuple[PlanStep, ...], int]]:
        """Return the launches, for tensors that begin at *base*, and how many are those of the plan before.

        Raises:
            struct.error, OverflowError: A number does not fit into a launch's record; planning says what does not fit.
        """
        before = self._latest
        steps: list[Any] = [None] * len(self.steps) if before is None else list(before.steps)
        if self.table is not None:
            shared = 0
            for begin in range(0, len(steps), _NATIVE_SLICE):
                end = min(begin + _NATIVE_SLICE, len(steps))
                shared += self.table.put(steps, begin, end, numbers, base, before and (before.numbers, before.base))
                yield
        else:
            places = range(len(steps)) if before is None else self._differing(before, numbers, base)
            shared = len(steps) - len(places)
            if self._picks is None:
                self._picks = [_Picks(*map(_pick, step[-5:])) for step in self.steps]
            for done, place in enumerate(places, 1):
                steps[place] = self._bound_step(self.steps[place], self._picks[place], numbers, base)
                if done % _BOUND_SLICE == 0:
                    yield
        self._latest = _Made(numbers, base, tuple(steps))
        return self._latest.steps, shared

    def _bound_step(
        self, step: StepRecipe, picks: _Picks, numbers: tuple[int, ...], base: tuple[int, ...]
    ) -> PlanStep:
        """As `_steps.c` does it."""
        kernel = step.kernel if step.chosen < 0 else step.kernel(numbers[step.chosen])
        sizes, grid, local = picks.ints(numbers), picks.grid(numbers), picks.local(numbers)
        record = self.pack(list(map(operator.add, picks.bases(base), picks.offsets(numbers))), sizes)
        return PlanStep(step.node, kernel, step.buffers, record, grid, step.group, local, None, sizes, step.varying)

    def _differing(self, before: _Made, numbers: tuple[int, ...], base: tuple[int, ...]) -> Sequence[int]:
        """Return the places of the steps that are made of other numbers now."""
        if self._readers is None:
            self._readers = _readers(self.steps)
        differing = [n for n, (a, b) in enumerate(zip(before.numbers, numbers, strict=True)) if a != b]
        differing += [~n for n, (a, b) in enumerate(zip(before.base, base, strict=True)) if a != b]
        found: set[int] = set()
        for number in differing:
            found |= self._readers.get(number, frozenset())
            if len(found) == len(self.steps):
                break
        return sorted(found)

    def _bound_fetches(self, numbers: tuple[int, ...], base: tuple[int, ...]) -> tuple[Fetch, ...]:
        return tuple([
            Fetch(
                v, Layout(layout.dtype, tuple([numbers[d] for d in shape])),
                None if buffer is None else Home(buffer, base[b] + numbers[o]), source,
                0 if source is None else numbers[o], together=together,
            )
            for v, layout, shape, buffer, b, o, source, together in self.fetches
        ])  # fmt: skip

    def _kept_tensors(self, numbers: tuple[int, ...]) -> tuple[KeptTensor, ...]:
        def layout(dtype: DataType, shape: tuple[int, ...]) -> Layout:  # most are alike
            key = dtype.name, shape
            if key not in layouts:
                layouts[key] = Layout(dtype, tuple([numbers[d] for d in shape]))
            return layouts[key]

        layouts: dict[tuple[str, tuple[int, ...]], Layout] = {}
        return tuple([
            KeptTensor(
                tensor.input, tensor.output, layout(tensor.layout.dtype, shape),
                layout(tensor.layout.dtype, capacity).shape, numbers[new], tensor.done,
            )
            for tensor, shape, capacity, new in self.kept
        ])  # fmt: skip


def _readers(steps: Iterable[StepRecipe]) -> dict[int, frozenset[int]]:
    """Return which steps are made of each number, and of the beginning of each tensor."""
    found: dict[int, set[int]] = {}
    for place, step in enumerate(steps):
        for number in step.reads:
            found.setdefault(number, set()).add(place)
    return {number: frozenset(places) for number, places in found.items()}


def sizes_of(layouts: list[Layout], axes: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Return the numbers that a plan is made from: dims of the inputs."""
    return tuple([layouts[i].shape[a] for i, a in axes])


def dynamic_axes(program: Program) -> tuple[tuple[int, int], ...]:
    """Return input and axis of each dim that requests choose; of those of one name, which are equal, the first.

    There are none where an input may have any rank: no list of sizes says then what a request is.
    """
    seen: set[str] = set()
    axes: list[tuple[int, int]] = []
    for position, id in enumerate(program.inputs):
        shape = program.values[id].layout.shape
        if shape is None:
            return ()
        for axis, dim in enumerate(shape):
            if isinstance(dim, Dim) and (dim.name is None or dim.name not in seen):
                axes.append((position, axis))
                if dim.name is not None:
                    seen.add(dim.name)
    return tuple(axes)


def make_recipe(
    program: Program, layouts: list[Layout], values: Mapping[int, Array], kept: tuple[KeptTensor, ...], tools: Tools
) -> Slices[Recipe | None]:
    """Plan once with witnesses; returns None if the plan has something that is no formula.

    Args:
        layouts: Of the inputs; *values* and *kept* as for `start_state`. The recipe is for those values, and for what
            there is room for in what is kept.
    """
    if any(program.values[id].layout.shape is None for id in program.inputs):
        return None  # its axes have no numbers: of a value that a Loop carries, say
    recording = Recording()
    sizes = sizes_of(layouts, dynamic_axes(program))
    witnesses = [recording.size(s) for s in sizes]
    seen, before = _witnessed(program, layouts, kept, witnesses)
    state = start_state(program, seen, dict(values), before)
    try:
        memory, records = yield from list_chunk(program, program.chunks[0], state, tools)
        skipped = sum(isinstance(r.decision, Skip) for r in records)
        return (yield from _RecipeWriter(memory, memory.close(), recording, sizes).write(skipped, tools.pack))
    except (Unfollowed, AsyncrtError, OverflowError):  # the last: a value is beyond what its dtype holds
        return None


def _witnessed(
    program: Program, layouts: list[Layout], kept: tuple[KeptTensor, ...], witnesses: list[Witness]
) -> tuple[list[Layout], tuple[KeptTensor, ...]]:
    """The same layouts and kept tensors, with witnesses for the sizes."""
    given = iter(witnesses)
    axes = dynamic_axes(program)
    first = {at: next(given) for at in axes}
    named = {program.values[program.inputs[i]].layout.shape[a].name: first[i, a] for i, a in axes}  # type: ignore
    seen: list[Layout] = []
    for position, (id, layout) in enumerate(zip(program.inputs, layouts, strict=True)):
        dims: list[int] = []
        for axis, (dim, size) in enumerate(zip(program.values[id].layout.shape or (), layout.shape, strict=True)):
            found: int | None = size
            if isinstance(dim, Dim):
                found = first.get((position, axis)) if dim.name is None else named[dim.name]
            assert found is not None
            dims.append(found)
        seen.append(Layout(layout.dtype, tuple(dims)))
    by_input = dict(zip(program.inputs, seen, strict=True))
    before = tuple([k._replace(layout=by_input[k.input]) if k.layout.count else k for k in kept])
    return seen, before


class _RecipeWriter:
    """Writes down what a planner has listed; each number becomes its place among the formulas' results."""

    def __init__(self, memory: MemoryPlan, closed: Closed, recording: Recording, sizes: tuple[int, ...]) -> None:
        self._memory, self._closed = memory, closed
        self._recording, self._sizes = recording, sizes
        self._results: list[int] = []
        self._places: dict[str, int] = {}
        bases = [*closed.roots, *closed.staged]
        self._bases = {tensor: number for number, tensor in enumerate(bases)}

    def write(self, skipped: int, pack: Pack) -> Slices[Recipe]:
        closed, memory = self._closed, self._memory
        if closed.staged and closed.roots[-1] is not closed.staging:
            raise Unfollowed
        apart = set(closed.staged)
        if any(t.used and t.array is not None and t not in apart for t in memory.tensors):
            raise Unfollowed
        steps: list[StepRecipe] = []
        for listed in memory.launches:
            steps.append(self._step(listed))
            if len(steps) % _SLICE == 0:
                yield
        uploads = tuple([
            (t.source, *self._at(Location(t, 0)), self._number(t.nbytes), t in apart)
            for t in memory.tensors
            if t.used and t.source is not None and t.nbytes
        ])  # fmt: skip
        roots = tuple([-1 if t is closed.staging else self._number(_at_least_one(t.nbytes)) for t in closed.roots])
        staged = tuple([self._staged(t)._replace(up=t in closed.up) for t in closed.staged])
        fetches = tuple([self._fetch(*fetch) for fetch in closed.fetches])
        block = self._block()
        kept = tuple([
            _KeptRecipe(k, self._all(k.layout.shape), self._all(k.capacity), self._number(k.new)) for k in memory.kept
        ])
        packings = self._packings()
        spreading = None if memory.branches is None else memory.branches.spreading(memory.launches, closed)
        costs = () if spreading is None else self._costs()
        yield
        lifetimes = Lifetimes([(t.first, t.last) for t in closed.roots])
        yield
        numbers = yield from self._recording.compiled(self._results)
        self._recording.forget()  # kernels that a number chooses hold witnesses
        return Recipe(
            spreading=spreading,
            costs=costs,
            lifetimes=lifetimes,
            roots=roots,
            staged=staged,
            uploads=uploads,
            steps=tuple(steps),
            fetches=fetches,
            block=block,
            kept=kept,
            packings=packings,
            skipped=skipped,
            pack=pack,
            witness=self._sizes,
            unseen={i for i in range(len(self._sizes)) if f"x{i}" not in self._recording.fixed},
            numbers=numbers,
            table=step_table(tuple(steps), len(self._bases) + 1, pack),
        )  # fmt: skip

    def _costs(self) -> tuple[tuple[int, int], ...]:
        found = costs_of(self._memory.program, self._memory.launches)
        return tuple([(self._number(groups), self._number(nbytes)) for groups, nbytes in found])

    def _packings(self) -> tuple[Packing, ...]:
        packings = tuple(self._memory.packings.values())
        if any(MARK in packing.key.layout for packing in packings):
            raise Unfollowed
        return packings

    def _number(self, value: int) -> int:
        """The place of a number among the results."""
        key = text(value)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._results)
            self._results.append(value)
        return place

    def _all(self, values: Shape) -> tuple[int, ...]:
        return tuple([self._number(v) for v in values])

    def _at(self, place: Location) -> tuple[int, int]:
        """The tensor and the offset of a place."""
        base, offset = place.base, place.offset
        if isinstance(base, Home):
            return -1, self._number(base.offset + offset)
        while base.whole is not None:
            offset, base = base.offset + offset, base.whole
        return self._bases[base], self._number(offset)

    def _buffer(self, place: Location) -> BufferName:
        return place.base.buffer if isinstance(place.base, Home) else 0

    def _step(self, listed: Any) -> StepRecipe:
        node, _, launch, places, _, _ = listed
        if launch.group is not None and any(isinstance(n, Witness) for n in launch.group):
            raise Unfollowed
        kernel: Any = launch.kernel
        chosen = -1
        if isinstance(kernel, KernelChoice):
            chosen = self._number(kernel.number)
            if MARK in kernel.now.text:
                raise Unfollowed
            kernel = kernel.kernel
        elif MARK in kernel.text:
            raise Unfollowed
        at = [self._at(p) for p in places if self._there(p)]
        return StepRecipe(
            node,
            kernel,
            tuple([self._buffer(p) for p in places if self._there(p)]),
            launch.group,
            launch.varying,
            chosen,
            tuple([base for base, _ in at]),
            tuple([offset for _, offset in at]),
            self._all(launch.ints),
            self._all(launch.grid),
            self._all(launch.local),
        )

    def _there(self, place: Location) -> bool:
        base = place.base
        return not isinstance(base, PlannedTensor) or base.used or (base.source is None and base.array is None)

    def _staged(self, tensor: PlannedTensor) -> _StagedRecipe:
        size, array = self._number(tensor.nbytes), tensor.array
        if array is None:
            return _StagedRecipe(None, (), None, size)
        if array.dtype != object:
            return _StagedRecipe(staged_bytes(array, tensor.nbytes), (), None, size)
        dtype = self._dtypes()[id(array)]
        return _StagedRecipe(None, self._all(tuple(array.reshape(-1).tolist())), dtype, size)

    def _block(self) -> _BlockRecipe | None:
        closed = self._closed
        if not closed.down:
            return None
        return _BlockRecipe(closed.staged.index(closed.down[0]), tuple([
            (node, indices.input, tuple([
                (self._number(least), None if most is None else self._number(most)) for least, most in indices.ranges
            ]))
            for node, indices in self._memory.looked
        ]))  # fmt: skip

    def _dtypes(self) -> dict[int, Any]:
        """What the dtype of values is that are arrays of witnesses meanwhile."""
        layouts = self._memory.layouts
        return {
            id(array): layout.dtype.numpy
            for array, layout in zip(self._memory.values, layouts, strict=True)
            if array is not None and array.dtype == object and layout is not None
        }

    def _fetch(
        self, value: int, layout: Layout, place: Location | None, array: Array | None
    ) -> tuple[int, Layout, tuple[int, ...], BufferName | None, int, int, int | None, bool]:
        if place is None or array is not None:
            raise Unfollowed
        shape, base = self._all(layout.shape), place.base
        plain = Layout(layout.dtype, ())
        if isinstance(base, PlannedTensor) and base.source is not None:
            return value, plain, shape, None, -1, self._number(place.offset), base.source, False
        return value, plain, shape, self._buffer(place), *self._at(place), None, base in self._closed.down


def _at_least_one(nbytes: int) -> int:
    return nbytes if nbytes > 0 else 1
