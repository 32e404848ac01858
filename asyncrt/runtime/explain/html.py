"""How does an explanation look as one page that needs nothing but a browser?

`page.html` is the page, `page.css` and `page.js` go into it: the script only zooms, selects and searches. What comes
from the model is text everywhere, never markup: it goes through `as_text()`, and the script moves it as text alone. The
page's own policy lets no script run but this one, and nothing be fetched.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from string import Template

from .record import NodeExplanation
from .svg import as_text, drawing, figure

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
    title = as_text(model or "model")
    legend = "".join(
        f'<li><svg width="44" height="24" class="{word}" aria-hidden="true">{figure(word, 1, 1, 42, 22)}</svg>'
        f"<span><b>{count} {word}</b> {_MEANINGS[word]}</span></li>"
        for word, count in counts.items()
    )
    style, script = _part("page.css"), _part("page.js")
    return Template(_part("page.html")).substitute(
        style_digest=_digest(f"\n{style}"),
        script_digest=_digest(f"\n{script}"),
        title=title,
        style=style,
        count=len(nodes),
        legend=legend,
        heat_button=_HEAT_BUTTON if device_us is not None else "",
        drawing=drawing(nodes),
        headings="".join(f'<th scope="col">{name}</th>' for name in _COLUMNS),
        rows="".join(_row(i, n) for i, n in enumerate(nodes)),
        script=script,
    )


@functools.cache
def _part(name: str) -> str:
    """Return the text of a file beside this module."""
    return resources.files("asyncrt.runtime.explain").joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    """Return *text* as the page's policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
    cells = ("<br>".join(as_text(line) for line in cell(n).split("\n")) for cell in _COLUMNS.values())
    return f'<tr data-row="{index}" class="{n.decision}"><td>' + "</td><td>".join(cells) + "</td></tr>\n"


_HEAT_BUTTON = (
    '<button id="heat" aria-pressed="false" title="The redder, the longer a node takes on the device">'
    "Colour by time</button>"
)
