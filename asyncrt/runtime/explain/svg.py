"""How does a graph look as a drawing? Each node shows by its outline, letter and colour what became of it.

What comes from the model is text everywhere, never markup: it goes through `as_text()`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from .layered_layout import HEIGHT, WIDTH, GraphEdge, LayerSlot, lay_out
from .record import NodeExplanation

_HEATS = 8  # shades of the time that nodes took; `page.css` has them


def as_text(text: str) -> str:
    """Return *text* for any place between tags or quotes. Characters that would not show are written out."""
    return html.escape("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text))


def drawing(nodes: Sequence[NodeExplanation]) -> str:
    """Return the graph as SVG, for `page.js` to select in."""
    edges = _edges(nodes)
    layout = lay_out(len(nodes), edges)
    width, height = layout.width, layout.height
    parts = [f'<svg id="drawing" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">\n']
    parts += [_path(edge, way) for edge, way in zip(edges, layout.ways, strict=True)]
    longest = max((n.device_us for n in nodes if n.device_us is not None), default=0.0)
    parts += [_node(i, n, p, longest) for i, (n, p) in enumerate(zip(nodes, layout.nodes, strict=True))]
    return "".join(parts) + "</svg>"


def _edges(nodes: Sequence[NodeExplanation]) -> list[GraphEdge]:
    """Return which node takes what from which. Only an earlier node can be a source, so there is no cycle."""
    edges: list[GraphEdge] = []
    made: dict[str, int] = {}
    latest: dict[str, int] = {}
    for i, n in enumerate(nodes):
        found = [GraphEdge(made[name], i, name) for name in n.inputs if name in made]
        if n.inside in latest and not any(nodes[e.source].inside == n.inside for e in found):
            found.append(GraphEdge(latest[n.inside], i, None))
        edges += found
        made |= dict.fromkeys(n.output_names, i)
        latest[n.node] = i
    return edges


def _path(edge: GraphEdge, way: Sequence[LayerSlot]) -> str:
    x, y = way[0].x, way[0].y + HEIGHT
    steps = [f"M{x:.0f} {y:.0f}"]
    for p in way[1:]:
        half = (y + p.y) / 2
        steps.append(f"C{x:.0f} {half:.0f} {p.x:.0f} {half:.0f} {p.x:.0f} {p.y:.0f}")
        x, y = p.x, p.y
        if p is not way[-1]:
            y += HEIGHT
            steps.append(f"V{y:.0f}")
    kind, title = ("inside", "is inside") if edge.value is None else ("edge", edge.value)
    ends = f'data-source="{edge.source}" data-target="{edge.target}"'
    return f'<path class="{kind}" {ends} d="{"".join(steps)}"><title>{as_text(title)}</title></path>\n'


def figure(decision: str, x: float, y: float, width: float, height: float) -> str:
    """Return a decision's outline and letter: they tell it where colours do not."""
    match decision:
        case "skipped" | "view":
            outline = f'<rect x="{x:.0f}" y="{y:.0f}" width="{width}" height="{height}" rx="{height / 2:.0f}"/>'
        case "host":
            ends = ((10, 0), (width - 10, 0), (width, height / 2), (width - 10, height), (10, height), (0, height / 2))
            outline = '<polygon points="' + " ".join(f"{x + a:.0f},{y + b:.0f}" for a, b in ends) + '"/>'
        case _:
            outline = f'<rect x="{x:.0f}" y="{y:.0f}" width="{width}" height="{height}"/>'
    letter = decision[:1].upper()
    return f'{outline}<text class="letter" x="{x + 16:.0f}" y="{y + height / 2 + 5:.0f}">{letter}</text>'


def _heat(n: NodeExplanation, longest: float) -> str:
    """Return the class that tells, in the mode for it, how long a node took beside the *longest*; "" if unknown."""
    return "" if n.device_us is None or not longest else f" heat{round(n.device_us / longest * _HEATS)}"


def _node(index: int, n: NodeExplanation, p: LayerSlot, longest: float) -> str:
    x, y = p.x - WIDTH / 2, p.y
    time = "" if n.device_us is None else f"{n.device_us:.1f} µs"
    tip = "\n".join(as_text(t) for t in (n.node, n.operator, "; ".join(filter(None, (n.decision, n.why, time)))))
    return (
        f'<g class="node {n.decision}{_heat(n, longest)}" data-node="{index}" tabindex="0" role="button">'
        f"<title>{tip}</title>"
        f"{figure(n.decision, x, y, WIDTH, HEIGHT)}"
        f'<text class="operator" x="{x + 32:.0f}" y="{y + 17:.0f}">{as_text(_short(n.operator))}</text>'
        f'<text x="{x + 32:.0f}" y="{y + 32:.0f}">{as_text(_short(n.node))}</text></g>\n'
    )


def _short(text: str, most: int = 20) -> str:
    """Return the end of a text that is long: names begin with where the node is, and end with what it is."""
    return text if len(text) <= most else "…" + text[1 - most :]
