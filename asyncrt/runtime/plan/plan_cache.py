"""Which plan does a request's chunk get: one kept, one by recipe, or a new one?"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import attrs

from asyncrt.errors import AsyncrtError, HazardError
from asyncrt.graph.ir import Chunk, Program
from asyncrt.kernels.resident.weights import Packing, Stored
from asyncrt.kinds import is_plain
from asyncrt.layout import Array, Layout
from asyncrt.lru import LruCache
from asyncrt.memory.host import HostBudget
from asyncrt.runtime.cooperative import Slices, finished
from asyncrt.runtime.plan.bound_plan import BoundPlan

from .chunk_plan import ChunkPlan, Deferred, KeptTensor, NodeRecord, PlanStep, State, start_state
from .likely_sizes import (
    BATCHES,
    CLOSER_SIZES,
    GPU_SIZES,
    LIKELY_ARENA,
    NBYTES,
    ODD_SIZES,
    SIZES,
    GuessAllowance,
    sample_layouts,
)
from .planner import prepare_in_slices
from .recipe import Recipe, dynamic_axes, make_recipe, sizes_of
from .tools import Tools, new_memo

_RECIPES = 96  # at most
_MAKES = 32  # recipes that are made before any has been of use
_WALKS = 96  # of sizes that lie close to others, when a model is loaded
KEYED_BYTES = 1 << 16
"""Values that a plan depends on are compared as bytes; above this, planning anew is cheaper."""
# Rough sizes of what a plan is made of, in bytes.
_STEP, _SHARED, _RECORD, _PLAN = 1200, 16, 250, 2000


class _Found(list[ChunkPlan]):
    """Plans, of each of which somebody is told."""

    def __init__(self, tell: Callable[[ChunkPlan], object]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, plan: ChunkPlan) -> None:
        super().append(plan)
        self._tell(plan)


@attrs.define(eq=False)
class Planned:
    """A plan, and what it is bound to while its kernels and constants are at hand. Whoever carries it out holds both:
    neither changes, but the plan may be bound anew for others.

    Attributes:
        nbytes: What it takes while it is kept, roughly.
        results: Bytes of what the host gets by it.
        fresh: Whether it was made before its step came, and that has not been carried out yet.
    """

    plan: ChunkPlan
    nbytes: int
    results: int
    bound: BoundPlan | None = None
    replays: int = 0
    fresh: bool = False


class PlanCounts(NamedTuple):
    """How many plans are kept, how many were made by recipe, and how many of those before their step came."""

    kept: int
    by_recipe: int
    foreseen: int


class Plans:
    """The plans of one network, and the recipes for more.

    Args:
        replay: Keep plans.
        recipes: Make plans by recipe.
        nbytes: How many bytes kept plans may take, roughly. The newest is kept whatever it takes.
    """

    def __init__(self, program: Program, tools: Tools, *, replay: bool, recipes: bool, nbytes: int) -> None:
        self._program = program
        self._tools = tools
        self._replay = replay
        #: By chunk and signature.
        self._kept: LruCache[tuple[int, Any], Planned] = LruCache(None, nbytes, sized=lambda planned: planned.nbytes)
        #: Recipes by the contents of what decides, and by what there is room for in what is kept; last used first.
        self._recipes: dict[Any, list[Recipe]] = {}
        self._axes = dynamic_axes(program)
        # A recipe is for all that a request does; and references of devices without kernels have their shapes in them.
        self._whole = len(program.chunks) == 1 and program.chunks[0].control is None
        self._follows = recipes and self._whole and tools.takes_source and bool(self._axes)
        self._follows = self._follows and all(is_plain(v.layout.dtype) for v in program.values)
        self.by_recipe = self._makes = 0
        #: Whether recipes are made elsewhere.
        self._scouted = False
        #: Kernels and constants of the plans for likely sizes.
        self._guessed: set[Any] = set()
        #: The most bytes that the arena of one of them has, of those that are no larger than is likely.
        self.likely_arena = 0
        self._one_lane: Plans | None = None
        if tools.branches is not None:
            one_lane = attrs.evolve(tools, branches=None)  # less of the arena is needed at a time
            self._one_lane = Plans(program, one_lane, replay=False, recipes=False, nbytes=1)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[ChunkPlan]:
        """The plans that are kept, least recently used first."""
        return (planned.plan for planned in self._kept.values())

    @property
    def frugal(self) -> Plans:
        """What makes plans for requests that memory is short for; where that is another one, it keeps none."""
        return self if self._one_lane is None else self._one_lane

    @property
    def follows(self) -> bool:
        """Whether plans are made by recipe; no more once one was wrong."""
        return self._follows

    @property
    def recipe_counts(self) -> list[int]:
        """How many recipes there are of each kind of values."""
        return [len(recipes) for recipes in self._recipes.values()]

    def find(self, chunk: Chunk, signature: Any) -> Planned | None:
        """Return the plan that is kept for the signature."""
        if not self._replay or signature is None:
            return None
        return self._kept.get((chunk.index, signature))

    def first(
        self,
        signature: Any,
        layouts: list[Layout],
        values: Mapping[int, Array],
        kept: tuple[KeptTensor, ...],
        budget: HostBudget,
        *,
        runs: bool = True,
        learns: bool = True,
    ) -> Slices[Planned]:
        """Plan the first chunk; no other plan of the network may be made at the same time.

        Args:
            signature: To keep the plan under; None keeps none.
            layouts, values, kept: As for `start_state`.
            budget: What the request may make on the host.
            runs: Whether it will be carried out; otherwise nobody will check what its steps touch.
            learns: Whether to make a recipe if there is none for such a plan.
        """
        chunk, before = self._program.chunks[0], budget.used
        # Large ones are not looked at again: neither is a plan for them kept, nor a recipe.
        large = sum([array.nbytes for array in values.values()]) > KEYED_BYTES
        if not large:  # a caller may change them before records are made
            values = {id: array.copy() for id, array in values.items()}
        records = functools.partial(self._records, layouts, values, kept)
        if large or not self._follows:
            made = yield from self._walk(layouts, values, kept, budget)
            return self._keep(chunk, signature, made if large else self._light(made, records), budget.used - before)
        kind, sizes = _kind(values, kept), sizes_of(layouts, self._axes)
        recipes = self._recipes.get(kind, [])
        by_recipe = self._by_recipe(kind, sizes, records)
        if by_recipe is not None:
            if self._tools.origins and runs:
                by_recipe = with_origins(by_recipe, (yield from self._walk(layouts, values, kept)))
            return self.keep_made(signature, by_recipe)
        plan = self._light((yield from self._walk(layouts, values, kept, budget)), records)
        if not self._checked(recipes, sizes, plan) and learns:
            yield from self._learn(recipes, layouts, values, kept, plan)
        self._recipes.pop(kind, None)
        if recipes and self._follows:
            self._recipes[kind] = recipes
            self._forget()
        return self._keep(chunk, signature, plan, budget.used - before)

    def at_once(self, signature: Any, layouts: list[Layout], values: Mapping[int, Array]) -> Planned | None:
        """Make and keep the first chunk's plan by a recipe; None if none is trusted for it. For the arguments see
        `first()`; the signature is not None."""
        if not (self._follows and self._replay) or self._tools.origins:
            return None
        values = {id: array.copy() for id, array in values.items()}
        records = functools.partial(self._records, layouts, values, ())
        plan = self._by_recipe(_kind(values, ()), sizes_of(layouts, self._axes), records)
        return None if plan is None else self.keep_made(signature, plan)

    def _walk(
        self,
        layouts: list[Layout],
        values: Mapping[int, Array],
        kept: tuple[KeptTensor, ...],
        budget: HostBudget | None = None,
    ) -> Slices[ChunkPlan]:
        """Plan the first chunk from the start."""
        state = start_state(self._program, layouts, dict(values), kept)
        return prepare_in_slices(self._program, self._program.chunks[0], state, self._tools, budget)

    def _records(
        self, layouts: list[Layout], values: Mapping[int, Array], kept: tuple[KeptTensor, ...]
    ) -> tuple[NodeRecord, ...]:
        """Plan the first chunk for what becomes of each node."""
        return finished(self._walk(layouts, values, kept)).known_records()

    def _by_recipe(
        self, kind: Any, sizes: tuple[int, ...], records: Callable[[], tuple[NodeRecord, ...]]
    ) -> ChunkPlan | None:
        """Return the plan that a recipe gives which is trusted for these sizes; None if there is none."""
        recipes = self._recipes.get(kind, [])
        for place, recipe in enumerate(recipes):
            if recipe.trusted_for(sizes) and (plan := recipe.plan(sizes, records)) is not None:
                if place:
                    recipes.insert(0, recipes.pop(place))
                self._recipes[kind] = self._recipes.pop(kind)  # kinds used last come last
                return plan
        return None

    def knows(self, signature: Any) -> bool:
        """Whether the first chunk's plan for the signature is kept; it makes nothing of it being asked for."""
        return (0, signature) in self._kept

    def foresee(self, layouts: list[Layout], kept: tuple[KeptTensor, ...]) -> Slices[ChunkPlan | None] | None:
        """Make the plan of a request that may come, in slices, and keep it nowhere; None if there is no recipe that it
        could be made by.

        Args:
            layouts, kept: As for `first()`, of a program that looks at no values.
        """
        sizes = sizes_of(layouts, self._axes)
        recipes = [r for r in self._recipes.get(_kind({}, kept), []) if r.trusted_for(sizes)]
        if not recipes:
            return None

        records = functools.partial(self._records, layouts, {}, kept)

        def work() -> Slices[ChunkPlan | None]:
            for recipe in recipes:
                plan = yield from recipe.plan_in_slices(sizes, records)
                if plan is not None:
                    return with_origins(plan, finished(self._walk(layouts, {}, kept))) if self._tools.origins else plan
            return None

        return work()

    def keep_made(self, signature: Any, plan: ChunkPlan, bound: BoundPlan | None = None) -> Planned:
        """Keep a plan that was made by recipe; returns it as `first()` does."""
        self.by_recipe += 1
        planned = self._keep(self._program.chunks[0], signature, plan)
        planned.bound = bound
        return planned

    def _light(self, plan: ChunkPlan, records: Callable[[], tuple[NodeRecord, ...]]) -> ChunkPlan:
        """Return a plan without what nobody may ask for: records are made again then, and no chunk comes after it.

        They are most of the objects that a plan is made of, and garbage collections go through all there are.
        """
        if not self._whole:
            return plan
        return attrs.evolve(plan, records=Deferred(records), after=State((), (), (), plan.after.kept))

    def later(self, chunk: Chunk, signature: Any, state: State, budget: HostBudget) -> Slices[Planned]:
        """Plan a chunk after others; no other plan of the network may be made at the same time."""
        before = budget.used
        plan = yield from prepare_in_slices(self._program, chunk, state, self._tools, budget)
        return self._keep(chunk, signature, plan, budget.used - before)

    def _checked(self, recipes: list[Recipe], sizes: tuple[int, ...], plan: ChunkPlan) -> bool:
        """Check a recipe that is not trusted yet by a plan that was made without; returns whether there is one."""
        for recipe in recipes:
            made = None if recipe.trusted_for(sizes) else recipe.plan(sizes, tuple)
            if made is not None:
                if same(made, plan):
                    recipe.checked(sizes)
                else:
                    self._follows = False
                    self._recipes.clear()
                return True
        return False

    def _learn(
        self,
        recipes: list[Recipe],
        layouts: list[Layout],
        values: Mapping[int, Array],
        kept: tuple[KeptTensor, ...],
        plan: ChunkPlan,
    ) -> Slices[None]:
        """Make a recipe and compare it with *plan*, unless recipes come from elsewhere or do not pay for this model."""
        if self._scouted or self._makes >= _MAKES + self.by_recipe // 4:
            return
        self._makes += 1
        recipe_made = yield from make_recipe(self._program, layouts, values, kept, self._tools)
        if recipe_made is not None and self._checked([recipe_made], sizes_of(layouts, self._axes), plan):
            recipe_made.packings = _shared([r.packings for r in recipes], recipe_made.packings)
            recipes.insert(0, recipe_made)

    def _forget(self) -> None:
        """Let the recipes go that were used longest ago, and kinds without any."""
        count = sum(self.recipe_counts)
        for kind, recipes in list(self._recipes.items()):
            while recipes and count > _RECIPES:
                recipes.pop()
                count -= 1
            if not recipes:
                del self._recipes[kind]

    def _keep(self, chunk: Chunk, signature: Any, plan: ChunkPlan, on_host: int = 0) -> Planned:
        """Keep a plan; nodes on the host have made that many bytes, which it holds."""
        records = plan.records.held if isinstance(plan.records, Deferred) else len(plan.records)
        steps = _STEP * (len(plan.steps) - plan.shared) + _SHARED * plan.shared
        nbytes = _PLAN + steps + _RECORD * records + len(plan.staging) + on_host
        planned = Planned(plan, nbytes, sum([f.layout.nbytes for f in plan.fetches]))
        if self._replay and signature is not None:
            self._kept.put((chunk.index, signature), planned)  # two requests may plan the same at once
        return planned

    def unused(self) -> Planned | None:
        """Return the plan that was unused longest of those that are bound."""
        return next((planned for planned in self._kept.values() if planned.bound is not None), None)

    @contextlib.contextmanager
    def scouting(self) -> Iterator[Plans]:
        """Give plans of the same network for another thread; as long as it has them, requests make no recipes."""
        tools = attrs.evolve(self._tools, memo=new_memo())
        scout = Plans(self._program, tools, replay=False, recipes=self._follows, nbytes=1)
        self._scouted = True
        try:
            yield scout
        finally:
            self._scouted = False

    def learn(self, scout: Plans) -> None:
        """Take over what a scout has found out; no plan of the network may be made at the same time."""
        self._follows &= scout.follows
        self.likely_arena = max(self.likely_arena, scout.likely_arena)
        for kind, recipes in scout._recipes.items():
            for recipe in recipes:
                recipe.let_go()
            self._recipes[kind] = self._recipes.get(kind, []) + recipes
        if not self._follows:
            self._recipes.clear()
        self._forget()
        if self._recipes:
            return  # which leave few sizes to planning; answers are most of the objects that a collection goes through
        for question, answer in scout._tools.memo.items():
            self._tools.memo.put(question, answer)

    def likely(
        self,
        allowance: GuessAllowance | None = None,
        *,
        asked: list[Layout] | None = None,
        found: Callable[[ChunkPlan], object] = lambda plan: None,
        go_on: Callable[[], bool] = lambda: True,
    ) -> list[ChunkPlan]:
        """Plan for likely sizes: to know which kernels are needed, and to have recipes.

        What no other plan needs is in one of those that are returned; many sizes need nothing of their own.

        Args:
            allowance: What that may cost; None is what suits the program.
            asked: What is likelier than all others, because it was asked for before.
            found: Told of each plan.
            go_on: Asked now and then; may pause.
        """
        plans = _Found(found)
        self._guessed.clear()
        allowance = allowance or GuessAllowance(self._program, min(NBYTES, self._tools.host_limit), go_on=go_on)
        sizes = [] if asked is None else [asked]
        sizes += sample_layouts(self._program, SIZES if self._tools.traits.is_cpu else GPU_SIZES)
        for layouts in sizes[:1]:  # somebody may wait for what it needs, and a recipe takes as long again
            self._try(layouts, plans, allowance, learns=False)
        for layouts in sizes:
            self._try(layouts, plans, allowance)
        for layouts in sample_layouts(self._program, ODD_SIZES):
            self._try(layouts, plans, allowance, learns=False)
        # With recipes, sizes that lie closer cost little, but for those at which decisions change: what is looked for.
        closer, batches = (sample_layouts(self._program, s) if self._follows else [] for s in (CLOSER_SIZES, BATCHES))
        compared: set[Recipe] = set()
        walked = 0
        for place, layouts in enumerate(closer):
            self._compare(compared, closer[place:] + batches, plans, allowance)
            before = self.by_recipe
            self._try(layouts, plans, allowance)
            walked += self.by_recipe == before
            if walked == _WALKS or allowance.spent:
                break
        self.by_recipe = self._makes = 0
        self._guessed.clear()
        return plans

    def _compare(
        self, done: set[Recipe], candidates: list[list[Layout]], plans: list[ChunkPlan], allowance: GuessAllowance
    ) -> None:
        """Compare each recipe that is not *done* at sizes that it holds for, until it is trusted or all were tried."""
        for recipe in [recipe for recipes in self._recipes.values() for recipe in recipes if recipe not in done]:
            done.add(recipe)
            left = iter(candidates)
            while (layouts := allowance.finished(self._telling(recipe, left))) is not None:
                self._try(layouts, plans, allowance)

    def _telling(self, recipe: Recipe, candidates: Iterator[list[Layout]]) -> Slices[list[Layout] | None]:
        """Return the next of *candidates* by which a recipe would come nearer to being trusted."""
        for layouts in candidates if not recipe.trusted else ():
            yield
            if recipe.learns_by(sizes_of(layouts, self._axes)):
                return layouts
        return None

    def _try(
        self, layouts: list[Layout], plans: list[ChunkPlan], allowance: GuessAllowance, *, learns: bool = True
    ) -> None:
        """Add the plan for these inputs, if they fit this model and it costs no more than it may."""
        values = allowance.values(layouts)
        if values is None:
            return
        with contextlib.suppress(AsyncrtError):
            budget = allowance.budget()
            planned = allowance.finished(self.first(None, layouts, values, (), budget, runs=False, learns=learns))
            if planned is None:
                return
            if self.likely_arena < planned.plan.arena_nbytes <= LIKELY_ARENA:
                self.likely_arena = planned.plan.arena_nbytes
            needs = {*planned.plan.kernels, *(packing.key for packing in planned.plan.packings)}
            if not needs <= self._guessed:
                self._guessed |= needs
                plans.append(planned.plan)

    def clear(self) -> None:
        """Forget all plans, and what was learnt for more."""
        self._kept.clear()
        self._recipes.clear()
        self._guessed.clear()
        self._tools.memo.clear()


