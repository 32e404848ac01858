"""Which operators are there, of which opsets and dtypes, where do they run, and when are they skipped?

    python docs/make_operators.py            print docs/operators.md
    python docs/make_operators.py --write    write it, and the number of operators into README.md

It asks what loading asks: the registry, the rules, and the schemas of the onnx package that is installed.
`tests/architecture/test_docs.py` fails if the page is not what this prints.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx
from onnx import defs

from asyncrt.graph.evaluator import has_reference
from asyncrt.graph.functions import has_body
from asyncrt.graph.onnx_types import type_of_string
from asyncrt.graph.rewriting.contributed import OWN, contributed_schemas
from asyncrt.graph.rewriting.rules import find_rule
from asyncrt.graph.subgraphs import CONTROL_FLOW
from asyncrt.kernels import ops
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.registry import operators
from asyncrt.kinds import ValueType
from asyncrt.layout import DATA_TYPES, NARROW_TYPES, DataType

ROOT = Path(__file__).resolve().parent.parent
ONNX = ".".join(onnx.__version__.split(".")[:2])
TITLES = {
    "": "ONNX's own operators",
    "ai.onnx.ml": "Classical models: `ai.onnx.ml`",
    "com.microsoft": "ONNX Runtime's: `com.microsoft`",
    "ai.onnx.preview.training": "Steps of optimisers: `ai.onnx.preview.training`",
    OWN: "asyncrt's own",
}
_ON_HOST = frozenset({"host", "evaluator", "network"})
GROUPS = {
    "floats": [t for t in DATA_TYPES if t.is_float],
    "integers": [t for t in DATA_TYPES if t.is_integer],
    "narrow": list(NARROW_TYPES),
}
HEAD = """\
# Operators

<!-- Written by docs/make_operators.py with onnx {onnx}; do not edit. -->

After this page you know whether asyncrt takes an operator, of which opsets and dtypes, and where it runs.

asyncrt has {count} operators in its registry, {kernels} of them with OpenCL kernels.
With these it takes {taken} operators of ONNX and ONNX Runtime.

- **opsets** are the versions of the operator that asyncrt takes; each holds until the next.
- **runs** says where:
    - as a *kernel* on the device;
    - on the *host*, in NumPy;
    - in *other words*: when a model is loaded, its nodes become other operators of these tables; passes, fusions and \
kernels see those alone;
    - by its *function*, which ONNX defines, in the same way, as functions that a model brings along;
    - by the *network*, which runs the programs inside it (`asyncrt/runtime/request/control_flow.py:carry_out`), or \
plans the branch of an `If` that is decided while a request is planned (`asyncrt/graph/branches.py:inlined`);
    - in the *evaluator* of the onnx package: off the event loop, as all that runs on the host, but in Python, which \
may take thousands of times as long as a kernel.
      A log message and `explain()` say which nodes these are.
- **device** and **host** are the dtypes of its first input, or of its output if it has none, that it takes there.
  What becomes other operators runs where these do; the cells say what it takes.
- **shape needs** are the inputs, counted from 0, whose values decide the output's shape.
  If a kernel computes such a value, the request waits for it there.
- **skipped when** is the condition under which a node is not run, because its outputs are bytes of an input.
  It is decided for each request; `explain()` prints the words of the table.

In these cells *floats* are {floats}, and *integers* {integers}.
*narrow* are the types of 8 bits and fewer that no kernel takes, with a byte in memory for each element: {narrow}.
*string*, *sequence*, *optional* and *map* are values of the host.
`float64` runs on the host where a device is without it.
Complex numbers, and sparse tensors as inputs, are refused when a model is loaded; sparse constants are read.
"""
TABLE = """
## {title}

| operator | opsets | runs | device | host | shape needs | skipped when |
|---|---|---|---|---|---|---|
"""
TAIL = """
## Not there

A model with one of these is refused with `UnsupportedOperatorError`, which names the node.

{missing}"""


class Taken(NamedTuple):
    """What asyncrt makes of an operator, of any opset in which it takes it."""

    domain: str
    name: str
    opsets: Sequence[int]
    runs: str
    schema: defs.OpSchema


def runs(schema: defs.OpSchema) -> str | None:
    """Return where nodes of a schema run, or None if they are refused."""
    rule = find_rule(schema, schema.since_version)
    if schema.deprecated and rule is None:
        return None
    operator = operators().get((schema.domain, schema.name))
    if operator is not None and operator.implement is None:
        return "host" if rule is None else "other words, host"
    if operator is not None:
        return "kernel"
    if not schema.domain and schema.name in CONTROL_FLOW:
        return "network"
    if rule is not None:
        return "other words"
    if has_body(schema):
        return "function"
    return "evaluator" if has_reference(schema) else None


def all_schemas() -> Iterator[defs.OpSchema]:
    """Yield every schema that a node may have: ONNX's, of each version, and those that asyncrt adds."""
    yield from defs.get_all_schemas_with_history()
    yield from contributed_schemas()


