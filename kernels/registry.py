"""Which operators there are: the modules of `kernels/ops`, found by listing its folders.

A module defines one operator as `OPERATOR`, or a family of operators that share their code as `OPERATORS`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from . import ops
from .operator import Operator


@functools.cache
def operators() -> dict[tuple[str, str], Operator]:
    """Return every operator by ``(domain, op_type)``."""
    found: dict[tuple[str, str], Operator] = {}
    for module in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
        if module.ispkg or module.name.rpartition(".")[2].startswith("_"):
            continue
        loaded = importlib.import_module(module.name)
        mine: tuple[Operator, ...] = getattr(loaded, "OPERATORS", None) or (loaded.OPERATOR,)
        for operator in mine:
            key = (operator.domain, operator.name)
            if key in found:
                raise RuntimeError(f"operator {operator.name} is defined twice, again in {module.name}.py")
            found[key] = operator
    return found


def find_operator(domain: str, name: str) -> Operator | None:
    """Return the operator of that name, or None if asyncrt has none."""
    return operators().get(("" if domain == "ai.onnx" else domain, name))
