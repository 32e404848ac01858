"""Every small call of every operator that moves data: which are skipped, and whether those that move nothing are.

All shapes with dims 0 to 3 up to a rank, and for each the permutations, cuts, repeats, axes, indices that fit. Inputs
are filled with values that all differ, -0.0 and an infinity among them, so that an output that is skipped can be
compared with its source byte by byte, and one that is not can be looked for in the inputs.

``python -m tests.kernels.exhaustive_skips`` does so up to rank 5.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.errors import AsyncrtError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.decide import Skip, decide
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import Array, Layout, Shape, dtype_of

_TABLES = 6
_LONGEST = 2048


def _table(seed: int) -> Array:
    values = np.random.default_rng(seed).standard_normal(_LONGEST).astype(np.float32)
    values[:2] = ((1.5, -0.0), (-0.0, np.inf), (-2.5, 1.0))[seed % 3]
    return values


_VALUES = [_table(seed) for seed in range(_TABLES)]
_PLACES = [{bits: i for i, bits in enumerate(t.view(np.uint32).tolist())} for t in _VALUES]


class Case(NamedTuple):
    """One call: shapes of data inputs, which a table fills, and arrays, whose values are known on the host."""

    inputs: tuple[Shape | Array, ...]
    attributes: Mapping[str, Any] = {}
    outputs: int = 1


class Count(NamedTuple):
    """What came of an operator's cases."""

    cases: int
    skipped: int
    unsound: list[str]
    missed: list[str]


def shapes(rank: int, dims: Sequence[int] = (0, 1, 2, 3), least: int = 0) -> Iterator[Shape]:
    """All shapes of *least* to *rank* axes."""
    for n in range(least, rank + 1):
        yield from itertools.product(dims, repeat=n)


def _i64(*values: int) -> Array:
    return np.array(values, np.int64)


def _transposes(rank: int) -> Iterator[Case]:
    for shape in shapes(rank):
        for order in itertools.permutations(range(len(shape))):
            yield Case((shape,), {"perm": order})


def _einsums(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 4), (1, 2, 3)):
        labels = "abcd"[: len(shape)]
        for kept in range(len(shape) + 1):
            for result in itertools.permutations(labels, kept):
                yield Case((shape,), {"equation": f"{labels}->{''.join(result)}"})


def _slices(rank: int) -> Iterator[Case]:
    cuts = [*itertools.product((0, 1, 2, -1), (1, 2, 9, -1, -9), (1, 2, -1))]
    for shape in shapes(rank, least=1):
        for axis in range(len(shape)):
            for start, end, step in cuts:
                yield Case((shape, _i64(start), _i64(end), _i64(axis), _i64(step)))
    for shape in shapes(3, least=2):
        for a, b in itertools.combinations(range(len(shape)), 2):
            for (s, e), (t, f) in itertools.product(((0, 1), (1, 9), (0, 9)), repeat=2):
                yield Case((shape, _i64(s, t), _i64(e, f), _i64(a, b), _i64(1, 1)))


def _splits(rank: int) -> Iterator[Case]:
    for shape in shapes(rank, least=1):
        for axis, dim in enumerate(shape):
            for count in (1, 2, 3):
                for sizes in itertools.product(range(dim + 1), repeat=count):
                    if sum(sizes) == dim:
                        yield Case((shape, _i64(*sizes)), {"axis": axis}, count)


def _concats(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 4), least=1):
        for axis in range(len(shape)):
            for dims in ((1,), (0, 2), (2, 0), (0, 0), (1, 1), (0, 2, 0), (1, 0, 2)):
                yield Case(tuple((*shape[:axis], d, *shape[axis + 1 :]) for d in dims), {"axis": axis})


def _expands(rank: int) -> Iterator[Case]:
    for shape in shapes(3, (1, 2, 3)):
        for target in shapes(min(rank, 4), (1, 2)):
            yield Case((shape, _i64(*target)))


def _tiles(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 4), (1, 2, 3)):
        for times in itertools.product((0, 1, 2), repeat=len(shape)):
            yield Case((shape, _i64(*times)))


