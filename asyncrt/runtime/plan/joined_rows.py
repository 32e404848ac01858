"""May a product normalise the rows that it multiplies, although others read them, too?

In a transformer what a product reads is often added to what comes of it. A launch of a product may do what the one
before it would have done, and write that where it belongs (`asyncrt.kernels.impl.Launch.of_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrt.kernels.call import Call
from asyncrt.kernels.impl import Impl, Launch, Normalisation, inp, out

from .memory_plan import MemoryPlan
from .tensors import Location, PlannedTensor

_FAR = 3  # launches among which the normalisation may be: others are seldom between


def join_rows(
    memory: MemoryPlan, node: int, call: Call, launch: Launch, places: Sequence[Location], impl: Impl
) -> int | None:
    """List a launch that also does what one does that was listed before, in its place; returns whose node that is, or
    None if there is none, and then nothing has changed.

    Args:
        node: Whose launch it is.
        places: Of its buffers; the first is the rows that it multiplies.
    """
    rows, launches = places[0].base, memory.launches
    if launch.of_rows is None or not isinstance(rows, PlannedTensor) or places[0].offset or places[0].view is not None:
        return None
    near = range(len(launches) - 1, max(len(launches) - 1 - _FAR, -1), -1)
    at = next((i for i in near if any(place.base is rows for place in launches[i].places)), None)
    if at is None or sum(place.base is rows for place in places) > 1:
        return None
    maker = launches[at]
    normal = maker.launch.normal
    if normal is None or maker.places[1].base is not rows or maker.places[0].base is rows or rows.whole is not None:
        return None
    count, kept = len(call.inputs), out(len(call.outputs))
    if normal.refs != (inp(1), inp(2))[: len(normal.refs)]:
        return None  # they were written out first
    factors = maker.call.inputs[1 : 1 + len(normal.refs)]
    told = Normalisation(normal.statistics, normal.epsilon, inp(count), None if normal.bias is None else inp(count + 1))
    both = launch.of_rows(told, maker.launch.ints[1], kept)
    if both is None:
        return None
    del launches[at]
    source, made, *given = maker.places
    for place in (source, *given):
        memory.read(place, node)
    own = both.buffers.index(told.scale)
    strided = (*call.strided, *(None for _ in factors)) if call.strided else ()
    joint = call._replace(
        inputs=(*call.inputs, *factors), values=(*call.values, *(None for _ in factors)),
        constants=(*call.constants, *(True for _ in factors)), outputs=(*call.outputs, maker.call.outputs[0]),
        strided=strided,
    )  # fmt: skip
    memory.launch(node, joint, both, (source, *places[1:own], *given, made, *places[own:]), impl=impl)
    return maker.node
