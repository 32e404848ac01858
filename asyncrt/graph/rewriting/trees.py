"""Ensembles of decision trees, as a table of nodes that a kernel walks.

A tree is checked here, once: every child is there, no node has two parents, and none is its own ancestor. Nodes get new
numbers, parents before children, so that a walk always ends. Features and splits are compared as float32, as the
libraries do that trees come from: splits written in float64 are rounded so that no comparison of a float32 changes, and
float64 features are rounded, too.

Source: ONNX ai.onnx.ml TreeEnsemble-5, TreeEnsembleRegressor-3, TreeEnsembleClassifier-3; ONNX Runtime for what a
classifier of two classes gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.kernels.call import Attributes
from asyncrt.kernels.ops.ml.tree_scores import FEATURES, MISSING, MODES
from asyncrt.layout import FLOAT64, Array

from .draft import Draft

_LEAF = "LEAF"


class Tree(NamedTuple):
    """An ensemble as its attributes give it; a node is known by its place in the lists.

    Attributes:
        roots: The places of the roots.
        children: For each node where to go on, and where to go on otherwise; None for a leaf.
        words: For each node that is no leaf, its feature, comparison and way of missing values.
        splits: What is compared with.
        leaves: For each leaf its targets and weights.
    """

    roots: Sequence[int]
    children: Sequence[tuple[int, int] | None]
    words: Sequence[int]
    splits: Array
    leaves: Mapping[int, Sequence[tuple[int, float]]]


def _word(draft: Draft, feature: int, mode: str, missing: int) -> int:
    draft.refuse(mode not in MODES, f"its comparison '{mode}'")
    draft.refuse(not 0 <= feature < FEATURES, f"feature {feature}")
    return feature | MODES.index(mode) << 24 | (MISSING if missing else 0)


def _rounded(draft: Draft, splits: Any, modes: Sequence[str]) -> Array:
    """Return splits as float32 that compare with any float32 as they did; the nearest ones for features in float64."""
    wide = np.asarray(splits, np.float64)
    near = wide.astype(np.float32)
    if draft.dtype(0) is FLOAT64:
        return near
    down = np.array([m in ("BRANCH_LEQ", "BRANCH_GT") for m in modes], bool)
    up = np.array([m in ("BRANCH_LT", "BRANCH_GTE") for m in modes], bool)
    near = np.where(down & (near > wide), np.nextafter(near, np.float32(-np.inf)), near)
    return np.where(up & (near < wide), np.nextafter(near, np.float32(np.inf)), near).astype(np.float32)


def _listed(given: Attributes, name: str) -> Any:
    """Return numbers that are given as floats, or as a tensor of float32 or float64."""
    tensor = given.get(f"{name}_as_tensor")
    return tensor.reshape(-1).tolist() if tensor is not None else list(given.get(name, ()))


def of_lists(draft: Draft, kind: str) -> Tree:
    """Return the ensemble of a regressor or a classifier, whose weights' attributes begin with *kind*."""
    given = draft.attributes
    modes = list(given.get("nodes_modes", ()))
    keys = list(zip(given.get("nodes_treeids", ()), given.get("nodes_nodeids", ()), strict=False))
    place = {key: i for i, key in enumerate(keys)}
    lists = [list(given.get(f"nodes_{name}", ())) for name in ("truenodeids", "falsenodeids", "featureids")]
    values = _listed(given, "nodes_values")
    missing = list(given.get("nodes_missing_value_tracks_true", ())) or [0] * len(modes)
    wrong = len(place) != len(modes) or any(len(x) != len(modes) for x in (*lists, values, missing))
    draft.refuse(wrong or not modes, "its lists of nodes differ in length, are empty, or name a node twice")
    children: list[tuple[int, int] | None] = []
    words: list[int] = []
    for i, (tree, _) in enumerate(keys):
        if modes[i] == _LEAF:
            children.append(None)
            words.append(-1)
            continue
        pair = [place.get((tree, lists[side][i]), -1) for side in (0, 1)]
        draft.refuse(min(pair) < 0, f"node {keys[i]} has a child that is not there")
        children.append((pair[0], pair[1]))
        words.append(_word(draft, lists[2][i], modes[i], missing[i]))
    held = {c for pair in children if pair for c in pair}
    roots = [i for i in range(len(keys)) if i not in held]
    return Tree(roots, children, words, _rounded(draft, values, modes), _weights(draft, kind, place))


def _weights(draft: Draft, kind: str, place: Mapping[tuple[int, int], int]) -> Mapping[int, list[tuple[int, float]]]:
    given, prefix = draft.attributes, "class" if kind == "class" else "target"
    lists = [list(given.get(f"{prefix}_{name}", ())) for name in ("treeids", "nodeids", "ids")]
    weights = _listed(given, f"{prefix}_weights")
    draft.refuse(any(len(x) != len(weights) for x in lists), "its lists of weights differ in length")
    leaves: dict[int, list[tuple[int, float]]] = {}
    for tree, node, target, weight in zip(*lists, weights, strict=True):
        draft.refuse((tree, node) not in place, f"a weight is of node {node} of tree {tree}, which is not there")
        leaves.setdefault(place[tree, node], []).append((target, weight))
    return leaves


