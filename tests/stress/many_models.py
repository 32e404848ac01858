"""Does a process that loads a hundred models, one after the other, give everything back?

    python -m tests.stress.many_models                       # those of tests/models, again and again
    python -m tests.stress.many_models FOLDER --models 200   # those under a folder, however deep

Each is loaded, runs once if its inputs are known, and is unloaded; the runtime is closed at the end. What a driver
takes for its compiler and for good, two rounds of the same models have taken before: what others add is what is not
given back. Intel's compiler keeps about half a megabyte for each kernel that it builds, so all are built by then; and
its driver keeps about 50 KB of each program that it loads, of which the models here have 120 each round.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import attrs
import typer
from rich.console import Console
from rich.table import Table

from asyncrt import Runtime, RuntimeOptions

from ..zoo import FOLDER, ZooModel, zoo
from .parts import Result
from .soak import resident

MOST_MIB, EACH_MIB = 20, 0.2
"""By which the process may have grown in all, and for each model that was loaded."""


@attrs.frozen
class Left:
    """What a process has while no runtime is open.

    Attributes:
        nbytes: In memory.
        threads, files: How many.
    """

    nbytes: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> Left:
        """Count."""
        return cls(resident(), threading.active_count(), len(os.listdir("/proc/self/fd")))

    def findings(self, before: Left, models: int) -> list[str]:
        """Return what there is more of than before so many models, as sentences."""
        grown = (self.nbytes - before.nbytes) / 2**20
        found = [f"{grown:.1f} MiB more than before"] if grown > max(MOST_MIB, EACH_MIB * models) else []
        for name, now, then in (("threads", self.threads, before.threads), ("files", self.files, before.files)):
            found += [f"{now} {name}, {then} before"] if now > then else []
        return found


@attrs.frozen
class Turned:
    """What came of it.

    Attributes:
        models: How many were loaded between the two counts.
        seconds: How long that took.
        before, after: What the process had.
    """

    models: int
    seconds: float
    before: Left
    after: Left

    @property
    def findings(self) -> list[str]:
        """What is wrong, as sentences."""
        return self.after.findings(self.before, self.models)


def in_turn(paths: Sequence[Path], models: int, cache: Path) -> Turned:
    """Load *models* models of *paths*, again and again if there are fewer, after two rounds of all of them."""
    known = {model.path: model for model in zoo()}
    for _ in range(2):
        asyncio.run(_round(paths, known, cache))
    before, begun = Left.now(), time.monotonic()
    asyncio.run(_round([*itertools.islice(itertools.cycle(paths), models)], known, cache))
    return Turned(models, time.monotonic() - begun, before, Left.now())


async def _round(paths: Sequence[Path], known: dict[Path, ZooModel], cache: Path) -> None:
    async with Runtime(options=RuntimeOptions(cache_dir=cache)) as rt:
        for path in paths:
            loaded = await rt.load(path)
            await loaded.ready()
            if path in known:
                await loaded.infer(known[path].inputs(0))
            await rt.unload(loaded)


def loaded_in_turn(models: int) -> Result:
    """Load models of tests/models in turn; what is left of them is what went wrong."""
    with tempfile.TemporaryDirectory() as empty:
        turned = in_turn(sorted(FOLDER.rglob("*.onnx")), models, Path(empty))
    grown = (turned.after.nbytes - turned.before.nbytes) / 2**20
    return Result("models in turn", models, turned.findings, turned.seconds, f"{grown:.1f} MiB more than before")


def main(
    folder: Annotated[Path, typer.Argument(help="Of models.")] = FOLDER,
    models: Annotated[int, typer.Option(help="How many are loaded.")] = 100,
    cache: Annotated[Path | None, typer.Option(help="Where kernels are kept; else nothing is kept afterwards.")] = None,
) -> None:
    """Load models in turn, and print what is left of them."""
    with tempfile.TemporaryDirectory() as empty:
        turned = in_turn(sorted(folder.rglob("*.onnx")), models, cache or Path(empty))
    table = Table("", "before", "after", title=f"{turned.models} models in {turned.seconds:.0f} s")
    table.add_row("MiB", f"{turned.before.nbytes / 2**20:.1f}", f"{turned.after.nbytes / 2**20:.1f}")
    table.add_row("threads", str(turned.before.threads), str(turned.after.threads))
    table.add_row("files", str(turned.before.files), str(turned.after.files))
    console = Console()
    console.print(table)
    for finding in turned.findings:
        console.print(finding)
    sys.exit(bool(turned.findings))


if __name__ == "__main__":
    typer.run(main)
