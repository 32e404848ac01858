"""TreeScores: what an ensemble of decision trees gives each row, from a table of nodes.

It is what the tree operators of ai.onnx.ml are written as (`graph/rewriting/trees.py`). A node is four ints:
a word that names feature, comparison and where missing values go; the bits of a float to compare with; the node where
the comparison holds; and the node where it does not. A leaf has the word -1, and in the place of the children the first
of its weights and how many there are. Children come after their parents, which is checked here as well: a walk ends at
the latest behind the last node, whatever the table says.

Source: ONNX ai.onnx.ml TreeEnsemble-5, TreeEnsembleRegressor-3, TreeEnsembleClassifier-3.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, Ref, WeightsRequest, inp, out, weights
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT32, Array, DataType, Shape

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
FEATURES = 1 << 24  # features that a word can name
MISSING = 1 << 28  # of a word: missing values go where the comparison holds
_ORDERED = ("<= s", "< s", ">= s", "> s", "== s", "< s | v > s")  # of what is no number none holds
_NUMPY = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
# Rows of a work-item of a CPU. All of them go down a tree before the next one, so that it stays in a cache; the more they
# are, the less often trees come from memory.
_ROWS = (1024, 256, 32)
_ITEMS = 4  # work-items for each core that there must be for so many rows
_TOGETHER = 8  # rows that go down a tree side by side, or trees of one row: a step waits for memory twice
_X, _NODES, _ROOTS, _TARGETS, _WEIGHTS, _BASE = range(6)


def infer(call: Call) -> tuple[Shape]:
    rows = call.shape(_X)
    check(call, len(rows) == 2, "its input must have two axes")
    check(call, not isinstance(rows[1], int) or rows[1] > 0 or isinstance(rows[1], Dim), "its rows have no features")
    nodes = call.shape(_NODES)
    check(call, len(nodes) == 2 and nodes[1] == 4 and nodes[0] > 0, "its nodes must be [n, 4], and at least one")
    for index in (_ROOTS, _TARGETS, _WEIGHTS, _BASE):
        check(call, len(call.shape(index)) == 1, f"input {index} must be a vector")
    check(call, call.shape(_TARGETS) == call.shape(_WEIGHTS), "there must be a target for each weight")
    check(call, call.shape(_BASE)[0] > 0, "there must be a target")
    return ((rows[0], call.shape(_BASE)[0]),)


def _leaf_sums(kind: str, y: Any, rows: Any, targets: Any, weights: Any) -> None:
    if kind == "MIN":
        y[rows, targets] = np.fmin(y[rows, targets], weights)
    elif kind == "MAX":
        y[rows, targets] = np.fmax(y[rows, targets], weights)
    else:
        y[rows, targets] += weights


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    """Walk all rows down one tree after the other."""
    x, nodes, roots, targets, weights, base = (np.asarray(i) for i in inputs)
    kind = attributes.get("aggregate", "SUM")
    y = np.full((len(x), len(base)), 0.0 if kind == "SUM" else np.nan)
    splits = np.ascontiguousarray(nodes[:, 1]).view(np.float32)
    every = np.arange(len(x))
    for root in roots:
        at = np.full(len(x), np.clip(root, 0, len(nodes) - 1))
        inner = every[nodes[at, 0] >= 0]
        while inner.size:
            here = at[inner]
            word = nodes[here, 0]
            value = x[inner, np.minimum(word & (FEATURES - 1), x.shape[1] - 1)]
            mode = np.minimum((word >> 24) & 15, len(MODES) - 1)
            holds = np.select([mode == m for m in range(len(MODES))], [f(value, splits[here]) for f in _NUMPY])
            holds = np.where(np.isnan(value), (word & MISSING) != 0, holds)
            following = np.where(holds, nodes[here, 2], nodes[here, 3])
            stuck = (following <= here) | (following >= len(nodes))
            at[inner] = np.where(stuck, len(nodes), following)
            inner = inner[~stuck]
            inner = inner[nodes[at[inner], 0] >= 0]
        leaves = every[at < len(nodes)]
        first = nodes[at[leaves], 2].astype(np.int64)
        start, end = np.maximum(first, 0), np.clip(first + nodes[at[leaves], 3], 0, len(weights))
        for j in range(int((end - start).max(initial=0))):
            k = start + j
            mine = k < end
            place = np.clip(targets[k[mine]], 0, len(base) - 1)
            _leaf_sums(kind, y, leaves[mine], place, weights[k[mine]])
    return ((np.where(np.isnan(y), 0, y) + base).astype(np.float32),)


def host_nbytes(call: Call) -> int:
    """A dozen arrays of a number for each row, for one tree at a time, and the scores some times over."""
    rows, targets = call.shape(_X)[0], call.shape(_BASE)[0]
    depth = min(call.shape(_NODES)[0], 4096)
    return 300 * rows + 40 * rows * targets + 128 * (call.shape(_ROOTS)[0] + depth) + 16 * call.shape(_NODES)[0]


def implement(call: Call, traits: DeviceTraits) -> Impl:
    rows, features = call.shape(_X)
    targets, block = call.shape(_BASE)[0], _rows_of_item(rows, traits)
    packed = traits.packed_weights and call.constants[_NODES]
    kinds: tuple[tuple[str, Ref, DataType], ...] = (
        ("x", inp(_X), FLOAT32), ("nodes", weights(0) if packed else inp(_NODES), INT32), ("roots", inp(_ROOTS), INT32),
        ("target", inp(_TARGETS), INT32), ("weight", inp(_WEIGHTS), FLOAT32), ("base", inp(_BASE), FLOAT32),
    )  # fmt: skip
    buffers = [WalkedBuffer(name, ref, dtype, "r") for name, ref, dtype in kinds]
    count = call.shape(_NODES)[0]
    form = _Form(
        str(call.attributes.get("aggregate", "SUM")), targets == 1, _comparison(call.value(_NODES)), packed, block,
        _TOGETHER if traits.is_cpu else 1,
    )  # fmt: skip
    launch = walk(
        "tree_scores", _statement(form), (-(-rows // block),), [*buffers, WalkedBuffer("y", out(0), FLOAT32, "rw")],
        traits,
        ints=(
            ("rows", rows), ("features", features), ("targets", targets), ("trees", call.shape(_ROOTS)[0]),
            ("count", count), ("weights", call.shape(_WEIGHTS)[0]),
        ),
        work=block * 16 * max(1, call.shape(_ROOTS)[0]),
    )  # fmt: skip
    wanted = (WeightsRequest(_NODES, "trees", pack_nodes, 4 * (count + 1)),) if packed else ()
    return Impl("rows", () if launch is None else (launch,), weights=wanted)


def _rows_of_item(rows: int, traits: DeviceTraits) -> int:
    if not traits.is_cpu or rows < _TOGETHER * traits.compute_units:
        return 1
    return next((n for n in _ROWS if rows >= _ITEMS * n * traits.compute_units), _ROWS[-1])


class _Comparison(NamedTuple):
    """What is known of a table's comparisons.

    Attributes:
        mode: That of all nodes; None if each says its own.
        missing: Whether there may be nodes where missing values go where the comparison holds.
    """

    mode: int | None = None
    missing: bool = True


def _comparison(nodes: Array | None) -> _Comparison:
    if nodes is None:
        return _Comparison()
    words = nodes[:, 0]
    words = words[words >= 0]
    if not words.size:
        return _Comparison(0, False)
    modes = (words >> 24) & 15
    low, high = int(modes.min()), int(modes.max())
    return _Comparison(low if low == high < len(MODES) else None, bool((words & MISSING).any()))


def pack_nodes(nodes: Array) -> Array:
    """Return a table whose rows may be walked without a look at where they go, with a row more.

    A leaf is its own child; in the place of the word it has how many weights there are, and then the first. What is not a
    node behind its parent is the last row, a leaf without weights.
    """
    own = np.arange(len(nodes) + 1, dtype=np.int32)[:, None]
    packed = np.concatenate([nodes, np.zeros((1, 4), np.int32)])
    children = packed[:, 2:]
    inner = packed[:, :1] >= 0
    inner[-1] = False
    packed[:, :2] = np.where(inner, packed[:, :2], children[:, ::-1])
    behind = (children > own) & (children < len(nodes))
    packed[:, 2:] = np.where(inner, np.where(behind, children, len(nodes)), own)
    return packed


class _Form(NamedTuple):
    """What the source depends on.

    Attributes:
        single: There is one target, whose sums are kept in registers; else they are kept in the result.
        packed: The table is as `pack_nodes` makes it.
        block: Rows of a work-item, which all go down a tree before the next one.
        together: So many go side by side: rows, or where an item has one row, trees.
    """

    aggregate: str
    single: bool
    comparison: _Comparison
    packed: bool
    block: int
    together: int


@functools.cache
def _statement(form: _Form) -> str:
    """OpenCL C for a block of rows."""
    kind, single, block = form.aggregate, form.single, form.block
    lanes, rows = range(form.together), block > 1
    into = ("sums[q + {g}]" if rows else "sums[0]") if single else "y[(long)r{g} * targets + clamp(target[j], 0, targets - 1)]"
    add = {"MIN": f"{into} = fmin({into}, weight[j]);", "MAX": f"{into} = fmax({into}, weight[j]);"}.get(
        kind, f"{into} += weight[j];"
    )
    start = "0.0f" if kind == "SUM" else "NAN"
    begin = (
        f"sums[q] = {start};" if single else f"for (int t = 0; t < targets; t++) y[(long)r * targets + t] = {start};"
    )
    total = "sums[q]" if single else "y[(long)r * targets + t]"
    each = f"for (int q = 0; q < {block} && i * {block} + q < rows; q++) {{ const int r = i * {block} + q;"
    there = f"i * {block} + q + {{g}} < rows" if rows else "t + {g} < trees"
    row = f"min(i * {block} + q + {{g}}, rows - 1)" if rows else "i"
    root = "clamp(roots[{}], 0, count - 1)".format("t" if rows else "min(t + {g}, trees - 1)")
    begins = " ".join(f"const int r{g} = {row.format(g=g)}; int a{g} = {root.format(g=g)};" for g in lanes)
    steps = "\n          ".join(_step(form).format(g=g) for g in lanes)
    leaf = ("1", 1, 0) if form.packed else ("nodes[4 * a{g}] < 0", 2, 3)
    leaves = "\n        ".join(
        f"""if ({there.format(g=g)} && {leaf[0].format(g=g)}) {{
          const int first = nodes[4 * a{g} + {leaf[1]}];
          const int end = (int)clamp((long)first + nodes[4 * a{g} + {leaf[2]}], 0L, (long)weights);
          for (int j = max(first, 0); j < end; j++) {{ {add.format(g=g)} }}
        }}"""
        for g in lanes
    )
    return f"""{{
    {f"float sums[{block}];" if single else ""}
    {each} {begin} }}
    for (int t = 0; t < trees; t += {1 if rows else form.together}) {{
      for (int q = 0; q < {block} && i * {block} + q < rows; q += {form.together if rows else 1}) {{
        {begins}
        for (int moved = 1; moved;) {{
          moved = 0;
          {steps}
        }}
        {leaves}
      }}
    }}
    {each} for (int t = 0; t < targets; t++) {{
      const float a = {total};
      y[(long)r * targets + t] = (isnan(a) ? 0.0f : a) + base[t];
    }} }}
    }}"""


def _step(form: _Form) -> str:
    """OpenCL C of a step of row ``{g}`` down a tree, without a branch: each would be guessed wrong every second time.

    A row that is at a leaf stays there, and so does one whose node names none behind it.
    """
    mode, missing = form.comparison
    holds = f"v {_ORDERED[mode or 0]}"
    if mode is None:
        kinds = (f"(kind == {m} & (v {test}))" for m, test in enumerate(_ORDERED[:-1]))
        holds = f"{' | '.join(kinds)} | (kind >= {len(_ORDERED) - 1} & (v {_ORDERED[-1]}))"
    if missing:
        holds = f"({holds}) | ((v != v) & ((word & {MISSING}) != 0))"
    to = "next" if form.packed else "(word >= 0) & (next > a{g}) & (next < count) ? next : a{g}"
    return f"""{{{{
            const int word = nodes[4 * a{{g}}]; {"const int kind = (word >> 24) & 15;" if mode is None else ""}
            const float v = x[r{{g}} * features + min(word & {FEATURES - 1}, features - 1)], s = as_float(nodes[4 * a{{g}} + 1]);
            const int next = nodes[4 * a{{g}} + 3 - ({holds})], to = {to};
            moved |= to ^ a{{g}}; a{{g}} = to;
          }}}}"""


def _table(*nodes: tuple[int, float, int, int]) -> Array:
    """A table from word, number, and what the children or the weights are."""
    table = np.array([(w, 0, a, b) for w, _, a, b in nodes], np.int32)
    table[:, 1] = np.array([n[1] for n in nodes], np.float32).view(np.int32)
    return table


_TREES = _table(
    (0, 0.1, 1, 2), (-1, 0, 0, 1), (2 | MISSING, -0.2, 3, 4), (-1, 0, 1, 2), (-1, 0, 3, 1),
    (1 | 3 << 24, 0.0, 6, 7), (-1, 0, 4, 1), (-1, 0, 5, 1),
)  # fmt: skip
_PLAIN = _table((0, 0.1, 1, 2), (-1, 0, 0, 1), (2, -0.2, 3, 4), (-1, 0, 1, 2), (-1, 0, 3, 1))
_LEAVES = (np.array([0, 1, 0, 1, 0, 1], np.int32), np.array([0.5, -1, 2, 0.25, 3, -0.125], np.float32))
_MISSED = np.array([[np.nan, 1, np.nan], [1, np.nan, np.nan], [1, 0, -1]], np.float32)
_BASES = np.array([0.5, 0], np.float32), np.array([0.25], np.float32)

OPERATOR = Operator(
    name="TreeScores",
    domain="asyncrt",
    infer=infer,
    reference=reference,
    implement=implement,
    host_nbytes=host_nbytes,
    value_hints=(_NODES,),
    compares_hints=False,
    examples=(
        Example(("f32[70,3]", _TREES, np.array([0, 5], np.int32), *_LEAVES, _BASES[0]), opset=1),
        Example(("f32[70,3]", _TREES, np.array([0, 5], np.int32), *_LEAVES, _BASES[1]), opset=1),
        Example(("f32[5,3]", _PLAIN, np.array([0], np.int32), *_LEAVES, _BASES[1]), opset=1),
        Example((_MISSED, _TREES, np.array([0, 5], np.int32), *_LEAVES, _BASES[0]), opset=1),
        *(
            Example(("f32[40,3]", _TREES, np.array([0, 5], np.int32), *_LEAVES, base), {"aggregate": kind}, opset=1)
            for kind in ("MIN", "MAX")
            for base in _BASES
        ),
        Example(("f32[3,3]", _table((0, 0.0, 0, 9)), np.array([0], np.int32), *_LEAVES, _BASES[0]), opset=1),
        Example(("f32[0,3]", _PLAIN, np.array([0], np.int32), *_LEAVES, _BASES[0]), opset=1),
    ),
)
