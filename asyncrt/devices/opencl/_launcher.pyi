from typing import Any

LAYOUT: str
CALLS: int

def start(file: int, patience: int, queues: tuple[int, ...], /) -> Any: ...
def post(
    launcher: Any,
    functions: tuple[int, ...],
    queue: int,
    writes: tuple[Any, ...],
    launches: bytearray,
    reads: tuple[Any, ...],
    stop: bytearray | None,
    /,
) -> int: ...
def collect(launcher: Any, /) -> list[tuple[int, int, int, int]]: ...
def wait(launcher: Any, /) -> None: ...
def close(launcher: Any, /) -> None: ...
