"""Which node is at fault, where an operator's code trips over what it is given?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from asyncrt.errors import AsyncrtError, ShapeError
from asyncrt.graph.node import ProgramNode
from asyncrt.kernels.operator import Call
from asyncrt.memory.host import refused


@contextlib.contextmanager
def naming(node: ProgramNode, call: Call, what: str) -> Iterator[None]:
    """Turn whatever an operator's code trips over into a `ShapeError` that names the node and its inputs; if it is that
    the system gives no memory, into `OutOfHostMemory`."""
    try:
        yield
    except AsyncrtError:
        raise
    except MemoryError as error:
        raise refused(f"'{node.name}': {node.operator.name}", error) from error
    except Exception as error:
        raise ShapeError(f"'{node.name}': {node.operator.name} {what}: {error!r}", detail=inputs_of(call)) from error


def inputs_of(call: Call) -> str:
    """Return the inputs' layouts as lines."""
    return "\n".join(f"input {i}  {layout}" for i, layout in enumerate(call.inputs) if layout is not None)
