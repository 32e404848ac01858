"""Which program does a model become? One that was kept, or one that is made now, and kept for the next process.

A program that was kept counts only if it was made of the very bytes that the model has now, which their digest says,
and by what `dependencies()` names. Digests are calculated on another thread while the program is read.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from asyncrt.graph.ir import Program
from asyncrt.graph.reading.mapped import file_of
from asyncrt.graph.reading.source import ModelBytes, ModelSource, bytes_of
from asyncrt.kernels.registry import operators_in
from asyncrt.kernels.resident.store import BinaryStore
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.options import RuntimeOptions

from .dependencies import dependencies
from .pickled import Unkept, pickled, unpickled

_MOST = 1 << 27
"""Bytes of a model, and of its constants: to go through more takes as long as to read the model and run the passes."""

_DIGEST = hashlib.sha256().digest_size
_MODULES = "modules of the program that was kept last"


class Found(NamedTuple):
    """A model's program.

    Attributes:
        program: The program.
        keep: Keeps it for the next process; None if it is kept, or cannot be. It blocks, and is for when there is time.
    """

    program: Program
    keep: Callable[[], None] | None


def find_program(
    source: ModelSource, known: str | None, traits: DeviceTraits, options: RuntimeOptions, store: BinaryStore | None
) -> Found:
    """Return the program of a model. Takes as long as the model is large: call it off the event loop.

    Args:
        known: What the model is likely to be known by; None if by nothing.
        store: Where programs are kept; None where none are.

    Raises:
        ModelError: One of its children, naming the node.
        OSError: The file cannot be read.
    """
    if known is None or store is None or not options.uses("kept_programs"):
        return Found(_build(source, traits, options), None)
    given = bytes_of(source, options)
    depends = dependencies(traits, options) if given.data.nbytes <= _MOST else None
    if depends is None:
        return Found(_build(given, traits, options), None)
    key = f"program of {known}|{depends}"
    kept = _find(key, given, store, paged=options.uses("page_constants"))
    if kept is not None:
        return Found(kept, None)
    program = _build(given, traits, options)
    return Found(program, None if program.other_files else lambda: _keep(key, program, given, store))


def import_ahead(options: RuntimeOptions, store: BinaryStore | None) -> None:
    """Import what loading a model is likely to need: of the program that was kept last, or to make one. Blocks."""
    kept = store.get(_MODULES) if store is not None and options.uses("kept_programs") else None
    if kept is None:
        from asyncrt.graph import build  # noqa: F401
        from asyncrt.kernels.registry import operators

        operators()
        return
    for module in kept.decode().split():
        with contextlib.suppress(ImportError):  # it was kept by other code
            operators_in(module)


def _build(source: ModelSource | ModelBytes, traits: DeviceTraits, options: RuntimeOptions) -> Program:
    from asyncrt.graph.build import build_program  # with the onnx package, which programs that were kept do not need

    return build_program(source, traits, options)


def _find(key: str, given: ModelBytes, store: BinaryStore, *, paged: bool) -> Program | None:
    """Return the program that was kept; None without one. Where it is not *paged*, its constants are in memory."""
    body = store.get(key)
    if body is None:
        return None
    model, constants, says = body[:_DIGEST], body[_DIGEST : 2 * _DIGEST], body[2 * _DIGEST :]
    beside = (store.map if paged else store.read)(_constants(constants))
    if beside is None:
        return None

    def is_right() -> bool:
        return _digest_of(given) == model and beside.is_whole()

    with ThreadPoolExecutor(1, "asyncrt-digest") as others:
        right = others.submit(is_right)
        try:
            program = unpickled(says, given.data, np.asarray(beside.body))
        except Unkept:
            return None
        return program if right.result() else None


def _keep(key: str, program: Program, given: ModelBytes, store: BinaryStore) -> None:
    try:
        written = pickled(program, given.data)
        if written.nbytes > _MOST:
            return
        beside = bytearray(written.nbytes)
        for place, constant in written.constants:
            here = np.frombuffer(beside, np.uint8, constant.nbytes, place)
            here[:] = np.ascontiguousarray(constant).reshape(-1).view(np.uint8)
        unpickled(written.says, given.data, np.frombuffer(beside, np.uint8))  # what cannot be read need not be written
    except (Unkept, MemoryError):
        return
    model, constants = _digest_of(given), hashlib.sha256(beside).digest()
    file = file_of(given.data)
    if file is None or not file.changed():
        modules = " ".join(written.modules).encode()
        store.put_all(
            [(_constants(constants), beside), (key, model + constants + written.says), (_MODULES, modules)]
        )


def _constants(digest: bytes) -> str:
    return f"constants {digest.hex()}"


def _digest_of(given: ModelBytes) -> bytes:
    """Return the digest of a model's bytes."""
    digest, file = hashlib.sha256(), file_of(given.data)
    if file is None:
        digest.update(given.data.data)
    else:
        file.update(digest)
    return digest.digest()
