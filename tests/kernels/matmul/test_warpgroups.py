"""Products on tensor cores that work-items feed by groups of 128, on whatever device there is."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncrt.devices.opencl.nvidia.own_instructions import MARK, revealed
from asyncrt.kernels.codegen.epilogue import Epilogue, bind
from asyncrt.kernels.impl import inp
from asyncrt.kernels.matmul import warpgroups
from asyncrt.kernels.matmul.interface import ProductForm
from asyncrt.kernels.matmul.product import Bias, Operand
from asyncrt.kernels.matmul.warpgroups import FLAT, NARROW, SLIM, WIDE, WarpgroupTile, choose_warpgroups
from asyncrt.kernels.persistent.walker import function_of
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT16, FLOAT32
from asyncrt.memory.view import View
from asyncrt.runtime.plan.traced_int import Recording

from ..emulated_mma import emulated_wgmma as emulated_wgmma  # a fixture
from .test_gpu_regimes import product
from .test_matmul_epilogue import product as product_with

HOPPER = DeviceTraits("gpu", 132, max_group=1024, features=frozenset({"mma", "wgmma"}), local_memory=208 << 10)


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [
        (4096, 4096, 4096, WIDE),
        (16384, 384, 4096, NARROW),
        (16384, 1536, 384, NARROW),
        (16384, 384, 1536, NARROW),
        (4096, 384, 1536, FLAT),
        (1024, 1536, 384, FLAT),
        (1024, 384, 1536, SLIM),
        (256, 1152, 384, SLIM),
        (256, 384, 1536, None),
        (16384, 1536, 32, None),
        (64, 50257, 4096, FLAT),
        (32, 50257, 4096, None),
    ],
)
def test_large_products_get_them(m: int, n: int, k: int, tile: WarpgroupTile | None) -> None:
    """Where each processor has a tile, or each second one a small tile, and a stage of local memory is full."""
    assert choose_warpgroups(m, n, k, 1, HOPPER) is tile


@pytest.mark.parametrize(
    ("features", "local"), [(frozenset({"mma"}), 208 << 10), (frozenset({"mma", "wgmma"}), 48 << 10)]
)
def test_devices_without_get_none(features: frozenset[str], local: int) -> None:
    """Without the instructions, or without local memory for the stages."""
    traits = DeviceTraits("gpu", 132, max_group=1024, features=features, local_memory=local)

    assert choose_warpgroups(4096, 4096, 4096, 1, traits) is None


def test_the_choice_is_a_comparison_that_holds_for_many_sizes() -> None:
    """So that a recipe of one size tells the plans of others."""
    recording = Recording()

    choose_warpgroups(recording.size(20000), 384, 384, 1, HOPPER)

    assert recording.asked_any
    assert not recording.fixed


@pytest.mark.usefixtures("emulated_wgmma")
@pytest.mark.parametrize(
    ("tile", "left", "right", "order", "dtype"),
    [
        (NARROW, (130, 72), (72, 136), "C", "float16"),
        (NARROW, (3, 40, 264), (3, 264, 33), "F", "bfloat16"),
        (FLAT, (70, 72), (72, 136), "C", "float16"),
        (SLIM, (70, 136), (136, 136), "C", "float16"),
        (SLIM, (3, 40, 72), (72, 33), "F", "bfloat16"),
        (WIDE, (17, 200), (200, 272), "C", "bfloat16"),
        (WIDE, (130, 320), (320, 40), "F", "float16"),
    ],
)
def test_they_give_the_product(
    tile: Any, left: Any, right: Any, order: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sizes that fill no tile, of batches, and of right-hand sides that lie either way round."""
    _force(tile, monkeypatch)
    rng = np.random.default_rng(0)
    number = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    a, b = (rng.standard_normal(s).astype(number) for s in (left, right))

    got, which = product(a, b, order, HOPPER)

    assert "warpgroups" in which
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    tolerance = {"float16": 1e-3, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


@pytest.mark.usefixtures("emulated_wgmma")
@pytest.mark.parametrize("offset", [0, 1])
def test_bias_and_operands_meet_their_elements(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in runs, and one by one where they do not begin at a multiple of 16 bytes."""
    _force(NARROW, monkeypatch)
    rng = np.random.default_rng(0)
    shapes = (70, 64), (64, 136), (136,), (70, 136 + offset)
    a, b, bias, added = inputs = [rng.standard_normal(s).astype(np.float16) for s in shapes]
    factor = rng.standard_normal((70, 1)).astype(np.float32)
    views = View((70, 136), (136 + offset, 1), offset), View((70, 136), (1, 0), 0)
    operands = (Operand(inp(3), FLOAT16, views[0]), Operand(inp(4), FLOAT32, views[1]))
    last = Epilogue("(v > 0 ? v : 0) * a1 + a0", operands)

    which, got = product_with([*inputs, factor], HOPPER, last, bias=Bias(inp(2), FLOAT16, 0, 1))

    assert which == "warpgroups 128x128"
    sums = a.astype(np.float32) @ b.astype(np.float32) + bias.astype(np.float32)
    wanted = np.maximum(sums, 0) * factor + added[:, offset:]
    np.testing.assert_allclose(got.astype(np.float32), wanted, rtol=2e-3, atol=2e-2)


def _force(tile: WarpgroupTile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_strip", lambda *given: None)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.choose_warpgroups", lambda *given: tile)
    monkeypatch.setattr("asyncrt.kernels.matmul.product.warpgroup_kernel", warpgroups.warpgroup_kernel)


def test_instructions_of_the_processor_are_comments_until_the_target_is() -> None:
    """The compiler sees comments; a program for another processor is not changed."""
    form = ProductForm("product", FLOAT16, FLOAT16, None, "", "", 0, False, bind(None, (1, 1)).form, HOPPER.registers)
    source = warpgroups.warpgroup_kernel(form, NARROW, turned=False)
    program = b".version 9.0\n.target sm_90, texmode_independent\n\t" + MARK.encode() + b"wgmma.fence.sync.aligned;\n"

    assert source.text.count("wgmma.") == source.text.count(MARK + "wgmma.") > 0
    assert function_of(source) is None
    assert revealed(program) == b".version 9.0\n.target sm_90a, texmode_independent\n\twgmma.fence.sync.aligned;\n"
    assert revealed(program.replace(b"sm_90", b"sm_100")) is None
