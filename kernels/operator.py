"""What there is to know of an operator, and what it may answer.

An operator is one record, defined in one file of `kernels/ops`. It sees its own node's attributes, layouts and known
values (a `Call`) and nothing else: no neighbour, no request, no device memory. Everything here is pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs

from asyncrt.dims import Dim
from asyncrt.errors import ShapeError
from asyncrt.layout import Array, DataType, Layout, Shape
from asyncrt.memory.view import View

from .codegen.epilogue import Epilogue
from .impl import Impl
from .indices import Indices, unseen_indices


class Attributes(dict[str, Any]):
    """A node's attributes as Python values, with the defaults of the ONNX schema filled in.

    ints, floats and strings are themselves, tensors are NumPy arrays, lists are tuples, graphs are `onnx.GraphProto`.

    Attributes:
        opset: Version of the node's domain in its model.
        outputs: Number of the node's outputs, which is all that tells a Split how many pieces to make.
    """

    def __init__(
        self,
        values: Mapping[str, Any] = {},
        opset: int = 0,
        outputs: int = 1,
    ) -> None:
        super().__init__(values)
        self.opset = opset
        self.outputs = outputs


class Call(NamedTuple):
    """One node at one set of shapes.

    Attributes:
        name: The node's name, for messages.
        attributes: The node's attributes.
        inputs: Layout of each input; None where an optional input is absent. While loading, dims may be symbolic.
        values: The inputs' values where they are known on the host, else None. Always known for the operator's
            `shape_infer_dependencies` in a request; while loading, arrays of dtype object hold symbolic dims.
        outputs: Layout of each output. Empty while `infer` is asked.
        output_types: dtype of each output.
        constants: For each input whether it is a constant of the model, the same in every request.
        strided: For each input how its elements lie, where they do not lie one after the other; empty if all do.
            Only what the operator agreed to (`Operator.takes_view`) comes so.
        parts: For a node that stands for several, their calls, in order.
    """

    name: str
    attributes: Attributes
    inputs: tuple[Layout | None, ...]
    values: tuple[Array | None, ...]
    outputs: tuple[Layout, ...] = ()
    output_types: tuple[DataType, ...] = ()
    constants: tuple[bool, ...] = ()
    strided: tuple[View | None, ...] = ()
    parts: tuple[Call, ...] = ()

    def shape(self, index: int) -> Shape:
        """Return the shape of input *index*, which must be present."""
        layout = self.inputs[index]
        if layout is None:
            raise ShapeError(f"'{self.name}': input {index} is required and absent")
        return layout.shape

    def dtype(self, index: int) -> DataType:
        """Return the dtype of input *index*, which must be present."""
        layout = self.inputs[index]
        if layout is None:
            raise ShapeError(f"'{self.name}': input {index} is required and absent")
        return layout.dtype

    def view(self, index: int) -> View:
        """Return how the elements of input *index*, which must be present, lie from its first one on."""
        view = self.strided[index] if self.strided else None
        return View.dense(self.shape(index)) if view is None else view

    def has(self, index: int) -> bool:
        """Return whether optional input *index* is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Array | None:
        """Return the value of input *index* where it is known, else None; None also if the input is absent."""
        return self.values[index] if index < len(self.values) else None

    def ints(self, index: int) -> list[int]:
        """Return the known value of input *index*, a scalar or a vector, as a list of ints (or symbolic dims while loading).

        Raises:
            ShapeError: It has more axes.
            ValueUnknown: If the value is not known, which happens only while loading.
        """
        value = self.value(index)
        if value is not None and value.ndim > 1:
            raise ShapeError(f"'{self.name}': input {index} must be a vector, it has {value.ndim} axes")
        return self.flat(index)

    def flat(self, index: int) -> list[int]:
        """Return the known value of input *index*, of any rank, as a flat list of ints (or symbolic dims while loading).

        Raises:
            ValueUnknown: If the value is not known, which happens only while loading.
        """
        value = self.value(index)
        if value is None:
            raise ValueUnknown(f"'{self.name}': the value of input {index} is not known while loading")
        elements: list[Any] = value.reshape(-1).tolist()
        try:
            return [d if isinstance(d, Dim | int) else int(d) for d in elements]  # type: ignore[misc]  # Dims only while loading
        except (ValueError, OverflowError) as error:
            raise ShapeError(f"'{self.name}': input {index} must be finite, it is {elements}") from error

    def vector(self, index: int) -> list[int]:
        """Return what `ints` does of an input that must be a vector, and not a scalar either."""
        value = self.value(index)
        if value is not None and value.ndim != 1:
            raise ShapeError(f"'{self.name}': input {index} must be a vector, it has {value.ndim} axes")
        return self.ints(index)


