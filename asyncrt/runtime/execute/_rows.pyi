from collections.abc import Mapping
from typing import Any

LAYOUT: str

def rows(
    steps: tuple[Any, ...],
    launches: tuple[Any, ...],
    kernels: Mapping[Any, int],
    own: tuple[int, ...],
    places: Mapping[int, int],
    group: int,
    space: int,
    lanes: int,
    /,
) -> tuple[bytes, tuple[int, ...]] | None: ...
