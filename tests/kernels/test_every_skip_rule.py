"""Every skip rule of every operator: what is skipped is the same bytes, and what is the same bytes is skipped.

The calls come from a table of generators and from each operator's own examples with their dims changed to 0 and 1, so
that an operator that is added is tested without a line here. The oracle is the operator's reference alone: inputs are
filled with values that all differ, and an output that is a window of an input's bytes, whatever the order of the
values, was not moved.
"""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from asyncrt.errors import AsyncrtError
from asyncrt.kernels.call import Call
from asyncrt.kernels.decide import Decision, Empty, Skip, decide, why_not_skipped
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.ops.math.binary import _NEUTRAL
from asyncrt.kernels.registry import find_operator, operators
from asyncrt.layout import Array, Shape, dtype_of
from tests.ops.run import arrays, make_call, reference

_I64 = np.int64
_MUTATIONS = 120  # per example

# Calls.


def _text(shape: Sequence[int], dtype: str = "f32") -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _shapes(rank: int, dims: Sequence[int] = (0, 1, 2, 3)) -> Iterator[Shape]:
    yield from itertools.product(dims, repeat=rank)


def _transposes() -> Iterator[Example]:
    for rank in range(1, 5):
        for shape in _shapes(rank):
            for order in itertools.permutations(range(rank)):
                yield Example((_text(shape),), {"perm": order})


def _reshapes() -> Iterator[Example]:
    for shape in _shapes(3, (1, 2, 3)):
        for wanted in ([-1], [0, -1], [1, -1], [-1, 1, shape[2]], [0, 0, 0], [shape[2], shape[1], shape[0]]):
            yield Example((_text(shape), np.array(wanted, _I64)))


def _gathers() -> Iterator[Example]:
    for rank in (1, 2, 3):
        for shape in _shapes(rank, (1, 2, 3)):
            for axis in range(rank):
                for indices in ([0], [-1], [0, 1], [1, 2], [0, 1, 2], [0, 2], [1, 0], [0, 0], 0, 1, -1, [], [[0], [1]]):
                    yield Example((_text(shape), np.array(indices, _I64)), {"axis": axis})


def _concats() -> Iterator[Example]:
    for rank in (1, 2, 3):
        for shape in _shapes(rank, (0, 1, 2)):
            for axis in range(rank):
                for dims in ((2,), (0, 2), (2, 0), (0, 0), (1, 1), (0, 1, 0)):
                    parts = (_text(shape[:axis] + (dim,) + shape[axis + 1 :]) for dim in dims)
                    yield Example(tuple(parts), {"axis": axis})


def _slices() -> Iterator[Example]:
    for shape in _shapes(2, (1, 2, 3)):
        for axis in (0, 1):
            for start, end, step in itertools.product((0, 1, -1), (1, 2, 9, -9), (1, 2, -1)):
                yield Example((_text(shape), *(np.array([v], _I64) for v in (start, end, axis, step))))


def _expands() -> Iterator[Example]:
    for shape in _shapes(2, (1, 2)):
        for wanted in _shapes(3, (1, 2)):
            yield Example((_text(shape), np.array(wanted, _I64)))


def _tiles() -> Iterator[Example]:
    for shape in _shapes(2, (1, 2)):
        for times in _shapes(2, (0, 1, 2)):
            yield Example((_text(shape), np.array(times, _I64)))


def _splits() -> Iterator[Example]:
    for shape in _shapes(3, (1, 2)):
        for axis in range(3):
            dim = shape[axis]
            for parts in ([dim], [dim, 0], [0, dim], [1, dim - 1]):
                yield Example((_text(shape), np.array(parts, _I64)), {"axis": axis}, outputs=len(parts))


GENERATORS: dict[str, Callable[[], Iterator[Example]]] = {
    "Transpose": _transposes,
    "Reshape": _reshapes,
    "Gather": _gathers,
    "Concat": _concats,
    "Slice": _slices,
    "Expand": _expands,
    "Tile": _tiles,
    "Split": _splits,
}


