"""What a chunk's memory is made of while it is planned: tensors of its arena, places in them, listed launches."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import attrs

from asyncrt.kernels.call import Call
from asyncrt.kernels.impl import Launch
from asyncrt.layout import Array, Layout
from asyncrt.memory.view import View

from .chunk_plan import Home


@attrs.define(eq=False)
class PlannedTensor:
    """Bytes of this chunk's arena while it is planned: how many, and from which node to which they are needed."""

    nbytes: int
    first: int
    last: int
    #: The graph input, or the output of a node with subgraphs, that it is a copy of, if it is one.
    source: int | None = None
    #: The host value it is a copy of, if it is one.
    array: Array | None = None
    #: Whether a kernel or a read touches it; an upload that nobody touches is left out.
    used: bool = False
    offset: int = 0
    #: The tensor that it is a part of, `offset` bytes from its start, if it was written in place.
    whole: PlannedTensor | None = None

    @property
    def position(self) -> int:
        """Bytes from the arena's start, once offsets are planned."""
        return self.offset if self.whole is None else self.whole.position + self.offset


class Location:
    """Where a value's bytes will lie: *offset* bytes into a tensor of this chunk, or into a home of an earlier one.

    With a view, that is where its first element lies, and the view has the strides to the others.
    """

    __slots__ = ("base", "offset", "view")

    def __init__(self, base: PlannedTensor | Home, offset: int, view: View | None = None) -> None:
        self.base, self.offset, self.view = base, offset, view


class Listed(NamedTuple):
    """A launch whose buffers have no offsets yet."""

    node: int
    call: Call
    launch: Launch
    places: tuple[Location, ...]
    scratch: tuple[int, ...]
    written: tuple[View, ...]


#: A value that the host gets: its id and layout, where it lies, or the value.
Fetched: TypeAlias = "tuple[int, Layout, Location | None, Array | None]"


class Closed(NamedTuple):
    """A chunk's memory when all of its launches are listed.

    Attributes:
        fetches: What the host gets.
        up: The tensors that go up together, in that order; the findings, if there are any, last.
        down: Those that come down together: the findings, if there are any, and results; or none.
        staging: What all of these are part of.
        roots: The tensors that get a place in the arena of their own.
    """

    fetches: list[Fetched]
    up: list[PlannedTensor]
    down: list[PlannedTensor]
    staging: PlannedTensor
    roots: list[PlannedTensor]

    @property
    def staged(self) -> list[PlannedTensor]:
        """The tensors that travel together, in their order."""
        return [*dict.fromkeys([*self.up, *self.down])]
