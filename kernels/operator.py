"""What there is to know of an operator.

An operator is one record, defined in one file of `kernels/ops`. It sees its own node's attributes, layouts and known
values (a `Call`) and nothing else: no neighbour, no request, no device memory. Everything here is pure.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np

from asyncrt.dims import Undetermined
from asyncrt.errors import IndexOutOfRange
from asyncrt.layout import Array, DataType, Layout, Shape
from asyncrt.memory.view import View

from .call import Attributes, Call, ValueUnknown
from .codegen.epilogue import Epilogue
from .impl import Impl, Normalisation
from .indices import Indices
from .traits import DeviceTraits


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
        """Whether it calls no function but conversions, so that calculating it again costs less than reading the result."""
        return re.search(r"\w(?<!_real)(?<!_to_float)\(", self.text) is None


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


def spread(*shape: int, skip: int = 0) -> Array:
    """Return reproducible float64 values in 0 to 1 for an example, evenly spread, the first `skip` left out.

    Importing operators imports no random generator: that would take milliseconds of every start.

    Source: the multiples of the golden ratio, whose fractions keep apart (H. Weyl, 1916).
    """
    places = np.arange(skip + 1, skip + 1 + math.prod(shape)) * ((5**0.5 - 1) / 2)
    return (places % 1).reshape(shape)


@attrs.frozen(kw_only=True, eq=False)
class Operator:
    """One ONNX operator.

    Attributes:
        name: ONNX `op_type`.
        infer: Output shapes from a `Call`. Called while loading with symbolic dims (it may then let `Undetermined`
            or `ValueUnknown` through) and in every request with ints. Raises `ShapeError` if shapes do not fit.
        axes: What loading can still say of the output shapes where `infer` lets one of these through, with None for a dim
            of which nothing is known. None: not even how many axes there are.
        reference: The operator in NumPy; the meaning that kernels are tested against, and what runs on the host.
        implement: The launches that carry it out on an OpenCL device. None: the operator runs on the host.
        views: For an operator that only moves data: each output as a view of an input, or None if this call's outputs are
            no views. The answer must hold for all values that the operator cannot see.
        why: What a skip of this operator means, for `explain()`.
        shape_infer_dependencies: Inputs whose *values* the output shape needs.
        why_not: Why this call is not skipped, for `explain()`, where the view itself does not say it well. Asked only
            of calls that were run; "" where nobody would expect a skip.
        value_hints: Inputs whose values `views` can use when they are known anyway; never waited for.
        hint_matters: Whether a hint of this value can make a difference, where it is a constant of the model. None: any.
        asks_hints: Whether `views` only compares elements of hints, so that an array of objects with any kind of ints will
            do. Otherwise hints have their own dtype in a request.
        compares_hints: Whether it is worth a plan for each of their values where they are a request's short inputs;
            otherwise the hints are used only if they are constants or shape arithmetic.
        types: Output dtypes, for the operators whose ONNX schema does not say.
        device_types: dtypes of data inputs that `implement` takes; None: all.
        takes_view: Whether the kernels read input *index* of a call through the strides of a view as well as they
            would read it dense, and with the same result. None: never. A view is never negative in its strides.
        destinations: For an operator whose output is made of its inputs: the part of output 0 that each of them fills.
            Where that part is dense, the node that makes the input may write it there. Each launch of `implement` reads
            one input; the launch of an input that is already in its place is left out.
        expression: For an element-wise operator: its output as an expression of its operands, so that it can be part
            of another kernel; None if this call is not one. Asked of runs only.
        with_epilogue: `implement`, with an epilogue that is applied to each result before it is stored.
        with_normal: `with_epilogue` of a product whose first input's rows are normalised before they are multiplied; the
            epilogue may be None.
        converts: Whether the epilogue's result may have another dtype (`Epilogue.result`).
        fits: For an operator that stands for several nodes: "" if its kernel can carry out this call, else why these
            shapes or values forbid it.
        indices: For an operator that takes indices: which input has them, and their range; None if this call has none.
            The host checks those that it knows. Others are checked by the operator's launches, which then take the
            buffer `FOUND`, or else by a launch of its own.
        host_nbytes: An upper bound of the bytes that `reference` allocates, for outputs and intermediate results, from
            shapes and the values that decide them; 128 for each turn of a loop in Python. It must be cheap: it is asked
            before the reference runs. None: the outputs, and once more in float64 the outputs, and unless the operator
            only moves data, the inputs.
        evaluate: For operators whose output needs only layouts (Shape, Size): the output's value. Dims may be
            symbolic; then the array is of dtype object.
        by_evaluator: Whether `reference` is onnx's own evaluator.
        domain: ONNX domain, with "" for the standard one.
        examples: Cases for the tests.
    """

    name: str
    infer: Callable[[Call], Sequence[Shape]]
    reference: Reference
    axes: Callable[[Call], Sequence[Sequence[int | None]]] | None = None
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
    with_normal: Callable[[Call, DeviceTraits, Epilogue | None, Normalisation], Impl] | None = None
    converts: bool = False
    fits: Callable[[Call, DeviceTraits], str] | None = None
    indices: Callable[[Call], Indices | None] | None = None
    host_nbytes: Callable[[Call], int] | None = None
    evaluate: Callable[[Call], Sequence[Array]] | None = None
    types: Callable[[Attributes, Sequence[DataType | None], int], Sequence[DataType]] | None = None
    device_types: frozenset[DataType] | None = None
    by_evaluator: bool = False
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
        """Whether `implement` takes a first input of that dtype; None stands for an absent input or an unknown dtype."""
        return self.implement is not None and (
            self.device_types is None or first is None or first in self.device_types
        )

    def unseen_indices(self, call: Call) -> Indices | None:
        """Return the indices of a call that the device has to check, if there are any.

        Raises:
            IndexOutOfRange: The host knows the indices, and one is out of range.
        """
        found = None if self.indices is None else self.indices(call)
        if found is None:
            return None
        value = call.value(found.input)
        if value is not None:
            found.check(call.name, value)
        return found if value is None else None

    def can_matter(self, index: int, constant: Array | None) -> bool:
        """Whether the value of declared input *index* can make a difference; *constant* is that value if it is a constant."""
        if constant is None or self.hint_matters is None or index in self.shape_infer_dependencies:
            return True
        return self.hint_matters(constant)


TURN = 128
"""Bytes that a turn of a loop in Python counts as, in `Operator.host_nbytes`."""


def host_nbytes(operator: Operator, call: Call) -> int:
    """Return an upper bound of the bytes that the operator's reference allocates, before it runs; shapes must be known."""
    if operator.host_nbytes is not None:
        return operator.host_nbytes(call)
    outputs = call.outputs or [
        Layout(t, tuple(s)) for t, s in zip(call.output_types, operator.infer(call), strict=False)
    ]
    elements = sum([x.count for x in outputs])
    elements += elements if operator.views is not None else sum([x.count for x in call.inputs if x is not None])
    return sum([x.nbytes for x in outputs]) + 8 * elements


def evaluate(operator: Operator, call: Call, inputs: Sequence[Array | None]) -> Sequence[Array]:
    """Return a node's outputs, computed on the host, without NumPy's warnings of overflows and the like.

    `infer` checks the inputs first, so that the reference never sees inputs that do not fit.

    Raises:
        IndexOutOfRange: The node takes indices, and one is out of range. All other errors are the operator's.
    """
    with np.errstate(all="ignore"):
        with contextlib.suppress(Undetermined, ValueUnknown):
            operator.infer(call)
        if operator.evaluate is not None:
            return operator.evaluate(call)
        indices = None if operator.indices is None else operator.indices(call)
        if indices is not None and (array := inputs[indices.input]) is not None:
            indices.check(call.name, array)
        # Parts of files may begin anywhere, and where an array does may decide in which order NumPy adds.
        given = [None if a is None else np.require(a, None, "A") for a in inputs]
        try:
            return operator.reference(call.attributes, given)
        except IndexOutOfRange as error:
            raise error.at(call.name) from None
