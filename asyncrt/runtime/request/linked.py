"""Which bytes does an iteration of a Loop hand on to the next, so that several of them are one call?

Iterations whose carried values keep their shapes have one plan. Between two of them the host moves what was read to
where the next one's inputs go up from, and keeps what is collected; nobody has to be asked anything, and no Python runs
(`asyncrt.devices.base.Prepared.repeat`). Each is carried out as it would be alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.devices.base import Again, Move, Transfer
from asyncrt.graph.ir import Program
from asyncrt.layout import Array, layout_of
from asyncrt.runtime.execute.transfers import Arriving
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, Fetch, Records

_NOTHING = b""


class Loop(NamedTuple):
    """Iterations that are to come.

    Attributes:
        first: The number of the first.
        most: How many there may be; the body says sooner when they end.
        carried: How many values each hands on to the next.
    """

    first: int
    most: int
    carried: int


class Linked(NamedTuple):
    """How iterations are repeated.

    Attributes:
        again: What the device is told.
        collected: By the ids of the outputs that are collected, room for what each iteration makes.
    """

    again: Again
    collected: dict[int, Array]


class Iterated(NamedTuple):
    """What iterations have made.

    Attributes:
        times: How many there were.
        last: The outputs of the last one, by id.
        records: What became of the body's nodes.
        collected: Of several, by the ids of the outputs that are collected, what each made, and room behind it.
    """

    times: int
    last: dict[int, Array]
    records: Records
    collected: Mapping[int, Array] = {}


def own_inputs(program: Program, plan: ChunkPlan, arrays: Mapping[int, Array], loop: Loop) -> dict[int, Array] | None:
    """Return the inputs of the first of several iterations, which the next ones write over; None if only one can be.

    Such as where an output is no result of a kernel, where shapes change, or where contents decide about the plan.
    """
    fetched = {f.value: f for f in plan.fetches}
    condition, goes = program.inputs[1], fetched[program.outputs[0]]
    always = goes.source == condition or (goes.array is not None and bool(goes.array.all()))
    if program.value_inputs or (goes.home is None and not always):
        return None
    if any(fetched[v].home is None for v in program.outputs[1:]):
        return None
    own = dict(arrays)
    for given, made in _carried(program, loop):
        if given not in arrays or layout_of(arrays[given]) != fetched[made].layout:
            return None
        own[given] = arrays[given].copy()
    return own


def linked(
    program: Program,
    plan: ChunkPlan,
    arrays: Mapping[int, Array],
    writes: Sequence[Transfer],
    arriving: Arriving,
    loop: Loop,
) -> Linked:
    """Return how iterations are repeated whose inputs are `own_inputs()`.

    Args:
        writes: What goes up; what is staged comes first.
        arriving: What is read each time.
    """
    fetched, uploads = {f.value: f for f in plan.fetches}, {u.value: u for u in plan.uploads}

    def place(id: int) -> tuple[Any, int]:
        """Return where an input's bytes go up from."""
        return (writes[0].host, uploads[id].offset) if uploads[id].staged else (_bytes(arrays[id]), 0)

    moves: list[Move] = []
    number = program.inputs[0]
    if number in uploads:
        numbers = np.arange(loop.first + 1, loop.first + 1 + loop.most, dtype=arrays[number].dtype)
        moves.append(Move(numbers, 0, numbers.itemsize, *place(number), 0, numbers.itemsize))
    collected: dict[int, Array] = {}
    for id in program.outputs[1 + loop.carried :]:
        dtype, shape = fetched[id].layout
        collected[id] = np.empty((loop.most, *shape), dtype.numpy)
        nbytes = fetched[id].layout.nbytes
        moves.append(Move(*_read(fetched[id], arriving), 0, _bytes(collected[id]), 0, nbytes, nbytes))
    moves += [
        Move(*_read(fetched[made], arriving), 0, *place(given), 0, fetched[made].layout.nbytes)
        for given, made in _carried(program, loop)
        if given in uploads
    ]
    goes = fetched[program.outputs[0]]
    going: Any = _NOTHING
    if goes.home is not None:
        block, at = _read(goes, arriving)
        going = block[at : at + 1]
    findings = _NOTHING if arriving.block is None or plan.block is None else arriving.block[: plan.block.findings]
    return Linked(Again(moves, loop.most, going, findings), collected)


def _carried(program: Program, loop: Loop) -> zip[tuple[int, int]]:
    """Return the ids of the inputs that an iteration's outputs become in the next, with those of the outputs."""
    count = loop.carried
    return zip(program.inputs[2 : 2 + count], program.outputs[1 : 1 + count], strict=True)


def _read(fetch: Fetch, arriving: Arriving) -> tuple[Any, int]:
    """Return where a result's bytes are when they were read."""
    if not fetch.together:
        return _bytes(arriving.arrays[fetch.value]), 0
    where = arriving.plan.block
    assert where is not None
    assert fetch.home is not None
    return arriving.block, fetch.home.offset - where.offset


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
