"""Kernels on disk by themselves: what is found, in folders of all kinds, and by whoever was killed while it wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.resident import library, store
from asyncrt.kernels.resident.store import BinaryStore

from ...environment import with_sources


def kernel(name: str, text: str = "") -> KernelSource:
    return KernelSource(name, text or f"kernel void {name}() {{}}", (), 0)


A, B, C = kernel("a"), kernel("b"), kernel("c")


def test_each_kernel_leads_to_the_program_that_has_it(tmp_path: Path) -> None:
    """Whatever else is asked for; the driver, the version and the text are part of what it is."""
    kept = BinaryStore(tmp_path / "k")
    library.keep(kept, "1|driver", [A, B], b"two kernels")

    (program,) = library.find(kept, "1|driver", [C, B])

    assert library.find(kept, "1|driver", [C, B]) == {program: [B]}
    assert kept.get(program) == b"two kernels"
    assert library.find(kept, "2|driver", [A]) == {}
    assert library.find(kept, "1|driver", [kernel("a", "other text")]) == {}


def test_a_kernel_that_is_built_again_leads_to_its_new_program(tmp_path: Path) -> None:
    """The old one stays for those that are in no other."""
    kept = BinaryStore(tmp_path / "k")
    library.keep(kept, "1", [A, B], b"old")
    library.keep(kept, "1", [A, C], b"new")

    found = {kept.get(program): kernels for program, kernels in library.find(kept, "1", [A, B, C]).items()}

    assert found == {b"new": [A, C], b"old": [B]}


def test_a_program_that_is_gone_is_built_again(tmp_path: Path) -> None:
    """What led to it leads nowhere, and is no error."""
    kept = BinaryStore(tmp_path / "k")
    library.keep(kept, "1", [A], b"program")
    (program,) = library.find(kept, "1", [A])
    kept.path_of(program).unlink()

    assert kept.get(program) is None


def test_a_folder_that_may_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has is found, and what it has not is not kept; nobody hears of an error."""
    folder = tmp_path / "k"
    library.keep(BinaryStore(folder), "1", [A], b"program")

    def refuse(*given: object, **named: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(store.tempfile, "mkstemp", refuse)
    monkeypatch.setattr(store.os, "utime", refuse)
    kept = BinaryStore(folder)
    library.keep(kept, "1", [B], b"another")
    (program,) = library.find(kept, "1", [A, B])

    assert kept.get(program) == b"program"


def test_a_folder_that_root_has_filled_serves_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image of a container; one of another user does not."""
    folder = tmp_path / "k"
    library.keep(BinaryStore(folder), "1", [A], b"program")
    owner = folder.stat().st_uid

    monkeypatch.setattr(store.os, "getuid", lambda: owner + 1)

    assert BinaryStore(folder).usable == (owner == 0)
    assert (library.find(BinaryStore(folder), "1", [A]) != {}) == (owner == 0)


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.resident import library
from asyncrt.kernels.resident.store import BinaryStore

folder, times = Path(sys.argv[1]), int(sys.argv[2])
kernels = [KernelSource(f"k{i}", f"kernel {i}", (), 0) for i in range(40)]
chance = random.Random(0)
found = wrong = 0
for life in range(times):
    child = os.fork()
    if child == 0:
        kept, draw = BinaryStore(folder), random.Random(life)
        while True:
            some = sorted(draw.sample(kernels, draw.randint(1, 8)), key=lambda k: k.name)
            library.keep(kept, "1", some, "".join(k.name + "," for k in some).encode() * draw.randint(1, 4000))
    time.sleep(chance.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kept = BinaryStore(folder)
    for program, some in library.find(kept, "1", kernels).items():
        body = kept.get(program)
        found += len(some)
        wrong += body is None or any(k.name.encode() not in body.split(b",") for k in some)
    library.keep(kept, "1", kernels[:1], b"k0")
    (program,) = library.find(kept, "1", kernels[:1])
    wrong += kept.get(program) != b"k0"
print(found, wrong)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the process forks what it kills")
def test_whoever_is_killed_while_it_writes_leaves_nothing_wrong(tmp_path: Path) -> None:
    """A hundred times, at random moments: what is found is whole and right, and what comes next is kept."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "k"), "100"],
        env=with_sources(), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    found, wrong = map(int, done.stdout.split())
    assert found > 100
    assert wrong == 0