def _pads(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 4), (1, 2, 3), least=1):
        for axis in range(len(shape)):
            for before, after in itertools.product((-1, 0, 1), repeat=2):
                for mode in ("constant", "edge"):
                    yield Case((shape, _i64(before, after), None, _i64(axis)), {"mode": mode})  # type: ignore[arg-type]


def _gathers(rank: int) -> Iterator[Case]:
    lists = ([0], [-1], [1], [0, 1], [1, 2], [0, 1, 2], [-2, -1], [0, 2], [1, 0], [0, 0], 0, -1, [[0], [1]], [[0, 1]])
    for shape in shapes(rank, least=1):
        for axis in range(len(shape)):
            for indices in lists:
                yield Case((shape, np.array(indices, np.int64)), {"axis": axis})


def _gather_nds(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 3), (1, 2, 3), least=1):
        for depth in range(1, len(shape) + 1):
            tuples = list(np.ndindex(*shape[:depth]))
            for chosen in itertools.chain.from_iterable(itertools.permutations(tuples[:4], n) for n in (1, 2, 3)):
                yield Case((shape, np.array(chosen, np.int64).reshape(-1, depth)))
            yield Case((shape, np.array(tuples, np.int64)))
            yield Case((shape, np.array(tuples, np.int64).reshape(*shape[:depth], depth)))


def _gather_elements(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 3), (1, 2, 3), least=1):
        for axis, dim in enumerate(shape):
            own = np.indices(shape)[axis]
            for indices in (own, own - dim, own[::-1], dim - 1 - own, own[:1], own[..., :1], own[..., -1:], own * 0):
                yield Case((shape, indices.astype(np.int64)), {"axis": axis})


def _scatter_nds(rank: int) -> Iterator[Case]:
    for case in _gather_nds(rank):
        shape, indices = case.inputs
        assert isinstance(indices, np.ndarray)
        updates = (*indices.shape[:-1], *shape[indices.shape[-1] :])
        for reduction in ("none", "add"):
            yield Case((shape, indices, updates), {"reduction": reduction})
            yield Case((shape, indices + 7, updates), {"reduction": reduction})


def _scatter_elements(rank: int) -> Iterator[Case]:
    for case in _gather_elements(rank):
        shape, indices = case.inputs
        assert isinstance(indices, np.ndarray)
        for reduction in ("none", "max"):
            yield Case((shape, indices, indices.shape), {**case.attributes, "reduction": reduction})
            yield Case((shape, indices + 7, indices.shape), {**case.attributes, "reduction": reduction})


def _compresses(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 3), least=1):
        for axis, dim in enumerate(shape):
            for mask in itertools.product((False, True), repeat=dim):
                yield Case((shape, np.array(mask, np.bool_)), {"axis": axis})


def _wheres(rank: int) -> Iterator[Case]:
    pairs = list(itertools.product(shapes(2, (0, 1, 2)), repeat=2))
    for condition in shapes(2, (0, 1, 2)):
        count = int(np.prod(condition))
        for values in ([True] * count, [False] * count, ([True, False] * count)[:count]):
            for x, y in pairs:
                yield Case((np.array(values, np.bool_).reshape(condition), x, y))


def _reductions(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 4), (1, 2, 3)):
        for count in range(len(shape) + 1):
            for axes in itertools.combinations(range(len(shape)), count):
                for keep in (0, 1):
                    yield Case((shape, _i64(*axes)), {"keepdims": keep, "noop_with_empty_axes": 1})


def _running(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 4), (1, 2, 3), least=1):
        for axis in range(len(shape)):
            for exclusive, reverse in itertools.product((0, 1), repeat=2):
                yield Case((shape, np.array(axis, np.int64)), {"exclusive": exclusive, "reverse": reverse})


def _trilus(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 4), (1, 2, 3), least=2):
        for k, upper in itertools.product(range(-4, 5), (0, 1)):
            yield Case((shape, np.array(k, np.int64)), {"upper": upper})


def _blocks(rank: int) -> Iterator[Case]:
    for n, c, h, w in itertools.product((1, 2), (1, 2, 4, 8), (1, 2, 4), (1, 2, 4)):
        for block, mode in itertools.product((1, 2), ("DCR", "CRD")):
            yield Case(((n, c, h, w),), {"blocksize": block, "mode": mode})


