"""Convolutions of one cell whose vectors hold positions: against those whose vectors hold channels."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrt.devices.base import AVX512, Registers
from asyncrt.kernels.conv import convolution, pointwise
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array

from .test_conv_epilogue import CPU, Case, convolved, filled

#: Of AVX-512, AVX2, NEON and SSE; the last on more cores than there are tiles.
DEVICES = [
    DeviceTraits("cpu", cores, registers=registers)
    for cores, registers in ((1, AVX512), (2, Registers(8, 16)), (3, Registers(4, 32)), (64, Registers(4, 16)))
]
SIZES = {
    "whole tiles": ((1, 24, 16, 18), (24, 24, 1, 1), 1),
    "channels and positions left over": ((2, 19, 13, 14), (13, 19, 1, 1), 1),
    "half a tile left": ((1, 8, 21, 9), (41, 8, 1, 1), 1),
    "groups": ((3, 14, 11, 17), (18, 7, 1, 1), 2),
    "one axis": ((2, 3, 163), (9, 3, 1), 1),
    "three axes": ((1, 4, 3, 7, 9), (11, 4, 1, 1, 1), 1),
}


def convolved_by(traits: DeviceTraits, inputs: list[Array], **attributes: Any) -> tuple[str, bytes]:
    """Return the name of the kernel that a device has for a convolution, and the bytes of its result."""
    case = Case("", traits, inputs[0].shape, inputs[1].shape, attributes)
    kernel, result = convolved(case, inputs, None)
    return kernel, result.tobytes()


@pytest.mark.parametrize("often", [1, 1 << 20], ids=["copied", "as they lie"])
@pytest.mark.parametrize(("x", "filters", "group"), SIZES.values(), ids=SIZES)
def test_vectors_of_positions_give_the_bytes_of_vectors_of_channels(
    x: tuple[int, ...], filters: tuple[int, ...], group: int, often: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sum is one chain over the channels, whatever the registers, however many cores, copied first or not."""
    monkeypatch.setattr(pointwise, "_OFTEN", often)
    inputs = [filled(*x), filled(*filters), filled(filters[0])]
    monkeypatch.setattr(convolution, "suits_positions", lambda *_: False)
    other, want = convolved_by(CPU, inputs, group=group)
    monkeypatch.setattr(convolution, "suits_positions", lambda *_: True)

    got = [convolved_by(traits, inputs, group=group) for traits in DEVICES]

    assert other.startswith("packed")
    assert [kernel for kernel, _ in got] == ["positions 8x32", "positions 6x16", "positions 6x16", "positions 2x16"]
    assert all(result == want for _, result in got)


@pytest.mark.parametrize(
    ("inputs", "outputs", "ways"),
    [(16, 40, "cppppc"), (40, 8, "cppppp"), (96, 128, "cppppc")],
    ids=["few to many", "many to few", "full blocks"],
)
def test_the_layer_decides(inputs: int, outputs: int, ways: str) -> None:
    """For pictures of any size, but for tiny ones, and large ones whose channels would evict each other."""
    sizes = [(7, 7), (14, 14), (37, 50), (28, 28), (64, 64), (128, 128)]

    kernels = [
        convolved_by(CPU, [filled(1, inputs, *s), filled(outputs, inputs, 1, 1), filled(outputs)])[0] for s in sizes
    ]

    wanted = {"c": "packed", "p": "positions"}
    assert [wanted[way] for way in ways] == [kernel.split()[0] for kernel in kernels]