def _kind(values: Mapping[int, Array], kept: tuple[KeptTensor, ...]) -> Any:
    """Return what recipes are for: the contents of what decides, and what there is room for in what is kept."""
    contents = tuple([(id, a.shape, a.tobytes()) for id, a in values.items()])
    return contents, tuple([(k.input, k.output, k.capacity if k.layout.count else None) for k in kept])


def same(one: ChunkPlan, other: ChunkPlan) -> bool:
    """Whether two plans do the same."""
    return not _differences(one, other)


def _differences(one: ChunkPlan, other: ChunkPlan) -> list[str]:
    """Return in which fields two plans do not do the same, and what they have there."""
    pairs = {
        "arena_nbytes": (one.arena_nbytes, other.arena_nbytes),
        "staging": (one.staging, other.staging),
        "staging_offset": (one.staging_offset, other.staging_offset),
        "uploads": (one.uploads, other.uploads),
        "steps": (_without_origins(one.steps), _without_origins(other.steps)),
        "lanes": (one.lanes, other.lanes),
        "fetches": (one.fetches, other.fetches),
        "block": (one.block, other.block),
        "skipped": (one.skipped, other.skipped),
        "kept": (one.after.kept, other.after.kept),
        "packings": (_keys(one.packings), _keys(other.packings)),
    }
    return [f"{name}: {a!r:.2000} and {b!r:.2000}" for name, (a, b) in pairs.items() if a != b]


