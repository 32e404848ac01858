"""How long does a picture take in small networks: a phone's, a detector, a transformer?

MobileNet-V3 large, EfficientNet-B0, YOLOv8n and ViT-S/16 with random weights, in float32, their normalisations folded
into their convolutions; one request at a time, shapes known from earlier requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx

from . import command, networks
from . import measure as m
from . import vision_networks as v
from .beside import Cases, compare_each

NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "MobileNet-V3": v.mobilenet_v3,
    "EfficientNet-B0": v.efficientnet_b0,
    "YOLOv8n": v.yolo_n,
    "ViT-S/16": v.vit,
}
SIZES = [(1, 224, 224), (1, 192, 256), (1, 320, 320), (4, 160, 160)]
QUICK = [(1, 224, 224), (2, 160, 192)]


async def bench(
    settings: m.Settings,
    chosen: Mapping[str, Callable[[], onnx.ModelProto]] = NETWORKS,
    sizes: Sequence[tuple[int, int, int]] | None = None,
) -> m.Report:
    """Measure networks with *sizes*: (batch, height, width)."""
    models: list[tuple[bytes, Cases]] = []
    for name, network in chosen.items():
        cases: list[tuple[m.Row, m.Inputs]] = [
            ({"network": name, "batch": batch, "height": height, "width": width}, networks.image(batch, height, width))
            for batch, height, width in sizes or (QUICK if settings.quick else SIZES)
        ]
        models.append((network().SerializeToString(), cases))
    return await compare_each("vision", settings, models)


if __name__ == "__main__":
    command.run(bench)