class ValueUnknown(Exception):
    """While loading: an output shape depends on a value that only a request has."""


class SkipMode(enum.Enum):
    """Whether a node is skipped, as far as loading can tell."""

    NEVER = "never"
    ALWAYS = "always"
    AT_RUNTIME = "at runtime"


class Run(NamedTuple):
    """The node is executed."""

    why: str = ""


class Skip(NamedTuple):
    """The node is not executed: each output is an input's bytes.

    Attributes:
        sources: For each output, the input that it is.
        offsets: For each output, the bytes from the input's start.
        why: The condition that held, for `explain()`.
    """

    sources: tuple[int, ...]
    offsets: tuple[int, ...]
    why: str


class Viewed(NamedTuple):
    """The node is not executed: its outputs stay views of inputs, for readers that take strides.

    Attributes:
        sources: For each output, the input that it is a view of.
        offsets: For each output, the bytes from the input's first element to its own.
        views: For each output its strides; None where its elements lie one after the other.
        why: What keeps it from being a skip, for `explain()`.
    """

    sources: tuple[int, ...]
    offsets: tuple[int, ...]
    views: tuple[View | None, ...]
    why: str


class Empty(NamedTuple):
    """The node is not executed: its outputs have no elements."""

    why: str


Decision: TypeAlias = Run | Skip | Viewed | Empty


class Fused(NamedTuple):
    """The node's work is done by a kernel of another node, whose name this is."""

    into: str


class Apart(NamedTuple):
    """A node that stands for several is not executed: they are, one after the other."""

    why: str


SKIP_OFF = Run("skip is off")
MOVES = Run("moves data for these shapes")


class ViewOf(NamedTuple):
    """An output is a view of input `source`."""

    source: int
    view: View


class Expression(NamedTuple):
    """An element-wise operator as OpenCL C: one element of its output from one of each operand.

    Attributes:
        text: OpenCL C over ``a0, a1, ...``, the operands in their arithmetic types.
        operands: For each operand the node's input that it is.
        vector: The text also holds for vectors, in which booleans are 0 and -1 (no statements, no scalar branches).
        integers: It does so for integers of 8 and 32 bits too, which are 32 bits wide in vectors.
        helpers: OpenCL C functions that the text calls; ``$`` stands for the kernel's unique name.
    """

    text: str
    operands: tuple[int, ...]
    vector: bool = False
    helpers: str = ""
    integers: bool = False

    @property
    def cheap(self) -> bool:
        """Whether it calls no function, so that calculating it again costs less than reading the result."""
        return re.search(r"\w\(", self.text) is None


Reference: TypeAlias = Callable[[Attributes, Sequence[Array | None]], Sequence[Array]]


class Example(NamedTuple):
    """A case on which an operator is tested against its reference, on every device.

    Attributes:
        inputs: Arrays, or strings such as ``"f32[2,3]"`` that are filled with reproducible random values;
            None for an absent input.
        attributes: ONNX attributes.
        outputs: Number of outputs.
        opset: Version of the node's domain.
    """

    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = {}
    outputs: int = 1
    opset: int = 0