def _mutated(example: Example) -> Iterator[Example]:
    """The example, and others of its kind with dims changed to 0 and 1. Many will not fit; those are left out later."""
    yield example
    places = [
        (position, match[1], [int(d) for d in match[2].split(",") if d])
        for position, given in enumerate(example.inputs)
        if isinstance(given, str) and (match := re.fullmatch(r"(\w+)\[([\d,]*)\]", given))
    ]
    # The same dim of several inputs is often one dim of the operator: change equal dims together, and also each alone.
    sizes = sorted({d for _, _, shape in places for d in shape})
    together = [dict(zip(sizes, new, strict=True)) for new in itertools.product(*((0, 1, d) for d in sizes))]
    variants = [[tuple(change[d] for d in shape) for _, _, shape in places] for change in together]
    alone = [itertools.product(*((0, 1, d) for d in shape)) for _, _, shape in places]
    variants += [list(v) for v in itertools.islice(itertools.product(*alone), 5000)]
    unique = list(dict.fromkeys(map(tuple, variants)))
    if len(unique) > _MUTATIONS:
        unique = random.Random(len(unique)).sample(unique, _MUTATIONS)
    for shapes in unique:
        inputs: list[Any] = list(example.inputs)
        for (position, dtype, _), shape in zip(places, shapes, strict=True):
            inputs[position] = _text(shape, dtype)
        yield example._replace(inputs=tuple(inputs))


def _examples(operator: Operator) -> Iterator[Example]:
    if not operator.domain and operator.name in GENERATORS:
        yield from GENERATORS[operator.name]()
    for example in operator.examples:
        yield from _mutated(example)


# Values.


def _order(count: int, order: int) -> Array:
    """Different numbers, in one of several orders, so that no minimum, maximum or sum is always in one place."""
    numbers = np.arange(2, count + 2) + 2 * order
    if order < 2:
        return numbers[:: -1 if order else 1]
    random = np.random.default_rng([order, count])
    return random.permutation(numbers) if order < 5 else random.permutation(count + 90)[:count] + 2


def _filled(example: Example, order: int) -> list[Array | None]:
    """The example's inputs, random ones replaced by values that all differ, also between inputs."""
    made = arrays(example)
    start = 0  # no number is used twice, and the larger ones are not always in the same inputs
    for position, given in list(enumerate(example.inputs))[:: -1 if order % 2 else 1]:
        array = made[position]
        if not isinstance(given, str) or array is None:
            continue
        if array.dtype == np.bool_:
            made[position] = np.random.default_rng([order, position]).random(array.shape) < 0.5
            continue
        values = _order(array.size, order) + start
        start += array.size
        if array.dtype.kind not in "iu":
            values = values * (1 - 2 * ((values + order) % 2)) + 0.25  # of both signs, and no integers
        made[position] = values.reshape(array.shape).astype(array.dtype)
    return made


def _reference(operator: Operator, example: Example, inputs: list[Array | None]) -> list[Array] | None:
    """The reference's outputs, or None if the example is not one."""
    try:
        with np.errstate(all="ignore"):
            outputs = reference(operator, example, inputs)
    except Exception:  # whatever a reference says to shapes or values that do not fit
        return None
    return outputs if all(dtype_of(o.dtype) is not None for o in outputs) else None


def _run(operator: Operator, example: Example) -> tuple[list[Array | None], list[Array]] | None:
    """Inputs that suit the operator, and the reference's outputs."""
    for inputs in (_filled(example, zlib.crc32(repr(example.inputs).encode()) % 5), arrays(example)):
        outputs = _reference(operator, example, inputs)
        if outputs is not None:
            return inputs, outputs
    return None


