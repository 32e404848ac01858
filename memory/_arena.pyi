from array import array
from typing import TypeAlias

_Ints: TypeAlias = bytes | array[int]

def place(sizes: list[int], first: _Ints, starts: _Ints, beside: _Ints, /) -> tuple[tuple[int, ...], int]: ...
