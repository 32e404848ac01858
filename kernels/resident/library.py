"""Which program on disk has a kernel? Under a kernel's own key lies the key of the program that it was built in.

Both keys are made of all that the bytes depend on: the version of the package, the driver and what it compiles for, and
the texts. So no entry can be of another kernel, and one whose program is gone counts as absent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from .store import BinaryStore

Found: TypeAlias = dict[str, list[Any]]
"""Kernels by the key of the program that has them."""


def find(store: BinaryStore, about: str, kernels: Iterable[Any]) -> Found:
    """Return the programs that have these kernels, as far as there are some. Blocks: it reads a file for each.

    Args:
        about: What else binaries depend on: the version of the package, and the device's identity.
    """
    programs: Found = {}
    for kernel in kernels:
        program = store.get(_kernel_key(about, kernel))
        if program is not None:
            programs.setdefault(program.decode(), []).append(kernel)
    return programs


def keep(store: BinaryStore, about: str, kernels: Sequence[Any], binary: bytes) -> str:
    """Keep the program that was built of these kernels, in this order, and return its key. Blocks.

    The program is there before anything says so: whoever is killed in between leaves none that is looked for in vain.
    """
    program = f"{about}|{_digest(chr(0).join(k.text for k in kernels))}"
    store.put_all([(program, binary), *((_kernel_key(about, k), program.encode()) for k in kernels)])
    return program


def _kernel_key(about: str, kernel: Any) -> str:
    return f"{about}|kernel {kernel.name}|{_digest(kernel.text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
