"""Which numbers of an expression are arguments of its kernel rather than parts of its text?

A model has hundreds of scales, bounds and slopes, and expressions that differ in nothing else are to have one kernel. So
what `literals.literal` wrote is taken out of the text again and handed over with the sizes, as the bits of a float. What
compilers make something cheaper of stays: zeros, powers of two (a division by one is a product), and what is no number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

MOST = 16
"""Numbers of one expression: they must fit a kernel's argument record. Any more stay in the text."""

# Floats as `literal` writes them: with an f, unlike doubles, and never with zeros alone behind the point.
_FLOAT = re.compile(r"\((-0x1\.(?!0*p)[0-9a-f]+p[+-]\d+)f\)|\b(0x1\.(?!0*p)[0-9a-f]+p[+-]\d+)f\b")


def lift(text: str, known: Sequence[float] = ()) -> tuple[str, tuple[float, ...]]:
    """Return *text* with names for its numbers, ``k<i>``, and all numbers: *known* ones, which have names already, first.

    A number that is there twice has one name, but not that of a known one: which numbers of a model are equal by chance
    must not make another text.
    """
    found: dict[float, str] = {}

    def name(match: re.Match[str]) -> str:
        number = float.fromhex(match[1] or match[2])
        if number not in found and len(known) + len(found) >= MOST:
            return match[0]
        return found.setdefault(number, f"k{len(known) + len(found)}")

    text = _FLOAT.sub(name, text)
    return text, (*known, *found)


def sizes(numbers: int) -> tuple[str, ...]:
    """Return the names of the arguments that hold so many numbers."""
    return tuple(f"number{i}" for i in range(numbers))


def read(index: int) -> str:
    """Return the expression that is number *index*, in a kernel that has `sizes`."""
    return f"as_float({sizes(index + 1)[-1]})"


def declared(numbers: int) -> str:
    """Return statements after which the numbers have their names: as floats, which literals are among vectors as well."""
    return " ".join(f"const float k{i} = {read(i)};" for i in range(numbers))


def bits(numbers: Sequence[float]) -> tuple[int, ...]:
    """Return what the arguments are for these numbers, which are exact in float32."""
    return tuple(np.array(numbers, np.float32).view(np.int32).tolist())
