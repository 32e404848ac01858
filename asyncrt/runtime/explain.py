"""What became of every node of a finished inference, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import attrs
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asyncrt.graph.node import Place
from asyncrt.graph.program import Program
from asyncrt.kernels.operator import SKIP_OFF, Empty, Run, Skip, why_not_skipped

from .plan import NodeRecord


@attrs.frozen
class NodeExplanation:
    """One node of one inference.

    Attributes:
        node: Its name.
        operator: ONNX operator.
        decision: "ran", "skipped", "empty" or "host".
        outputs: Layout of each output, e.g. ``float32[2,8]``.
        implementation: Which kernel it ran with, for those that ran.
        alias_of: The value that a skipped node's first output is.
        offset: Bytes into that value.
        why: The reason for the decision.
        skip_mode: "never", "always" or "at runtime": what loading could tell.
    """

    node: str
    operator: str
    decision: str
    outputs: tuple[str, ...]
    implementation: str = ""
    alias_of: str = ""
    offset: int = 0
    why: str = ""
    skip_mode: str = "never"


@attrs.frozen
class Explanation:
    """The nodes of one inference, in processing order. `str()` is a table for the terminal."""

    model: str
    nodes: tuple[NodeExplanation, ...]

    def __iter__(self) -> Iterator[NodeExplanation]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def counts(self) -> dict[str, int]:
        """How many nodes ran, were skipped, were empty, and ran on the host."""
        counted = Counter(n.decision for n in self.nodes)
        return {word: counted[word] for word in ("ran", "skipped", "empty", "host")}

    def summary(self) -> str:
        """Return one line: how many nodes, and what became of them."""
        return f"{self.model or 'model'}: {len(self)} nodes, " + ", ".join(f"{n} {w}" for w, n in self.counts.items())

    def table(self) -> Table:
        """Return a rich table."""
        table = Table(title=escape(self.summary()), title_justify="left", box=None, header_style="bold")
        for heading in ("node", "operator", "decision", "outputs", "how and why"):
            table.add_column(heading, overflow="fold")
        colours = {"ran": "green", "skipped": "cyan", "empty": "yellow", "host": "magenta"}
        for n in self.nodes:
            alias = f"is {n.alias_of}" + (f" + {n.offset} bytes" if n.offset else "") if n.alias_of else ""
            how = "; ".join(filter(None, (n.implementation, alias, n.why)))
            decision = f"[{colours[n.decision]}]{n.decision}"
            table.add_row(escape(n.node), n.operator, decision, escape("\n".join(n.outputs)), escape(how))
        return table

    def __str__(self) -> str:
        console = Console(width=160, no_color=True, highlight=False)
        with console.capture() as capture:
            console.print(self.table())
        return "\n".join(line.rstrip() for line in capture.get().splitlines())


def explain(program: Program, records: Sequence[NodeRecord]) -> Explanation:
    """Return the explanation of an inference from what its plans recorded."""
    return Explanation(program.name, tuple(_all(program, records)))


def _all(program: Program, records: Sequence[NodeRecord]) -> Iterator[NodeExplanation]:
    """Explain nodes, each followed by those inside it."""
    for record in records:
        yield _explain(program, record)
        if record.inner is not None:
            yield from _all(*record.inner)


def _explain(program: Program, record: NodeRecord) -> NodeExplanation:
    node, decision = record.node, record.decision
    layouts = record.outputs or [program.values[v].layout for v in node.outputs]
    shown = tuple(map(str, layouts))
    base = NodeExplanation(node.name, node.operator.name, "host", shown, skip_mode=node.skip_mode.value)
    if node.subgraphs:
        return attrs.evolve(base, why=record.how) if record.inner is None else _passed(base, record.how, *record.inner)
    if node.place is Place.HOST:
        small = node.operator.evaluate is not None or node.operator.implement is not None
        return attrs.evolve(base, why="shape arithmetic" if small else "has no kernel for its dtypes; NumPy")
    match decision:
        case Skip():
            source = node.inputs[decision.sources[0]]
            assert source is not None
            name, offset = program.values[source].name, decision.offsets[0]
            return attrs.evolve(base, decision="skipped", alias_of=name, offset=offset, why=decision.why)
        case Empty():
            return attrs.evolve(base, decision="empty", why=decision.why)
        case Run(why):
            if node.operator.views is None:
                reason = ""
            elif decision == SKIP_OFF or record.call is None:
                reason = why
            else:
                reason = why_not_skipped(node.operator, record.call)
            return attrs.evolve(base, decision="ran", implementation=record.how, why=reason)
        case None:
            return base


def _passed(base: NodeExplanation, how: str, program: Program, records: Sequence[NodeRecord]) -> NodeExplanation:
    """A branch that makes nothing, but passes on a value from outside or a constant, is like a skip."""
    if base.operator != "If" or not all(isinstance(r.decision, Skip) for r in records):
        return attrs.evolve(base, why=how)
    sources = {r.node.outputs[0]: r.node.inputs[r.decision.sources[0]] for r in records if isinstance(r.decision, Skip)}
    source: int | None = program.outputs[0]
    while source in sources:
        source = sources[source]
    assert source is not None
    return attrs.evolve(base, decision="skipped", alias_of=program.values[source].name, why=f"{how} passes it on")