def of_arrays(draft: Draft) -> Tree:
    """Return the ensemble of a TreeEnsemble, whose leaves have numbers of their own behind those of the nodes."""
    given = draft.attributes
    names = [*MODES, "BRANCH_MEMBER"]
    numbers = [int(m) for m in np.asarray(given["nodes_modes"]).reshape(-1)]
    draft.refuse(any(not 0 <= m < len(names) for m in numbers), "a comparison that is not known")
    draft.refuse(any(names[m] == "BRANCH_MEMBER" for m in numbers), "its comparison 'BRANCH_MEMBER'")
    modes = [names[m] for m in numbers]
    names_of = ("truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    lists: list[list[int]] = [list(given[f"nodes_{name}"]) for name in names_of]
    features: list[int] = list(given["nodes_featureids"])
    splits: Array = np.asarray(given["nodes_splits"]).reshape(-1)
    missing = list(given.get("nodes_missing_value_tracks_true", ())) or [0] * len(modes)
    wrong = any(n != len(modes) for n in (*map(len, lists), len(features), splits.size, len(missing)))
    draft.refuse(wrong, "its lists of nodes differ in length")
    targets, weights = list(given["leaf_targetids"]), np.asarray(given["leaf_weights"]).reshape(-1).tolist()
    draft.refuse(len(targets) != len(weights), "its lists of leaves differ in length")
    children: list[tuple[int, int] | None] = []
    words: list[int] = []
    leaves: dict[int, list[tuple[int, float]]] = {}
    extra: list[tuple[int, float]] = []
    for i, mode in enumerate(modes):
        pair = []
        for side in (0, 1):
            to, leaf = lists[side][i], bool(lists[side + 2][i])
            draft.refuse(
                not 0 <= to < (len(weights) if leaf else len(modes)), f"node {i} has a child that is not there"
            )
            if leaf:  # of each way to a leaf one, so that none has two parents
                leaves[len(modes) + len(extra)] = [(targets[to], weights[to])]
                pair.append(len(modes) + len(extra))
                extra.append((targets[to], weights[to]))
            else:
                pair.append(to)
        children.append((pair[0], pair[1]))
        words.append(_word(draft, features[i], mode, missing[i]))
    children += [None] * len(extra)
    words += [-1] * len(extra)
    every = np.concatenate([_rounded(draft, splits, modes), np.zeros(len(extra), np.float32)])
    roots = list(given["tree_roots"])
    draft.refuse(any(not 0 <= r < len(modes) for r in roots), "a root that is not there")
    return Tree(roots, children, words, every, leaves)


def scores(draft: Draft, tree: Tree, targets: int, base: Sequence[float], aggregate: str) -> str:
    """Return the scores of every row, ``[N, targets]``, as float32."""
    draft.refuse(targets < 1, "it has no targets")
    draft.refuse(len(base) not in (0, 1, targets), f"{len(base)} base values for {targets} targets")
    draft.refuse(aggregate not in ("SUM", "AVERAGE", "MIN", "MAX"), f"aggregate_function '{aggregate}'")
    table, roots, ids, weights = _table(draft, tree, targets)
    if aggregate == "AVERAGE":
        weights = weights / np.float32(max(1, len(roots)))
    base = [*base] * (targets if len(base) == 1 else 1) or [0.0] * targets
    x = draft.floats(0)
    held = [draft.constant(a, a.dtype) for a in (table, roots, ids, weights, np.asarray(base, np.float32))]
    kind = "SUM" if aggregate == "AVERAGE" else aggregate
    return draft.add("TreeScores", x, *held, domain="asyncrt", aggregate=kind)


def _table(draft: Draft, tree: Tree, targets: int) -> tuple[Array, Array, Array, Array]:
    """Return nodes, roots, the leaves' targets and their weights, with parents before children."""
    order: list[int] = []
    number: dict[int, int] = {}
    starts: list[int] = []
    for root in tree.roots:
        starts.append(len(order))
        waiting = [root]
        while waiting:
            node = waiting.pop()
            draft.refuse(node in number, "a node has two parents, or is its own ancestor")
            number[node] = len(order)
            order.append(node)
            waiting += reversed(tree.children[node] or ())
    draft.refuse(len(order) != len(tree.children), "nodes that no root leads to")
    table = np.zeros((len(order), 4), np.int32)
    ids: list[int] = []
    weights: list[float] = []
    for row, node in enumerate(order):
        pair = tree.children[node]
        if pair is not None:
            table[row] = tree.words[node], 0, number[pair[0]], number[pair[1]]
            continue
        mine = tree.leaves.get(node, ())
        draft.refuse(any(not 0 <= t < targets for t, _ in mine), "a weight of a target that is not there")
        table[row] = -1, 0, len(ids), len(mine)
        ids += [t for t, _ in mine]
        weights += [w for _, w in mine]
    table[:, 1] = tree.splits[order].view(np.int32)
    return table, np.array(starts, np.int32), np.array(ids, np.int32), np.array(weights, np.float32)
