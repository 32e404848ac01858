"""Views, against NumPy: the same elements, dense if and only if the bytes are in order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from asyncrt.dims import Dim, Undetermined
from asyncrt.layout import Array, Shape, row_major
from asyncrt.memory.view import View, broadcast_strides, collapse

SHAPES = [shape for rank in range(5) for shape in itertools.product(range(4), repeat=rank)]
#: A view may read any of these; what lies before and after a tensor shows when it is read by mistake.
BEFORE, AFTER = 50, 50


def memory(shape: Sequence[int]) -> Array:
    """Return elements that are all different, those of a dense tensor from `BEFORE` on."""
    count = int(np.prod(shape, dtype=int))
    return np.arange(-BEFORE, count + AFTER, dtype=np.int16)


def tensor(shape: Sequence[int]) -> Array:
    return np.arange(int(np.prod(shape, dtype=int)), dtype=np.int16).reshape(shape)


def elements(view: View, held: Array) -> Array:
    """Return what *view* reads, by NumPy's own strides."""
    return np.lib.stride_tricks.as_strided(held[BEFORE + view.offset :], view.shape, [2 * s for s in view.strides])


def assert_reads(expected: Array, view: View, held: Array, what: object) -> None:
    """The view's elements are *expected*, and it is dense if and only if they are in order in memory."""
    assert expected.shape == view.shape, what
    got = elements(view, held)
    flat = got.reshape(-1).tolist()
    in_order = flat == list(range(view.offset, view.offset + len(flat)))

    assert expected.reshape(-1).tolist() == flat, what
    assert in_order == view.is_dense, what


def some_of_rank_5() -> list[Shape]:
    random_shapes = random.Random(5)
    return [tuple(random_shapes.randrange(4) for _ in range(5)) for _ in range(40)]


def test_permutations_read_what_transpose_gives() -> None:
    """Every order of the axes of every small shape."""
    for shape in SHAPES + some_of_rank_5():
        x, held = tensor(shape), memory(shape)
        for order in itertools.permutations(range(len(shape))):
            assert_reads(x.transpose(order), View.dense(shape).permute(order), held, (shape, order))


def slices(dim: int) -> Iterator[tuple[int, int, int]]:
    """Every start, count and step that stays inside *dim*."""
    for start in range(max(dim, 1)):
        for step in (-2, -1, 1, 2, 3):
            for count in range(dim + 1):
                last = start + (count - 1) * step
                if not count or 0 <= last < dim:
                    yield start, count, step


def test_slices_read_what_indexing_gives() -> None:
    """Every slice of every axis, forwards and backwards, alone and of a transposed tensor."""
    for shape in SHAPES + some_of_rank_5():
        x, held = tensor(shape), memory(shape)
        for turned in (False, True):
            dense = View.dense(shape)
            whole, view = (x.T, dense.permute(range(len(shape))[::-1])) if turned else (x, dense)
            for axis, dim in enumerate(whole.shape):
                for start, count, step in slices(dim):
                    expected = np.take(whole, [start + i * step for i in range(count)], axis)
                    what = (shape, turned, axis, start, count, step)
                    assert_reads(expected, view.slice(axis, start, count, step), held, what)


def test_slices_of_two_axes_read_what_indexing_gives() -> None:
    """A slice of a slice."""
    for shape in [s for s in SHAPES if len(s) in (2, 3)]:
        x, held = tensor(shape), memory(shape)
        for a, b in itertools.combinations(range(len(shape)), 2):
            for (s, n, p), (t, m, q) in itertools.product(slices(shape[a]), slices(shape[b])):
                expected = np.take(np.take(x, [s + i * p for i in range(n)], a), [t + i * q for i in range(m)], b)
                view = View.dense(shape).slice(a, s, n, p).slice(b, t, m, q)
                assert_reads(expected, view, held, (shape, a, b, (s, n, p), (t, m, q)))


