"""The folder of kernels when the machine changes: what was compiled for another processor is not run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from asyncrt.devices.opencl.drivers import find_intel_runtime
from asyncrt.devices.opencl.target import processor
from asyncrt.kernels.resident.store import BinaryStore

from ...environment import with_sources

pytestmark = pytest.mark.skipif(not find_intel_runtime(), reason="its compiler can be told what to compile for")

PROCESS = """
import asyncio, json, logging, sys
from pathlib import Path
import numpy as np
from asyncrt.devices.opencl import drivers

folder, given = sys.argv[1:]
if given:  # as another part of the process may do, before
    drivers.prepare()
    import pyopencl as cl
    device = cl.get_platforms()[0].get_devices()[0]
    before = cl.Program(cl.Context([device]), [device], [Path(given).read_bytes()]).build()

import asyncrt
from tests.tiny_models import make
from onnx import helper

lines = []
logging.getLogger("asyncrt").addHandler(type("Lines", (logging.Handler,), {"emit": lambda s, r: lines.append(r.msg)})())
model = make([helper.make_node(*node) for node in (
    ("Tanh", ["x"], ["t"]), ("Softmax", ["t"], ["s"]), ("Add", ["s", "x"], ["y"]),
)], {"x": "float n 64"}, ["y"])  # kernels whose texts are the same for every processor
inputs = {"x": np.random.default_rng(0).random((9, 64), np.float32)}

async def main():
    async with asyncrt.Runtime("cpu", options=asyncrt.RuntimeOptions(cache_dir=folder)) as rt:
        outputs = await (await rt.load(model)).infer(inputs)
        counts, target = rt.statistics(), rt.info.identity.rpartition("|")[2]
        print(json.dumps({
            "target": target, "built": counts.kernels_built, "taken": counts.kernels_from_disk,
            "y": outputs["y"].tolist(), "warned": lines,
        }))

asyncio.run(main())
"""


@attrs.frozen
class Said:
    """What a process did: what its driver compiled for, kernels built and taken from the folder, and the results."""

    target: str
    built: int
    taken: int
    y: list[list[float]]
    warned: list[str]


def process(folder: Path, target: str | None = None, *, given: str = "") -> Said:
    """Run a model in a process of its own.

    Args:
        target: What its driver is told to compile for; None leaves it to the driver.
        given: A program that its driver is given before the runtime is opened.
    """
    environment = {n: v for n, v in with_sources().items() if not n.startswith(("CL_CONFIG_", "OCL_ICD_VENDORS"))}
    if target is not None:
        environment["CL_CONFIG_CPU_TARGET_ARCH"] = target
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(folder), given],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Said(**found)


def entries(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the key and the program of each entry that is one."""
    for path in folder.glob("*.bin"):
        key = path.read_bytes().split(b"\n", 2)[1].decode()
        if "|kernel " not in key and not key.startswith(("program of", "constants ", "modules of")):
            yield key, BinaryStore(folder).get(key) or b""


def has(feature: str) -> bool:
    return any(feature in said.partition("=")[2].split() for said in processor())


@pytest.mark.slow
def test_a_folder_that_moves_between_processors_carries_no_code(tmp_path: Path) -> None:
    """Each gets kernels of its own, built once, and runs those alone when the folder comes back.

    A driver that was told to compile for less stands for a lesser processor.
    """
    targets = ["corei7", None, *(["core-avx2"] if has("avx2") else []), *(["skx"] if has("avx512vl") else [])]

    first = {target: process(tmp_path, target) for target in targets}
    again = {target: process(tmp_path, target) for target in reversed(targets)}

    kernels = first["corei7"].built
    assert kernels > 0
    assert all((kernels, 0) == (said.built, said.taken) for said in first.values())
    assert all((0, kernels) == (said.built, said.taken) for said in again.values())
    assert all(first[target].target == again[target].target for target in targets)
    assert all(first[target].y == again[target].y for target in targets)
    assert first["corei7"].target == "1"
    assert len({said.target for said in first.values()} - {""}) >= len(targets) - 1  # skx may be this processor
    assert all(
        pytest.approx(row, abs=1e-4) == other
        for said in first.values()
        for row, other in zip(first["corei7"].y, said.y, strict=True)
    )


@pytest.mark.slow
def test_a_driver_that_others_have_steered_leaves_nothing_in_the_folder_that_steers(tmp_path: Path) -> None:
    """Whoever gives it a program compiled for less has it compile for that: this process is slower, and is told so.

    The next process compiles for its processor, whether or not there was anything in the folder.
    """
    kept, fresh, lesser = tmp_path / "kept", tmp_path / "fresh", tmp_path / "lesser.bin"
    process(tmp_path / "other", "corei7")
    lesser.write_bytes(next(program for _, program in entries(tmp_path / "other")))
    own = process(kept)

    steered = process(kept, given=str(lesser))
    after = process(kept)
    process(fresh, given=str(lesser))
    after_fresh = process(fresh)

    assert (steered.target, steered.built) == ("1", own.built)
    assert any("another part of this process" in line for line in steered.warned)
    assert (after.target, after.built, after.taken) == (own.target, 0, own.built)
    assert after.warned == []
    assert after_fresh.target == own.target
    assert after.y == own.y


@pytest.mark.slow
def test_a_program_for_another_processor_is_not_given_to_the_driver(tmp_path: Path) -> None:
    """Not even one that lies in the folder under the right key, whole: it is built anew, and kept."""
    store = tmp_path / "kernels"
    own = process(store)
    lesser = tmp_path / "lesser"
    process(lesser, "corei7")
    here = {key.rpartition("|")[2]: key for key, _ in entries(store)}  # by the digest of its text
    put = [
        BinaryStore(store).put(here[digest], program)
        for key, program in entries(lesser)
        if (digest := key.rpartition("|")[2]) in here and len(digest) == 64
    ]

    said = process(store)
    after = process(store)

    assert put
    assert (own.target, own.built) == (said.target, said.built)
    assert said.y == own.y
    assert (after.built, after.taken) == (0, own.built)
