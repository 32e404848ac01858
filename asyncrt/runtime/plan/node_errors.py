"""Which node is at fault, where an operator's code trips over what it is given?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from asyncrt.errors import AsyncrtError, ModelError, ShapeError
from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.call import Call
from asyncrt.memory.host import refused


@contextlib.contextmanager
def naming(node: ProgramNode, call: Call, what: str) -> Iterator[None]:
    """Turn whatever an operator's code trips over into a `ShapeError` that names the node and its inputs; if it is that
    the system gives no memory, into `OutOfHostMemory`.

    An error of ours stays what it is, if it names the node.
    """
    try:
        yield
    except AsyncrtError as error:
        if node.name in error.message or not isinstance(error, ShapeError | ModelError):
            raise
        message = f"'{node.name}': {node.operator.name}: {error.message}"
        raise ShapeError(message, detail=error.detail, hint=error.hint) from error
    except MemoryError as error:
        raise refused(f"'{node.name}': {node.operator.name}", error) from error
    except Exception as error:
        raise ShapeError(f"'{node.name}': {node.operator.name} {what}: {error!r}", detail=inputs_of(call)) from error


def inputs_of(call: Call) -> str:
    """Return the inputs' layouts as lines."""
    return "\n".join(f"input {i}  {layout}" for i, layout in enumerate(call.inputs) if layout is not None)
