"""What decides which program a model becomes, beside the model?

The device's traits, options, the code of this package, the packages that it is made with, and the processor, on which
the last bits of constants may depend that NumPy calculates. A key of a program names all of it, so that one that was
made by other code, or for other options, is never found.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs

from asyncrt.devices.opencl.target import processor
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.mechanisms import Mechanism
from asyncrt.options import RuntimeOptions

OPTIONS = ("precision", "memory_limit", "max_model_bytes", "max_folded_bytes", "max_nodes", "max_rank")
"""Fields of the options that reading a model and its passes ask for. `cache_dir` only says where constants lie."""

USED: Sequence[Mechanism] = (
    "flush_weights", "fuse", "integer_products", "map_files", "page_constants", "quantized_steps", "widen_floats",
)  # fmt: skip
"""Mechanisms that they ask for. A program is the same with the others or without: `asyncrt warm` does without some."""

_PACKAGES = ("onnx", "numpy", "ml_dtypes")
"""Whose versions can change a program: they read a model, and calculate its constants."""


def dependencies(traits: DeviceTraits, options: RuntimeOptions) -> str | None:
    """Return what a program for such a device depends on, as a text; None if that cannot be told. Blocks."""
    code = _code()
    if code is None:
        return None
    asked = [(name, _shown(getattr(options, name))) for name in OPTIONS]
    uses = [name for name in USED if options.uses(name)]
    return f"{code}|{_machine()}|{_shown(traits)}|{asked}|{uses}"


def _shown(value: object) -> str:
    """Return a value as a text that is the same in every process: sets have no order of their own."""
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    if isinstance(value, DeviceTraits):
        return repr([(field.name, _shown(getattr(value, field.name))) for field in attrs.fields(DeviceTraits)])
    return repr(value)


@functools.cache
def _code() -> str | None:
    """Return a digest of the code; None where it does not lie in files.

    It goes by the sizes and times of modules, in seconds, as Python's own bytecode does.
    """
    digest = hashlib.sha256(sys.version.encode())
    try:
        for line in _modules(Path(__file__).parents[2]):
            digest.update(line.encode())
        for package in _PACKAGES:
            digest.update(f"{package} {version(package)}\n".encode())
    except (OSError, PackageNotFoundError):
        return None
    return digest.hexdigest()


@functools.cache
def _machine() -> str:
    return hashlib.sha256("\n".join(processor()).encode()).hexdigest()


def _modules(folder: Path | str) -> Iterator[str]:
    """Yield a line for each module of a folder and of those in it, in order."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield entry.name + "/\n"
                yield from _modules(entry.path)
        elif entry.name.endswith((".py", ".so", ".pyd")):
            status = entry.stat()
            yield f"{entry.name} {status.st_size} {int(status.st_mtime)}\n"
