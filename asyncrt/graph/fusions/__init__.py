"""Which groups of nodes are fused: the patterns, in the order in which they are searched.

Groups that have an operator of their own come first; nodes that are left over may still be fused element by element.
"""

from __future__ import annotations

from .attention import ATTENTION
from .base import Pattern
from .elementwise import ELEMENTWISE
from .normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION

PATTERNS: tuple[Pattern, ...] = (ATTENTION, LAYER_NORMALIZATION, RMS_NORMALIZATION, ELEMENTWISE)
