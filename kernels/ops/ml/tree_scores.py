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
from typing import Any

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import Impl, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, INT32, Array, DataType, Shape

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
FEATURES = 1 << 24  # features that a word can name
MISSING = 1 << 28  # of a word: missing values go where the comparison holds
_COMPARE = ("<=", "<", ">=", ">", "==", "!=")
_NUMPY = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_ROWS = 32  # that a work-item of a CPU walks down a tree together, so that the tree stays in its cache
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
    targets, block = call.shape(_BASE)[0], _ROWS if traits.is_cpu else 1
    kinds: tuple[tuple[str, int, DataType], ...] = (
        ("x", _X, FLOAT32), ("nodes", _NODES, INT32), ("roots", _ROOTS, INT32), ("target", _TARGETS, INT32),
        ("weight", _WEIGHTS, FLOAT32), ("base", _BASE, FLOAT32),
    )  # fmt: skip
    buffers = [WalkedBuffer(name, inp(index), dtype, "r") for name, index, dtype in kinds]
    launch = walk(
        "tree_scores",
        _statement(str(call.attributes.get("aggregate", "SUM")), targets == 1, _uniform(call.value(_NODES)), block),
        (-(-rows // block),),
        [*buffers, WalkedBuffer("y", out(0), FLOAT32, "rw")],
        traits,
        ints=(
            ("rows", rows), ("features", features), ("targets", targets), ("trees", call.shape(_ROOTS)[0]),
            ("count", call.shape(_NODES)[0]), ("weights", call.shape(_WEIGHTS)[0]),
        ),
        work=block * 16 * max(1, call.shape(_ROOTS)[0]),
    )  # fmt: skip
    return Impl("rows", () if launch is None else (launch,))


def _uniform(nodes: Array | None) -> int | None:
    """Return the comparison of all nodes, if it is one and the table is known."""
    if nodes is None:
        return None
    words = nodes[:, 0]
    modes = np.unique((words[words >= 0] >> 24) & 15)
    return int(modes[0]) if modes.size == 1 and modes[0] < len(MODES) else None


@functools.cache
def _statement(kind: str, single: bool, mode: int | None, block: int) -> str:
    """OpenCL C for a block of rows: each tree is walked by all of them before the next one is.

    Args:
        single: There is one target, whose sums are kept in registers; else they are kept in the result.
        mode: The comparison of every node, or None if each says its own.
    """
    test = _COMPARE[mode or 0]
    holds = f"v {test} s"
    if mode is None:
        holds = "v != s"
        for m in range(len(MODES) - 1):
            holds = f"((word >> 24) & 15) == {m} ? v {_COMPARE[m]} s : {holds}"
    into = "sums[q]" if single else "y[(long)r * targets + clamp(target[j], 0, targets - 1)]"
    add = {"MIN": f"{into} = fmin({into}, weight[j]);", "MAX": f"{into} = fmax({into}, weight[j]);"}.get(
        kind, f"{into} += weight[j];"
    )
    start = "0.0f" if kind == "SUM" else "NAN"
    begin = (
        f"sums[q] = {start};" if single else f"for (int t = 0; t < targets; t++) y[(long)r * targets + t] = {start};"
    )
    total = "sums[q]" if single else "y[(long)r * targets + t]"
    rounds = f"for (int q = 0; q < {block}; q++) {{ const int r = min(i * {block} + q, rows - 1);"
    last = f"for (int q = 0; q < {block} && i * {block} + q < rows; q++) {{ const int r = i * {block} + q;"
    return f"""{{
    {f"float sums[{block}];" if single else ""}
    {last} {begin} }}
    for (int t = 0; t < trees; t++) {{
      const int root = clamp(roots[t], 0, count - 1);
      {last if not single else rounds}
        int at = root;
        int4 node = vload4(at, nodes);
        while (node.x >= 0) {{
          const int word = node.x;
          const float v = x[r * features + min(word & {FEATURES - 1}, features - 1)], s = as_float(node.y);
          const int next = (isnan(v) ? (word & {MISSING}) != 0 : ({holds})) ? node.z : node.w;
          if (next <= at || next >= count) {{ at = count; break; }}
          at = next;
          node = vload4(at, nodes);
        }}
        if (at < count) {{
          const int end = (int)clamp((long)node.z + node.w, 0L, (long)weights);
          for (int j = max(node.z, 0); j < end; j++) {{ {add} }}
        }}
      }}
    }}
    {last} for (int t = 0; t < targets; t++) {{
      const float a = {total};
      y[(long)r * targets + t] = (isnan(a) ? 0.0f : a) + base[t];
    }} }}
    }}"""


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
