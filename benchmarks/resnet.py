"""How long does a picture take in a convolutional network, for any number and size of pictures?

ResNet-50 with random weights, in float32, its normalisations folded into its convolutions; one request at a time,
shapes known from earlier requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from . import command, networks
from . import measure as m
from .beside import compare

SIZES = [(1, 128, 128), (1, 160, 160), (1, 224, 224), (1, 150, 200), (1, 256, 192), (2, 160, 160), (4, 128, 128)]
QUICK = [(1, 128, 128), (1, 150, 200), (2, 96, 96)]


async def bench(
    settings: m.Settings,
    network: onnx.ModelProto | None = None,
    sizes: Sequence[tuple[int, int, int]] | None = None,
) -> m.Report:
    """Measure *network* with *sizes*: (batch, height, width)."""
    cases: list[tuple[m.Row, m.Inputs]] = [
        ({"batch": batch, "height": height, "width": width}, networks.image(batch, height, width))
        for batch, height, width in sizes or (QUICK if settings.quick else SIZES)
    ]
    model = (network or networks.resnet()).SerializeToString()
    return await compare("resnet", settings, model, cases)


if __name__ == "__main__":
    command.run(bench)
