from typing import Any

LAYOUT: str
CALLS: int

def start(file: int, patience: int, /) -> Any: ...
def post(
    launcher: Any,
    functions: tuple[int, ...],
    queue: int,
    writes: tuple[Any, ...],
    launches: bytearray,
    reads: tuple[Any, ...],
    /,
) -> None: ...
def collect(launcher: Any, /) -> list[tuple[int, int]]: ...
def wait(launcher: Any, /) -> None: ...
def close(launcher: Any, /) -> None: ...