def test_expands_read_what_broadcasting_gives() -> None:
    """Every target of rank up to 4 that NumPy broadcasts to."""
    for shape in [s for s in SHAPES if len(s) < 4]:
        x, held = tensor(shape), memory(shape)
        choices = [range(4) if dim == 1 else (dim,) for dim in shape]
        for lead in range(min(4 - len(shape), 2) + 1):
            for target in itertools.product(*([range(4)] * lead), *choices):
                expected = np.broadcast_to(x, target)
                assert_reads(expected, View.dense(shape).expand(target), held, (shape, target))
                assert View.dense(shape).expand(target).is_dense == View(
                    target, broadcast_strides(shape, target)
                ).is_dense


def test_repeats_read_what_tile_gives() -> None:
    """A tiled tensor is the view with two axes for one, merged."""
    for shape in [s for s in SHAPES if len(s) < 4]:
        x, held = tensor(shape), memory(shape)
        for times in itertools.product(range(3), repeat=len(shape)):
            view = View.dense(shape).repeat(times)
            expected = np.tile(x, times).reshape(view.shape)
            assert_reads(expected, view, held, (shape, times))


def test_drops_read_what_squeeze_gives() -> None:
    """A unit axis may be named from either end."""
    for shape in SHAPES:
        x, held = tensor(shape), memory(shape)
        for axis in range(-len(shape), len(shape)):
            if shape[axis] == 1:
                assert_reads(np.squeeze(x, axis), View.dense(shape).drop(axis), held, (shape, axis))


def walk(dims: Sequence[int], strides: Sequence[int], offset: int = 0) -> list[int]:
    return [offset + sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(*dims)]


def random_views(seed: int, count: int) -> Iterator[View]:
    """Views made of several steps."""
    chance = random.Random(seed)
    for _ in range(count):
        view = View.dense([chance.choice((0, 1, 1, 2, 3)) for _ in range(chance.randrange(6))])
        for _ in range(chance.randrange(4)):
            rank = len(view.shape)
            match chance.randrange(4):
                case 0:
                    view = view.permute(chance.sample(range(rank), rank))
                case 1 if rank:
                    axis = chance.randrange(rank)
                    options = list(slices(view.shape[axis]))
                    view = view.slice(axis, *chance.choice(options))
                case 2:
                    wider = [chance.choice((1, 3)) if d == 1 else d for d in view.shape]
                    view = view.expand([2] * chance.randrange(2) + wider)
                case 3 if rank and rank <= 3:
                    view = view.repeat([chance.randrange(1, 3) for _ in view.shape])
        yield view


def test_collapse_walks_the_same_elements() -> None:
    """Merging axes changes neither which elements are visited nor their order, for one operand or two."""
    for view in random_views(1, 4000):
        target = row_major(view.shape)
        dims, (source, dense) = collapse(view.shape, view.strides, target)

        assert len(dims) >= 1
        assert walk(view.shape, view.strides) == walk(dims, source)
        assert walk(view.shape, target) == walk(dims, dense)


def test_collapse_leaves_nothing_to_merge() -> None:
    """No unit axis is left beside another, and no two neighbours could be one; a dense tensor is one axis."""
    for view in random_views(2, 2000):
        dims, (strides,) = collapse(view.shape, view.strides)
        if 0 in view.shape:
            continue
        merges = [strides[i] == strides[i + 1] * dims[i + 1] for i in range(len(dims) - 1)]

        assert dims == (1,) or 1 not in dims
        assert not any(merges), (view, dims, strides)
        assert not view.is_dense or len(dims) == 1


def test_what_depends_on_a_symbolic_dim_is_undetermined() -> None:
    """Loading must neither promise a skip nor rule it out where only a request can tell."""
    seq = Dim.named("seq")
    swapped = View.dense((2, seq, 8)).permute((1, 0, 2))  # type: ignore[arg-type]  # loading's shapes hold dims

    with pytest.raises(Undetermined):
        _ = swapped.is_dense


def test_what_holds_for_every_symbolic_dim_is_determined() -> None:
    """A unit axis may pass a dim of any size, and two axes larger than 1 may never be exchanged."""
    seq = Dim.named("seq")
    moved = View.dense((seq, 1, 8)).permute((1, 0, 2))  # type: ignore[arg-type]
    exchanged = View.dense((seq, 2, 8)).permute((0, 2, 1))  # type: ignore[arg-type]

    assert moved.is_dense
    assert not exchanged.is_dense


