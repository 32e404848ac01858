"""Attention written out in pieces: ``softmax(query key' * scale + mask) value`` of each head, as one kernel.

The keys come before they are transposed, because the kernels read rows of keys; a transpose of the result is a matter
of where its rows are written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncrt.kernels.attention import attention as kernels
from asyncrt.kernels.attention.interface import AttentionTensor
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, Ref, inp, out
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, FLOAT32, Shape, show_shape
from asyncrt.memory.view import View, broadcast_strides

from .expression import Wiring
from .groups import whole_operator

_QUERY, _KEY, _VALUE, _MASK = range(4)


def fused_attention(operators: Sequence[Operator], wiring: Wiring, attributes: Sequence[Attributes]) -> Operator:
    """Return the operator whose first inputs are query, keys, values and, if it has one, the mask.

    Its attributes are `scale`; `masked`: whether there is a mask; `checked`: whether weights of NaN become zeros;
    `keys` and `result`: the orders in which the keys' axes, and those of the result, are transposed.
    """
    names = [operator.name for operator in operators]
    mixing = max(i for i, name in enumerate(names) if name == "MatMul")
    reshapes = [i for i, name in enumerate(names) if name == "Reshape"]

    def fits(call: Call, traits: DeviceTraits) -> str:
        if reshapes:  # the keys' heads are folded into the batch and back
            *heads, rows, size = call.shape(_KEY)
            folded, unfolded = (call.parts[i].outputs[0].shape for i in reshapes)
            if folded != (math.prod(heads), rows, size) or unfolded != (*heads, size, rows):
                return "reshapes of the keys do more than fold their heads"
        return _why_not(call, call.parts[names.index("Softmax")].shape(0), call.parts[mixing].shape(0))

    return whole_operator(operators, wiring, attributes, fits, _implement, _takes_view)


def _rows(call: Call, index: int, view: View) -> View:
    """How the rows of an input lie: of queries, of keys, of values, or of what is added to the scores of a query."""
    if index == _KEY:
        moved = view.permute(call.attributes["keys"])
        return moved.permute((*range(len(moved.shape) - 2), len(moved.shape) - 1, len(moved.shape) - 2))
    return view


def _result(call: Call) -> View:
    """How the rows of the result lie where they are written."""
    order = call.attributes["result"]
    view = View.dense(call.outputs[0].shape)
    return view.permute(sorted(range(len(order)), key=order.__getitem__))


def _adjacent(view: View) -> bool:
    return view.strides[-1] == 1 or view.shape[-1] == 1


def _read(call: Call) -> range:
    return range(_MASK + 1 if call.attributes["masked"] else _MASK)


def _takes_view(call: Call, index: int, view: View) -> bool:
    """Rows of adjacent elements; inputs that belong to other parts are not read."""
    return index not in _read(call) or _adjacent(_rows(call, index, view))


def _why_not(call: Call, scored: Shape, weights: Shape) -> str:
    """Return why the kernels cannot do it; "" if they can.

    Args:
        scored: The shape of what the softmax takes.
        weights: That of what the values are multiplied by.
    """
    query, key, value = (_rows(call, i, View.dense(call.shape(i))) for i in (_QUERY, _KEY, _VALUE))
    if len(query.shape) not in (3, 4) or not len(query.shape) == len(key.shape) == len(value.shape):
        return "query, keys and values must all have 3 or all have 4 axes"
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return "query, keys and values are not of as many batches and heads"
    scores = (*query.shape[:-1], key.shape[-2])
    for shape in (scored, weights):
        if shape != scores:
            return f"the mask makes {show_shape(shape)} of scores of {show_shape(scores)}"
    if call.attributes["masked"] and call.shape(_MASK)[-1:] != scores[-1:]:
        return "the mask has no element for each key"
    dtypes = {call.dtype(i) for i in _read(call)}
    if len(dtypes) != 1 or not dtypes <= {FLOAT16, FLOAT32}:
        return f"its kernel is for halves and floats, all of one dtype, not for {', '.join(sorted(map(str, dtypes)))}"
    if not all(map(_adjacent, (query, key, value, _result(call)))):
        return "the elements of a row do not lie one after the other"
    return ""


def _implement(call: Call, traits: DeviceTraits) -> Impl:
    query, key, value = (_rows(call, i, call.view(i)) for i in (_QUERY, _KEY, _VALUE))
    dtype = call.dtype(_QUERY)

    def tensor(ref: Ref, view: View) -> AttentionTensor:
        head = view.strides[1] if len(view.shape) == 4 else 0
        return AttentionTensor(ref, dtype, view.strides[0], head, view.strides[-2])

    keys = key.shape[-2]
    mask = None
    if call.attributes["masked"]:
        given = call.view(_MASK)
        shape = (*query.shape[:-1], keys)
        strides = given.expand(shape).strides if call.strided else broadcast_strides(given.shape, shape)
        mask = tensor(inp(_MASK), View(shape, strides))
    whole = kernels.Attention(
        query=tensor(inp(_QUERY), query),
        key=tensor(inp(_KEY), key),
        value=tensor(inp(_VALUE), value),
        target=tensor(out(0), _result(call)),
        batch=query.shape[0],
        kv_heads=query.shape[1] if len(query.shape) == 4 else 1,
        group=1,
        queries=query.shape[-2],
        keys=keys,
        size=query.shape[-1],
        value_size=value.shape[-1],
        scale=call.attributes["scale"],
        mask=mask,
        mask_keys=keys if mask else 0,
        unseen=0.0 if call.attributes["checked"] else math.nan,
        checked=call.attributes["checked"],
    )
    impl = kernels.attention_impl(whole, (), (), traits)
    # Of the scores it numbers those of a row alone.
    return impl._replace(name=f"attention, {impl.name}", walks_parts=False)
