"""Which mechanisms can a runtime do without, so that it can be compared with one that has them?

`RuntimeOptions.without` names those that a runtime does without. Tests and benchmarks go through the table, so that a
new mechanism is compared with its absence as soon as it is in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast

from .arguments import each_of, shown
from .errors import ArgumentError

Mechanism: TypeAlias = Literal[
    "skip",
    "views",
    "in_place",
    "fuse",
    "widen_floats",
    "flush_weights",
    "packed_weights",
    "winograd",
    "split_floats",
    "integer_products",
    "quantized_steps",
    "replay",
    "recipes",
    "next_plan",
    "prepared_launches",
    "one_launch",
    "own_cores",
    "native_submit",
    "direct",
    "share_steps",
    "pinned",
    "pool",
    "preallocate",
    "map_files",
    "page_constants",
    "disk_cache",
    "kept_programs",
    "stand_in",
]

MECHANISMS: Mapping[Mechanism, str] = {
    "skip": "Nodes that change nothing at the shapes at hand are not run.",
    "views": "Results of Slice, Split, Transpose, Expand and the like stay where they are.",
    "in_place": "Inputs of a Concat are written where they belong in its result.",
    "fuse": "Several nodes run as one kernel.",
    "widen_floats": "Models with products or convolutions of float16 or bfloat16 are float32 inside, on CPUs.",
    "flush_weights": "Weights of products and convolutions that are subnormal are zeros, on CPUs.",
    "packed_weights": "Products read weights that are packed for the device.",
    "winograd": "Convolutions of 3 × 3 cells multiply transformed tiles, where a CPU is faster so.",
    "split_floats": "Tensor cores multiply float32 in two parts, where a GPU has some.",
    "integer_products": "Where a model dequantises both operands of a product, a CPU multiplies the integers.",
    "quantized_steps": "What lies between 8-bit values is moved as it is, or looked up in a table, on CPUs.",
    "replay": "The plan of a shape is kept and used again.",
    "recipes": "The plan of a new shape is made by the formulas of another shape's plan.",
    "next_plan": "The plan of a sequence's next step is made while the device works on the step before.",
    "prepared_launches": "Launches of plans that come often have their arguments set beforehand.",
    "one_launch": "Where steps are brief, those of a plan are one launch, on CPUs and on GPUs whose driver takes PTX.",
    "own_cores": "Where about as many requests are there as cores, each has one, on CPUs whose driver can do that.",
    "native_submit": "A loop in C enqueues the launches of a plan; on GPUs a thread in C may do so.",
    "direct": "A brief request, or a part of one behind which the host decides, runs on its caller's thread where "
    "nobody else is in the way, and one of some milliseconds on a thread in C; callers take turns.",
    "share_steps": "Steps of a group's sequences run as one inference.",
    "pinned": "Transfers go through pinned memory, on a device that has memory of its own.",
    "pool": "Memory goes back to a pool, where events order its next use.",
    "preallocate": "Where sizes grow, more memory is allocated than is needed now.",
    "map_files": "Large tensors stay in a model's files until they are needed.",
    "page_constants": "Large constants lie in unnamed files, of which the system keeps in memory what is used.",
    "disk_cache": "Compiled kernels are kept on disk.",
    "kept_programs": "What a model became when it was loaded is kept on disk, and found when it is loaded again.",
    "stand_in": "NumPy answers requests while kernels that they need are being built.",
}
"""What each is, in the present tense: without it, that does not happen."""

BUILDS_ON: Mapping[Mechanism, Mechanism] = {
    "views": "skip",
    "winograd": "packed_weights",
    "recipes": "replay",
    "next_plan": "recipes",
    "prepared_launches": "replay",
    "one_launch": "prepared_launches",
    "own_cores": "prepared_launches",
    "direct": "prepared_launches",
    "page_constants": "disk_cache",
    "kept_programs": "disk_cache",
}
"""Those that a runtime has only with another."""


def mechanisms(names: Iterable[str]) -> frozenset[Mechanism]:
    """Return the mechanisms of these names.

    Raises:
        ArgumentError: One of them is no mechanism, or they are one text rather than several.
    """
    if isinstance(names, str):
        raise ArgumentError(
            f"without must be a set of names, got the text {shown(names)}", hint="write without={'skip'}, for instance"
        )
    found: set[Any] = set()
    for name in each_of("without", names):
        if not isinstance(name, str) or name not in MECHANISMS:
            raise ArgumentError(
                f"without has {shown(name)}, which is not the name of a mechanism",
                detail=f"mechanisms: {', '.join(MECHANISMS)}",
                hint="docs/options.md says what each of them is",
            )
        found.add(name)
    return cast("frozenset[Mechanism]", frozenset(found))
