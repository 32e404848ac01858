"""The kernels that GPUs get for bfloat16 weights and for products of integers, on whatever device there is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.epilogue import Epilogue, Operand
from asyncrt.kernels.impl import inp
from asyncrt.kernels.matmul import bf16_weights as narrow
from asyncrt.kernels.operator import Operator
from asyncrt.kernels.ops.math import gemm, matmul, matmul_integer
from asyncrt.kernels.ops.nn import conv_integer
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, UINT8, Array, DataType, Layout, layout_of
from asyncrt.memory.view import View

from ...ops.run import run_impl

GPU, SMALL_GPU = DeviceTraits("gpu", 8, narrow_weights=True), DeviceTraits("gpu", 8, max_group=64, narrow_weights=True)


def call_of(operator: Operator, inputs: list[Array], made: DataType, **attributes: Any) -> Call:
    """Return the call of *operator* whose second input is a constant."""
    layouts, constants = tuple(map(layout_of, inputs)), tuple(i > 0 for i in range(len(inputs)))
    call = Call("node", Attributes(attributes), layouts, (None,) * len(inputs), (), (made,), constants)
    (shape,) = operator.infer(call)
    return call._replace(outputs=(Layout(made, tuple(shape)),))


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("traits", [GPU, SMALL_GPU], ids=["tiles", "generic"])
@pytest.mark.parametrize("turned", [False, True], ids=["MatMul", "Gemm, transposed"])
@pytest.mark.parametrize(("rows", "terms"), [(70, 33), (5, 32), (1, 33)])
def test_gpus_keep_weights_in_sixteen_bits(traits: DeviceTraits, turned: bool, rows: int, terms: int) -> None:
    """Where they lie, whichever way round; a product is the one of rounded weights."""
    a, b = floats(rows, terms), floats(50, terms, seed=1) if turned else floats(terms, 50, seed=1)
    module, attributes = (gemm, {"transB": 1}) if turned else (matmul, {})
    call = call_of(module.OPERATOR, [a, b], FLOAT32, **attributes)

    impl = module.implement(call, traits)
    (got,) = run_impl(impl, call, [a, b])

    (request,) = impl.weights
    weights = narrow.rounded(b)
    assert 2 * request.pack(b).nbytes == b.nbytes
    np.testing.assert_allclose(got, a @ (weights.T if turned else weights), rtol=1e-4, atol=1e-4)
    assert np.abs(got - a @ (b.T if turned else b)).max() > 1e-3


SCALED = {
    "product": (matmul_integer.SCALED, (2, 9, 70), (70, 45), {}),
    "convolution": (conv_integer.SCALED, (2, 6, 9, 17), (16, 3, 3, 3), {"group": 2, "pads": (1, 0, 1, 1)}),
}


@pytest.mark.parametrize("case", SCALED)
@pytest.mark.parametrize("traits", [DeviceTraits("cpu", 2), GPU], ids=["cpu", "gpu"])
def test_scaled_sums_are_those_of_the_reference(case: str, traits: DeviceTraits) -> None:
    """Bit for bit, for every sign, with a scale for each column or filter or one, with what follows and without."""
    operator, left_shape, right_shape, attributes = SCALED[case]
    columns = right_shape[-1] if case == "product" else right_shape[0]
    scales = (np.linspace(0.01, 0.02, columns, dtype=np.float32), np.array(0.01, np.float32))
    for left, right, scale in itertools.product((np.uint8, np.int8), (np.int8, np.uint8), scales):
        zero = np.full(scale.shape, 3, right)
        inputs = [
            integers(left, *left_shape), integers(right, *right_shape, seed=1), np.array(0.05, np.float32), scale,
            np.array(7, left), zero,
        ]  # fmt: skip
        call = call_of(operator, inputs, FLOAT32, **attributes)
        shape = call.outputs[0].shape
        extra = integers(np.uint8, shape[-1], seed=2)
        after = Epilogue("clamp(v * 0.25f + (float)a0, 0.0f, 200.0f)", (
            Operand(inp(6), UINT8, View.dense(extra.shape).expand(shape)),
        ), result=UINT8)  # fmt: skip
        assert operator.implement is not None
        assert operator.with_epilogue is not None

        (got,) = run_impl(operator.implement(call, traits), call, inputs)
        narrowed = call._replace(outputs=(Layout(UINT8, shape),))
        impl = operator.with_epilogue(call, traits, after)
        (rounded,) = run_impl(impl, narrowed, [*inputs, extra])

        (expected,) = operator.reference(call.attributes, inputs)
        np.testing.assert_array_equal(expected, got)
        wanted = np.clip(expected * np.float32(0.25) + extra.astype(np.float32), 0, 200).astype(np.uint8)
        assert np.abs(wanted.astype(int) - rounded).max() <= 1, "a product and a sum may be rounded once"