def _call(
    operator: Operator, example: Example, inputs: list[Array | None], outputs: list[Array], *, constant: bool
) -> Call | None:
    """The call; with *constant*, all values but a random first input's are known."""
    try:
        call = make_call(operator, example, inputs, outputs, constant=constant)
    except AsyncrtError:
        return None
    if constant and not isinstance(example.inputs[0], str):
        call = call._replace(values=(inputs[0], *call.values[1:]), constants=(True, *call.constants[1:]))
    return call if [o.shape for o in outputs] == [o.shape for o in call.outputs] else None


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def assert_sound(decision: Decision, call: Call, inputs: list[Array | None], outputs: list[Array], what: str) -> None:
    """Where a call is skipped, each output's bytes lie in its source, at the stated offset."""
    if isinstance(decision, Empty):
        assert all(o.size == 0 for o in outputs), what
    if not isinstance(decision, Skip):
        return
    assert len(decision.sources) == len(decision.offsets) == len(call.outputs), what
    assert decision.why, what
    for source, offset, output in zip(decision.sources, decision.offsets, outputs, strict=True):
        data = inputs[source]
        assert data is not None, what
        assert data.itemsize == output.itemsize, what
        assert output.nbytes == 0 or 0 <= offset <= data.nbytes - output.nbytes, what
        assert output.nbytes == 0 or _bytes(output) == _bytes(data)[offset : offset + output.nbytes], what


def windows(inputs: Sequence[Array | None], outputs: Sequence[Array]) -> list[set[tuple[int, int]]]:
    """For each output every place (input, element) where the same bytes lie in an input."""
    found: list[set[tuple[int, int]]] = []
    for output in outputs:
        places: set[tuple[int, int]] = set()
        for index, data in enumerate(inputs):
            if data is None or data.dtype != output.dtype or not 0 < output.nbytes <= data.nbytes:
                continue
            held, wanted, step = _bytes(data), _bytes(output), data.dtype.itemsize
            places |= {(index, at) for at in range(0, len(held) - len(wanted) + 1, step) if held.startswith(wanted, at)}
        found.append(places)
    return found


def moves_nothing(operator: Operator, example: Example) -> bool:
    """Whether the reference's outputs lie at one and the same place of an input for every order of its values."""
    common: list[set[tuple[int, int]]] | None = None
    for order in range(8):
        inputs = _filled(example, order)
        outputs = _reference(operator, example, inputs)
        if outputs is None:
            return False
        data = [
            a if isinstance(given, str) and a is not None and a.dtype != np.bool_ else None
            for a, given in zip(inputs, example.inputs, strict=True)
        ]
        found = windows(data, outputs)
        common = found if common is None else [a & b for a, b in zip(common, found, strict=True)]
        if not all(common[i] or not o.size for i, o in enumerate(outputs)):
            return False
    return True


#: Operators of which nobody expects a skip, so that they need not say why there is none.
ELEMENTWISE = set(_NEUTRAL)

VIEWED = sorted((o for o in operators().values() if o.views is not None), key=lambda o: (o.domain, o.name))


@pytest.mark.parametrize("operator", VIEWED, ids=lambda o: o.name)
def test_what_is_skipped_is_the_same_bytes_and_the_other_way_round(operator: Operator) -> None:
    """Sound for every call, whether values are known or not; sharp where all values but the first input's are known."""
    skipped = ran = 0
    missed: list[str] = []
    for example in _examples(operator):
        result = _run(operator, example)
        if result is None:
            continue
        inputs, outputs = result
        decision: Decision | None = None
        for constant in (False, True):
            call = _call(operator, example, inputs, outputs, constant=constant)
            if call is None:
                break
            decision = decide(operator, call)
            what = f"{operator.name} {example.inputs} {dict(example.attributes)} constant={constant}: {decision}"
            assert_sound(decision, call, inputs, outputs, what)
            assert not isinstance(decide(operator, call, skip=False), Skip), what
        if decision is None or isinstance(decision, Empty):
            continue
        if isinstance(decision, Skip):
            skipped += 1
        else:
            ran += 1
            assert call is not None
            reason = why_not_skipped(operator, call)
            assert reason or operator.name in ELEMENTWISE, f"{operator.name} {example.inputs}: {reason!r}"
            if moves_nothing(operator, example):
                missed.append(f"{example.inputs} {dict(example.attributes)}")

    print(f"{operator.name}: {skipped} skipped, {ran} run, {len(missed)} of them for nothing")
    assert skipped + ran > 0
    assert missed == []