@attrs.frozen(kw_only=True, eq=False)
class Operator:
    """One ONNX operator.

    Attributes:
        name: ONNX `op_type`.
        infer: Output shapes from a `Call`. Called while loading with symbolic dims (it may then let `Undetermined`
            or `ValueUnknown` through) and in every request with ints. Raises `ShapeError` if shapes do not fit.
        reference: The operator in NumPy; the meaning that kernels are tested against, and what runs on the host.
        implement: The launches that carry it out on an OpenCL device. None: the operator runs on the host.
        views: For an operator that only moves data: each output as a view of an input, or None if this call is not
            one. Must be right for every value of what it cannot see.
        why: What a skip of this operator means, for `explain()`.
        shape_infer_dependencies: Inputs whose *values* the output shape needs.
        why_not: Why this call is not skipped, for `explain()`, where the view itself does not say it well. Asked only
            of calls that were run; "" where nobody would expect a skip.
        value_hints: Inputs whose values `views` can use when they are known anyway; never waited for.
        hint_matters: Whether a hint of this value can make a difference, where it is a constant of the model. None: any.
        asks_hints: Whether hints are only compared, element by element, so that they may be any kind of ints, in an array
            of objects. Otherwise they are of their dtype in a request.
        compares_hints: Whether it is worth a plan for each of their values where they are a request's short inputs;
            otherwise the hints are used only if they are constants or shape arithmetic.
        types: Output dtypes, for the operators whose ONNX schema does not say.
        device_types: dtypes of data inputs that `implement` takes; None: all.
        takes_view: Whether the kernels read input *index* of a call through the strides of a view as well as they
            would read it dense, and with the same result. None: never. A view is never negative in its strides.
        destinations: For an operator whose output is made of its inputs: the part of output 0 that each of them is.
            An input whose part is dense may have been written there by who made it; the launches of `implement` read
            one input each, and that of an input already in its place is left out.
        expression: For an element-wise operator: its output as an expression of its operands, so that it can be part
            of another kernel; None if this call is not one. Asked of runs only.
        with_epilogue: `implement`, calculating on from each result before it is stored.
        converts: Whether what that gives may be of another dtype (`Epilogue.result`).
        fits: For an operator that stands for several nodes: "" if its kernel can carry out this call, else why these
            shapes or values forbid it.
        indices: For an operator that takes indices: which of its inputs they are, and where they may point; None if this
            call has none. Those that the host knows are looked at before; of others, its launches take a place for it
            (`FOUND`) and look at them themselves, or else a launch of its own does.
        host_nbytes: Bytes that `reference` makes at most, its outputs and what it needs on the way, told by shapes and
            such values as decide them; 128 for each turn of a loop in Python. Never more than a glance: it is asked
            before the reference runs. None: the outputs, and what is calculated once more in float64, which for
            operators that move data is the outputs, else the inputs as well.
        evaluate: For operators whose output needs only layouts (Shape, Size): the output's value. Dims may be
            symbolic; then the array is of dtype object.
        domain: ONNX domain, with "" for the standard one.
        examples: Cases for the tests.
    """

    name: str
    infer: Callable[[Call], Sequence[Shape]]
    reference: Reference
    implement: Callable[[Call, DeviceTraits], Impl] | None = None
    views: Callable[[Call], Sequence[ViewOf] | None] | None = None
    why: str = "its bytes are the input's"
    shape_infer_dependencies: tuple[int, ...] = ()
    why_not: Callable[[Call], str] | None = None
    value_hints: tuple[int, ...] = ()
    hint_matters: Callable[[Array], bool] | None = None
    asks_hints: bool = False
    compares_hints: bool = True
    takes_view: Callable[[Call, int, View], bool] | None = None
    destinations: Callable[[Call], Sequence[View]] | None = None
    expression: Callable[[Call], Expression | None] | None = None
    with_epilogue: Callable[[Call, DeviceTraits, Epilogue], Impl] | None = None
    converts: bool = False
    fits: Callable[[Call, DeviceTraits], str] | None = None
    indices: Callable[[Call], Indices | None] | None = None
    host_nbytes: Callable[[Call], int] | None = None
    evaluate: Callable[[Call], Sequence[Array]] | None = None
    types: Callable[[Attributes, Sequence[DataType | None], int], Sequence[DataType]] | None = None
    device_types: frozenset[DataType] | None = None
    domain: str = ""
    examples: tuple[Example, ...] = ()
    #: The inputs whose values it may see: `shape_infer_dependencies` and `value_hints`.
    declared: tuple[int, ...] = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: tuple(dict.fromkeys((*self.shape_infer_dependencies, *self.value_hints))), takes_self=True
        ),
    )

    def __repr__(self) -> str:
        return f"<Operator {self.name}>"

    def has_kernel(self, first: DataType | None) -> bool:
        """Whether `implement` takes a first input of that dtype; None is one that is absent, or not known."""
        return self.implement is not None and (
            self.device_types is None or first is None or first in self.device_types
        )

    def can_matter(self, index: int, constant: Array | None) -> bool:
        """Whether the value of declared input *index* can make a difference; *constant* is it, if it is one."""
        if constant is None or self.hint_matters is None or index in self.shape_infer_dependencies:
            return True
        return self.hint_matters(constant)


@attrs.frozen
class DeviceTraits:
    """What an implementation may ask of a device.

    Attributes:
        kind: "cpu" or "gpu": which class of kernels suits it.
        compute_units: Cores, or multiprocessors.
        max_group: Largest work-group.
        features: Any of "fp64", "fp16".
        packed_weights: Whether matrix products may ask for packed weights.
        narrow_weights: Whether the float32 weights of products, where they are constants, are numbers that bfloat16 has
            (`graph/passes/round_weights.py`), so that kernels may keep them so.
    """

    kind: str = "cpu"
    compute_units: int = 1
    max_group: int = 256
    features: frozenset[str] = frozenset()
    packed_weights: bool = True
    narrow_weights: bool = False

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"


