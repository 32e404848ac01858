"""Which operators there are: the modules of `kernels/ops`, found by listing its folders.

A module defines one operator as `OPERATOR`, or a family of operators that share their code as `OPERATORS`. Whoever knows
where an operator is need not import all.
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
    return {key: operator for key, (_, operator) in _everywhere().items()}


def find_operator(domain: str, name: str) -> Operator | None:
    """Return the operator of that name, or None if asyncrt has none."""
    return operators().get(("" if domain == "ai.onnx" else domain, name))


def place_of(operator: Operator) -> tuple[str, str, str] | None:
    """Return the module of an operator, its domain and its name; None if it is in no module."""
    module, found = _everywhere().get((operator.domain, operator.name), ("", None))
    return (module, operator.domain, operator.name) if found is operator else None


@functools.cache
def operators_in(module: str) -> dict[tuple[str, str], Operator]:
    """Return the operators that a module defines, by ``(domain, op_type)``; `ImportError` if it is none of these."""
    if not module.startswith(f"{ops.__name__}."):
        raise ImportError(f"{module} defines no operators")
    loaded = importlib.import_module(module)
    mine: tuple[Operator, ...] = getattr(loaded, "OPERATORS", None) or (loaded.OPERATOR,)
    found = {(operator.domain, operator.name): operator for operator in mine}
    if len(found) != len(mine):
        raise RuntimeError(f"{module} defines an operator twice")
    return found


@functools.cache
def _everywhere() -> dict[tuple[str, str], tuple[str, Operator]]:
    """Return every operator, and its module."""
    found: dict[tuple[str, str], tuple[str, Operator]] = {}
    for module in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
        if module.ispkg or module.name.rpartition(".")[2].startswith("_"):
            continue
        for key, operator in operators_in(module.name).items():
            if key in found:
                raise RuntimeError(f"operator {operator.name} is defined twice, again in {module.name}.py")
            found[key] = module.name, operator
    return found
