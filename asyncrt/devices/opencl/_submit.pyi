from collections.abc import Sequence
from typing import Any

LAYOUT: str

def submit(enqueue: int, queue: int, launches: bytes, stop: bytearray | None, /) -> tuple[int, int]: ...
def launch(
    set_argument: int, enqueue: int, queue: int, launches: tuple[Any, ...], memory: Sequence[Any], /
) -> tuple[int, int, bool]: ...
def run(
    functions: tuple[int, int, int, int],
    queue: int,
    writes: tuple[Any, ...],
    launches: bytes,
    reads: tuple[Any, ...],
    /,
) -> tuple[int, int]: ...
def bind(set_argument: int, arguments: bytes, variable: int, /) -> int: ...
