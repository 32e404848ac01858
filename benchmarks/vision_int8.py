"""How long does a picture take in networks that are quantised statically, as exporters do it?

ResNet-50, MobileNet-V3 large, EfficientNet-B0, YOLOv8n and ViT-S/16 with random weights, quantised by
`onnxruntime.quantization.quantize_static` to 8 bits with a scale for each filter, QuantizeLinear and DequantizeLinear
around every operator; one request at a time, shapes known from earlier requests. Results of two runtimes differ by
steps of the integers.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from . import command, networks, vision
from . import measure as m
from .beside import Cases, compare_each

NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {"ResNet-50": networks.resnet, **vision.NETWORKS}
SIZES = [(1, 224, 224), (1, 320, 320), (4, 160, 160)]
QUICK = [(1, 224, 224)]
NEAR = 0.3  # of the largest result: steps of integers behind fifty layers of random weights
_SEEN = 3  # pictures of which ranges are taken


class _Pictures(CalibrationDataReader):  # type: ignore[misc]  # it has no types
    """Pictures for a network of which each size is one that it takes."""

    def __init__(self, height: int, width: int) -> None:
        self._next = iter(networks.image(batch, height, width) for batch in range(1, _SEEN + 1))

    def get_next(self) -> Any:
        return next(self._next, None)


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Do without what the quantiser logs: advice to prepare a model that has nothing to prepare."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logging.root.setLevel(level)


def quantised(model: onnx.ModelProto, height: int, width: int) -> bytes:
    """Return *model* quantised statically, by pictures of that size."""
    with tempfile.TemporaryDirectory() as folder, _without_advice():
        plain, made = Path(folder) / "plain.onnx", Path(folder) / "quantised.onnx"
        onnx.save(model, str(plain))
        quantize_static(
            str(plain), str(made), _Pictures(height, width), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
        return made.read_bytes()


async def bench(
    settings: m.Settings,
    chosen: Mapping[str, Callable[[], onnx.ModelProto]] = NETWORKS,
    sizes: Sequence[tuple[int, int, int]] | None = None,
) -> m.Report:
    """Measure networks with *sizes*: (batch, height, width)."""
    sizes = sizes or (QUICK if settings.quick else SIZES)
    models: list[tuple[bytes, Cases]] = []
    for name, network in chosen.items():
        m.progress(f"{name} is quantised")
        cases: list[tuple[m.Row, m.Inputs]] = [
            ({"network": name, "batch": batch, "height": height, "width": width}, networks.image(batch, height, width))
            for batch, height, width in sizes
        ]
        models.append((quantised(network(), *sizes[0][1:]), cases))
    return await compare_each("vision_int8", settings, models, near=NEAR)


if __name__ == "__main__":
    command.run(bench)
