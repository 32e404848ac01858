"""Which OpenCL drivers there are, and how a driver that pip installed gets to the OpenCL loader.

Loaders read the drivers' names from ``.icd`` files in ``/etc/OpenCL/vendors``, which only root may write. Intel's CPU
runtime from PyPI lies in the virtual environment instead. So, before the loader is first asked for anything, a private
folder is made that holds copies of the system's files and one more for that runtime, and ``OCL_ICD_VENDORS`` is set to
it. A program may import pyopencl before that: the loader looks when it is first used. It may import OpenVINO as well,
which brings an older ``libtbb`` than that runtime needs: the runtime is loaded with its own (`link_order.py`).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import tempfile
from pathlib import Path

import attrs
import platformdirs

from .link_order import load_in_order
from .unhindered import load_beside

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
INTEL_PLATFORM = "Intel(R) OpenCL"
POCL_PLATFORM = "Portable Computing Language"
INTEL_CPU = (INTEL_PLATFORM, "cpu")
"""Platform and kind of the devices of Intel's runtime for CPUs; what was measured of it holds for no other driver."""
NVIDIA_GPU = ("NVIDIA CUDA", "gpu")
"""The same of NVIDIA's GPUs."""
INSTALL_HINT = (
    "install a driver: `pip install asyncrt[cpu]` brings Intel's OpenCL CPU runtime (x86-64 Linux); "
    "GPUs need their vendor's OpenCL driver"
)
# What libintelocl.so needs from its own folder, in the order in which they need each other.
_INTEL_NEEDS = ("libirng.so", "libintlc.so.5", "libimf.so", "libsvml.so", "libtbbmalloc.so.2")
_INTEL_TBB = "libtbb.so.12"  # of which other packages have older ones


@attrs.frozen
class Preparation:
    """What `prepare()` found.

    Attributes:
        vendors: The folder that the loader reads; None is its own default.
        bundled: The pip-installed driver that was added, or None.
        problems: What is in the way, as sentences.
    """

    vendors: Path | None
    bundled: Path | None
    problems: tuple[str, ...] = ()


def find_intel_runtime(prefixes: tuple[str, ...] | None = None) -> Path | None:
    """Return the ``libintelocl.so`` that pip installed into this environment, or None."""
    for prefix in prefixes if prefixes is not None else (sys.prefix, sys.base_prefix, *_user_prefix()):
        library = Path(prefix) / "lib" / "libintelocl.so"
        if library.is_file():
            return library
    return None


def _user_prefix() -> tuple[str, ...]:
    import site

    return (site.USER_BASE,) if site.USER_BASE else ()


@functools.cache
def prepare() -> Preparation:
    """Make pip-installed drivers visible to the OpenCL loader. Does nothing the second time.

    A value of ``OCL_ICD_VENDORS`` that the user set is left alone.
    """
    chosen = os.environ.get("OCL_ICD_VENDORS")
    if chosen:
        return Preparation(Path(chosen), None)
    library = find_intel_runtime()
    if library is None:
        return Preparation(None, None)
    problem = _preload(library.parent) or try_loading(library)
    if problem:
        return Preparation(None, None, (problem,))
    try:
        vendors = _write_vendors(library)
    except OSError as error:
        return Preparation(None, None, (f"no folder can be written that names {library} to the loader: {error}",))
    os.environ["OCL_ICD_VENDORS"] = str(vendors)
    return Preparation(vendors, library)


def preloaded() -> tuple[str, ...]:
    """Return the libraries that another process has to load first, before it asks the loader for drivers."""
    bundled = prepare().bundled
    return () if bundled is None else tuple(str(bundled.parent / name) for name in _INTEL_NEEDS)


def _preload(folder: Path) -> str:
    """Load what the runtime needs, so that it is found without LD_LIBRARY_PATH. Returns what is wrong, or ""."""
    for name in _INTEL_NEEDS:
        try:
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            return f"Intel's CPU runtime is installed but {name} does not load: {error}; reinstall asyncrt[cpu]"
    return ""


def try_loading(library: Path) -> str:
    """Load the runtime itself, as the loader will, who is silent if that fails. Returns what is wrong, or ""."""
    load_beside(library)
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        try:
            load_in_order((library.parent / _INTEL_TBB, library))
        except OSError:
            return (
                f"Intel's CPU runtime is installed but does not load: {error}; if another package has loaded an older "
                "library of its own by now, open a device before that package is used; else reinstall asyncrt[cpu]"
            )
    return ""


def _write_vendors(library: Path) -> Path:
    """Write the private folder of ``.icd`` files; its name depends on its content, so it is never changed."""
    files = {"asyncrt-intel-cpu.icd": os.fsencode(library) + b"\n"}
    if SYSTEM_VENDORS.is_dir():
        for icd in sorted(SYSTEM_VENDORS.glob("*.icd")):
            try:
                files[icd.name] = icd.read_bytes()
            except OSError:
                continue  # one unreadable file must not hide the other drivers
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    folder = Path(platformdirs.user_cache_dir("asyncrt")) / "vendors" / digest
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The loader loads what these files name, so the folder must be the user's alone.
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022 or not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="asyncrt-vendors-"))
    for name, content in files.items():
        target = folder / name
        if not target.is_file() or target.read_bytes() != content:
            handle, temporary = tempfile.mkstemp(dir=folder)
            with os.fdopen(handle, "wb") as f:
                f.write(content)
            os.replace(temporary, target)
    return folder
