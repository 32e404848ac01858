"""Which programs did a model want when it was here before? They are loaded while the model is still read.

A driver takes milliseconds for each program, and what a model wants is known late: when its file is read, its passes are
done and a plan is made. So what the first plan of a model wanted is noted beside the programs, and the next process
loads that at once, on a thread beside which all others go on. A note is a guess and changes no result: kernels are
looked for as ever, and those that were loaded ahead are found sooner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asyncrt.devices.base import LoadsAhead

from .store import BinaryStore

_MOST = 256
"""Programs of a note. A model that wants more has other things to wait for."""


class Foretold:
    """The notes of one folder.

    Args:
        store: Where programs lie.
        device: Loads them.
    """

    def __init__(self, store: BinaryStore, device: LoadsAhead) -> None:
        self._store, self._device = store, device
        #: What the notes of models say, as far as they were read or written.
        self._said: dict[str, bytes] = {}

    def load(self, about: str, model: str) -> Any:
        """Load what a model wanted before. Blocks; returns what has to be held until it is wanted again.

        Args:
            about: What every program depends on.
            model: What it is known by.
        """
        said = self._store.get(_key(about, model))
        if said is None:
            return None
        self._said[model] = said
        found = [(binary, name) for key, name in _read(said).items() if (binary := self._store.get(key)) is not None]
        return self._device.load_ahead(found)

    def note(self, about: str, model: str, programs: Mapping[str, str]) -> None:
        """Keep what a model has wanted. Blocks.

        Args:
            about, model: As for `load()`.
            programs: For the key of each program the name of a kernel that is in it.
        """
        says = json.dumps(dict(sorted(programs.items()))).encode()
        if programs and len(programs) <= _MOST and self._said.get(model) != says:
            self._said[model] = says
            self._store.put(_key(about, model), says)


def _key(about: str, model: str) -> str:
    return f"{about}|wanted by {model}"


def _read(said: bytes) -> dict[str, str]:
    try:
        found = json.loads(said)
    except ValueError:
        return {}
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}
