"""How does `import onnxruntime` come to mean `asyncrt.compat.onnxruntime`?

A finder of modules stands before all others while it is installed. It finds the folder beside this file under that
name, so that its modules are what ONNX Runtime's are called; and it finds a distribution for `importlib.metadata`. What
asyncrt does not have, such as `onnxruntime.quantization`, is looked for in the package that is installed, if one is.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncrt.public import RuntimeOptions

from .children import tell, tell_no_more
from .environment import VERSION
from .shared import configure

NAME = "onnxruntime"
_FOLDER = Path(__file__).with_name(NAME)
_METADATA = f"""\
Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: asyncrt in the place of ONNX Runtime
"""


class _Distribution(importlib.metadata.Distribution):
    """What `importlib.metadata` knows of the package."""

    def read_text(self, filename: str) -> str | None:
        return _METADATA if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return _FOLDER.parent / str(path)


class _Finder(importlib.metadata.DistributionFinder):
    """Finds the package and its distribution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        folders = [str(_FOLDER), *_installed()]
        return spec_from_file_location(NAME, _FOLDER / "__init__.py", submodule_search_locations=folders)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        name = None if context is None else context.name
        if name is None or re.sub(r"[-_.]+", "-", name).lower() == NAME:
            yield _Distribution()

    def invalidate_caches(self) -> None:
        """There are none."""


_finder = _Finder()
_lock = threading.Lock()
#: What had been imported under the name before.
_before: dict[str, ModuleType] = {}


def install(device: str | None = None, *, options: RuntimeOptions | None = None) -> None:
    """Let `import onnxruntime` mean asyncrt from now on, in this process and in those that `multiprocessing` starts.

    Modules that have imported ONNX Runtime before keep it.

    Args:
        device: What sessions run on, as `Runtime` takes it.
        options: Of their runtime.
    """
    configure(device, options)
    tell(partial(_install_there, device, options))
    with _lock:
        if _finder not in sys.meta_path:
            _before.update(_taken_out())
            sys.meta_path.insert(0, _finder)
            importlib.invalidate_caches()


def uninstall() -> None:
    """Let `import onnxruntime` mean what it did before; sessions that there are stay."""
    tell_no_more()
    with _lock:
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
            _taken_out()
            sys.modules.update(_before)
            _before.clear()


def _install_there(device: str | None, options: RuntimeOptions | None) -> None:
    install(device, options=options)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]
    return {name: sys.modules.pop(name) for name in names}


def _installed() -> list[str]:
    """Return the folders of the package of ONNX Runtime, if it is installed."""
    spec = PathFinder.find_spec(NAME)
    return [] if spec is None else list(spec.submodule_search_locations or ())
