"""The nodes that stand for one node, while they are being written.

A rule takes a `Draft` and returns the names of the values that are the node's outputs. It sees the node as the importer
has checked it, and no other node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from asyncrt.errors import UnsupportedOperatorError
from asyncrt.graph.functions import Fresh
from asyncrt.kernels.call import Attributes
from asyncrt.layout import FLOAT32, STRING, Array, DataType, PartialLayout

#: The opset that rules write for, of ONNX's own domain.
OPSET = 25
#: The domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"

#: Returns the name of each output, one name standing for itself; None: the node stays as it is.
Rule: TypeAlias = "Callable[[Draft], str | Sequence[str] | None]"


class Draft:
    """A node that is to be rewritten, and the nodes in its place so far.

    Args:
        title: The node's, for messages and for the names of the new nodes.
        inputs: The names of its inputs; "" for one that is absent.
        outputs: The names of its outputs; "" for one that nobody wants.
        layouts: What is known of each input.
        constants: The value of each input that is a constant.
        ranks: Returns the number of axes of an input, or None if it is not known.
        fresh: Makes a name that nothing else has.
    """

    def __init__(
        self,
        op: str,
        title: str,
        attributes: Attributes,
        inputs: Sequence[str],
        outputs: Sequence[str],
        layouts: Sequence[PartialLayout | None],
        constants: Sequence[Array | None],
        ranks: Callable[[int], int | None],
        fresh: Fresh,
    ) -> None:
        self.op, self.title, self.attributes = op, title, attributes
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._layouts, self._constants, self._ranks, self._fresh = layouts, constants, ranks, fresh
        self._nodes: list[onnx.NodeProto] = []

    # The node.

    def has(self, index: int) -> bool:
        """Whether optional input *index* is there."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def input(self, index: int) -> str:
        """Return the name of input *index*; "" if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def wants(self, index: int) -> bool:
        """Whether output *index* is wanted."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def dtype(self, index: int) -> DataType:
        """Return the dtype of input *index*."""
        layout = self._layouts[index] if index < len(self._layouts) else None
        if layout is None or layout.dtype is None:
            raise self.unsupported(f"the dtype of input {index} is not known")
        return layout.dtype

    def known_rank(self, index: int) -> int | None:
        """Return the number of axes of input *index*, or None if it is absent or not known yet."""
        return self._ranks(index) if self.has(index) else None

    def constant_input(self, index: int) -> Array | None:
        """Return the value of input *index*, if it is a constant of the model."""
        return self._constants[index] if index < len(self._constants) else None

    def unsupported(self, why: str) -> UnsupportedOperatorError:
        """Return the error for a node that has no other words."""
        return UnsupportedOperatorError(f"{self.title}: {self.op}: {why}")

    def refuse(self, condition: bool, why: str) -> None:
        """Raise `UnsupportedOperatorError` if *condition* holds."""
        if condition:
            raise self.unsupported(why)

    def name(self, hint: str) -> str:
        """Return a name that nothing else has."""
        return self._fresh(f"{self.title}/{hint}")

    # What is put in its place.

    def add(self, op: str, *inputs: str, domain: str = "", title: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return its name; attributes of None are left out.

        Args:
            title: The new node's, if messages about it are to name another than its own: the node that it is part of.
        """
        return self.several(1, op, *inputs, domain=domain, title=title, **attributes)[0]

    def several(
        self, outputs: int, op: str, *inputs: str, domain: str = "", title: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several outputs, and return their names."""
        names = tuple(self.name(op) for _ in range(outputs))
        given = {k: v for k, v in attributes.items() if v is not None}
        node = helper.make_node(
            op, list(inputs), names, title or f"{self.title}/{op}_{len(self._nodes)}", domain=domain, **given
        )
        self._nodes.append(node)
        return names

    def made(self, nodes: Sequence[onnx.NodeProto], name: str) -> str:
        """Add nodes that are written already; returns *name*, which one of them makes."""
        self._nodes += nodes
        return name

    def constant(self, value: Any, dtype: DataType | np.dtype[Any] | type = np.int64) -> str:
        """Add a constant: int64 unless *dtype* says otherwise."""
        if dtype is STRING:
            return self.add("Constant", value=numpy_helper.from_array(np.asarray(value, object)))
        kind = dtype.numpy if isinstance(dtype, DataType) else np.dtype(dtype)
        with np.errstate(over="ignore"):
            array = np.asarray(value, kind)
        return self.add("Constant", value=numpy_helper.from_array(array))

    def number(self, value: float, like: int = 0) -> str:
        """Add a constant scalar of the dtype of input *like*."""
        return self.constant(value, self.dtype(like))

    def cast(self, name: str, dtype: DataType) -> str:
        """Add a Cast."""
        return self.add("Cast", name, to=dtype.onnx)

    def floats(self, index: int) -> str:
        """Return input *index* as float32."""
        return self.inputs[index] if self.dtype(index) is FLOAT32 else self.cast(self.inputs[index], FLOAT32)

    def dims(self, name: str, start: int = 0, end: int | None = None) -> str:
        """Add the dims of a value as a vector, those from *start* to *end*."""
        return self.add("Shape", name, start=start, end=end)

    def rank(self, name: str) -> str:
        """Add the number of axes of a value, as a vector of one."""
        return self.add("Shape", self.add("Shape", name))

    def concat(self, *names: str, axis: int = 0) -> str:
        """Add a Concat of vectors, unless there is one alone."""
        return names[0] if len(names) == 1 else self.add("Concat", *names, axis=axis)

    def shaped(self, name: str, *dims: int | str) -> str:
        """Add a Reshape to *dims*: numbers (0 keeps a dim, -1 is the rest) and vectors by their names."""
        if all(isinstance(d, int) for d in dims):
            return self.add("Reshape", name, self.constant(dims))
        return self.add("Reshape", name, self.concat(*[d if isinstance(d, str) else self.constant([d]) for d in dims]))

    def unsqueezed(self, name: str, *axes: int) -> str:
        """Add an Unsqueeze."""
        return self.add("Unsqueeze", name, self.constant(axes))

    def nodes(self, results: str | Sequence[str]) -> list[onnx.NodeProto]:
        """Return the nodes, of which those that make *results* make the node's outputs."""
        made = (results,) if isinstance(results, str) else tuple(results)
        if len(made) < len(self.outputs) or any(
            wanted and not name for wanted, name in zip(self.outputs, made, strict=False)
        ):
            raise self.unsupported(f"it has {len(self.outputs)} outputs, asyncrt makes {sum(map(bool, made))} of them")
        own = {name for node in self._nodes for name in node.output}
        renamed: dict[str, str] = {}
        for name, wanted in zip(made, self.outputs, strict=False):
            if wanted and name in own and name not in renamed:
                renamed[name] = wanted
            elif wanted:  # an input as it is, or one value twice
                self._nodes.append(helper.make_node("Identity", [name], [wanted], f"{self.title}/Identity_{wanted}"))
        for node in self._nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        return self._nodes