def through_cases() -> Iterator[tuple[View, View]]:
    """Views of dense tensors, and tensors of those shapes that lie as views themselves."""
    rng = random.Random(7)
    for _ in range(6000):
        shape = tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.randint(1, 4)))
        yield wander(rng, View.dense(shape)), wander(rng, _stored(rng, shape), keep=shape)


def _stored(rng: random.Random, shape: tuple[int, ...]) -> View:
    """A tensor of *shape* in memory of other axes, with room between."""
    order = rng.sample(range(len(shape)), len(shape))
    room = [rng.choice((0, 0, 1)) for _ in shape]
    whole = View.dense([shape[a] + r for a, r in zip(order, room, strict=True)])
    for axis, a in enumerate(order):
        whole = whole.slice(axis, rng.randint(0, room[axis]), shape[a])
    return whole.permute([order.index(a) for a in range(len(shape))])


def wander(rng: random.Random, view: View, keep: tuple[int, ...] | None = None) -> View:
    """One or two movements, none of which changes the shape if it is to be kept."""
    for _ in range(rng.randint(1, 2)):
        axis = rng.randrange(len(view.shape))
        dim = view.shape[axis]
        kind = rng.choice(("repeat", "flip")) if keep else rng.choice(("permute", "slice", "flip", "reshape", "expand"))
        if kind == "permute":
            view = view.permute(rng.sample(range(len(view.shape)), len(view.shape)))
        elif kind == "slice":
            start = rng.randrange(dim)
            view = view.slice(axis, start, rng.randint(1, dim - start))
        elif kind == "flip":
            view = view.slice(axis, dim - 1, dim, -1)
        elif kind == "repeat":
            view = view.slice(axis, 0, 1).expand(keep or ())
        elif kind == "reshape" and view.is_dense:
            count = int(np.prod(view.shape))
            first = rng.choice([d for d in range(1, count + 1) if count % d == 0])
            view = View((first, count // first), (count // first, 1), view.offset)
        elif kind == "expand":
            view = view.expand((rng.choice((1, 2)), *view.shape))
    return view


def test_a_view_of_a_view_has_the_elements_of_one_after_the_other() -> None:
    """Where there is an answer it is exact; where there is none, writing the inner one out first is what is left."""
    answered = 0
    for outer, inner in through_cases():
        store = memory((4096,))
        written = np.concatenate([memory((0,))[:BEFORE], elements(inner, store).reshape(-1), np.zeros(AFTER, np.int16)])
        expected = elements(outer, written)

        one = outer.through(inner)

        if one is not None:
            answered += 1
            np.testing.assert_array_equal(expected, elements(one, store))
            assert one.shape == outer.shape
    assert answered > 3000


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (View.dense((6,)), View.dense((3, 2)).permute((1, 0))),
        (View.dense((3, 2)), View.dense((3, 2)).permute((1, 0)).slice(0, 0, 2)),
        (View.dense((4, 3)).slice(1, 0, 2).permute((1, 0)), View.dense((2, 6)).slice(1, 0, 5)),
    ],
)
def test_what_no_strides_say_has_no_answer(outer: View, inner: View) -> None:
    """An axis that goes over several axes which are not walked as one."""
    assert outer.through(inner) is None


def test_a_reshape_that_only_splits_and_merges_what_is_walked_as_one_is_a_view_of_a_view() -> None:
    """Heads: [batch, seq, heads * dim], transposed after a reshape, and reshaped within an axis again."""
    heads = View.dense((2, 5, 3, 4)).permute((0, 2, 1, 3))

    one = View.dense((2, 3, 5, 2, 2)).through(heads)

    assert one == View((2, 3, 5, 2, 2), (60, 4, 12, 2, 1))


def test_the_span_of_a_view_is_the_memory_it_walks_over() -> None:
    """From the first element to the last, both included; a view without elements walks over none."""
    assert View.dense((2, 3)).span == 6
    assert View((2, 3), (10, 2)).span == 15
    assert View((4, 5), (0, 0)).span == 1
    assert View((2, 0), (0, 1)).span == 0
