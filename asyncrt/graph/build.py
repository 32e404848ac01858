"""From a model to a program: import, passes, and what every request asks of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrt.kernels.resident.store import cache_folder
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.kinds import is_plain
from asyncrt.memory.host import allocating
from asyncrt.memory.paged import mapping_of, page_out
from asyncrt.options import RuntimeOptions

from .importer import import_model
from .ir import Chunk, Graph, Placement, Program, ProgramNode, Value
from .passes import run_passes
from .passes.find_formulas import symbolic_values
from .passes.memory_dependencies import memory_dependencies
from .passes.value_inputs import decisive_values
from .reading.mapped import LEAST, forget_files, with_memory
from .reading.source import ModelBytes, ModelSource

_log = logging.getLogger("asyncrt")
_NAMED = 4  # nodes that a warning names


def build_program(source: ModelSource | ModelBytes, traits: DeviceTraits, options: RuntimeOptions) -> Program:
    """Import a model and run the passes. Takes as long as the model is large: call it off the event loop.

    Raises:
        ModelError: One of its children, naming the node.
    """
    with allocating("loading a model"):
        graph = import_model(source, options)
        run_passes(graph, traits, options)
        if options.uses("page_constants"):
            _page_constants(graph, cache_folder(options))
        program = _program(graph)
    _warn_of_evaluated(program)
    forget_files(v.constant for v in program.values)
    return program


def _warn_of_evaluated(program: Program) -> None:
    slow = [node for node in program.nodes if node.operator.by_evaluator]
    if slow:
        _log.warning(
            "'%s': %d of %d nodes run in onnx's own evaluator, in Python, which may take thousands of times as long as "
            "a kernel: %s%s",
            program.name, len(slow), len(program.nodes),
            ", ".join(f"'{node.name}' ({node.operator.name})" for node in slow[:_NAMED]),
            ", ..." if len(slow) > _NAMED else "",
        )  # fmt: skip


def _page_constants(graph: Graph, folder: Path) -> None:
    """Put large constants that were calculated, or came without a file, into one."""
    large = [
        (value, constant)
        for value in graph.values
        if (constant := value.constant) is not None and is_plain(value.layout.dtype)
        if constant.nbytes >= LEAST and mapping_of(constant) is None
    ]
    paged = page_out([constant for _, constant in large], folder) if large else None
    for (value, _), constant in zip(large, paged or (), strict=paged is not None):
        value.constant = constant


def _program(graph: Graph) -> Program:
    for node in graph.nodes:
        for sub in node.subgraphs:
            sub.finish(_program(sub.graph))
    declared = _declared(graph)
    _keep_for_host(graph, declared)
    made = [v for node in graph.nodes if node.subgraphs for v in node.outputs]
    decisive = decisive_values(graph, (*graph.inputs, *made))
    return Program(
        name=graph.name,
        values=tuple(graph.values),
        nodes=tuple(graph.nodes),
        chunks=_chunks(graph, decisive),
        inputs=graph.inputs,
        outputs=graph.outputs,
        value_inputs=tuple(i for i in graph.inputs if i in decisive),
        arriving=frozenset((*graph.inputs, *made)),
        device_constants=_device_constants(graph),
        takes_view=tuple(_may_be_viewed(v, graph) for v in graph.values),
        last_use=memory_dependencies(graph),
        symbolic=symbolic_values(graph),
        kinds=_kinds(graph),
        declared=declared,
        other_files=graph.other_files,
    )


def _may_be_viewed(value: Value, graph: Graph) -> bool:
    return any(_may_take_view(graph.nodes[r]) for r in value.readers)


def _may_take_view(node: ProgramNode) -> bool:
    """Whether there are shapes for which the node takes an input with strides."""
    return node.place is Placement.DEVICE and (node.operator.takes_view is not None or node.operator.views is not None)


def _chunks(graph: Graph, decisive: set[int]) -> tuple[Chunk, ...]:
    count = max((n.chunk for n in graph.nodes), default=0) + 1
    nodes: list[list[ProgramNode]] = [[] for _ in range(count)]
    reads: list[list[int]] = [[] for _ in range(count)]
    seen: set[int] = set()
    whole = {part: node for node in graph.fused for part in node.parts}
    for node in graph.nodes:
        if node not in whole or node is whole[node].parts[-1]:
            nodes[node.chunk].append(whole.get(node, node))
        for v in node.host_reads:
            value = graph.values[v]
            producer = value.producer
            if v in seen or producer is None or value.constant is not None:
                continue
            if graph.nodes[producer].place is Placement.HOST:
                continue
            seen.add(v)
            reads[graph.nodes[producer].chunk].append(v)
    if nodes[-1] and nodes[-1][0].subgraphs:  # the outputs are fetched by a chunk that is planned
        nodes.append([])
        reads.append([])
    chunks: list[Chunk] = []
    for index, (mine, read) in enumerate(zip(nodes, reads, strict=True)):
        arrive = mine[0].outputs if mine and mine[0].subgraphs else sorted(read)
        chunks.append(Chunk(index, tuple(mine), tuple(sorted(read)), tuple(v for v in arrive if v in decisive)))
    return tuple(chunks)


def _kinds(graph: Graph) -> dict[ProgramNode, int]:
    numbers: dict[Any, int] = {}
    kinds: dict[ProgramNode, int] = {}
    for node in (*graph.nodes, *graph.fused):
        constants = tuple(v is not None and graph.values[v].constant is not None for v in node.inputs)
        attributes = tuple((name, _comparable(value)) for name, value in sorted(node.attributes.items()))
        operator = (node.operator.domain, node.operator.name, node.attributes.opset, node.attributes.outputs)
        parts = (tuple(kinds[part] for part in node.parts), _wiring(node))
        stays = any(_may_be_viewed(graph.values[v], graph) for v in node.outputs)
        kind = (operator, attributes, constants, tuple(t.name for t in node.output_types), parts, stays)
        kinds[node] = numbers.setdefault(kind, len(numbers))
    return kinds


def _wiring(node: ProgramNode) -> tuple[tuple[int | None, ...], ...]:
    """Return the source of each input of the node's parts: an input of the node, or a part, counted from -1 down."""
    sources: dict[int | None, int | None] = {v: i for i, v in enumerate(node.inputs)}
    sources |= {part.outputs[0]: ~j for j, part in enumerate(node.parts)}
    return tuple(tuple(None if v is None else sources[v] for v in part.inputs) for part in node.parts)


