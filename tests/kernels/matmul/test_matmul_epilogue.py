"""Products with an epilogue, in every kernel that has one, against the product alone and NumPy after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.impl import inp, out
from asyncrt.kernels.matmul.product import Bias, Epilogue, Operand, matmul
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, layout_of
from asyncrt.memory.view import View

from ...ops.run import run_impl

CPU, GPU, SMALL_GPU = DeviceTraits("cpu", 2), DeviceTraits("gpu", 8), DeviceTraits("gpu", 8, max_group=64)
KERNELS = {
    "cpu, packed weights": (CPU, True), "cpu": (CPU, False), "gpu": (GPU, False), "small gpu": (SMALL_GPU, False),
}  # fmt: skip
CUBE = "inline float $_cube(float x) { return x * x * x; }"


def product(
    inputs: Sequence[Array],
    traits: DeviceTraits,
    epilogue: Epilogue | None,
    *,
    constant: bool = False,
    bias: Bias | None = None,
    alpha: float = 1.0,
) -> tuple[str, Array]:
    """Return the name of the kernel that multiplied the first two of *inputs*, and what it gave."""
    a, b = inputs[0], inputs[1]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    left, right = (layout_of(x) for x in (a, b))
    impl = matmul(
        "product",
        Operand(inp(0), left.dtype, View.dense(a.shape).expand((*batch, *a.shape[-2:]))),
        Operand(inp(1), right.dtype, View.dense(b.shape).expand((*batch, *b.shape[-2:]))),
        out(0),
        batch,
        traits,
        bias=bias,
        alpha=alpha,
        constant=1 if constant else None,
        epilogue=epilogue,
    )
    layouts = tuple(layout_of(x) for x in inputs)
    call = Call("product", Attributes(), layouts, (None,) * len(inputs), (Layout(left.dtype, shape),), (left.dtype,))
    (result,) = run_impl(impl, call, inputs)
    return impl.name, result


def operand(index: int, array: Array, view: Array) -> Operand:
    """Return input *index*, *array*, as the operand that *view*, made of it by NumPy, is."""
    start = view.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    strides = tuple(s // view.itemsize for s in view.strides)
    return Operand(inp(index), layout_of(array).dtype, View(view.shape, strides, start // view.itemsize))


def filled(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


ARRANGED: dict[str, Callable[[tuple[int, ...]], tuple[Array, Callable[[Array], Array]]]] = {
    "as the result": lambda s: (filled(*s), lambda x: x),
    "one for each column": lambda s: (filled(s[-1]), lambda x: np.broadcast_to(x, s)),
    "one for each row": lambda s: (filled(s[-2], 1), lambda x: np.broadcast_to(x, s)),
    "one": lambda s: (filled(1), lambda x: np.broadcast_to(x, s)),
    "one for each matrix": lambda s: (filled(*s[:-2], 1, 1), lambda x: np.broadcast_to(x, s)),
    "turned": lambda s: (filled(*s[:-2], s[-1], s[-2]), lambda x: x.swapaxes(-1, -2)),
    "every second of more": lambda s: (filled(*s[:-1], 2 * s[-1] + 1), lambda x: x[..., 1::2]),
    "rows turned": lambda s: (
        filled(*s[-2::-1], s[-1]), lambda x: x.transpose(*range(len(s) - 2, -1, -1), len(s) - 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("arranged", ARRANGED)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(5, 7, 33), (2, 3, 9, 6, 64)], ids=str)
def test_an_operand_is_found_wherever_it_lies(arranged: str, kernel: str, shape: tuple[int, ...]) -> None:
    """Whatever the strides of an operand, each element of the product meets its own element of it."""
    traits, constant = KERNELS[kernel]
    *batch, m, k, n = shape
    extra, arrange = ARRANGED[arranged]((*batch, m, n))
    inputs = [filled(*batch, m, k), filled(k, n), extra]
    view = arrange(extra)
    _, plain = product(inputs[:2], traits, None, constant=constant)

    _, got = product(inputs, traits, Epilogue("v * a0", (operand(2, extra, view),), vector=True), constant=constant)

    np.testing.assert_allclose(got, plain * view, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(5, 7, 33), (3, 16, 64), (2, 9, 6, 64)], ids=str)
def test_an_operand_may_be_of_a_dtype_that_has_no_vectors(kernel: str, shape: tuple[int, ...]) -> None:
    """Results are chosen by 64-bit integers, as graph networks choose pairs of nodes of one graph."""
    traits, constant = KERNELS[kernel]
    *batch, m, k, n = shape
    extra = np.arange(n) % 3
    inputs = [filled(*batch, m, k), filled(k, n), extra]
    chosen = np.broadcast_to(extra, (*batch, m, n))
    _, plain = product(inputs[:2], traits, None, constant=constant)

    _, got = product(inputs, traits, Epilogue("a0 == 1 ? v : 0", (operand(2, extra, chosen),)), constant=constant)

    np.testing.assert_array_equal(got, np.where(chosen == 1, plain, 0))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(70, 5, 3), (2, 1, 4, 40), (3, 2, 5, 1), (2, 2, 9, 8, 100)], ids=str)
def test_many_operands_keep_apart(kernel: str, shape: tuple[int, ...]) -> None:
    """Operands of all arrangements together: each has its own strides."""
    traits, constant = KERNELS[kernel]
    *batch, m, k, n = shape
    extras = [arrange((*batch, m, n)) for arrange in ARRANGED.values()]
    views = [view(array) for array, view in extras]
    inputs = [filled(*batch, m, k), filled(k, n), *(array for array, _ in extras)]
    operands = tuple(operand(i + 2, array, view) for i, (array, view) in enumerate(zip(inputs[2:], views, strict=True)))
    sum_of_all = " + ".join(["v", *(f"a{i}" for i in range(len(operands)))])
    _, plain = product(inputs[:2], traits, None, constant=constant)

    _, got = product(inputs, traits, Epilogue(sum_of_all, operands, vector=True), constant=constant)

    np.testing.assert_allclose(got, sum(views, start=plain), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("traits", [CPU, GPU, SMALL_GPU], ids=["cpu", "gpu", "small gpu"])
def test_an_epilogue_comes_after_alpha_and_bias(traits: DeviceTraits, vector: bool) -> None:
    """``v`` is the whole of ``alpha * product + beta * bias``; operands keep their order."""
    inputs = [filled(2, 9, 12), filled(2, 12, 70), filled(70), filled(2, 9, 70), filled(9, 1)]
    bias = Bias(inp(2), layout_of(inputs[2]).dtype, 0, 1, 2.0)
    operands = (
        operand(3, inputs[3], inputs[3]), operand(4, inputs[4], np.broadcast_to(inputs[4], (2, 9, 70))),
    )  # fmt: skip
    _, plain = product(inputs[:3], traits, None, bias=bias, alpha=0.5)

    _, got = product(inputs, traits, Epilogue("v * v - a0 * a1", operands, vector), bias=bias, alpha=0.5)

    np.testing.assert_allclose(plain, 0.5 * inputs[0] @ inputs[1] + 2 * inputs[2], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got, plain * plain - inputs[3] * inputs[4], rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("traits", [CPU, GPU, SMALL_GPU], ids=["cpu", "gpu", "small gpu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_helpers_and_conditions_are_for_single_elements(traits: DeviceTraits, dtype: type) -> None:
    """What does not hold for vectors is calculated element by element, for any dtypes."""
    a, b = (np.rint(filled(*s)).astype(dtype) for s in ((6, 5), (5, 37)))
    half = (np.arange(37) % 3).astype(np.float16)
    wanted = np.where(a @ b > 0, (a @ b).astype(np.float64) ** 3, half)
    epilogue = Epilogue("v > 0 ? $_cube(v) : a0", (operand(2, half, np.broadcast_to(half, (6, 37))),), helpers=CUBE)

    _, got = product([a, b, half], traits, epilogue)

    np.testing.assert_allclose(got, wanted.astype(dtype), rtol=1e-6)


def test_every_kernel_was_tried() -> None:
    """The traits of these tests lead to all kernels."""
    left, wide, narrow, many = filled(5, 7), filled(7, 33), filled(7, 9), filled(40, 7)
    names = {product([left, wide], traits, None, constant=constant)[0] for traits, constant in KERNELS.values()}
    names |= {product([left, narrow], CPU, None)[0], product([many, wide], GPU, None)[0]}

    tiles = {"tiles 8x32, rows", "tiles 8x32, any", "tiles 8x32, packed"}
    assert names == {*tiles, "few rows, 32 columns", "shared 64x64", "generic"}


def test_an_operand_of_another_shape_is_refused() -> None:
    """An operand that was not broadcast to the result is a mistake of the caller, and says so."""
    extra = filled(33)

    with pytest.raises(ValueError, match=r"operand 0 of an epilogue has the shape \(33,\), its result \(5, 33\)"):
        product([filled(5, 7), filled(7, 33), extra], CPU, Epilogue("v + a0", (operand(2, extra, extra),)))
