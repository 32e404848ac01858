"""A program as bytes, and back.

It is a pickle of few classes. Three kinds of things are in it by reference: operators, by the module that has them, so
that only those modules are imported that a model needs; tensors that are parts of the model's own bytes, by their place
there; and all other tensors, by their place in bytes beside the pickle. The operator of a fused node is made again of
its parts' operators.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import attrs
import numpy as np

from asyncrt.graph.branches import JOIN
from asyncrt.graph.ir import Chunk, Graph, Program, ProgramNode, Subgraph, Value
from asyncrt.graph.reading.mapped import LEAST
from asyncrt.graph.subgraphs import CONTROL_FLOW
from asyncrt.graph.symbolic import Formula, SymbolicValues
from asyncrt.kernels.call import Attributes
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.registry import operators_in, place_of
from asyncrt.kernels.resident.store import ALIGNMENT
from asyncrt.layout import Array, DataType, dtype_named, dtype_of

_OWN = __name__.partition(".")[0] + "."
_OTHERS = {("functools", "partial"), ("builtins", "set"), ("builtins", "frozenset")}
_PROTOCOL = 5


class Unkept(Exception):
    """A program that cannot be written so, or bytes that are none."""


class Pickled(NamedTuple):
    """A program as bytes.

    Attributes:
        says: The program, without its tensors.
        constants: The tensors that are to lie beside it, each with the byte that it begins at.
        nbytes: Of all of them.
        modules: That the operators are in.
    """

    says: bytes
    constants: Sequence[tuple[int, Array]]
    nbytes: int
    modules: Sequence[str]


def pickled(program: Program, data: Array) -> Pickled:
    """Return *program* as bytes.

    Args:
        data: The model's bytes.

    Raises:
        Unkept: It has something that cannot be written so.
    """
    written = io.BytesIO()
    pickler = _Pickler(written, data)
    try:
        pickler.dump(program)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise Unkept(f"'{program.name}' cannot be kept: {error}") from error
    says = pickle.dumps((pickler.places, written.getvalue()), _PROTOCOL)
    return Pickled(says, pickler.constants, pickler.nbytes, sorted(pickler.modules))


def unpickled(says: bytes, data: Array, constants: Array) -> Program:
    """Return the program that `pickled()` has written.

    Args:
        data: The model's bytes.
        constants: Those beside the pickle.

    Raises:
        Unkept: It is none, or needs what is not here.
    """
    try:
        places, program = _Unpickler(io.BytesIO(says), (), (data, constants)).load()
        found = _Unpickler(io.BytesIO(program), places, (data, constants)).load()
    except Exception as error:  # a pickle that is none ends in errors of any class
        raise Unkept("a program that was kept cannot be read") from error
    if not isinstance(found, Program):
        raise Unkept(f"no program was kept, but {found!r}")
    return found


class _Place(NamedTuple):
    """Where a tensor lies: in the model's bytes (0) or in those beside the pickle (1)."""

    file: int
    offset: int
    dtype: str
    shape: tuple[int, ...]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, data: Array) -> None:
        super().__init__(file, _PROTOCOL)
        self.places: list[_Place] = []
        self.constants: list[tuple[int, Array]] = []
        self.nbytes = 0
        self.modules: set[str] = set()
        self._start, self._stop = _address(data), _address(data) + data.nbytes
        #: The number of each tensor that was met, and the tensor, so that its id stays its own.
        self._numbers: dict[int, tuple[int, Array]] = {}

    def persistent_id(self, thing: Any) -> int | None:
        """Return the number of a tensor; None of all else."""
        if not isinstance(thing, np.ndarray) or thing.dtype.kind == "O":
            return None
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self.places), thing
            self.places.append(self._place(thing))
        return self._numbers[id(thing)][0]

    def _place(self, array: Array) -> _Place:
        dtype = dtype_of(array.dtype) if array.dtype.kind != "T" else None
        if dtype is None:
            raise pickle.PicklingError(f"a tensor of {array.dtype}")
        address = _address(array)
        if array.flags.c_contiguous and self._start <= address and address + array.nbytes <= self._stop:
            return _Place(0, address - self._start, dtype.name, array.shape)
        place = _Place(1, self.nbytes, dtype.name, array.shape)
        self.constants.append((place.offset, array))
        self.nbytes += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return place

    def reducer_override(self, thing: Any) -> Any:
        """Return how a thing is made again, or leave it to pickle."""
        kind: type = type(thing)
        if kind is Operator and (place := place_of(thing)) is not None:
            self.modules.add(place[0])
        writer = _write_number if issubclass(kind, np.generic) else _WRITERS.get(kind)
        return NotImplemented if writer is None else writer(thing)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, places: Sequence[_Place], files: tuple[Array, Array]) -> None:
        super().__init__(file)
        self._places, self._files = places, files
        self._arrays: dict[int, Array] = {}

    def persistent_load(self, number: int) -> Array:
        """Return the tensor of that number, the same whenever it is asked for."""
        array = self._arrays.get(number)
        if array is None:
            place = self._places[number]
            dtype = dtype_named(place.dtype).numpy
            array = np.ndarray(place.shape, dtype, self._files[place.file].data, place.offset)
            if array.nbytes < LEAST:
                array = array.copy()  # the host may read it, and a file that is cut short would end the process
            self._arrays[number] = array
        return array

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function that a pickle names: asyncrt's own, and few others."""
        if (module, name) not in _OTHERS and (not module.startswith(_OWN) or "." in name):
            raise Unkept(f"a program that was kept asks for {module}.{name}")
        return super().find_class(module, name)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