def _declared(graph: Graph) -> dict[ProgramNode, tuple[int, ...]]:
    """Return for each node the inputs whose values can make a difference."""
    declared: dict[ProgramNode, tuple[int, ...]] = {}
    for node in graph.nodes:
        constants = [None if v is None else graph.values[v].constant for v in node.inputs]
        declared[node] = tuple(
            i for i in node.operator.declared if i < len(constants) and node.operator.can_matter(i, constants[i])
        )
    for node in graph.fused:
        seen = {part.inputs[i] for part in node.parts for i in declared[part]}
        declared[node] = tuple(i for i, v in enumerate(node.inputs) if v in seen)
    return declared


def _keep_for_host(graph: Graph, declared: Mapping[ProgramNode, Sequence[int]]) -> None:
    """Copy constants that the host reads in a request into memory: only the device's stay in mapped files."""
    read = set(graph.outputs)
    for node in graph.nodes:
        read.update(node.uses if node.place is Placement.HOST else node.host_reads)
        read.update(v for i in declared[node] if (v := node.inputs[i]) is not None)
        read.update(outer for sub in node.subgraphs for _, outer in sub.taken)
    for value in (graph.values[v] for v in read):
        if value.constant is not None:
            value.constant = with_memory(value.constant)


def _comparable(value: Any) -> Any:
    """Return a key for comparing an attribute; one of another kind than plain values equals only itself.

    Floats are compared by their text: kernels tell 0.0 from -0.0, which are equal, and NaN does not equal itself.
    """
    return (type(value), repr(value)) if isinstance(value, int | float | str | tuple) else id(value)


def _device_constants(graph: Graph) -> tuple[int, ...]:
    found: set[int] = set()
    for node in graph.nodes:
        if node.place is Placement.DEVICE:
            skip = node.get_shape_infer_dependencies()
            found |= {v for v in node.uses if v not in skip and graph.values[v].constant is not None}
    return tuple(sorted(found))
