"""How long does the class of a picture take? ResNet-50; PyTorch's channels are innermost."""

from __future__ import annotations

from collections.abc import AsyncIterator

from .. import networks
from .bench import TOLERANCES, Bench
from .findings import Aim, Finding

SIZES = [(1, 224, 224), (32, 224, 224)]
SMALL = [(1, 33, 32)]
FULL_NETWORK = (networks.RESNET_50, 64, 1000)
SMALL_NETWORK = ((1, 1), 8, 10)
"""Blocks of each stage, channels, classes."""

AIM = Aim(0.7)


async def measure(bench: Bench) -> AsyncIterator[Finding]:
    """Measure `SIZES`: (batch, height, width)."""
    async with bench.runtime() as rt:
        for dtype, tolerance in TOLERANCES.items():
            network = networks.resnet(*bench.pick(FULL_NETWORK, SMALL_NETWORK), dtype=dtype)
            loaded = await bench.load(rt, f"ResNet in {dtype.__name__}", network)
            module = None if bench.torch is None else bench.torch.Residual(network)
            for size in bench.pick(SIZES, SMALL):
                case = f"{dtype.__name__} {' x '.join(map(str, size))}"
                inputs = networks.image(*size, dtype=dtype)
                for finding in await bench.compare("pictures", case, loaded, module, inputs, tolerance, AIM):
                    yield finding