def _keys(packings: Iterable[Packing]) -> list[Stored]:
    """What they are told apart by: of one key they make the same bytes."""
    return [packing.key for packing in packings]


def with_origins(plan: ChunkPlan, walked: ChunkPlan) -> ChunkPlan:
    """Return a plan by recipe with what its steps were made from, which *walked* has: it was made from the start.

    Raises:
        HazardError: It is another plan, so nobody knows what its steps touch.
    """
    if found := _differences(plan, walked):
        raise HazardError(
            "a plan by recipe is not the one that planning from the start gives",
            detail="\n".join(found),
            hint="this is a bug of asyncrt or of an operator added to it; RuntimeOptions(without={'recipes'}) helps",
        )
    steps = tuple([s._replace(origin=w.origin) for s, w in zip(plan.steps, walked.steps, strict=True)])
    return attrs.evolve(plan, steps=steps)


def _shared(others: list[tuple[Packing, ...]], packings: tuple[Packing, ...]) -> tuple[Packing, ...]:
    """Return packings as *others* have them, as far as they do: few of a model's recipes differ in them."""
    mine = _keys(packings)
    for other in others:
        if _keys(other) == mine:
            return other
    known = {packing.key: packing for other in others for packing in other}
    return tuple([known.get(packing.key, packing) for packing in packings])


def _without_origins(steps: tuple[PlanStep, ...]) -> list[PlanStep]:
    return [s if s.origin is None else s._replace(origin=None) for s in steps]