def test_the_oracle_sees_a_wrong_rule() -> None:
    """A transpose that is skipped although axes larger than 1 were exchanged is found."""
    transpose = find_operator("", "Transpose")
    assert transpose is not None
    example = Example(("f32[2,3]",), {"perm": (1, 0)})
    inputs = _filled(example, 0)
    outputs = reference(transpose, example, inputs)
    call = make_call(transpose, example, inputs, outputs, constant=False)

    with pytest.raises(AssertionError, match="wrong"):
        assert_sound(Skip((0,), (0,), "wrong"), call, inputs, outputs, "wrong")


def test_the_oracle_sees_a_rule_that_skips_too_little() -> None:
    """And tells apart what was moved."""
    transpose = find_operator("", "Transpose")
    assert transpose is not None

    assert moves_nothing(transpose, Example(("f32[3,1,2]",), {"perm": (1, 0, 2)}))
    assert not moves_nothing(transpose, Example(("f32[3,2]",), {"perm": (1, 0)}))


@pytest.mark.parametrize(
    ("shape", "order", "skipped"),
    [
        ((8, 8), (1, 0), False),
        ((12, 1, 1, 14), (0, 3, 1, 2), True),
        ((8, 1), (1, 0), True),
        ((1, 1, 1, 14), (0, 3, 1, 2), True),
        ((8, 2, 8), (2, 1, 0), False),
        ((1, 3, 2, 14), (0, 3, 1, 2), False),
        ((8, 2, 1), (2, 1, 0), False),
        ((1, 1, 4, 14), (2, 0, 1, 3), True),
        ((1, 12, 1), (2, 1, 0), True),
        ((1, 4, 4, 1), (2, 0, 1, 3), False),
        ((2, 3, 1, 14), (1, 0, 2, 3), False),
        ((1, 10, 1, 1, 11), (3, 2, 1, 0, 4), True),
        ((1, 3, 1, 14), (1, 0, 2, 3), True),
        ((1, 10, 2, 1, 10), (3, 2, 1, 0, 4), False),
        ((20, 1, 30, 1), (1, 0, 3, 2), True),
        ((1, 4, 1, 3, 4, 1), (0, 2, 1, 3, 5, 4), True),
        ((12, 3, 1, 14), (0, 2, 1, 3), True),
        ((1, 4, 2, 3, 4, 1), (0, 2, 1, 3, 5, 4), False),
        ((12, 3, 2, 14), (0, 2, 1, 3), False),
        ((1, 1, 1, 1, 4, 1), (4, 5, 2, 3, 0, 1), True),
        ((1, 1, 1, 1, 4, 2), (4, 5, 2, 3, 0, 1), True),
        ((1, 1, 3, 1, 4, 2), (4, 5, 2, 3, 0, 1), False),
        ((128, 1, 32, 64), (0, 2, 1, 3), True),
    ],
)
def test_a_permute_is_skipped_if_only_unit_axes_move(shape: Shape, order: tuple[int, ...], skipped: bool) -> None:
    """The order of the axes larger than 1 decides, not their number."""
    transpose = find_operator("", "Transpose")
    assert transpose is not None
    example = Example((_text(shape),), {"perm": order})
    inputs = arrays(example)
    call = make_call(transpose, example, inputs, reference(transpose, example, inputs), constant=False)

    decision = decide(transpose, call)

    assert skipped == isinstance(decision, Skip)
    assert not skipped or Skip((0,), (0,), "only unit axes move") == decision
