"""What became of every node of a finished inference, and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

import attrs
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asyncrt.arguments import check_text
from asyncrt.graph.branches import JOIN, how_joined
from asyncrt.graph.ir import Placement, Program, ProgramNode
from asyncrt.graph.names import Names
from asyncrt.kernels.decide import SKIP_OFF, Empty, Fused, Run, Skip, Viewed, why_not_skipped
from asyncrt.kinds import is_plain
from asyncrt.runtime.plan.chunk_plan import Deferred, NodeRecord, flat

from .html import page
from .record import DECISIONS, NodeExplanation

_SAID = {"view": "left as views"}  # where they are counted


@attrs.frozen
class Explanation:
    """The nodes of one inference, in processing order. `str()` is a table for the terminal.

    Attributes:
        model: The graph's name.
        nodes: What became of each.
        where: On which of several devices it was, and why; empty where there is one.
    """

    model: str
    nodes: tuple[NodeExplanation, ...]
    where: str = ""

    def __iter__(self) -> Iterator[NodeExplanation]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def counts(self) -> dict[str, int]:
        """How many nodes ran, were fused into another, were skipped, stayed views, were empty, and ran on the host."""
        counted = Counter(n.decision for n in self.nodes)
        return {word: counted[word] for word in DECISIONS}

    @property
    def device_us(self) -> float | None:
        """Microseconds that all nodes took on the device; None where that was not measured."""
        measured = [n.device_us for n in self.nodes if n.device_us is not None]
        return sum(measured) if measured else None

    @property
    def lanes(self) -> int:
        """On how many lanes branches may have run side by side: of the chunk that has most."""
        return max((n.lanes for n in self.nodes), default=1)

    def summary(self) -> str:
        """Return one line: how many nodes, what became of them, and how long they took if that was measured."""
        counts = ", ".join(f"{n} {_SAID.get(word, word)}" for word, n in self.counts.items())
        counts += f"; {self.lanes} lanes" if self.lanes > 1 else ""
        time = "" if self.device_us is None else f"; {self.device_us:.1f} µs on the device"
        where = f"; on {self.where}" if self.where else ""
        return f"{self.model or 'model'}: {len(self)} nodes, {counts}{time}{where}"

    def table(self) -> Table:
        """Return a rich table."""
        table = Table(title=escape(self.summary()), title_justify="left", box=None, header_style="bold")
        for heading in ("node", "operator", "decision", "outputs", "how and why"):
            table.add_column(heading, overflow="fold")
        timed = self.device_us is not None
        if timed:
            table.add_column("device µs", justify="right")
        paints = ("green", "bright_green", "cyan", "blue", "yellow", "magenta")
        colours: dict[str, str] = dict(zip(DECISIONS, paints, strict=True))
        for n in self.nodes:
            alias = f"{'view of' if n.strides else 'is'} {n.alias_of}" if n.alias_of else ""
            alias += f" + {n.offset} bytes" if n.offset else ""
            alias += f", strides {list(n.strides)}" if n.strides else ""
            lane = f"lane {n.lane} of {n.lanes}" if n.lanes > 1 and n.decision == "ran" else ""
            how = "; ".join(filter(None, (n.implementation, alias, n.why, lane)))
            decision = f"[{colours[n.decision]}]{n.decision}"
            row = [escape(n.node), n.operator, decision, escape("\n".join(n.outputs)), escape(how)]
            if timed:
                row.append("" if n.device_us is None else f"{n.device_us:.1f}")
            table.add_row(*row)
        return table

    def to_json(self, *, only: str | None = None) -> str:
        """Return a JSON document: an object of

        - ``model``: the graph's name,
        - ``counts``: an object of the numbers of nodes under ``ran``, ``fused``, ``skipped``, ``view``, ``empty`` and
          ``host``,
        - ``where``: a text, only where the runtime has several devices,
        - ``nodes``: an array, in processing order, of one object for each node. Its keys are the attributes of
          `NodeExplanation`, in their order and all of them always there; tuples are arrays.

        Args:
            only: Leave out nodes of any other decision; they are counted all the same.
        """
        if only is not None:
            only = check_text("only", only)
        nodes = [attrs.asdict(n) for n in self.nodes if only in (None, n.decision)]
        where = {"where": self.where} if self.where else {}
        return json.dumps({"model": self.model, "counts": self.counts, **where, "nodes": nodes}, indent=2)

    def to_html(self) -> str:
        """Return a page that shows the graph, what became of each node, and why; it needs no other file, no network."""
        return page(self.model, self.nodes, self.counts, self.device_us)

    def __str__(self) -> str:
        console = Console(width=160, no_color=True, highlight=False)
        with console.capture() as capture:
            console.print(self.table())
        return "\n".join(line.rstrip() for line in capture.get().splitlines())


class _ValueNames:
    """One name for each value of a program and of the subgraphs in it, a captured value being that from outside."""

    def __init__(self, program: Program) -> None:
        self._fresh = Names().fresh
        self._names: dict[tuple[Program, int], str] = {}
        for value in program.values:  # the model's own names come first, whatever subgraphs call theirs
            self(program, value.id)

    def __call__(self, program: Program, id: int) -> str:
        if (program, id) not in self._names:
            self._names[program, id] = self._fresh(program.values[id].name)
        return self._names[program, id]

    def enter(self, outside: Program, node: ProgramNode, inside: Program) -> None:
        """Note what *inside*, a subgraph of *node*, takes from *outside*."""
        for sub in node.subgraphs:
            if sub.program is inside:
                self._names |= {(inside, inner): self(outside, outer) for inner, outer in sub.captured.items()}


Times: TypeAlias = Mapping[tuple[Program, int], int]
"""Nanoseconds on the device, by program and number of the node."""


def explain(
    program: Program,
    records: Iterable[NodeRecord | Deferred],
    times: Times = MappingProxyType({}),
    where: str = "",
) -> Explanation:
    """Return the explanation of an inference from what its plans recorded, and what was measured."""
    return Explanation(program.name, tuple(_all(program, records, _ValueNames(program), times)), where)


def _all(
    program: Program, records: Iterable[NodeRecord | Deferred], names: _ValueNames, times: Times, inside: str = ""
) -> Iterator[NodeExplanation]:
    """Explain nodes, each followed by those inside it."""
    for record in flat(records):
        node = record.node
        if record.inner is not None:
            names.enter(program, node, record.inner[0])
        found = _explain(program, record, names)
        yield attrs.evolve(
            found,
            why="; ".join(filter(None, (found.why, record.note, record.lane.why))),
            inputs=tuple(names(program, v) for v in node.uses),
            output_names=tuple(names(program, v) for v in node.outputs),
            inside=inside,
            lane=record.lane.lane,
            lanes=record.lane.lanes,
            device_us=None if (time := times.get((program, node.id))) is None else time / 1000,
        )
        if record.inner is not None:
            yield from _all(*record.inner, names, times, node.name)


def _why_on_host(program: Program, node: ProgramNode) -> str:
    operator, types = node.operator, [program.values[v].layout.dtype for v in (*node.uses, *node.outputs)]
    if operator.by_evaluator:
        return "onnx's own evaluator, in Python: slow, and for each request anew"
    if any(not is_plain(t) for t in types):
        return "texts, sequences, optionals and maps are on the host"
    no_kernel = operator.implement is None or any(t is not None and t.is_on_host for t in types)
    return "has no kernel for its dtypes; NumPy" if no_kernel and operator.evaluate is None else "shape arithmetic"


def _explain(program: Program, record: NodeRecord, names: _ValueNames) -> NodeExplanation:
    node, decision = record.node, record.decision
    layouts = record.outputs or [program.values[v].layout for v in node.outputs]
    shown = tuple(map(str, layouts))
    base = NodeExplanation(node.name, node.operator.name, "host", shown, skip_mode=node.skip_mode.value)
    if node.subgraphs:
        if record.inner is None:
            return attrs.evolve(base, why=record.how)
        return _passed(base, record.how, *record.inner, names)
    if node.place is Placement.HOST:
        return attrs.evolve(base, why=_why_on_host(program, node))
    match decision:
        case Skip():
            source = node.inputs[decision.sources[0]]
            assert source is not None
            name, offset = names(program, source), decision.offsets[0]
            why = how_joined(decision.sources[0]) if node.operator is JOIN else decision.why
            return attrs.evolve(base, decision="skipped", alias_of=name, offset=offset, why=why)
        case Viewed():
            source = node.inputs[decision.sources[0]]
            assert source is not None
            view = decision.views[0]
            return attrs.evolve(
                base,
                decision="view",
                alias_of=names(program, source),
                offset=decision.offsets[0],
                strides=() if view is None else view.strides,
                why=decision.why,
            )
        case Empty():
            return attrs.evolve(base, decision="empty", why=decision.why)
        case Fused(into):
            return attrs.evolve(base, decision="fused", implementation=record.how, why=f"fused into {into}")
        case Run(why):
            if record.call is None:
                reason = why
            elif node.operator.views is None:
                reason = ""
            elif decision == SKIP_OFF:
                reason = why
            else:
                reason = why_not_skipped(node.operator, record.call)
            return attrs.evolve(base, decision="ran", implementation=record.how, why=reason)
        case None:
            return base


def _passed(
    base: NodeExplanation, how: str, program: Program, records: Iterable[NodeRecord | Deferred], names: _ValueNames
) -> NodeExplanation:
    """A branch that makes nothing, but passes on a value from outside or a constant, is like a skip."""
    inner = list(flat(records))
    if base.operator != "If" or not all(isinstance(r.decision, Skip) for r in inner):
        return attrs.evolve(base, why=how)
    sources = {r.node.outputs[0]: r.node.inputs[r.decision.sources[0]] for r in inner if isinstance(r.decision, Skip)}
    source: int | None = program.outputs[0]
    while source in sources:
        source = sources[source]
    assert source is not None
    return attrs.evolve(base, decision="skipped", alias_of=names(program, source), why=f"{how} passes it on")
