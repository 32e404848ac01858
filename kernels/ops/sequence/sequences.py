"""Sequences of tensors: made, changed, split and joined. They are on the host, and share the tensors that they hold.

Source: ONNX SequenceConstruct-11, SequenceEmpty-11, SequenceInsert-11, SequenceErase-11, SequenceAt-11,
SequenceLength-11, SplitToSequence-24, ConcatFromSequence-11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncrt.errors import IndexOutOfRange, ModelTypeError, ShapeError
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import TURN, Example, Operator
from asyncrt.kinds import element_of, held, nbytes_of, sequence_of
from asyncrt.layout import INT64, Array, DataType, Shape, dtype_from_onnx, show_shape

Arrays = Sequence[Array | None]


def _one_value(call: Call) -> tuple[Shape]:
    return ((),)


def _inside(call: Call) -> tuple[Shape]:
    raise ValueUnknown(f"'{call.name}': the shape of a tensor of a sequence is known when the sequence is")


def _given_nbytes(call: Call) -> int:
    """What is given, once more for what is joined or cut, and a little for each tensor."""
    return sum([2 * nbytes_of(a) + TURN for a in call.values if a is not None])


def _split_nbytes(call: Call) -> int:
    """Were each part one element long, there would be a tensor for each, along whichever axis."""
    return _given_nbytes(call) + 2 * TURN * max(call.shape(0), default=0)


def _present(array: Array | None) -> Array:
    assert array is not None
    return array


def _items(array: Array | None) -> tuple[Any, ...]:
    found: tuple[Any, ...] = _present(array).item()
    return found


def _position(position: Array, count: int, input: int, *, past: bool = False) -> int:
    """Return a place in a sequence, from its start; *past* its last one is a place, too, where something is inserted."""
    if position.size != 1:
        raise ShapeError(f"a position is one number, got {show_shape(position.shape)}")
    place, most = int(position.item()), count if past else count - 1
    if not -count <= place <= most:
        raise IndexOutOfRange("", input, 0, place, -count, most)
    return place if place >= 0 else place + count


def _construct(attributes: Attributes, inputs: Arrays) -> tuple[Array]:
    return (held(tuple(inputs)),)


def _empty(attributes: Attributes, inputs: Arrays) -> tuple[Array]:
    return (held(()),)


def _insert(attributes: Attributes, inputs: Arrays) -> tuple[Array]:
    items = _items(inputs[0])
    place = len(items) if len(inputs) < 3 or inputs[2] is None else _position(inputs[2], len(items), 2, past=True)
    return (held((*items[:place], inputs[1], *items[place:])),)


def _erase(attributes: Attributes, inputs: Arrays) -> tuple[Array]:
    items = _items(inputs[0])
    last = np.asarray(-1)
    place = _position(last if len(inputs) < 2 or inputs[1] is None else inputs[1], len(items), 1)
    return (held(items[:place] + items[place + 1 :]),)


def _at(attributes: Attributes, inputs: Arrays) -> tuple[Array]:
    items = _items(inputs[0])
    return (items[_position(_present(inputs[1]), len(items), 1)],)


def _length(attributes: Attributes, inputs: Arrays) -> tuple[Array]:
    return (np.asarray(len(_items(inputs[0])), np.int64),)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is outside tensors of rank {rank}")
    return axis % rank


def _split(attributes: Attributes, inputs: Arrays) -> tuple[Array]:
    x = _present(inputs[0])
    axis = _axis(attributes.get("axis", 0), x.ndim)
    size, sizes = x.shape[axis], inputs[1] if len(inputs) > 1 else None
    if sizes is None:
        parts = np.split(x, range(1, size), axis) if size else []
        if not attributes.get("keepdims", 1):
            parts = [part.squeeze(axis) for part in parts]
        return (held(tuple(parts)),)
    lengths = [int(n) for n in sizes.reshape(-1)]
    if sizes.ndim == 0:
        if lengths[0] <= 0:
            raise ShapeError(f"parts of {lengths[0]} elements")
        bounds = list(range(lengths[0], size, lengths[0]))
    elif any(n < 0 for n in lengths) or sum(lengths) != size:
        raise ShapeError(f"parts of {lengths} elements do not make up axis {axis} of {show_shape(x.shape)}")
    else:
        bounds = np.cumsum(lengths[:-1]).tolist()
    return (held(tuple(np.split(x, bounds, axis))),)


def _concat(attributes: Attributes, inputs: Arrays) -> tuple[Array]:
    items = _items(inputs[0])
    if not items:
        raise ShapeError("a sequence without tensors cannot be joined")
    new = bool(attributes.get("new_axis", 0))
    axis = _axis(attributes["axis"], items[0].ndim + new)
    shapes = {tuple(s for i, s in enumerate(x.shape) if new or i != axis) for x in items}
    if len(shapes) > 1 or len({x.ndim for x in items}) > 1:
        raise ShapeError(f"tensors of shapes {', '.join(show_shape(x.shape) for x in items[:4])} cannot be joined")
    return (np.stack(items, axis) if new else np.concatenate(items, axis),)


Types = Callable[[Attributes, Sequence[DataType | None], int], Sequence[DataType]]


def _sequence_of_first(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    return (sequence_of(_known(inputs[0])),)


def _element_of_first(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    return (_known(element_of(inputs[0], "seq")),)


def _of_attribute(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> tuple[DataType]:
    return (sequence_of(_known(dtype_from_onnx(attributes.get("dtype", 1)))),)


def _known(dtype: DataType | None) -> DataType:
    if dtype is None:
        raise ModelTypeError("the dtype of a sequence's tensors is not known")
    return dtype


def _operator(
    name: str,
    reference: Callable[[Attributes, Arrays], tuple[Array]],
    *examples: Example,
    infer: Callable[[Call], tuple[Shape]] = _one_value,
    types: Types | None = None,
    host_nbytes: Callable[[Call], int] = _given_nbytes,
) -> Operator:
    return Operator(
        name=name, infer=infer, reference=reference, types=types, host_nbytes=host_nbytes, examples=examples
    )


_A, _B, _C = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 2), np.float32), np.zeros((2, 3), np.float32)
_AT = [np.array(i, np.int64) for i in (-2, -1, 0, 1)]

OPERATORS = (
    _operator("SequenceConstruct", _construct, Example((_A, _B)), types=_sequence_of_first),
    _operator("SequenceEmpty", _empty, Example((), {"dtype": INT64.onnx}), types=_of_attribute),
    _operator(
        "SequenceInsert", _insert, Example(((_A, _B), _C)), *(Example(((_A, _B), _C, at)) for at in _AT),
        types=lambda attributes, inputs, outputs: (_known(inputs[0]),),
    ),
    _operator(
        "SequenceErase", _erase, Example(((_A, _B),)), *(Example(((_A, _B), at)) for at in _AT),
        types=lambda attributes, inputs, outputs: (_known(inputs[0]),),
    ),
    _operator(
        "SequenceAt", _at, *(Example(((_A, _B), at)) for at in _AT), infer=_inside, types=_element_of_first
    ),
    _operator("SequenceLength", _length, Example(((_A, _B),)), Example(((),))),
    _operator(
        "SplitToSequence",
        _split,
        Example((_A,), {"axis": -1}),
        Example((_A,), {"axis": 1, "keepdims": 0}),
        Example((_A, np.array(2, np.int64)), {"axis": 1}),
        Example((_A, np.array([1, 2], np.int64)), {"axis": 1, "keepdims": 0}),
        types=_sequence_of_first,
        host_nbytes=_split_nbytes,
    ),
    _operator(
        "ConcatFromSequence",
        _concat,
        Example(((_A, _B),), {"axis": 1}),
        Example(((_A, _C),), {"axis": -1, "new_axis": 1}),
        infer=_inside,
        types=_element_of_first,
    ),
)  # fmt: skip