def sorted_out() -> tuple[list[Taken], dict[str, list[str]]]:
    """Return what asyncrt takes, and by domain the names of what it refuses."""
    versions: dict[tuple[str, str], dict[int, defs.OpSchema]] = {}
    for schema in all_schemas():
        versions.setdefault((schema.domain, schema.name), {})[schema.since_version] = schema
    taken: list[Taken] = []
    missing: dict[str, list[str]] = {}
    for (domain, name), found in sorted(versions.items(), key=lambda item: (item[0][0], item[0][1].lower())):
        where = {opset: place for opset, schema in sorted(found.items()) if (place := runs(schema)) is not None}
        if where:
            newest = max(where)
            taken.append(Taken(domain, name, list(where), where[newest], found[newest]))
        else:
            missing.setdefault(domain, []).append(name)
    return taken, missing


def modules() -> dict[Operator, str]:
    """Return the file of each operator."""
    found: dict[Operator, str] = {}
    for module in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
        if not module.ispkg and not module.name.rpartition(".")[2].startswith("_"):
            loaded = importlib.import_module(module.name)
            for operator in getattr(loaded, "OPERATORS", None) or (loaded.OPERATOR,):
                found[operator] = module.name.removeprefix(f"{ops.__name__}.").replace(".", "/")
    return found


def dtypes(schema: defs.OpSchema) -> list[DataType]:
    """Return what a schema allows its first input to be, or its first output, as far as asyncrt has it."""
    formal = (list(schema.inputs) or list(schema.outputs))[0]
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    found = (type_of_string(text) for text in allowed.get(formal.type_str, (formal.type_str,)))
    return [t for t in found if t is not None]


def shown(types: Iterable[DataType]) -> str:
    """Return types as a cell shows them: groups by their names, and each kind of value once."""
    left = list(types)
    words: list[str] = []
    for name, group in GROUPS.items():
        if set(group) <= set(left):
            words.append(name)
            left = [t for t in left if t not in group]
    kinds = {"seq": "sequence"}
    single = sorted(t.name for t in left if not isinstance(t, ValueType))
    held = sorted({kinds.get(t.kind, t.kind) for t in left if isinstance(t, ValueType)})
    return ", ".join([*words, *single, *held])


def row(taken: Taken, files: dict[Operator, str]) -> str:
    """Return the operator's line of its table."""
    operator = operators().get((taken.domain, taken.name))
    types = dtypes(taken.schema)
    on_device = [t for t in types if not t.is_on_host and taken.runs not in _ON_HOST]
    if operator is not None and taken.runs == "kernel":
        on_device = [t for t in on_device if operator.has_kernel(t)]
    name, shape, why = taken.name, "", ""
    if operator is not None:
        name = f"[{name}](../kernels/ops/{files[operator]}.py)"
        shape = ", ".join(map(str, operator.shape_infer_dependencies))
        why = operator.why if operator.views is not None else ""
    opsets = ", ".join(map(str, taken.opsets))
    on_host = [t for t in types if t not in on_device]
    return f"| {name} | {opsets} | {taken.runs} | {shown(on_device)} | {shown(on_host)} | {shape} | {why} |"


def page() -> str:
    """Return the page."""
    files, (taken, missing) = modules(), sorted_out()
    groups = {name: ", ".join(f"`{t.name}`" for t in types) for name, types in GROUPS.items()}
    kernels = sum(o.implement is not None for o in operators().values())
    theirs = sum(t.domain != OWN for t in taken)
    text = HEAD.format(onnx=ONNX, count=len(operators()), kernels=kernels, taken=theirs, **groups)
    for domain in sorted({t.domain for t in taken}, key=lambda domain: (list(TITLES) + [domain]).index(domain)):
        title = TITLES.get(domain, f"`{domain}`")
        lines = [row(t, files) for t in taken if t.domain == domain]
        text += TABLE.format(title=title) + "\n".join(lines) + "\n"
    refused = "".join(
        f"- {f'`{domain}`' if domain else 'the domain of ONNX'}: {', '.join(f'`{name}`' for name in names)}\n"
        for domain, names in missing.items()
    )
    return text + TAIL.format(missing=refused)


def with_count(readme: str) -> str:
    """Return the README with the number of operators that there are."""
    return re.sub(r"\[\d+ operators\]", f"[{len(operators())} operators]", readme)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print docs/operators.md.")
    parser.add_argument("--write", action="store_true", help="write it, and the number in README.md")
    if not parser.parse_args().write:
        print(page(), end="")
        return
    (ROOT / "docs" / "operators.md").write_text(page(), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(with_count(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
