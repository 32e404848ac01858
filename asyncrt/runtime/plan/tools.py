"""What does planning need to know of the device and the options?"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from asyncrt.kernels.traits import DeviceTraits
from asyncrt.lru import LruCache
from asyncrt.memory.host import host_limit

from .chunk_plan import Pack
from .parallel_lanes import Branches

_REMEMBERED = 1 << 12  # answers, of about a kilobyte; most are asked for again in the same request, by equal layers
Memo: TypeAlias = LruCache[Any, Any]


def new_memo() -> Memo:
    """Return a memory for answers of one program."""
    return LruCache(_REMEMBERED)


@attrs.frozen
class Tools:
    """What planning needs to know of the device and the options.

    Attributes:
        traits: Of the device.
        takes_source: Whether the device builds kernels; otherwise references are launched.
        pack: The device's packing of a launch's offsets and sizes.
        skip: Whether nodes may be skipped.
        views: Whether results may stay views with strides.
        in_place: Whether the inputs of a Concat may be written where they belong in its result.
        origins: Whether steps record what they were made from, which checks of hazards need.
        branches: Whether branches run side by side.
        host_limit: Bytes that a request may make on the host.
        apart: How many small inputs, and how many small results, are copied each by itself. More of them travel
            together, which takes a copy on the host.
        max_rank: The most axes that a value may have.
        recording: Whether ints may be witnesses (`traced_int.py`); then answers are not remembered.
        memo: Answers by question, of one program; see `planner.py:_Planner.remember`.
    """

    traits: DeviceTraits
    takes_source: bool
    pack: Pack
    skip: bool = True
    views: bool = True
    in_place: bool = True
    origins: bool = False
    branches: Branches | None = None
    host_limit: int = attrs.field(factory=lambda: host_limit(None))
    apart: int = 0
    max_rank: int = 64
    recording: bool = False
    memo: Memo = attrs.field(factory=new_memo, eq=False, repr=False)
