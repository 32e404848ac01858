from typing import Any

def fill(
    steps: list[Any],
    begin: int,
    end: int,
    type: type[Any],
    fixed: tuple[Any, ...],
    table: bytes,
    numbers: tuple[int, ...],
    base: tuple[int, ...],
    before: tuple[tuple[int, ...], tuple[int, ...]] | None,
    /,
) -> int: ...
