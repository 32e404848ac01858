"""An explanation as a page and as JSON: all of it is there, it fetches nothing, and no name becomes markup."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from asyncrt import Explanation, NodeExplanation, Runtime

from ...builders import i64, model, node

BERT = Path(__file__).parents[2] / "models" / "bert_ts13.onnx"
HOSTILE = (
    "<script>alert(1)</script>", "</script>", "\"' onclick='x()' \"", "]]>", "--><b>", "</svg></style>", "a&amp;b",
    "\u202eabc\0",
)  # fmt: skip

_VOID = {"meta", "br", "input"}


class Page(HTMLParser):
    """What a browser would see; every tag must be closed by its own."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.cells: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: found or "" for name, found in attrs}))
        if tag == "tr":
            self.cells.append([])
        elif tag == "td":
            self.cells[-1].append("")
        elif tag == "br":
            self.cells[-1][-1] += "\n"
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((self._open[-1], data))
        if self._open[-1:] == ["td"]:
            self.cells[-1][-1] += data

    def values(self, attribute: str) -> list[str]:
        """Return an attribute of all tags that have it."""
        return [found[attribute] for _, found in self.tags if attribute in found]

    def edges(self) -> set[tuple[int, int]]:
        """Return the ends of the edges that are drawn."""
        return {(int(a["data-source"]), int(a["data-target"])) for tag, a in self.tags if tag == "path"}


async def explained(proto: onnx.ModelProto | Path, inputs: Mapping[str, Any]) -> Explanation:
    async with Runtime("host") as rt:
        loaded = await rt.load(proto)
        await loaded.infer(inputs)
        return loaded.explain()


async def of_bert() -> Explanation:
    ids = np.ones((1, 16), np.int64)
    return await explained(BERT, {"input_ids": ids, "attention_mask": ids})


def drawn(*nodes: NodeExplanation) -> Explanation:
    return Explanation("by hand", nodes)


def one(name: str, inputs: str = "", outputs: str = "", **others: Any) -> NodeExplanation:
    given = {"operator": "Neg", "decision": "ran", "outputs": ("float32[1]",) * len(outputs.split()), **others}
    return NodeExplanation(name, inputs=tuple(inputs.split()), output_names=tuple(outputs.split()), **given)


def body(name: str, made: str) -> onnx.GraphProto:
    """A branch that makes a value of the given name from x, and its result from that."""
    nodes = [node(f"{made} = Exp(x)"), node(f"{name} = Neg({made})")]
    return helper.make_graph(nodes, "inside", [], [onnx.ValueInfoProto(name=name)])


def two_choices() -> onnx.ModelProto:
    """Two Ifs whose branches call what they make alike."""
    nodes = [
        node("first = If(yes)", then_branch=body("r", "v"), else_branch=body("r", "v")),
        node("second = If(yes)", then_branch=body("r", "v"), else_branch=body("r", "v")),
        node("y = Add(first, second)"),
    ]
    return model(nodes, ["x f32[n]", "yes bool[one]"], ["y"])


# The page.


@pytest.mark.asyncio
async def test_the_page_of_a_model_shows_every_node_once() -> None:
    """In the graph, in the table, and in the counts of the legend."""
    explanation = await of_bert()

    page = Page(explanation.to_html())

    everything = [str(i) for i in range(len(explanation))]
    assert len(explanation) > 100
    assert everything == page.values("data-node")
    assert everything == page.values("data-row")
    assert [n.node for n in explanation] == [row[0] for row in page.cells[1:]]
    assert [f"{n} {word}" for word, n in explanation.counts.items()] == [t for tag, t in page.texts if tag == "b"]