# How things are made again: each function here is named by pickles, and its arguments are what they hold.


def _again(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return what writes things of a class of attrs: the class, and what it is to be given."""
    names = [field.name for field in attrs.fields(cls) if field.init]

    def written(thing: Any) -> tuple[Any, ...]:
        return cls, tuple([getattr(thing, name) for name in names])

    return written


_NODE = [field.name for field in attrs.fields(ProgramNode) if field.name not in ("operator", "parts")]


def _node(operator: Any, parts: tuple[ProgramNode, ...], *fields: Any) -> ProgramNode:
    given = dict(zip(_NODE, fields, strict=True))
    if parts:  # then it is known how the operator is made of theirs
        attributes = [part.attributes for part in parts]
        operator = given["build"]([part.operator for part in parts], given["attributes"]["wiring"], attributes)
    return ProgramNode(operator=operator, parts=parts, **given)


def _write_node(node: ProgramNode) -> tuple[Any, ...]:
    operator = None if node.parts else node.operator
    return _node, (operator, node.parts, *[getattr(node, name) for name in _NODE])


def _special(name: str) -> Operator:
    return JOIN if name == "join" else CONTROL_FLOW[name]


def _operator(module: str, domain: str, name: str) -> Operator:
    return operators_in(module)[domain, name]


def _write_operator(operator: Operator) -> tuple[Any, ...]:
    if operator is JOIN:
        return _special, ("join",)
    if operator is CONTROL_FLOW.get(operator.name):
        return _special, (operator.name,)
    place = place_of(operator)
    if place is None:
        raise pickle.PicklingError(f"{operator!r} is no operator of a module")
    return _operator, place


def _no_names(name: str) -> NoReturn:
    raise AssertionError(f"a graph that was kept makes no names, {name!r} was asked for")


def _graph(*fields: Any) -> Graph:
    name, values, nodes, inputs, outputs, *others = fields
    return Graph(name, values, nodes, inputs, outputs, _no_names, *others)


def _write_graph(graph: Graph) -> tuple[Any, ...]:
    given = attrs.fields(Graph)
    return _graph, tuple([getattr(graph, field.name) for field in given if field.name != "fresh"])


def _subgraph(label: str, graph: Graph, formals: int, captured: dict[int, int], program: Program) -> Subgraph:
    subgraph = Subgraph(label, graph, formals, captured)
    subgraph.finish(program)
    return subgraph


def _write_subgraph(sub: Subgraph) -> tuple[Any, ...]:
    return _subgraph, (sub.label, sub.graph, sub.formals, sub.captured, sub.program)


def _attributes(values: dict[str, Any], opset: int, outputs: int) -> Attributes:
    return Attributes(values, opset, outputs)


def _write_attributes(attributes: Attributes) -> tuple[Any, ...]:
    return _attributes, (dict(attributes), attributes.opset, attributes.outputs)


def _objects(shape: tuple[int, ...], elements: Sequence[Any]) -> Array:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def _write_objects(array: Array) -> tuple[Any, ...]:
    return _objects, (array.shape, array.reshape(-1).tolist())


def _number(array: Array) -> Any:
    return array[()]


def _write_number(number: np.generic) -> tuple[Any, ...]:
    return _number, (np.asarray(number),)


def _write_dtype(dtype: DataType) -> tuple[Any, ...]:
    return dtype_named, (dtype.name,)


_WRITERS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    **{cls: _again(cls) for cls in (Value, Chunk, Program, Formula, SymbolicValues)},
    ProgramNode: _write_node,
    Operator: _write_operator,
    Graph: _write_graph,
    Subgraph: _write_subgraph,
    Attributes: _write_attributes,
    np.ndarray: _write_objects,
    DataType: _write_dtype,
}
"""For each class what it is made again by, and of what. All others are left to pickle."""
