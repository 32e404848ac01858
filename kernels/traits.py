"""What an operator's implementation may ask of a device."""

from __future__ import annotations

import attrs

from asyncrt.devices.base import AVX512, Registers


@attrs.frozen
class DeviceTraits:
    """What an implementation may ask of a device.

    Attributes:
        kind: "cpu" or "gpu": which class of kernels suits it.
        compute_units: Cores, or multiprocessors.
        max_group: Largest work-group.
        features: Any of "fp64", "fp16", "mma" (`codegen/mma.py`), "wgmma" (`codegen/wgmma.py`), "threads" and
            "sched_yield" (`codegen/atomics.py`).
        registers: Of a CPU device's cores: how large a tile of sums they hold.
        packed_weights: Whether matrix products may ask for packed weights.
        winograd: Whether convolutions may multiply transformed tiles.
        split_floats: Whether tensor cores may multiply the parts of float32 (`codegen/mma.py`).
        narrow_weights: Whether the float32 weights of products, where they are constants, are numbers that bfloat16 has
            (`graph/passes/round_weights.py`), so that kernels may keep them so.
        local_memory: Bytes of local memory that a work-group may have.
    """

    kind: str = "cpu"
    compute_units: int = 1
    max_group: int = 256
    features: frozenset[str] = frozenset()
    packed_weights: bool = True
    winograd: bool = True
    split_floats: bool = True
    narrow_weights: bool = False
    registers: Registers = AVX512
    local_memory: int = 1 << 15

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"