def _pools(rank: int) -> Iterator[Case]:
    for shape in itertools.product((1, 2), (1, 2), (1, 2, 3)):
        for size, stride, before, after in itertools.product((1, 2, 3), (1, 2), (0, 1), (0, 1)):
            if before < size and after < size:
                yield Case((shape,), {"kernel_shape": (size,), "strides": (stride,), "pads": (before, after)})
    for shape in itertools.product((1, 2), (1, 2), (1, 2, 3), (1, 2, 3)):
        for size, stride in itertools.product(itertools.product((1, 2), repeat=2), itertools.product((1, 2), repeat=2)):
            yield Case((shape,), {"kernel_shape": size, "strides": stride})


def _global_pools(rank: int) -> Iterator[Case]:
    for shape in shapes(rank, (1, 2, 3), least=2):
        yield Case((shape,))


def _resizes(rank: int) -> Iterator[Case]:
    for shape in shapes(2, (1, 2, 3), least=1):
        for sizes in itertools.product((1, 2, 3), repeat=len(shape)):
            for mode in ("nearest", "linear"):
                yield Case((shape, None, None, _i64(*sizes)), {"mode": mode})  # type: ignore[arg-type]


def _reversals(rank: int) -> Iterator[Case]:
    for shape in shapes(min(rank, 3), (1, 2, 3), least=2):
        for lengths in itertools.product(range(shape[0] + 1), repeat=shape[1]):
            yield Case((shape, _i64(*lengths)))


def _clips(rank: int) -> Iterator[Case]:
    bounds = (None, np.array(-np.inf, np.float32), np.array(np.inf, np.float32), np.array(0, np.float32))
    for shape in shapes(2, (1, 2)):
        for low, high in itertools.product(bounds, repeat=2):
            yield Case((shape, low, high))  # type: ignore[arg-type]


def _flats(rank: int) -> Iterator[Case]:
    for shape in shapes(rank):
        yield Case((shape,))


def _reshapes(rank: int) -> Iterator[Case]:
    for shape in shapes(rank, (1, 2, 3)):
        for wanted in ([-1], [1, -1], [*reversed(shape)], [*shape, 1]):
            yield Case((shape, _i64(*wanted)))


def _operands(rank: int) -> Iterator[Case]:
    """A second operand, or a first, of one known number."""
    numbers = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf)
    for data in shapes(3, (0, 1, 2)):
        for known in shapes(2, (1, 2)):
            for number in numbers:
                value = np.full(known, number, np.float32)
                yield Case((data, value))
                yield Case((value, data))


FAMILIES: dict[str, Callable[[int], Iterator[Case]]] = {
    "Transpose": _transposes,
    "Einsum": _einsums,
    "Identity": _flats,
    "Dropout": _flats,
    "Flatten": _flats,
    "Squeeze": _flats,
    "Reshape": _reshapes,
    "Slice": _slices,
    "Split": _splits,
    "Concat": _concats,
    "Expand": _expands,
    "Tile": _tiles,
    "Pad": _pads,
    "Gather": _gathers,
    "GatherND": _gather_nds,
    "GatherElements": _gather_elements,
    "ScatterND": _scatter_nds,
    "ScatterElements": _scatter_elements,
    "Compress": _compresses,
    "Where": _wheres,
    "ReduceSum": _reductions,
    "ReduceMean": _reductions,
    "ReduceMax": _reductions,
    "ReduceMin": _reductions,
    "ReduceProd": _reductions,
    "CumSum": _running,
    "CumProd": _running,
    "Trilu": _trilus,
    "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks,
    "AveragePool": _pools,
    "MaxPool": _pools,
    "GlobalAveragePool": _global_pools,
    "GlobalMaxPool": _global_pools,
    "Resize": _resizes,
    "ReverseSequence": _reversals,
    "Clip": _clips,
    "Sum": _flats,
    "Mean": _flats,
    "Max": _flats,
    "Min": _flats,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "PRelu"), _operands),
}


