"""Which dim of a model is its batch, which dims may be padded, and which axes of its inputs and outputs are they?

All of it is read from the symbolic dims of the model's inputs and outputs. Whether that is right, and padding harmless,
is tried out elsewhere (pad_safety.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from asyncrt.arguments import check_text, check_texts, shown
from asyncrt.dims import Dim
from asyncrt.errors import BatchingError
from asyncrt.graph.ir import Program
from asyncrt.kinds import is_plain
from asyncrt.layout import Array, DataType, PartialShape, show_shape
from asyncrt.scheduler.batching import BatchShape

_FORMS = 4096  # remembered by the inputs' shapes


@attrs.frozen
class TensorAxes:
    """What the axes of an input or output are.

    Attributes:
        id: The value's.
        name: Its name in the model.
        dtype: None if loading cannot tell.
        rows: Which axis is the batch; None if there is none.
        dims: Size, or name or formula, of each axis; None where nothing is known. None if not even the rank is.
    """

    id: int
    name: str
    dtype: DataType | None
    rows: int | None
    dims: tuple[int | Dim | None, ...] | None

    def names(self) -> set[str]:
        """The names in its dims."""
        return {n for d in self.dims or () if isinstance(d, Dim) for n in d.names()}


class RequestForm(NamedTuple):
    """What decides with whom a request may share a batch.

    Attributes:
        rows: How many it has.
        shape: That of one row.
        sizes: Of the named dims.
        nbytes: Of its inputs.
    """

    rows: int
    shape: BatchShape
    sizes: Mapping[str, int]
    nbytes: int


@attrs.frozen(eq=False)
class BatchAxes:
    """Which dims are what.

    Attributes:
        batch: The name of the batch dim.
        inputs: In the model's order.
        outputs: Likewise.
        padded: The names of the dims that requests of one batch may differ in.
        masks: Ids of the inputs that are 1 where a request's elements are, and 0 in the padding.
        holes: Whether a request may be padded in whose masks some elements are 0 already.
        shared: Ids of the inputs that have no rows; their contents must be equal in a batch.
    """

    batch: str
    inputs: tuple[TensorAxes, ...]
    outputs: tuple[TensorAxes, ...]
    padded: tuple[str, ...]
    masks: frozenset[int]
    holes: bool = True
    shared: tuple[int, ...] = attrs.field(
        init=False,
        default=attrs.Factory(lambda own: tuple([t.id for t in own.inputs if t.rows is None]), takes_self=True),
    )
    _forms: dict[Any, RequestForm] = attrs.field(factory=dict, repr=False)

    def form(self, arrays: Mapping[int, Array]) -> RequestForm:
        """Return what decides with whom a request may share a batch.

        Args:
            arrays: In the order of the inputs.
        """
        key: Any = tuple([a.shape for a in arrays.values()])
        shared = tuple([(id, arrays[id].tobytes()) for id in self.shared]) if self.shared else ()
        whole = self.holes or all(arrays[mask].all() for mask in self.masks)
        if shared or not whole:
            key = key, shared, whole
        found = self._forms.get(key)
        if found is None:
            if len(self._forms) >= _FORMS:
                self._forms.clear()
            sizes = sizes_of(self.inputs, arrays)
            form = self._form(arrays, sizes, shared)
            if not whole:
                form = BatchShape((form.exact, form.sizes), (), ((form.per_row, ()),))
            nbytes = sum([a.nbytes for a in arrays.values()])
            found = self._forms[key] = RequestForm(sizes[self.batch], form, sizes, nbytes)
        return found

    def _form(self, arrays: Mapping[int, Array], sizes: Mapping[str, int], shared: tuple[Any, ...]) -> BatchShape:
        exact: list[Any] = list(shared)
        terms: list[tuple[int, tuple[int, ...]]] = []
        for tensor in self.inputs:
            shape = arrays[tensor.id].shape
            names = _names(tensor.dims) if tensor.dims is not None else [None] * len(shape)
            exact.append(
                tuple([
                    s for axis, (n, s) in enumerate(zip(names, shape, strict=True))
                    if axis != tensor.rows and n not in self.padded
                ])
            )  # fmt: skip
            if tensor.rows is not None:
                factor = math.prod(
                    s for axis, (n, s) in enumerate(zip(names, shape, strict=True))
                    if axis != tensor.rows and n not in self.padded
                )  # fmt: skip
                terms.append((factor, tuple([self.padded.index(n) for n in names if n in self.padded])))
        return BatchShape(tuple(exact), tuple([sizes[name] for name in self.padded]), tuple(terms))


def sizes_of(tensors: Iterable[TensorAxes], arrays: Mapping[int, Array]) -> dict[str, int]:
    """Return the sizes of the named dims, as far as the arrays that are there tell them."""
    return {
        name: size
        for tensor in tensors
        if tensor.dims is not None and tensor.id in arrays
        for name, size in zip(_names(tensor.dims), arrays[tensor.id].shape, strict=True)
        if name is not None
    }


def find_axes(program: Program, batch: str | None = None, mask: str | Iterable[str] | None = None) -> BatchAxes:
    """Return what the model's symbolic dims say.

    Args:
        batch: The name of the batch dim. None takes the one that all outputs and most inputs have, and first.
        mask: Names of masks. None takes the inputs that are called so and have no dims but the batch and one more.

    Raises:
        BatchingError: There is no batch dim, or no such dim or input.
    """
    inputs = [(i, program.values[i].name, program.values[i].layout) for i in program.inputs]
    outputs = [(i, program.values[i].name, program.values[i].layout) for i in program.outputs]
    shapes = [layout.shape for _, _, layout in (*inputs, *outputs)]
    describe = f"inputs   {', '.join(f'{n} {x}' for _, n, x in inputs)}\n"
    describe += f"outputs  {', '.join(f'{n} {x}' for _, n, x in outputs)}"
    odd = [f"'{name}' is {layout.dtype}" for _, name, layout in (*inputs, *outputs) if not is_plain(layout.dtype)]
    if odd:
        raise BatchingError(
            f"'{program.name}': {odd[0]}; only tensors of numbers are joined",
            detail=describe,
            hint="call Model.infer() for each request",
        )
    candidates = _candidates(shapes[: len(inputs)], shapes[len(inputs) :])
    if batch is not None:
        check_text("batch", batch)
    elif candidates:
        batch = candidates[0]
    if batch is None or batch not in candidates:
        raise BatchingError(
            f"'{program.name}' has no batch dim" + ("" if batch is None else f" {shown(batch)}"),
            detail=describe,
            hint="export it with a symbolic dim that inputs and all outputs have, each on one axis",
        )

    def tensor(id: int, name: str, dtype: DataType | None, shape: PartialShape | None) -> TensorAxes:
        rows = None if shape is None or batch not in (n := _names(shape)) else n.index(batch)
        return TensorAxes(id, name, dtype, rows, shape)

    taken = tuple([tensor(i, n, *layout) for i, n, layout in inputs])
    given = tuple([tensor(i, n, *layout) for i, n, layout in outputs])
    padded = tuple(dict.fromkeys(
        n for t in taken if t.rows is not None and t.dims is not None for n in _names(t.dims)
        if n is not None and n != batch and not any(t.rows is None and n in t.names() for t in taken)
    ))  # fmt: skip
    return BatchAxes(batch, taken, given, padded, frozenset(_masks(taken, mask)))


def learn_outputs(
    outputs: Iterable[TensorAxes], batch: str, runs: Sequence[tuple[Mapping[str, int], Mapping[int, Array]]]
) -> tuple[TensorAxes, ...]:
    """Complete the outputs of which loading cannot tell the shape, from some runs: their dims' sizes and outputs.

    An axis is what it was equal to in all of them; one that nothing explains is None.
    """
    learned = []
    for tensor in outputs:
        if tensor.dims is None:
            shapes = [arrays[tensor.id].shape for _, arrays in runs]
            if len({len(s) for s in shapes}) == 1:
                sizes = [s for s, _ in runs]
                dims = [_explain(actual, sizes, batch) for actual in zip(*shapes, strict=True)]
                names = _names(dims)
                rows = names.index(batch) if names.count(batch) == 1 else None
                tensor = attrs.evolve(tensor, dims=tuple(dims), rows=rows)
        learned.append(tensor)
    return tuple(learned)


def _explain(actual: Sequence[int], runs: Sequence[Mapping[str, int]], batch: str) -> int | Dim | None:
    if len(set(actual)) == 1:
        return actual[0]
    for name in sorted(runs[0], key=lambda n: n != batch):
        if [sizes[name] for sizes in runs] == list(actual):
            return Dim.named(name)
    return None


def _names(dims: Iterable[int | Dim | None]) -> list[str | None]:
    return [d.name if isinstance(d, Dim) else None for d in dims]


def _candidates(inputs: list[PartialShape | None], outputs: list[PartialShape | None]) -> list[str]:
    """The names that may be the batch's, the likeliest first: an input and every known output have it, on one axis."""
    found: dict[str, tuple[int, int]] = {}
    known = [s for s in inputs if s is not None]
    results = [s for s in outputs if s is not None]
    for name in dict.fromkeys(n for s in known for n in _names(s) if n is not None):
        of = [s for s in known if name in _names(s)]
        if all(_alone(name, s) for s in (*of, *results)):
            found[name] = (-len(of), sum(_names(s).index(name) for s in (*of, *results)))
    return sorted(found, key=lambda n: found[n])


def _alone(name: str, shape: PartialShape) -> bool:
    """Whether the dim is one axis of the shape, and in no formula of it."""
    return sum(isinstance(d, Dim) and name in d.names() for d in shape) == 1 == _names(shape).count(name)


def _masks(inputs: tuple[TensorAxes, ...], wanted: str | Iterable[str] | None) -> list[int]:
    fit = {t.name: t.id for t in inputs if t.rows is not None and t.dims is not None and None not in _names(t.dims)}
    if wanted is None:
        return [id for name, id in fit.items() if "mask" in name.lower()]
    names = check_texts("mask", wanted, len(inputs))
    for name in names:
        if name not in fit:
            dims = {t.name: show_shape(t.dims) for t in inputs}
            why = f"it is {dims[name]}" if name in dims else "there is no such input"
            raise BatchingError(
                f"{shown(name)} cannot be a mask: {why}",
                hint="a mask is an input all of whose dims have names, the batch's among them",
            )
    return [fit[name] for name in names]
