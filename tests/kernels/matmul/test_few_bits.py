"""Weights of few bits: how they are packed for CPUs, and what a row's product depends on."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from asyncrt.devices.base import AVX512, Registers
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue, Operand
from asyncrt.kernels.impl import inp
from asyncrt.kernels.matmul.few_bits import pack_words, shift
from asyncrt.kernels.ops.quantization.matmul_nbits import OPERATOR, implement
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array, Layout, layout_of
from asyncrt.memory.view import View

from ...ops.run import run_impl

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_word_holds_neighbours_of_a_column_and_its_masked_bytes_are_four_of_them(bits: int) -> None:
    """Element e of a word of column n is the one that the file has there; columns behind the last are 0."""
    numbers = RNG.integers(0, 1 << bits, (35, 64)).astype(np.uint32)
    each = 8 // bits
    rows = (numbers.reshape(35, -1, each) << (np.arange(each) * bits)).sum(axis=-1).astype(np.uint8)

    packed = pack_words(rows.reshape(-1), columns=35, bits=bits, signed=False)

    count = 32 // bits
    assert packed.shape == (2, 64 // count, 32)
    columns = packed.swapaxes(1, 2).reshape(64, -1)
    shifts = np.array([shift(e, bits) for e in range(count)], np.uint32)
    unpacked = (columns[:, :, None] >> shifts & ((1 << bits) - 1)).reshape(64, -1)
    np.testing.assert_array_equal(unpacked[:35], numbers)
    assert not unpacked[35:].any()
    assert shifts[:4].tolist() == [0, 8, 16, 24]


def _product(
    x: Array,
    case: tuple[int, int, int, int, Array | None],
    traits: DeviceTraits,
    *,
    level: int = 0,
    gate: Array | None = None,
) -> Array:
    """Return a product; with a *gate*, what is positive of it, times the gate, by the same kernel."""
    n, k, bits, block, zeros = case
    random, blocks = np.random.default_rng(1), -(-k // block)
    words = random.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales = (random.random(n * blocks) * 0.1 + 0.01).astype(np.float32)
    arrays = [x, words, scales, *([] if zeros is None else [zeros])]
    attributes = Attributes({"N": n, "K": k, "bits": bits, "block_size": block, "accuracy_level": level}, opset=1)
    constants = (False, *(True for _ in arrays[1:]))
    layouts, values = tuple(map(layout_of, arrays)), (None,) * len(arrays)
    result = Layout(FLOAT32, (len(x), n))
    call = Call("product", attributes, layouts, values, (result,), (FLOAT32,), constants)
    if gate is not None:
        index = len(arrays)
        call = call._replace(inputs=(*layouts, layout_of(gate)), values=(*values, None), constants=(*constants, False))
        operand = Operand(inp(index), FLOAT32, View.dense(gate.shape))
        impl = implement(call, traits, Epilogue("fmax(v, 0.0f) * a0", (operand,), vector=True))
        return run_impl(impl, call, [*arrays, gate])[0]
    got = run_impl(implement(call, traits), call, arrays)[0]
    with np.errstate(all="ignore"):
        (expected,) = OPERATOR.reference(attributes, arrays)
    np.testing.assert_allclose(got, expected, 1e-4, 1e-4)
    return np.asarray(got)


CASES = {
    "4 bits": (300, 128, 4, 32, None),
    "4 bits with zero points, an odd depth": (290, 111, 4, 16, RNG.integers(0, 256, 290 * 4).astype(np.uint8)),
    "4 bits with any zero points, long blocks": (260, 300, 4, 128, (RNG.random((260, 3)) * 15).astype(np.float32)),
    "8 bits": (257, 96, 8, 32, None),
    "2 bits": (270, 80, 2, 16, RNG.integers(0, 256, 270 * 2).astype(np.uint8)),
}
#: Each with AVX-512, and one with AVX2.
ON = [
    *(pytest.param(case, AVX512, id=name) for name, case in CASES.items()),
    pytest.param(next(iter(CASES.values())), Registers(8, 16), id="AVX2"),
]


@pytest.mark.parametrize(("case", "registers"), ON)
def test_a_row_times_weights_of_few_bits_is_the_same_however_many_rows_there_are(
    case: tuple[int, int, int, int, Array | None], registers: Registers
) -> None:
    """One row, two, or many take other kernels; the bytes of a row's result depend on the row alone."""
    x = RNG.standard_normal((70, case[1])).astype(np.float32)
    traits = DeviceTraits("cpu", 2, registers=registers)
    plain = _product(x, case, attrs.evolve(traits, packed_weights=False))

    for rows in (1, 2, 3, 9, 70):
        got = _product(x[:rows], case, traits)

        np.testing.assert_array_equal(got, plain[:rows])


@pytest.mark.parametrize(("case", "registers"), ON)
def test_rows_are_rounded_to_eight_bits_where_the_file_asks_for_it(
    case: tuple[int, int, int, int, Array | None], registers: Registers
) -> None:
    """Each row by itself: its result is that of its rounded numbers, and the same however many rows there are.

    What is very small becomes 0, and a block that has NaN or an infinity becomes NaN.
    """
    x = RNG.standard_normal((11, case[1])).astype(np.float32)
    x[1, :16], x[2], x[3, 5], x[4, 7] = 1e-38, 0.0, np.nan, np.inf
    traits = DeviceTraits("cpu", 2, registers=registers)

    every = _product(x, case, traits, level=4)

    assert np.isnan(every[3:5]).all()
    assert not every[2].any()
    for rows in (1, 2, 5):
        np.testing.assert_array_equal(_product(x[:rows], case, traits, level=4), every[:rows])


def test_rows_are_rounded_where_there_are_no_packed_weights() -> None:
    """By a launch of its own; the results are those of the rounded numbers, too."""
    x = RNG.standard_normal((11, 111)).astype(np.float32)
    x[3, 5] = np.nan

    _product(x, CASES["4 bits with zero points, an odd depth"], DeviceTraits("cpu", 2, packed_weights=False), level=4)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "as it lies"])
def test_what_follows_a_product_of_few_bits_is_calculated_before_it_is_stored(level: int, packed: bool) -> None:
    """Its results are those of the product alone, and of what follows after it."""
    case, traits = CASES["4 bits with any zero points, long blocks"], DeviceTraits("cpu", 2, packed_weights=packed)
    x, gate = (RNG.standard_normal((9, n)).astype(np.float32) for n in (case[1], case[0]))
    alone = _product(x, case, traits, level=level)

    for rows in (1, 2, 9):
        got = _product(x[:rows], case, traits, level=level, gate=gate[:rows])

        np.testing.assert_array_equal(got, np.maximum(alone[:rows], 0) * gate[:rows])
