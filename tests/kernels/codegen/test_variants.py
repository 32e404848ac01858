"""Specialised variants: what their text is, what they compute, and when they are worth it."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrt.kernels.codegen.source import kernel, specialised
from asyncrt.kernels.codegen.variants import Learned, Variant, Variants, choose, is_faster, is_worth, learn, variant_of
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.operator import Example
from asyncrt.kernels.registry import find_operator
from asyncrt.layout import FLOAT32

from ...ops.run import arrays, best_device, make_call, reference, run_impl, traits_of

A = kernel("a", (("x", FLOAT32, "rw"),), ("n", "m"), "x[0] = n + $_f(m);", helpers="int $_f(int i) { return i; }")
B = kernel("b", (("x", FLOAT32, "rw"),), ("n",), "x[0] = n;")
OFTEN = 1_000_000


# Their text.


def test_sizes_become_numbers_and_nothing_else_changes() -> None:
    """The record's layout and the helpers stay; the name is another, so that both fit one program."""
    special = specialised(A, ((1, -7),))

    assert "  const int n = args.v[0];\n" in special.text
    assert "  const int m = (-7);\n" in special.text
    assert special.text.replace(special.name, A.name).replace("m = (-7)", "m = args.v[1]") == A.text
    assert special.name not in A.text
    assert (special.accesses, special.ints, special.local) == (A.accesses, A.ints, A.local)
    assert specialised(A, ((0, -7),)).name != special.name


def test_launches_that_differ_in_a_varying_size_share_a_variant() -> None:
    """As products of any number of rows do."""
    assert variant_of(A, (3, 5), (0,)) == variant_of(A, (4, 5), (0,)) == Variant(A, ((1, 5),))
    assert variant_of(A, (3, 5), ()) != variant_of(A, (4, 5), ())


CASES = [
    "Transpose", "Concat", "Gather", "Slice", "Pad", "Add", "Where", "Cast", "MatMul", "Gemm", "Softmax",
    "LayerNormalization", "Conv", "ReduceSum", "TopK", "CumSum", "Resize", "MaxPool",
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_variants_compute_the_same_bytes(name: str) -> None:
    """With all sizes fixed but the varying ones: integers and copies by nature, floats as no order of sums changes.

    A driver may contract ``a * b + c`` in one and not in the other, so floats are given two units in the last place.
    """
    operator = find_operator("", name)
    assert operator is not None
    for example in operator.examples[:3]:
        compare(name, example)


def compare(name: str, example: Example) -> None:
    operator = find_operator("", name)
    assert operator is not None
    assert operator.implement is not None
    inputs = arrays(example)
    device = best_device()
    call = make_call(operator, example, inputs, reference(operator, example, inputs), constant=False)
    impl = operator.implement(call, traits_of(device))
    launches = tuple(
        launch._replace(kernel=variant_of(launch.kernel, launch.ints, launch.varying).source())
        for launch in impl.launches
        if isinstance(launch.kernel, KernelSource)
    )
    assert len(launches) == len(impl.launches)
    generic = run_impl(impl, call, inputs)
    special = run_impl(impl._replace(launches=launches), call, inputs)

    for g, s in zip(generic, special, strict=True):
        if g.dtype.kind == "f" and g.dtype.itemsize >= 4:
            # Of the largest element: where terms cancel, what is left of a rounding is many units of its own.
            largest = np.max(np.abs(g[np.isfinite(g)]), initial=0)
            np.testing.assert_allclose(s, g, rtol=0, atol=2 * np.spacing(largest))
        else:
            assert g.tobytes() == s.tobytes()


# When they are worth it.


def test_a_variant_is_built_when_it_would_have_paid() -> None:
    """When the launches so far have lost what the build costs: by what is known of the kernel, or a guess."""
    slow, fast = Learned(launch_s=1e-3, gain=0.2, tried=1, kept=1), Learned(launch_s=1e-5, gain=0.2, tried=1, kept=1)

    assert [is_worth(n, slow, 0.03) for n in (149, 151)] == [False, True]
    assert [is_worth(n, fast, 0.03) for n in (151, 15_001)] == [False, True]
    assert not is_worth(149, slow, 0.03)
    assert not is_worth(151, slow, 0.3)


def test_the_most_promising_is_chosen() -> None:
    """By launches, time and gain together; none if none is worth it."""
    one, two, other = Variant(A, ((0, 1),)), Variant(A, ((0, 2),)), Variant(B, ((0, 1),))
    counts = {one: 20_000, two: 30_000, other: 20_000}

    assert choose(counts, {}, 0.03) == two
    assert choose(counts, {B: Learned(launch_s=1.0, gain=0.1, tried=1, kept=1)}, 0.03) == other
    assert choose(dict.fromkeys(counts, 1), {}, 0.03) is None


def test_a_gain_must_be_more_than_noise() -> None:
    """Three per cent in the median, and in two of three pairs."""
    assert is_faster([1.0] * 9, [0.9] * 9)
    assert not is_faster([1.0] * 9, [0.98] * 9)
    assert not is_faster([1.0] * 9, [1.1] * 9)
    assert not is_faster([1.0, 1.0, 1.0, 0.5, 0.5], [0.9, 0.9, 0.9, 0.9, 0.9])


def test_what_was_learned_is_a_mean_with_the_guess() -> None:
    """A guess counts as one measurement; a loss as no gain."""
    known = learn(Learned(gain=0.1), 1.0, 0.7, kept=True)

    assert (known.launch_s, known.tried, known.kept) == (1.0, 1, 1)
    assert known.gain == pytest.approx(0.2)
    assert learn(known, 1.0, 2.0, kept=False).gain == pytest.approx(0.4 / 3)


def test_a_kernel_that_gains_nothing_is_not_tried_again() -> None:
    """Nor one that cannot be built; others are."""
    variants = Variants()
    of_a, of_b = [Variant(A, ((0, n),)) for n in range(2)], [Variant(B, ((0, n),)) for n in range(3)]
    variants.saw([*of_a, *of_b], OFTEN)

    assert variants.next(of_a) is not None
    assert not variants.measured(of_a[0], [1.0] * 3, [1.0] * 3)
    assert variants.next(of_a) is None
    assert variants.measured(of_b[0], [1.0] * 3, [0.5] * 3)
    assert variants.next([*of_a, *of_b]) in of_b[1:]

    variants.failed(of_b[1])

    assert variants.next(of_b) is None
    assert repr(variants) == "<Variants 5 counted, 2 tried, 0 kept>"


def test_a_variant_is_measured_once() -> None:
    """However often it is launched after that."""
    variants = Variants()
    variant = Variant(A, ())
    variants.saw([variant], OFTEN)

    assert variants.measured(variant, [1.0] * 3, [0.5] * 3)

    variants.saw([variant], OFTEN)

    assert variants.next([variant]) is None


def test_counts_are_bounded() -> None:
    """Those not seen for longest are forgotten."""
    variants = Variants()
    first = Variant(A, ((0, -1),))
    variants.saw([first], OFTEN)
    variants.saw([Variant(A, ((0, n),)) for n in range(5000)], 1)

    assert variants.next([first]) is None
    assert repr(variants) == "<Variants 4096 counted, 0 tried, 0 kept>"