def _filled(case: Case, table: int) -> list[Array | None]:
    inputs: list[Array | None] = []
    start = 0
    for given in case.inputs:
        if isinstance(given, tuple):
            count = int(np.prod(given, dtype=int))
            inputs.append(_VALUES[table][start : start + count].reshape(given))
            start += count
        else:
            inputs.append(given)
    return inputs


def _run(operator: Operator, attributes: Attributes, inputs: Sequence[Array | None]) -> list[Array] | None:
    """The reference's outputs; None if the case is not one."""
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(r) for r in operator.reference(attributes, inputs)][: attributes.outputs]
    except (AsyncrtError, ValueError, IndexError):
        return None


def _places(case: Case, outputs: Sequence[Array], table: int) -> list[int] | None:
    """Where in the table each output lies as one piece of one input; None if one does not. -1: it is empty."""
    ends = list(itertools.accumulate(int(np.prod(i, dtype=int)) for i in case.inputs if isinstance(i, tuple)))
    places: list[int] = []
    for output in outputs:
        bits = np.ascontiguousarray(output).reshape(-1).view(np.uint32)
        first = _PLACES[table].get(int(bits[0])) if bits.size else -1
        if first is None:
            return None
        if bits.size:
            end = next((e for e in ends if first < e), None)
            if end is None or first + bits.size > end:
                return None
            if not np.array_equal(bits, _VALUES[table].view(np.uint32)[first : first + bits.size]):
                return None
        places.append(first)
    return places


def _moves_nothing(operator: Operator, case: Case, attributes: Attributes) -> bool:
    found: list[int] | None = None
    for table in range(_TABLES):
        outputs = _run(operator, attributes, _filled(case, table))
        places = None if outputs is None else _places(case, outputs, table)
        if places is None or (found is not None and places != found):
            return False
        found = places
    return True


def check(name: str, rank: int) -> Count:
    """Decide every case of an operator, and compare with what its reference does."""
    operator = find_operator("", name)
    assert operator is not None
    cases = skipped = 0
    unsound: list[str] = []
    missed: list[str] = []
    for case in FAMILIES[name](rank):
        attributes = Attributes(case.attributes, 18, case.outputs)
        inputs = _filled(case, 1)
        outputs = _run(operator, attributes, inputs)
        if outputs is None:
            continue
        layouts = tuple(None if a is None else Layout(dtype_of(a.dtype), a.shape) for a in inputs)  # type: ignore[arg-type]
        values = tuple(None if isinstance(g, tuple) else g for g in case.inputs)
        types = tuple(dtype_of(o.dtype) for o in outputs)
        call = Call("case", attributes, layouts, values, (), types)  # type: ignore[arg-type]
        try:
            result = operator.infer(call)
        except AsyncrtError:
            continue
        call = call._replace(outputs=tuple(Layout(t, tuple(s)) for t, s in zip(types, result, strict=True)))  # type: ignore[arg-type]
        decision = decide(operator, call)
        cases += 1
        if isinstance(decision, Skip):
            skipped += 1
            for source, offset, output in zip(decision.sources, decision.offsets, outputs, strict=True):
                data = inputs[source]
                assert data is not None
                if output.nbytes and data.tobytes()[offset : offset + output.nbytes] != output.tobytes():
                    unsound.append(f"{case}: {decision}")
        elif name == "Resize" and outputs[0].size < inputs[0].size:  # type: ignore[union-attr]
            pass  # which one element is nearest is not for the host to say: devices round for themselves
        elif any(o.size for o in outputs) and _moves_nothing(operator, case, attributes):
            missed.append(f"{case}: {decision}")
    return Count(cases, skipped, unsound, missed)


def main() -> int:
    """Print what came of every operator up to rank 5; returns 1 if a rule is unsound or not sharp."""
    failed = 0
    for name in FAMILIES:
        start = time.perf_counter()
        count = check(name, 5)
        failed |= bool(count.unsound or count.missed)
        print(
            f"{name:18} {count.cases:7} cases, {count.skipped:6} skipped, {len(count.unsound)} unsound, "
            f"{len(count.missed)} run for nothing, {time.perf_counter() - start:.1f} s"
        )
        for line in (*count.unsound[:3], *count.missed[:3]):
            print("   ", line)
    return failed


if __name__ == "__main__":
    sys.exit(main())
