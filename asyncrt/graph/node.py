"""One node of a program, and one value between nodes. Immutable once the program is made; shared by all inferences."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from asyncrt.kernels.call import Attributes
from asyncrt.kernels.decide import SkipMode
from asyncrt.kernels.operator import Operator
from asyncrt.layout import Array, DataType, PartialLayout

if TYPE_CHECKING:
    from .subgraphs import Subgraph


class Place(enum.Enum):
    """Where a node runs."""

    DEVICE = "device"
    HOST = "host"


@attrs.define(eq=False)
class Value:
    """A tensor of the program, by its number.

    Attributes:
        id: Its number.
        name: Its name in the model.
        layout: What is known of it before a request.
        producer: Id of the node that makes it; None for inputs and constants.
        constant: Its value, if it is the same in every request.
        partial: Its value as far as loading knows it: an array of dtype object that may hold symbolic dims, or the
            constant. Only small integer tensors have one.
        readers: Ids of the nodes that take it as an input.
    """

    id: int
    name: str
    layout: PartialLayout
    producer: int | None = None
    constant: Array | None = None
    partial: Array | None = None
    readers: tuple[int, ...] = ()


@attrs.define(eq=False)
class ProgramNode:
    """An operator at its place in a program.

    Attributes:
        id: Its number, in the model's order.
        name: Its name in the model, or one made of its operator and number.
        operator: What it does.
        attributes: With the defaults of its ONNX schema.
        inputs: Value ids; None where an optional input is absent.
        outputs: Value ids.
        output_types: dtype of each output.
        place: Whether it runs on the device or on the host.
        skip_mode: What loading can tell about skipping it.
        skip_note: Why, for `explain()`.
        chunk: Which chunk it belongs to.
        captures: Ids of the values that its subgraphs take from outside.
        subgraphs: What an If, a Loop or a Scan holds; such a node is carried out by the network.
        parts: For a node that stands for several (see `passes/fuse.py`): these, in order, unchanged. Its number and
            output are the last one's, so that what is known of how long values live holds either way.
        apart: What is carried out where shapes forbid that: the parts, or nodes that stand for some of them.
    """

    id: int
    name: str
    operator: Operator
    attributes: Attributes
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    output_types: tuple[DataType, ...]
    place: Place = Place.DEVICE
    skip_mode: SkipMode = SkipMode.NEVER
    skip_note: str = ""
    chunk: int = 0
    captures: tuple[int, ...] = ()
    subgraphs: tuple[Subgraph, ...] = ()
    parts: tuple[ProgramNode, ...] = ()
    apart: tuple[ProgramNode, ...] = ()

    @property
    def uses(self) -> tuple[int, ...]:
        """The ids of all values that the node takes, each once."""
        return tuple(dict.fromkeys([v for v in self.inputs if v is not None] + list(self.captures)))

    @property
    def host_reads(self) -> tuple[int, ...]:
        """The ids of the values that the host must know before it can go past the node."""
        if self.place is Place.DEVICE:
            return self.get_shape_infer_dependencies()
        return () if self.operator.evaluate is not None else self.uses

    @property
    def optimized(self) -> bool:
        """Whether the node may be elided, now or at run time. With `runtime_skippable` the seeds' two flags; that
        the second cannot hold without the first follows from their being derived from one value."""
        return self.skip_mode is not SkipMode.NEVER

    @property
    def runtime_skippable(self) -> bool:
        """Whether the shapes of a request decide if the node is elided."""
        return self.skip_mode is SkipMode.AT_RUNTIME

    def get_shape_infer_dependencies(self) -> tuple[int, ...]:
        """Return the ids of the values (not just shapes) that the output shapes need."""
        wanted = self.operator.shape_infer_dependencies
        return tuple(v for i, v in enumerate(self.inputs) if i in wanted and v is not None)

    def get_value_hints(self) -> tuple[int, ...]:
        """Return the ids of the values that a decision can use where the host knows them anyway."""
        wanted = self.operator.value_hints
        return tuple(v for i, v in enumerate(self.inputs) if i in wanted and v is not None)
