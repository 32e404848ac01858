"""Forests on a device: what a row gets does not depend on how many rows go down a tree together."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.ops.ml.tree_scores import FEATURES, MISSING, OPERATOR, implement, pack_nodes
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array, Layout, layout_of

from ..run import run_impl

FEW = 5  # features


def _forest(modes: int, flags: int) -> tuple[Array, Array]:
    """Return the nodes and the roots of trees of any form; *modes* is how many comparisons there are."""
    random, table = np.random.default_rng(modes), []

    def grow(depth: int) -> int:
        at = len(table)
        table.append([-1, 0, int(random.integers(0, 3)), int(random.integers(0, 3))])
        if depth and random.random() < 0.8:
            word = int(random.integers(FEW)) | int(random.integers(modes)) << 24 | flags * int(random.integers(2))
            split = int(np.float32(random.standard_normal()).view(np.int32))
            table[at] = [word, split, grow(depth - 1), grow(depth - 1)]
        return at

    roots = [grow(7) for _ in range(6)]
    return np.array(table, np.int32), np.array(roots, np.int32)


def _run(x: Array, nodes: Array, roots: Array, base: Array, traits: DeviceTraits, **attributes: Any) -> Array:
    targets, scores = np.array([0, 1, 0, 1], np.int32), np.array([0.5, -1, 2, 0.25], np.float32)
    arrays = [x, nodes, roots, targets, scores, base]
    call = Call(
        "trees", Attributes(attributes, opset=1), tuple(map(layout_of, arrays)), (None, nodes, None, None, None, None),
        (Layout(FLOAT32, (len(x), len(base))),), (FLOAT32,), (False, *(True,) * 5),
    )  # fmt: skip
    got = run_impl(implement(call, traits), call, arrays)[0]
    (expected,) = OPERATOR.reference(call.attributes, arrays)
    np.testing.assert_allclose(got, expected, 1e-5, 1e-5)
    return got


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize(("modes", "flags"), [(1, 0), (1, MISSING), (6, MISSING)], ids=["plain", "missing", "mixed"])
def test_a_row_gets_the_same_scores_however_many_there_are_and_whether_the_table_is_packed(
    modes: int, flags: int, targets: int
) -> None:
    """Work-items of 32 rows and of 256, the last of them not full; some values are missing."""
    nodes, roots = _forest(modes, flags)
    x = np.random.default_rng(0).standard_normal((1100, FEW)).astype(np.float32)
    x[::7, 2] = np.nan
    base = np.full(targets, 0.5, np.float32)
    traits = DeviceTraits("cpu", 1)

    every = _run(x, nodes, roots, base, traits)

    np.testing.assert_array_equal(_run(x[:37], nodes, roots, base, traits), every[:37])
    np.testing.assert_array_equal(_run(x[:5], nodes, roots, base, traits), every[:5])
    unpacked = attrs.evolve(traits, packed_weights=False)
    np.testing.assert_array_equal(_run(x[:37], nodes, roots, base, unpacked), every[:37])


@pytest.mark.parametrize("child", [-5, 0, 1, 3, 2**31 - 1])
def test_a_walk_ends_where_a_node_names_none_behind_it(child: int) -> None:
    """Such a row gets nothing of that tree, and nobody reads outside of the table."""
    nodes = np.array([[0, 0, 1, 2], [0 | FEATURES - 1, 0, child, 2], [-1, 0, 0, 1]], np.int32)
    x = np.random.default_rng(0).standard_normal((20, FEW)).astype(np.float32)

    packed = pack_nodes(nodes)

    assert packed[:, 2:].min() >= 0
    assert packed[:, 2:].max() < len(packed)
    root, base = np.array([0], np.int32), np.zeros(1, np.float32)
    for is_packed in (True, False):
        _run(x, nodes, root, base, DeviceTraits("cpu", 1, packed_weights=is_packed))