@pytest.mark.asyncio
async def test_the_page_needs_nothing_but_itself() -> None:
    """No address, no file, no attribute that runs or styles; its own policy allows its one script and style alone."""
    text = (await of_bert()).to_html()

    page = Page(text)

    assert re.findall(r"https?:|//|\bsrc=|url\(|@import|\bhref", text.replace("http-equiv", "")) == []
    names = {name for _, found in page.tags for name in found}
    assert {n for n in names if n.startswith("on") or n in ("style", "srcset", "action", "data")} == set()
    (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    for tag, kind in (("script", "script-src"), ("style", "style-src")):
        (content,) = [t for of, t in page.texts if of == tag]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy


def test_decisions_differ_without_colour() -> None:
    """Each has its letter, and an outline of its own."""
    decisions = ("ran", "skipped", "view", "empty", "host")

    text = drawn(*(one(d, decision=d) for d in decisions)).to_html()

    letters = re.findall(r'<g class="node (\w+)".*?class="letter"[^>]*>(\w)<', text, re.S)
    assert letters == [("ran", "R"), ("skipped", "S"), ("view", "V"), ("empty", "E"), ("host", "H")]
    assert {"skipped", "view", "empty"} == set(re.findall(r"\.(\w+) rect \{ stroke-dasharray", text))
    assert re.search(r'node host".*?</title><polygon', text, re.S)
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_wherever_they_come_from(name: str) -> None:
    """The tags are those of a page with a harmless name, and the table says the name."""
    everywhere = {
        "operator": name, "outputs": (name,), "implementation": name, "alias_of": name, "why": name, "skip_mode": name,
    }  # fmt: skip

    def page_of(word: str) -> Page:
        given = {k: tuple(word for _ in v) if isinstance(v, tuple) else word for k, v in everywhere.items()}
        first = NodeExplanation(word, decision="ran", inputs=(word,), output_names=(word,), **given)
        second = NodeExplanation(word, decision="ran", inputs=(word,), output_names=("z",), inside=word, **given)
        return Page(Explanation(word, (first, second)).to_html())

    page, harmless = page_of(name), page_of("harmless")

    assert [(tag, list(a)) for tag, a in harmless.tags] == [(tag, list(a)) for tag, a in page.tags]
    shown = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in name)
    assert [shown] * 6 == [page.cells[1][i] for i in (0, 1, 3, 4, 5, 7)]
    assert f"{shown}: {shown}" == page.cells[1][6]


def test_each_edge_goes_down_from_who_made_the_value() -> None:
    """A layer is the longest way from the top; an edge over layers, and two of one value, are there too."""
    nodes = (one("a", "x", "p q"), one("b", "p", "r"), one("c", "r", "s"), one("d", "q s p", "t"), one("e", "w", "u"))

    text = drawn(*nodes).to_html()

    assert {(0, 1), (1, 2), (0, 3), (2, 3)} == Page(text).edges()
    heights = [float(y) for y in re.findall(r'data-node="\d".*?<rect x="[-\d]+" y="(\d+)"', text, re.S)]
    assert [sorted(set(heights)).index(y) for y in heights] == [0, 1, 2, 3, 0]
    assert sorted(re.findall(r'<path.*?<title>(\w)<', text)) == ["p", "p", "q", "r", "s"]


def test_nodes_of_a_layer_do_not_overlap() -> None:
    """However many there are, and however they are connected."""
    top = [one(f"t{i}", "", f"t{i}") for i in range(40)]
    below = [one(f"m{i}", f"t{(i * 7) % 40} t{(i * 3) % 40} t0", f"m{i}") for i in range(40)]
    last = one("last", " ".join(f"m{i}" for i in range(40)) + " t1", "z")

    text = drawn(*top, *below, last).to_html()

    boxes = [(int(y), int(x)) for x, y in re.findall(r'</title><rect x="(-?\d+)" y="(-?\d+)"', text)]
    boxes.sort()
    assert len(boxes) == 81
    assert all(y != z or x + 168 < w for (y, x), (z, w) in itertools.pairwise(boxes))
    (width,) = re.findall(r'id="drawing" width="(\d+)"', text)
    assert min(x for _, x in boxes) >= 0
    assert max(x for _, x in boxes) + 168 <= int(width)


