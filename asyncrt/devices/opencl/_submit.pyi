from collections.abc import Sequence
from typing import Any

LAYOUT: str

def submit(enqueue: int, queue: int, launches: bytes, stop: bytearray | None, /) -> tuple[int, int]: ...
def launch(
    set_argument: int, enqueue: int, queue: int, launches: tuple[Any, ...], memory: Sequence[Any], /
) -> tuple[int, int, bool]: ...
def copy_and_launch(
    functions: tuple[int, ...],
    queue: int,
    writes: tuple[Any, ...],
    launches: bytes,
    reads: tuple[Any, ...],
    waits: bool,
    /,
) -> tuple[int, int]: ...
def repeat(
    functions: tuple[int, ...],
    queue: int,
    writes: tuple[Any, ...],
    launches: bytes,
    reads: tuple[Any, ...],
    moves: tuple[Any, ...],
    most: int,
    going: Any,
    findings: Any,
    /,
) -> tuple[int, int, int]: ...
def bind(set_argument: int, arguments: bytes, variable: int, /) -> int: ...
def set_records(set_argument: int, records: list[tuple[int, int, bytes]], /) -> int: ...
