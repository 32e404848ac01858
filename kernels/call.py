"""What an operator sees of one node at one set of shapes: attributes, layouts, and the values that are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from asyncrt.dims import Dim
from asyncrt.errors import ShapeError
from asyncrt.layout import Array, DataType, Layout, Shape
from asyncrt.memory.view import View


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
