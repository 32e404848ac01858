"""How does an explanation look as one page that needs nothing but a browser?

The graph is drawn here, in layers from top to bottom; the page's script only zooms, selects and searches. What comes
from the model is text everywhere, never markup: it goes through `_text()`, and the script moves it as text alone. The
page's own policy lets no script run but this one, and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import attrs

from .record import NodeExplanation

_WIDTH, _HEIGHT = 168, 40  # of a node
_ACROSS, _DOWN = 24, 34  # between nodes, and between layers
_BEND = 12  # the width of a place where an edge passes a layer
_MARGIN = 20
_HEATS = 8  # shades of the time that nodes took
_SWEEPS = 4  # down and up again; further ones change little

_MEANINGS = {
    "ran": "a kernel on the device",
    "fused": "done by the kernel of another node",
    "skipped": "costs nothing: its output is another value's bytes",
    "view": "costs nothing: its readers take another value's bytes through strides",
    "empty": "has no elements",
    "host": "in Python",
}


def page(
    model: str, nodes: Sequence[NodeExplanation], counts: Mapping[str, int], device_us: float | None
) -> str:
    """Return the page as HTML.

    Args:
        model: The graph's name.
        counts: How many nodes there are, by decision.
        device_us: Microseconds that all nodes took; None where that was not measured.
    """
    title = _text(model or "model")
    legend = "".join(
        f'<li><svg width="44" height="24" class="{word}" aria-hidden="true">{_figure(word, 1, 1, 42, 22)}</svg>'
        f"<span><b>{count} {word}</b> {_MEANINGS[word]}</span></li>"
        for word, count in counts.items()
    )
    headings = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    rows = "".join(_row(i, n) for i, n in enumerate(nodes))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src {_digest(_STYLE)}; \
script-src {_digest(_SCRIPT)}">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{title}: {len(nodes)} nodes</h1>
<ul class="legend">{legend}</ul>
<div class="tools">
<input id="search" type="search" placeholder="Search nodes and operators" aria-label="Search nodes and operators">
<output id="found"></output>
<button id="out" title="Smaller">−</button><button id="in" title="Larger (also Ctrl and the wheel)">+</button>
<button id="whole">Whole width</button><button id="full">Full size</button>
{_HEAT_BUTTON if device_us is not None else ""}
</div>
</header>
<main>
<div id="graph" tabindex="0">{_drawing(nodes)}</div>
<aside id="details" aria-live="polite"><p>Click a node to see what became of it, and why.</p></aside>
</main>
<section>
<table id="table"><thead><tr>{headings}</tr></thead>
<tbody>
{rows}</tbody></table>
</section>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _digest(text: str) -> str:
    """Return *text* as the page's policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(text: str) -> str:
    """Return *text* for any place between tags or quotes. Characters that would not show are written out."""
    return html.escape("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text))


# The table, from which the script also takes the details of a node.


def _alias(n: NodeExplanation) -> str:
    return n.alias_of + (f" + {n.offset} bytes" if n.offset else "")


def _outputs(n: NodeExplanation) -> str:
    named = [": ".join(pair) for pair in zip(n.output_names, n.outputs, strict=False)]
    return "\n".join([*named, *n.outputs[len(named) :]])


_COLUMNS: dict[str, Callable[[NodeExplanation], str]] = {
    "node": lambda n: n.node,
    "operator": lambda n: n.operator,
    "decision": lambda n: n.decision,
    "why": lambda n: n.why,
    "implementation": lambda n: n.implementation,
    "alias of": _alias,
    "outputs": _outputs,
    "inputs": lambda n: "\n".join(n.inputs),
    "skip mode": lambda n: n.skip_mode,
    "inside": lambda n: n.inside,
    "device µs": lambda n: "" if n.device_us is None else f"{n.device_us:.1f}",
}


def _row(index: int, n: NodeExplanation) -> str:
    cells = ("<br>".join(_text(line) for line in cell(n).split("\n")) for cell in _COLUMNS.values())
    return f'<tr data-row="{index}" class="{n.decision}"><td>' + "</td><td>".join(cells) + "</td></tr>\n"


# The drawing.


class _Edge(NamedTuple):
    """From one node to a later one, by their positions; `value` is None from a node to what is inside it."""

    source: int
    target: int
    value: str | None


@attrs.define(eq=False)
class _Box:
    """A node, or where an edge passes a layer on its way further down."""

    width: float
    above: list[_Box] = attrs.Factory(list)
    below: list[_Box] = attrs.Factory(list)
    rank: float = 0.0  # its position in its layer
    x: float = 0.0  # its middle
    y: float = 0.0  # its top


def _edges(nodes: Sequence[NodeExplanation]) -> list[_Edge]:
    """Return which node takes what from which. Only an earlier node can be a source, so there is no cycle."""
    edges: list[_Edge] = []
    made: dict[str, int] = {}
    latest: dict[str, int] = {}
    for i, n in enumerate(nodes):
        found = [_Edge(made[name], i, name) for name in n.inputs if name in made]
        if n.inside in latest and not any(nodes[e.source].inside == n.inside for e in found):
            found.append(_Edge(latest[n.inside], i, None))
        edges += found
        made |= dict.fromkeys(n.output_names, i)
        latest[n.node] = i
    return edges


def _drawing(nodes: Sequence[NodeExplanation]) -> str:
    edges = _edges(nodes)
    depths = [0] * len(nodes)
    for edge in edges:  # they come in the order of their targets
        depths[edge.target] = max(depths[edge.target], depths[edge.source] + 1)
    layers: list[list[_Box]] = [[] for _ in range(max(depths, default=-1) + 1)]
    places = [_Box(_WIDTH) for _ in nodes]
    for place, depth in zip(places, depths, strict=True):
        layers[depth].append(place)
    ways = _ways(edges, places, depths, layers)
    _order(layers)
    _spread(layers)
    everything = [p for layer in layers for p in layer]
    left = min((p.x - p.width / 2 for p in everything), default=0) - _MARGIN
    right = max((p.x + p.width / 2 for p in everything), default=0) + _MARGIN
    for p in everything:
        p.x -= left
    width, height = right - left, len(layers) * (_HEIGHT + _DOWN) + _MARGIN
    parts = [f'<svg id="drawing" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">\n']
    parts += [_path(edge, way) for edge, way in zip(edges, ways, strict=True)]
    longest = max((n.device_us for n in nodes if n.device_us is not None), default=0.0)
    parts += [_node(i, n, p, longest) for i, (n, p) in enumerate(zip(nodes, places, strict=True))]
    return "".join(parts) + "</svg>"


def _ways(
    edges: Sequence[_Edge], places: Sequence[_Box], depths: Sequence[int], layers: list[list[_Box]]
) -> list[list[_Box]]:
    """Return the places that each edge goes through, and add those between its ends. Edges of a value share them."""
    ways: list[list[_Box]] = []
    shared: dict[tuple[int, str | None], list[_Box]] = {}
    for edge in edges:
        trunk = shared.setdefault((edge.source, edge.value), [places[edge.source]])
        start, length = depths[edge.source], depths[edge.target] - depths[edge.source]
        while len(trunk) < length:
            bend = _Box(_BEND)
            layers[start + len(trunk)].append(bend)
            _join(trunk[-1], bend)
            trunk.append(bend)
        _join(trunk[length - 1], places[edge.target])
        ways.append([*trunk[:length], places[edge.target]])
    return ways


def _join(above: _Box, below: _Box) -> None:
    above.below.append(below)
    below.above.append(above)


def _sweeps(layers: Sequence[list[_Box]]) -> Iterator[tuple[list[_Box], bool]]:
    """Return each layer with whether the one above it is what counts: downwards, upwards, and again."""
    for _ in range(_SWEEPS):
        yield from ((layer, True) for layer in layers[1:])
        yield from ((layer, False) for layer in layers[-2::-1])


def _order(layers: Sequence[list[_Box]]) -> None:
    """Order each layer by where its places' neighbours are on average; those without any stay where they are."""
    for layer in layers:
        _number(layer)
    for layer, downwards in _sweeps(layers):
        wanted: dict[_Box, float] = {}
        for p in layer:
            near = p.above if downwards else p.below
            wanted[p] = sum(q.rank for q in near) / len(near) if near else p.rank
        layer.sort(key=wanted.__getitem__)
        _number(layer)


def _number(layer: Sequence[_Box]) -> None:
    """Set ranks between 0 and 1, so that places without neighbours compare with those of longer layers."""
    for i, p in enumerate(layer):
        p.rank = (i + 1) / (len(layer) + 1)


def _spread(layers: Sequence[list[_Box]]) -> None:
    """Set where everything is: in its order, without overlap, and close to below what it is connected with."""
    for depth, layer in enumerate(layers):
        for p in layer:
            p.y = _MARGIN + depth * (_HEIGHT + _DOWN)
        _apart(layer, [0.0] * len(layer))
    for layer, downwards in _sweeps(layers):
        near = [p.above if downwards else p.below for p in layer]
        _apart(layer, [sum(q.x for q in n) / len(n) if n else p.x for p, n in zip(layer, near, strict=True)])


def _apart(layer: Sequence[_Box], wanted: Sequence[float]) -> None:
    """Put a layer's places as near to where they are wanted as their order and widths let them, by least squares.

    Less what is to the left of each, wanted positions need only not fall: neighbours that do are averaged.
    """
    offsets: list[float] = []
    for p in layer:
        gap = (layer[len(offsets) - 1].width + p.width) / 2 + _ACROSS if offsets else 0.0
        offsets.append((offsets[-1] if offsets else 0.0) + gap)
    groups: list[tuple[float, int]] = []  # the sum of what is wanted, and how many places
    for want, offset in zip(wanted, offsets, strict=True):
        total, count = want - offset, 1
        while groups and groups[-1][0] / groups[-1][1] >= total / count:
            more, others = groups.pop()
            total, count = total + more, count + others
        groups.append((total, count))
    found = [total / count for total, count in groups for _ in range(count)]
    for p, start, offset in zip(layer, found, offsets, strict=True):
        p.x = start + offset


def _path(edge: _Edge, way: Sequence[_Box]) -> str:
    x, y = way[0].x, way[0].y + _HEIGHT
    steps = [f"M{x:.0f} {y:.0f}"]
    for p in way[1:]:
        half = (y + p.y) / 2
        steps.append(f"C{x:.0f} {half:.0f} {p.x:.0f} {half:.0f} {p.x:.0f} {p.y:.0f}")
        x, y = p.x, p.y
        if p is not way[-1]:
            y += _HEIGHT
            steps.append(f"V{y:.0f}")
    kind, title = ("inside", "is inside") if edge.value is None else ("edge", edge.value)
    ends = f'data-source="{edge.source}" data-target="{edge.target}"'
    return f'<path class="{kind}" {ends} d="{"".join(steps)}"><title>{_text(title)}</title></path>\n'


def _figure(decision: str, x: float, y: float, width: float, height: float) -> str:
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


def _node(index: int, n: NodeExplanation, p: _Box, longest: float) -> str:
    x, y = p.x - _WIDTH / 2, p.y
    time = "" if n.device_us is None else f"{n.device_us:.1f} µs"
    tip = "\n".join(_text(t) for t in (n.node, n.operator, "; ".join(filter(None, (n.decision, n.why, time)))))
    return (
        f'<g class="node {n.decision}{_heat(n, longest)}" data-node="{index}" tabindex="0" role="button">'
        f"<title>{tip}</title>"
        f"{_figure(n.decision, x, y, _WIDTH, _HEIGHT)}"
        f'<text class="operator" x="{x + 32:.0f}" y="{y + 17:.0f}">{_text(_short(n.operator))}</text>'
        f'<text x="{x + 32:.0f}" y="{y + 32:.0f}">{_text(_short(n.node))}</text></g>\n'
    )


def _short(text: str, most: int = 20) -> str:
    """Return the end of a text that is long: names begin with where the node is, and end with what it is."""
    return text if len(text) <= most else "…" + text[1 - most :]


_HEAT_BUTTON = (
    '<button id="heat" aria-pressed="false" title="The redder, the longer a node takes on the device">'
    "Colour by time</button>"
)

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --fore: #1b1f24; --soft: #6a737d; --line: #9aa4af; --rule: #d5dae0;
  --mark: #d1242f; --hit: #ffdf5d;
  --ran: #d3f2d9; --ran-line: #1a7f37; --skipped: #d6ecfb; --skipped-line: #0969da;
  --view: #d9f2f0; --view-line: #0b7a75; --fused: #e6f5d0; --fused-line: #4d7c0f;
  --empty: #fbf0c9; --empty-line: #8a6100; --host: #f3dcf7; --host-line: #8a3ea8; }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --fore: #e4e8ed; --soft: #98a2ad; --line: #66707b;
  --rule: #363d46; --mark: #ff7b72; --hit: #7a6400;
  --ran: #123d20; --ran-line: #4ac26b; --skipped: #0f3358; --skipped-line: #6cb6ff;
  --view: #0d3b39; --view-line: #4fd1c7; --fused: #26350f; --fused-line: #a3d65c;
  --empty: #423400; --empty-line: #d9b44a; --host: #3d1d4a; --host-line: #d48be8; } }
* { box-sizing: border-box; }
body { margin: 0; font: 14px/1.4 system-ui, sans-serif; background: var(--back); color: var(--fore); }
header, section { padding: 8px 16px; }
h1 { margin: 0 0 4px; font-size: 18px; overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 0 0 8px; padding: 0; list-style: none; }
.legend li, .tools { display: flex; align-items: center; gap: 8px; }
.tools { flex-wrap: wrap; }
#search { width: 260px; padding: 4px 8px; font: inherit; }
#found { min-width: 90px; color: var(--soft); }
button { padding: 3px 10px; font: inherit; }
main { display: flex; height: 72vh; border: solid var(--rule); border-width: 1px 0; }
#graph { flex: 1; min-width: 0; overflow: auto; }
#drawing { display: block; margin: 0 auto; }
aside { width: 320px; padding: 12px 16px; overflow: auto; border-left: 1px solid var(--rule); }
aside p { color: var(--soft); }
dl { margin: 0; }
dt { color: var(--soft); font-size: 12px; }
dd { margin: 0 0 10px; overflow-wrap: anywhere; white-space: pre-line; }
svg text { font: 11px system-ui, sans-serif; fill: var(--fore); }
svg .operator { font-size: 13px; font-weight: 600; }
svg .letter { font-size: 14px; font-weight: 700; text-anchor: middle; }
.ran { --fill: var(--ran); --edge: var(--ran-line); }
.fused { --fill: var(--fused); --edge: var(--fused-line); }
.skipped { --fill: var(--skipped); --edge: var(--skipped-line); }
.view { --fill: var(--view); --edge: var(--view-line); }
.empty { --fill: var(--empty); --edge: var(--empty-line); }
.host { --fill: var(--host); --edge: var(--host-line); }
rect, polygon { fill: var(--fill); stroke: var(--edge); stroke-width: 1.5; }
.skipped rect { stroke-dasharray: 6 3; }
.view rect { stroke-dasharray: 10 2; }
.empty rect { stroke-dasharray: 2 3; }
svg .letter { fill: var(--edge); }
path { fill: none; stroke: var(--line); stroke-width: 1.2; }
path.inside { stroke-dasharray: 3 4; }
path.on { stroke: var(--mark); stroke-width: 2.4; }
.node { cursor: pointer; outline: none; }
.node.hit rect, .node.hit polygon { fill: var(--hit); stroke-width: 3; }
.node:focus-visible rect, .node:focus-visible polygon, .node.on rect, .node.on polygon
  { stroke: var(--mark); stroke-width: 3; stroke-dasharray: none; }
.searching .node:not(.hit):not(.on) { opacity: .35; }
.timed .node { --fill: var(--back); --edge: var(--soft); }
""" + "".join(
    f".timed .heat{i} {{ --fill: color-mix(in srgb, var(--mark) {i * 80 // _HEATS}%, var(--back)); }}\n"
    for i in range(_HEATS + 1)
) + """button[aria-pressed=true] { outline: 2px solid var(--mark); }
section { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 3px 10px 3px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
td { max-width: 320px; overflow-wrap: anywhere; }
td:nth-child(3) { color: var(--edge); font-weight: 600; }
tbody tr { cursor: pointer; }
tbody tr.hit { background: var(--hit); }
tbody tr.on { outline: 2px solid var(--mark); }
@media (max-width: 800px) { main { flex-direction: column; height: 90vh; } aside { width: auto; max-height: 40%; } }
"""

_SCRIPT = """
'use strict';
const get = id => document.getElementById(id);
const graph = get('graph'), drawing = get('drawing'), search = get('search');
const nodes = [...drawing.querySelectorAll('.node')], paths = [...drawing.querySelectorAll('path')];
const rows = [...document.querySelectorAll('tbody tr')];
const headings = [...document.querySelectorAll('th')].map(h => h.textContent);
const width = +drawing.getAttribute('width'), height = +drawing.getAttribute('height');
let scale = 1, hits = [], next = 0;

function zoom(wanted, x = graph.clientWidth / 2, y = graph.clientHeight / 2) {
  const before = drawing.getBoundingClientRect(), box = graph.getBoundingClientRect();
  const held = [(box.left + x - before.left) / scale, (box.top + y - before.top) / scale];
  scale = Math.min(4, Math.max(0.02, wanted));
  drawing.setAttribute('width', width * scale);
  drawing.setAttribute('height', height * scale);
  const after = drawing.getBoundingClientRect();
  graph.scrollLeft += after.left + held[0] * scale - box.left - x;
  graph.scrollTop += after.top + held[1] * scale - box.top - y;
}

function select(index, show) {
  for (const marked of document.querySelectorAll('.on')) marked.classList.remove('on');
  nodes[index].classList.add('on');
  rows[index].classList.add('on');
  for (const p of paths)
    p.classList.toggle('on', p.dataset.source === String(index) || p.dataset.target === String(index));
  const list = document.createElement('dl');
  [...rows[index].cells].forEach((cell, i) => {
    if (!cell.textContent) return;
    list.appendChild(document.createElement('dt')).textContent = headings[i];
    list.appendChild(document.createElement('dd')).textContent = cell.innerText;
  });
  get('details').replaceChildren(list);
  if (show) {
    const box = graph.getBoundingClientRect(), at = nodes[index].getBoundingClientRect();
    graph.scrollLeft += at.left + at.width / 2 - box.left - box.width / 2;
    graph.scrollTop += at.top + at.height / 2 - box.top - box.height / 2;
  }
}

function find() {
  const wanted = search.value.trim().toLowerCase();
  const fits = row => [0, 1].some(i => row.cells[i].textContent.toLowerCase().includes(wanted));
  hits = wanted ? rows.flatMap((row, i) => fits(row) ? [i] : []) : [];
  next = 0;
  const found = new Set(hits);
  nodes.forEach((node, i) => node.classList.toggle('hit', found.has(i)));
  rows.forEach((row, i) => row.classList.toggle('hit', found.has(i)));
  drawing.classList.toggle('searching', wanted !== '');
  get('found').textContent = wanted ? `${hits.length} of ${rows.length}` : '';
}

nodes.forEach((node, i) => {
  node.addEventListener('click', () => select(i, false));
  node.addEventListener('keydown', event => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    select(i, false);
  });
});
rows.forEach((row, i) => row.addEventListener('click', () => {
  select(i, true);
  graph.scrollIntoView({ block: 'nearest' });
}));
search.addEventListener('input', find);
search.addEventListener('keydown', event => {
  if (event.key === 'Enter' && hits.length) select(hits[next++ % hits.length], true);
});
get('in').addEventListener('click', () => zoom(scale * 1.25));
get('out').addEventListener('click', () => zoom(scale / 1.25));
get('whole').addEventListener('click', () => zoom((graph.clientWidth - 2) / width));
get('full').addEventListener('click', () => zoom(1));
get('heat')?.addEventListener('click', event => {
  const on = drawing.classList.toggle('timed');
  event.currentTarget.setAttribute('aria-pressed', on);
});
graph.addEventListener('wheel', event => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  const box = graph.getBoundingClientRect();
  zoom(scale * Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });
graph.scrollLeft = (width - graph.clientWidth) / 2;
"""