def test_an_explanation_without_nodes_is_a_page_too() -> None:
    """As of a model that passes its input on."""
    page = Page(drawn().to_html())

    assert (page.values("data-node"), page.values("data-row")) == ([], [])


# Values, and what is inside nodes.


@pytest.mark.asyncio
async def test_nodes_name_the_values_they_take_and_make() -> None:
    """Constants too; what was skipped is the alias of a value under the same name."""
    nodes = [node("t = Transpose(x)", perm=[1, 0]), node("y = Reshape(t, to)")]

    turn, reshape = await explained(
        model(nodes, ["x f32[n,m]"], ["y"], {"to": i64(-1)}), {"x": np.zeros((1, 5), np.float32)}
    )

    assert (turn.inputs, turn.output_names) == (("x",), ("t",))
    assert (reshape.inputs, reshape.output_names) == (("t", "to"), ("y",))
    assert reshape.alias_of in ("t", "x")


@pytest.mark.asyncio
async def test_values_inside_nodes_have_names_of_their_own() -> None:
    """Two branches may call theirs alike: an edge still leads to the right one, and captured ones keep their name."""
    x = np.ones(3, np.float32)

    explanation = await explained(two_choices(), {"x": x, "yes": np.array([True])})

    first, exp, neg, second, exp_2, neg_2, _ = explanation
    assert ["", first.node, first.node, "", second.node, second.node, ""] == [n.inside for n in explanation]
    assert [exp.inputs, exp_2.inputs] == [("x",), ("x",)]
    assert (exp.output_names, exp_2.output_names) == (neg.inputs, neg_2.inputs)
    assert (exp.output_names, exp_2.output_names) == (("v",), ("v'1",))
    made = [name for n in explanation for name in n.output_names]
    assert len(set(made)) == len(made)
    # From an If to what it holds, within the branch, and to the sum of both.
    assert {(0, 1), (1, 2), (3, 4), (4, 5), (0, 6), (3, 6)} == Page(explanation.to_html()).edges()


# JSON.


@pytest.mark.asyncio
async def test_json_holds_the_whole_explanation() -> None:
    """What is read back is what was written, under keys that are always there."""
    explanation = await explained(two_choices(), {"x": np.ones(3, np.float32), "yes": np.array([False])})

    document = json.loads(explanation.to_json())

    assert list(document) == ["model", "counts", "nodes"]
    assert list(document["nodes"][0]) == [
        "node", "operator", "decision", "outputs", "implementation", "alias_of", "offset", "strides", "why",
        "skip_mode", "inputs", "output_names", "inside", "lane", "lanes", "device_us",
    ]  # fmt: skip
    back = [{k: tuple(v) if isinstance(v, list) else v for k, v in n.items()} for n in document["nodes"]]
    assert explanation == Explanation(document["model"], tuple(NodeExplanation(**n) for n in back))
    assert explanation.counts == document["counts"]


def test_json_of_one_decision_counts_all_nodes() -> None:
    """The rest is left out, not forgotten."""
    explanation = drawn(one("a"), one("b", decision="host"))

    document = json.loads(explanation.to_json(only="host"))

    assert [n["node"] for n in document["nodes"]] == ["b"]
    assert document["counts"] == {"ran": 1, "fused": 0, "skipped": 0, "view": 0, "empty": 0, "host": 1}


def test_every_shade_of_time_has_a_colour() -> None:
    """From nodes that took no time to the one that took longest, the style knows each class that is drawn."""
    nodes = [one(f"n{i}", device_us=float(i)) for i in range(100)]

    text = drawn(*nodes).to_html()

    shades = set(re.findall(r'<g class="node ran heat(\d+)"', text))
    assert len(shades) > 4
    assert shades == set(re.findall(r"\.timed \.heat(\d+) \{", text))
