"""Which groups of nodes become one: the patterns, in the order in which they are looked for.

What an operator of its own exists for comes first: what is left over may still be calculated together.
"""

from __future__ import annotations

from .attention import ATTENTION
from .base import Pattern
from .elementwise import ELEMENTWISE
from .normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION

PATTERNS: tuple[Pattern, ...] = (ATTENTION, LAYER_NORMALIZATION, RMS_NORMALIZATION, ELEMENTWISE)
