def load(
    functions: tuple[int | None, ...],
    context: int,
    device: int,
    options: bytes,
    programs: tuple[tuple[bytes, bytes], ...],
    /,
) -> tuple[int, ...]: ...
