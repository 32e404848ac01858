"""A large library is loaded while other threads of Python go on."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from asyncrt.devices.opencl.unhindered import load_beside

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="it takes Linux and a C compiler"
)

CODE = """
#include <unistd.h>
int seen;
__attribute__((constructor)) static void wait_for_a_file(void) {
    for (int i = 0; i < 10000 && !seen; i++) {
        seen = access("%s", F_OK) == 0;
        usleep(1000);
    }
}
"""


def test_another_thread_runs_while_a_library_is_loaded(tmp_path: Path) -> None:
    """Which here waits, as it is loaded, for what that thread does."""
    library, file, begun = tmp_path / "libwaits.so", tmp_path / "file", threading.Event()
    (tmp_path / "code.c").write_text(CODE % file)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "code.c")], check=True)

    def write() -> None:
        begun.wait()
        file.touch()

    # The thread has to be given the interpreter, and by nothing but the library.
    before = sys.getswitchinterval()
    other = threading.Thread(target=write)
    other.start()
    try:
        sys.setswitchinterval(60)
        begun.set()
        load_beside(library)
    finally:
        sys.setswitchinterval(before)
    other.join()

    assert ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "seen").value == 1


def test_a_library_that_does_not_load_is_left_to_who_says_why(tmp_path: Path) -> None:
    """Nothing is raised here."""
    load_beside(tmp_path / "nowhere.so")

    with pytest.raises(OSError, match="nowhere"):
        ctypes.CDLL(str(tmp_path / "nowhere.so"))