TURN = 128
"""Bytes that a turn of a loop in Python counts as, in `Operator.host_nbytes`."""


def host_nbytes(operator: Operator, call: Call) -> int:
    """Return how many bytes the operator's reference makes at most, before it runs; of known shapes and values."""
    if operator.host_nbytes is not None:
        return operator.host_nbytes(call)
    outputs = call.outputs or [
        Layout(t, tuple(s)) for t, s in zip(call.output_types, operator.infer(call), strict=False)
    ]
    elements = sum([x.count for x in outputs])
    elements += elements if operator.views is not None else sum([x.count for x in call.inputs if x is not None])
    return sum([x.nbytes for x in outputs]) + 8 * elements


def decide(operator: Operator, call: Call, *, skip: bool = True, stay: bool = False) -> Decision:
    """Decide whether the node of *call* is run, skipped, left as a view, or empty.

    With symbolic dims the question may raise `Undetermined` or `ValueUnknown`: it depends on the request.

    Args:
        skip: False runs what could be skipped.
        stay: Whether a result whose elements do not lie one after the other may stay a view.
    """
    outputs = call.outputs
    if outputs and all(_no_elements(o.shape) for o in outputs):
        return Empty("no elements")
    if not skip or operator.views is None:
        return Run() if skip else SKIP_OFF
    views = operator.views(call)
    if views is None:
        return Run("moves or changes data")
    sources: list[int] = []
    offsets: list[int] = []
    strided: list[View | None] = []
    for (source, moved), output in zip(views, outputs, strict=True):
        layout = call.inputs[source]
        view: View | None = moved
        if call.strided and layout is not None:
            view = moved.through(call.view(source))
        if view is None or layout is None or layout.dtype.itemsize != output.dtype.itemsize:
            return MOVES
        dense = view.is_dense
        if not dense:
            view = _shaped(view, output.shape) if stay else None
            if view is None or min(view.strides) < 0:
                return MOVES
        sources.append(source)
        offsets.append(view.offset * layout.dtype.itemsize)
        strided.append(None if dense else view._replace(offset=0))
    if any(v is not None for v in strided):
        return Viewed(tuple(sources), tuple(offsets), tuple(strided), "its readers take strides")
    return Skip(tuple(sources), tuple(offsets), operator.why)


def wants_dense(operator: Operator, call: Call) -> tuple[int, ...]:
    """Return the inputs of *call* that come as views and that the operator cannot use so."""
    views = None if operator.views is None else operator.views(call)
    refused: list[int] = []
    for index, view in enumerate(call.strided):
        if view is None:
            continue
        if views is not None:
            taken = all(
                output.dtype.itemsize == call.dtype(index).itemsize
                and moved.through(view) is not None
                for (source, moved), output in zip(views, call.outputs, strict=True)
                if source == index
            )
        else:
            taken = operator.takes_view is not None and operator.takes_view(call, index, view)
        if not taken:
            refused.append(index)
    return tuple(refused)


def decide_together(whole: Operator, parts: Sequence[Operator], call: Call, traits: DeviceTraits) -> Run | Apart:
    """Decide whether a node that stands for several is run, or they are.

    What the parts would be is asked as if skips were on, so that results are the same with and without them.

    Args:
        whole: Its operator.
        parts: Theirs.
    """
    decisions = [decide(part, c) for part, c in zip(parts, call.parts, strict=True)]
    if any(isinstance(d, Empty) for d in decisions):
        return Apart("it has no elements")
    if sum(isinstance(d, Run) for d in decisions) < 2:
        return Apart("skips leave one node to run at most")
    if any(unseen_indices(part, c) is not None for part, c in zip(parts, call.parts, strict=True)):
        return Apart("indices have to be looked at")
    assert whole.fits is not None
    why = whole.fits(call, traits)
    return Apart(why) if why else Run()


def why_not_skipped(operator: Operator, call: Call) -> str:
    """Return why a node that could be skipped was run in *call*; for `explain()`, never asked while planning."""
    if operator.why_not is not None:
        return operator.why_not(call)
    views = None if operator.views is None else operator.views(call)
    if views is None:
        return "changes data for these values" if operator.value_hints else "changes data for these shapes"
    return next((reason for _, view in views if (reason := view.why_not_dense())), "its dtype changes")


def _shaped(view: View, shape: Shape) -> View | None:
    """A view, which an operator may give in any shape of as many elements, in the output's; None if no strides say it."""
    return view if view.shape == shape else View.dense(shape).through(view)


def _no_elements(shape: Shape) -> bool:
    return any(isinstance(d, int) and d == 0 for d in shape)
