"""How the command line ends when something is in the way: one clear line, a status, no traceback and no half file."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import numpy as np
import onnx
import pytest

from asyncrt.runtime.runtime import Runtime

from ..builders import model, node
from ..environment import interruptible, with_sources
from .test_commands import call

FULL = Path("/dev/full")
SIZED = ("-s", "n=4", "-d", "host")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="it stands for a full disk")


@pytest.fixture
def path(tmp_path: Path) -> str:
    source = model([node("y = Neg(x)"), node("z = Identity(y)")], ["x f32[n,3]"], ["y", "z"])
    onnx.save(source, tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def ended(
    *arguments: str, stdout: int | IO[bytes] = -1, largest: int | None = None, script: str = ""
) -> tuple[int, str]:
    """Run the command line in a process of its own; returns its status and what it wrote to stderr.

    Args:
        largest: Bytes that a file may have; more of them are refused in the middle.
        script: What comes before.
    """
    program = f"{script}\nimport sys; sys.argv[0] = 'asyncrt'\nfrom asyncrt.cli import main; main()"

    def prepare() -> None:
        interruptible()
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=with_sources(COLUMNS="200", NO_COLOR="1"),
        stdout=stdout, stderr=-1, timeout=120, check=False, preexec_fn=prepare,
    )  # fmt: skip
    said = done.stderr.decode()
    assert "Traceback" not in said, said
    return done.returncode, said


# Sizes that there cannot be.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-s", "n=99999999999999999999"), "expected sizes of up to 18 digits, got 20 digits for 'n'"),
        (("-s", "n=" + "9" * 5000), "got 5000 digits for 'n'"),
        (("-s", "n=999999999999999999"), "'x' would be float32[999999999999999999,3]"),
        (("-i", "x=99999999999x3"), "'x' would be float32[99999999999,3]"),
        (("-i", "x=3x" + "1" * 5000), "got 5000 digits for 'x'"),
        (("-s", "n=4", "--range", "x=-1e308:1e308"), "expected x=LOW:HIGH with LOW less than HIGH"),
        (("-s", "n=4", "--range", "x=nan:1"), "expected x=LOW:HIGH with LOW less than HIGH"),
    ],
)
def test_sizes_are_checked_before_arrays_are_made(path: str, options: tuple[str, ...], expected: str) -> None:
    """Of a wrong size nothing is allocated, and the message says which."""
    began = time.monotonic()

    _, said = call("run", path, "-d", "host", *options, status=2)

    assert expected in said
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "options",
    [
        ("bench", "--seconds", "nan"), ("bench", "--seconds", "inf"), ("bench", "--concurrency", "1000000000"),
        ("bench", "--batched", "--deadline", "nan"), ("bench", "--batched", "--lengths", "n=uniform:1:1e300"),
        ("tune", "--max-p99", "inf"), ("tune", "--max-p99", "0.1", "--seconds", "nan"),
        ("trace", "--requests", "1" + "0" * 400), ("run", "--streams", "1000000000"), ("run", "--seed", "-1"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_numbers_that_there_cannot_be_are_wrong_options(path: str, options: tuple[str, ...]) -> None:
    """Before a device is opened."""
    command, *more = options

    _, said = call(command, path, *SIZED, *more, status=2)

    assert "Invalid value" in said


@pytest.mark.parametrize("text", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY\x01\x00\xff\xff{", b"\x80\x04N."])
def test_a_file_that_is_no_array_is_a_wrong_option(path: str, text: bytes, tmp_path: Path) -> None:
    """Whatever it is."""
    (tmp_path / "x.npy").write_bytes(text)

    _, said = call("run", path, "-d", "host", "-i", f"x={tmp_path / 'x.npy'}", status=2)

    assert "does not load" in said


def test_memory_that_is_full_is_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own and NumPy's."""

    async def full(self: Runtime, source: object) -> None:
        raise MemoryError("Unable to allocate 3.00 TiB")

    monkeypatch.setattr(Runtime, "load", full)

    _, said = call("run", path, *SIZED, status=1)

    assert said == "error: there is not enough memory. Unable to allocate 3.00 TiB"


# Disks that are full.


@needs_full
@pytest.mark.parametrize(
    "command", [("trace", "-o"), ("explain", "--html"), ("bench", "-n", "1", "--no-compare", "--json")], ids=" ".join
)
def test_a_file_that_cannot_be_written_is_named(path: str, command: tuple[str, ...]) -> None:
    """Each command that writes one."""
    name, *option = command

    _, said = call(name, path, *SIZED, *option, str(FULL), status=1)

    assert "error: [Errno 28] No space left on device: '/dev/full'" in said


@needs_full
@pytest.mark.parametrize("command", ["run", "explain", "bench"])
def test_output_that_cannot_be_written_is_an_error(path: str, command: str) -> None:
    """A redirected stdout on a full disk; the interpreter complains of nothing when it ends."""
    more = ("-n", "1", "--no-compare") if command == "bench" else ()
    with FULL.open("wb") as full:
        status, said = ended(command, path, *SIZED, *more, stdout=full)

    assert status == 1
    assert "No space left on device" in said
    assert "Exception ignored" not in said


@pytest.mark.parametrize(
    "command",
    [("trace", "-o"), ("explain", "--html"), ("bench", "-n", "1", "--no-compare", "--json"), ("run", "--save")],
    ids=" ".join,
)
def test_a_disk_that_fills_leaves_no_half_file_and_the_old_one(
    path: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    """What was there before stays as it was."""
    name, *option = command
    folder = tmp_path / "written"
    folder.mkdir()
    old = folder / ("y.npy" if name == "run" else "old")
    old.write_text("as it was")

    status, said = ended(name, path, *SIZED, *option, str(folder if name == "run" else old), largest=100)

    assert status == 1
    assert "File too large" in said
    assert str(folder) in said
    assert [old] == list(folder.iterdir())
    assert old.read_text() == "as it was"


def test_a_file_is_written_through_a_link_with_its_permissions(path: str, tmp_path: Path) -> None:
    """Whoever put them there meant it."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)

    call("trace", path, *SIZED, "-o", str(link))

    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert json.loads(real.read_text())["traceEvents"]


def test_outputs_are_saved_whole(path: str, tmp_path: Path) -> None:
    """And nothing beside them."""
    call("run", path, *SIZED, "--save", str(tmp_path / "out"))

    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["y.npy", "z.npy"]
    assert np.load(tmp_path / "out" / "y.npy").shape == (4, 3)


# Ctrl-C.

INTERRUPTING = """
import importlib.abc, os, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize(
    "name",
    [
        "asyncrt.cli.commands", "numpy._core._multiarray_umath", "asyncrt.runtime.runtime",
        "asyncrt.kernels.ops.math.softmax",
    ],
)
def test_ctrl_c_while_it_starts_ends_quietly_with_130(path: str, name: str) -> None:
    """Whatever it is importing, on whichever thread."""
    assert ended("run", path, *SIZED, script=INTERRUPTING.format(name=name)) == (130, "")


BUSY = """
import os, signal, threading
import asyncrt.{module} as module
def busy(*given, **more):
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(100)
module.{function} = busy
"""


@pytest.mark.parametrize(
    ("module", "function"), [("graph.build", "build_program"), ("devices.find", "open_device")]
)
def test_ctrl_c_does_not_wait_for_threads(path: str, module: str, function: str) -> None:
    """They may be reading a model, or in a driver, for minutes."""
    began = time.monotonic()

    assert ended("run", path, *SIZED, script=BUSY.format(module=module, function=function)) == (130, "")
    assert time.monotonic() - began < 60
