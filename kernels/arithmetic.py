"""Which of two numbers, without asking? Choices between sizes that are arithmetic alone.

What is decided by a comparison divides the sizes into classes, and a plan's formulas hold for one class
(`runtime/plan/recipe.py`). What is calculated here is one formula for all sizes. Numbers are less than 2**62 apart.
"""

from __future__ import annotations

_FAR = 1 << 62


def below(a: int, b: int) -> int:
    """Return 1 if *a* is less than *b*, else 0."""
    return -((a - b) // _FAR)


def least(a: int, b: int) -> int:
    """Return the lesser one."""
    distance = a - b
    return b - distance * (distance // _FAR)


def greatest(a: int, b: int) -> int:
    """Return the greater one."""
    distance = a - b
    return a + distance * (distance // _FAR)


def power(number: int, most: int) -> int:
    """Return the greatest power of two that is neither above *number* nor above *most*, which is one; 1 for none."""
    result = step = 1
    while step < most:
        result += step * below(2 * step - 1, number)
        step *= 2
    return result


def either(condition: int, a: int, b: int) -> int:
    """Return *a* where *condition* is 1, *b* where it is 0."""
    return b + condition * (a - b)
