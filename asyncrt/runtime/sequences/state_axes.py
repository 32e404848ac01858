"""Which axes of a model's inputs, outputs and state are its rows, which grow from step to step, and what grows along?

All of it is read from symbolic dims; whether steps of different sequences may share an inference is tried out with the
model itself (shared_safety.py). Nothing here knows a model or a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from asyncrt.dims import Dim, Undetermined, identical
from asyncrt.graph.ir import Program
from asyncrt.layout import Array, Layout, PartialShape, Shape, show_shape


class NotSharable(Exception):
    """Steps of different sequences cannot be one inference; says why."""


@attrs.frozen
class RowTensor:
    """An input or output that is not kept.

    Attributes:
        id: Its value's.
        rows: The axis of the rows; None of an input that all rows share.
        dims: Of each axis; empty where nothing is known.
    """

    id: int
    rows: int | None
    dims: PartialShape
    #: Of the dims that are a plain name each.
    names: tuple[str | None, ...] = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "names", tuple([d.name if isinstance(d, Dim) else None for d in self.dims]))


@attrs.frozen
class StateTensor:
    """A tensor of the state.

    Attributes:
        input, output: Value ids.
        rows: The axis of the rows.
        grows: The axis that each step appends to; None if there is none.
    """

    input: int
    output: int
    rows: int
    grows: int | None

    def shape_of(self, shape: Shape, rows: int, past: int | None) -> Shape:
        """Return *shape* with another number of rows, and another past, if it is given and the tensor has one."""
        changed = list(shape)
        changed[self.rows] = rows
        if past is not None and self.grows is not None:
            changed[self.grows] = past
        return tuple(changed)


@attrs.frozen(eq=False)
class StateAxes:
    """What the axes are.

    Attributes:
        batch: The name of the dim of the rows.
        past: The name of the dim that grows by what each step appends; None if there is not exactly one.
        appended: How much that is; None with `past`.
        states: By slot.
        inputs, outputs: Those that are not kept.
        fixed: Ids of inputs whose contents must be equal where steps share an inference.
    """

    batch: str
    past: str | None
    appended: int | Dim | None
    states: tuple[StateTensor, ...]
    inputs: tuple[RowTensor, ...]
    outputs: tuple[RowTensor, ...]
    fixed: frozenset[int]
    #: The names of inputs' dims that are not the rows, the past, or in how much is appended.
    _lengths: frozenset[str] = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        names = {n for t in self.inputs if t.rows is not None for n in _names(t.dims)}
        names -= {n for t in self.inputs if t.rows is None for n in _names(t.dims)}
        names -= {self.batch, self.past, *(self.appended.names() if isinstance(self.appended, Dim) else ())}
        object.__setattr__(self, "_lengths", frozenset(names))

    def sizes(self, arrays: Mapping[int, Array], state: Sequence[Layout]) -> dict[str, int]:
        """Return the sizes of the named dims, as a step's inputs and its state have them."""
        found: dict[str, int] = {}
        for tensor in self.inputs:
            for name, size in zip(tensor.names, arrays[tensor.id].shape, strict=True):
                if name is not None:
                    found[name] = size
        if self.past is not None:
            found[self.past] = next(
                x.shape[s.grows] for s, x in zip(self.states, state, strict=True) if s.grows is not None
            )
        return found

    def new(self, sizes: Mapping[str, int]) -> int:
        """Return how much a step appends."""
        return self.appended.evaluate(sizes) if isinstance(self.appended, Dim) else self.appended or 0

    def growing_along(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """Return the dims of inputs that may be the past and what is appended together: they have that size now."""
        if self.past is None:
            return frozenset()
        total = sizes[self.past] + self.new(sizes)
        return frozenset([n for n in self._lengths if sizes[n] == total])


def find_axes(program: Program, pairs: Sequence[tuple[int, int]]) -> StateAxes:
    """Return what the model's symbolic dims say.

    Args:
        pairs: Value ids of each tensor of the state, as input and as output.

    Raises:
        NotSharable: They say too little.
    """
    kept = {v for pair in pairs for v in pair}
    inputs = [i for i in program.inputs if i not in kept]
    outputs = [o for o in program.outputs if o not in kept]
    shapes = _shapes(program, pairs, outputs)
    batch = _batch(program, pairs, inputs, [o for o in outputs if o in shapes], shapes)
    changes = [_changes(shapes[i], shapes[o]) for i, o in pairs]
    growing = {g[1:] for g in changes if g is not None}
    past, appended = growing.pop() if len(growing) == 1 else (None, None)
    taken = tuple([RowTensor(v, _rows(batch, shapes[v]), shapes[v]) for v in inputs])
    # Of an output of which loading can tell nothing the first axis is taken to be the rows; trying it out will show it.
    given = tuple([RowTensor(v, _rows(batch, shapes[v]) if v in shapes else 0, shapes.get(v, ())) for v in outputs])
    if isinstance(appended, Dim) and not appended.names() <= {n for t in taken for n in _names(t.dims)}:
        past, appended = None, None  # how much a step appends is not known before it has run
    states = [
        StateTensor(i, o, _axis(batch, shapes[i]), None if past is None or g is None else g[0])
        for (i, o), g in zip(pairs, changes, strict=True)
    ]
    fixed = frozenset(t.id for t in taken if t.rows is None or t.id in program.value_inputs)
    return StateAxes(batch, past, appended, tuple(states), taken, given, fixed)


def _shapes(
    program: Program, pairs: Sequence[tuple[int, int]], outputs: Sequence[int]
) -> dict[int, PartialShape]:
    """The shapes of inputs and outputs; those of *outputs* that loading cannot tell are left out."""
    values = program.values
    found = {v: shape for v in (*program.inputs, *program.outputs) if (shape := values[v].layout.shape) is not None}
    for i, o in pairs:
        if o not in found and i in found:
            # What one layer does to its state another does to a state of the same shape; trying it out will show it.
            alike = [found[b] for a, b in pairs if a in found and b in found and identical(found[a], found[i])]
            if alike:
                found[o] = alike[0]
    unknown = [v for v in (*program.inputs, *program.outputs) if v not in found and v not in outputs]
    if unknown:
        raise NotSharable(f"loading cannot tell the shape of '{values[unknown[0]].name}'")
    for i, o in pairs:
        if len(found[i]) != len(found[o]):
            raise NotSharable(f"'{values[i].name}' and '{values[o].name}' have different ranks")
    return found


def _batch(
    program: Program,
    pairs: Sequence[tuple[int, int]],
    inputs: Iterable[int],
    outputs: Iterable[int],
    shapes: Mapping[int, PartialShape],
) -> str:
    """The dim that the whole state has, unchanged by a step, and every output, each on one axis."""
    first = shapes[pairs[0][0]]
    names = dict.fromkeys(d.name for d in first if isinstance(d, Dim) and d.name is not None)
    states = [v for pair in pairs for v in pair]
    fit = [
        n for n in names
        if all(_alone(n, shapes[v]) for v in (*states, *outputs))
        and all(_axis(n, shapes[i]) == _axis(n, shapes[o]) for i, o in pairs)
        and all(_alone(n, shapes[v]) or not _names(shapes[v]) & {n} for v in inputs)
    ]  # fmt: skip
    if not fit:
        listed = ", ".join(f"{program.values[v].name} {show_shape(shapes[v])}" for v in (*states, *outputs))
        raise NotSharable(f"there is no dim that all of the state and of the outputs have on one axis: {listed}")
    return max(fit, key=lambda n: sum(n in _names(shapes[v]) for v in inputs))


def _changes(before: PartialShape, after: PartialShape) -> tuple[int, str | None, int | Dim | None] | None:
    """The axis that a step appends to, the past's name and how much is appended; no name if it does something else.

    None if the shape stays as it is.
    """
    changing = [axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if not identical([a], [b])]
    if not changing:
        return None
    past = before[changing[0]]
    if len(changing) > 1 or not isinstance(past, Dim) or past.name is None:
        return changing[0], None, None
    try:
        new = after[changing[0]] - past
    except Undetermined:
        return changing[0], None, None
    if isinstance(new, Dim) and past.name in new.names():
        return changing[0], None, None
    return changing[0], past.name, new


def _names(shape: PartialShape) -> set[str]:
    return {n for d in shape if isinstance(d, Dim) for n in d.names()}


def _alone(name: str, shape: PartialShape) -> bool:
    """Whether the dim is one axis of the shape, and in no formula of it."""
    return [d.name == name for d in shape if isinstance(d, Dim) and name in d.names()] == [True]


def _axis(name: str, shape: PartialShape) -> int:
    return next(axis for axis, d in enumerate(shape) if isinstance(d, Dim) and d.name == name)


def _rows(name: str, shape: PartialShape) -> int | None:
    return _axis(name, shape) if _alone(name, shape) else None
