"""A library finds what it needs in the right one of two libraries of the same name."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrt.devices.opencl.link_order import load_in_order

from ...environment import with_sources

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="it takes Linux and a C compiler"
)

PROGRAM = """
import ctypes, sys
from pathlib import Path
from asyncrt.devices.opencl.link_order import load_in_order
older, newer, user = map(Path, sys.argv[1:])
there = ctypes.CDLL(str(older))
load_in_order((newer, user))
print(ctypes.CDLL(str(user)).answer(), there.number())
"""


def build(folder: Path, name: str, code: str, *flags: str) -> Path:
    """Return a library made of some C."""
    folder.mkdir(exist_ok=True)
    (folder / "code.c").write_text(code)
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / name), str(folder / "code.c"), *flags]
    subprocess.run(command, check=True, capture_output=True)
    return folder / name


def test_the_library_of_the_right_path_is_used_and_the_other_stays(tmp_path: Path) -> None:
    """Though the older one of that name was loaded first, and lacks a symbol."""
    soname = "-Wl,-soname,libnumber.so"
    older = build(tmp_path / "older", "libnumber.so", "int number(void) {return 1;}", soname)
    both = "int number(void) {return 2;} int more(void) {return 40;}"
    newer = build(tmp_path / "newer", "libnumber.so", both, soname)
    code = "int number(void); int more(void); int answer(void) {return number() + more();}"
    user = build(tmp_path / "user", "libuser.so", code, f"-L{newer.parent}", "-lnumber")

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(older), str(newer), str(user)],
        env=with_sources(), capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == "42 1"


def test_a_library_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    """And nothing else is loaded in its place."""
    with pytest.raises(OSError, match="nowhere"):
        load_in_order((tmp_path / "nowhere.so",))

    assert ctypes.CDLL(None)
