"""What does a sequence keep by itself: fewer rows, and maybe a shorter past, than there are where it lies?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from asyncrt.layout import Layout
from asyncrt.runtime.plan.between_steps import Between, between
from asyncrt.runtime.plan.chunk_plan import KeptTensor

from .state_axes import StateTensor


@attrs.frozen(eq=False)
class OwnState:
    """The state of a sequence, as if it lay by itself. Sequences that a step left alike share one.

    Attributes:
        between: Its tensors.
        layouts: Of its tensors, by slot.
        sizes: What has to be equal where steps run as one: all but the rows.
        sizes_at_any_length: The same, but for the past.
    """

    between: Between
    layouts: tuple[Layout, ...]
    sizes: Any
    sizes_at_any_length: Any

    @classmethod
    def of(cls, states: Sequence[StateTensor], layouts: Iterable[Layout]) -> OwnState:
        """Return the state that has these layouts, by slot."""
        layouts = tuple(layouts)
        each = list(zip(states, layouts, strict=True))
        return cls(
            between([KeptTensor(s.input, s.output, x, x.shape) for s, x in each]),
            layouts,
            tuple([s.shape_of(x.shape, 0, None) for s, x in each]),
            tuple([s.shape_of(x.shape, 0, 0) for s, x in each]),
        )
