"""Which operators are there, where do they run, and when are they skipped? Makes docs/operators.md from the registry.

    python docs/make_operators.py            print the page
    python docs/make_operators.py --write    write it, and the number of operators into README.md

`tests/architecture/test_docs.py` fails if the page is not what this prints.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
from pathlib import Path

from asyncrt.graph.rewriting import classical, optimizers
from asyncrt.graph.rewriting.contributed import rewritten
from asyncrt.kernels import ops
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.registry import operators
from asyncrt.layout import DATA_TYPES, NARROW_TYPES

ROOT = Path(__file__).resolve().parent.parent
#: Operators of ONNX that asyncrt has not, by what they would need; one that arrives leaves the page by itself.
MISSING = {
    "sequences": (
        "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
        "SequenceLength", "SequenceMap", "SplitToSequence",
    ),
    "optionals": ("Optional", "OptionalGetElement", "OptionalHasElement"),
    "strings and images": (
        "ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
    ),
    "random numbers": (
        "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    ),
    "convolutions": ("DeformConv",),
}  # fmt: skip
HEAD = """\
# Operators

<!-- Written by docs/make_operators.py; do not edit. -->

asyncrt has {count} operators; {kernels} of them have OpenCL kernels.
An operator that ONNX itself defines by others (a function, such as `SwiGLU`) is written out when the model is loaded, \
and so are the functions that a model brings along.
`If`, `Loop` and `Scan` are not in the table and not in the count: their subgraphs are programs of their own, which \
`asyncrt/runtime/request/control_flow.py:carry_out` runs.
An `If` that is decided while a request is planned is part of the plan instead (`asyncrt/graph/branches.py:inlined`).

- **runs** is *kernel* for an operator with OpenCL kernels and *host* for one that NumPy computes.
- **kernel dtypes** are those of the first input that the kernels take; an empty cell means all that ONNX allows and \
asyncrt has.
  Others run on the host, and so does `float64` on a device without it.
- **shape needs** are the inputs, counted from 0, whose values decide the output's shape.
  If a kernel computes such a value, the request waits for it there.
- **skipped when** is the condition under which a node is not run, because its outputs are bytes of an input.
  It is decided for each request; `explain()` prints the words of the table.

| operator | runs | kernel dtypes | shape needs | skipped when |
|---|---|---|---|---|
"""
TAIL = """
## Dtypes

{dtypes}.
Types of 8 bits and fewer that no kernel takes run on the host, with a byte in memory for each element: {narrow}.
Strings and complex numbers are refused when a model is loaded.

## Not there

A model with one of these is refused with `UnsupportedOperatorError`, which names the node.

{missing}

## Written in other words

These are written out when the model is loaded, as operators of the table; passes, fusions and kernels see those alone.
Operators of ONNX from before opset 11 are lifted in the same way.

{rewritten}"""


def modules() -> dict[Operator, str]:
    """Return the file of each operator."""
    found: dict[Operator, str] = {}
    for module in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
        if not module.ispkg and not module.name.rpartition(".")[2].startswith("_"):
            loaded = importlib.import_module(module.name)
            for operator in getattr(loaded, "OPERATORS", None) or (loaded.OPERATOR,):
                found[operator] = module.name.removeprefix(f"{ops.__name__}.").replace(".", "/")
    return found


def row(operator: Operator, module: str) -> str:
    """Return the operator's line of the table."""
    kernel = operator.implement is not None
    taken = operator.device_types
    dtypes = "" if taken is None or not kernel else ", ".join(t.name for t in DATA_TYPES if t in taken)
    shape = ", ".join(map(str, operator.shape_infer_dependencies))
    why = operator.why if operator.views is not None else ""
    cells = (f"[{operator.name}](../kernels/ops/{module}.py)", "kernel" if kernel else "host", dtypes, shape, why)
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """Return the page."""
    files = modules()
    everything = sorted(operators().values(), key=lambda o: o.name.lower())
    head = HEAD.format(count=len(everything), kernels=sum(o.implement is not None for o in everything))
    missing = ""
    for what, names in MISSING.items():
        absent = [f"`{name}`" for name in names if ("", name) not in operators()]
        if absent:
            missing += f"- {what}: {', '.join(absent)}\n"
    groups = (classical, optimizers)
    everywhere = {**rewritten(), **{group.DOMAIN: sorted(group.RULES) for group in groups}}
    words = "".join(
        f"- {f'`{domain}`' if domain else 'the domain of ONNX'}: {', '.join(f'`{name}`' for name in names)}\n"
        for domain, names in everywhere.items()
    )
    dtypes, narrow = (", ".join(f"`{t.name}`" for t in types) for types in (DATA_TYPES, NARROW_TYPES))
    tail = TAIL.format(dtypes=dtypes, narrow=narrow, missing=missing, rewritten=words)
    return head + "\n".join(row(operator, files[operator]) for operator in everything) + "\n" + tail


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
