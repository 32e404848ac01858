"""Which shapes did the first request of a model have when it was here before? The next process plans them first.

Likely sizes are guesses, and many do not fit a model at all: a program that loads a model to answer once would wait for
plans of them, and then for its own. A note is a guess as well and changes no result: whatever is asked for is planned
as ever, and what was planned ahead is found sooner.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from asyncrt.errors import InputError
from asyncrt.graph.ir import Program
from asyncrt.kernels.resident.store import BinaryStore
from asyncrt.kinds import is_plain
from asyncrt.layout import Array, Layout
from asyncrt.version import __version__

from .inputs import layouts_of, of_shapes

_MOST = 256  # inputs of a model of which a note is made


class Asked:
    """The note of one model.

    Args:
        store: Where it lies.
        model: What the model is known by.
    """

    def __init__(self, store: BinaryStore, model: str) -> None:
        self._store, self._key = store, f"{__version__}|asked of {model}"
        self._said: bytes | None = None

    def layouts(self, program: Program) -> list[Layout] | None:
        """Return the layouts of the inputs that the note tells, in the program's order; None without one. Blocks."""
        self._said = self._store.get(self._key)
        with contextlib.suppress(InputError, ValueError):  # it is of another model, or none at all
            if self._said is not None and _may_be_noted(program):
                return layouts_of(program, of_shapes(program, json.loads(self._said)))
        return None

    def note(self, program: Program, arrays: Mapping[int, Array]) -> None:
        """Keep the shapes of a request's inputs, by value id, unless the note says so. Blocks."""
        if _may_be_noted(program):
            shapes = {program.values[id].name: arrays[id].shape for id in program.inputs}
            if (says := json.dumps(shapes).encode()) != self._said:
                self._store.put(self._key, says)


def _may_be_noted(program: Program) -> bool:
    dtypes = [program.values[id].layout.dtype for id in program.inputs]
    return len(dtypes) <= _MOST and all(dtype is not None and is_plain(dtype) for dtype in dtypes)
