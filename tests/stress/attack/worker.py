"""A process that runs cases, one after the other, and may die of any of them: `crew.py` starts it and watches.

It reads seeds, a line each, and writes two lines for each: what came of the case, and what was thought of it since.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TextIO

from ...environment import ROOT
from . import faulty, hostile, malformed, models
from .watching import LONG_S, MORE_BYTES, Clock, Doors, Finding, Peak

ADDRESSES = 6 << 30
"""Bytes of data that a process may ask for: a bomb is to fail here, not to take the machine's memory."""


class Worker:
    """Runs cases of one kind.

    Args:
        what: "models", "malformed", "malformed once", "hostile" or "faulty".
        device: "host" or "opencl": on which malformed models run; others are drawn with one.
        folder: For its files.
        cache: For kernels, shared with others.
    """

    def __init__(self, what: str, device: str, folder: Path, cache: Path) -> None:
        self.what = what
        self.device = device
        self.place = models.Place(folder, cache, Clock(), Doors(folder))
        self.place.models  # noqa: B018  # the files are there before anything is watched
        if what.startswith("malformed"):
            malformed.corpus()  # as are the models, which take seconds to make
        self._case: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def tell(self) -> None:
        """Say to stderr what the case is, and what each task waits for."""
        print(self._case, file=sys.stderr)
        for task in asyncio.all_tasks(self._loop) if self._loop is not None else ():
            task.print_stack(limit=6, file=sys.stderr)
        sys.stderr.flush()

    async def _noting(self, work: Awaitable[Any]) -> Any:
        self._loop = asyncio.get_running_loop()
        return await work

    def run(self, seed: int, out: TextIO) -> None:
        """Run the case of a seed, and write what came of it."""
        case: Any = None
        counts: Counter[str] = Counter()
        peak = Peak()
        findings: list[tuple[str, str]] = []
        gc.collect()
        self.place.doors.wrong.clear()
        peak.begin()
        self.place.clock.begin()
        try:
            if self.what == "models":
                case = self._case = models.draw(seed, self.place)
                self.place.doors.on = True
                asyncio.run(self._noting(models.attack(case, self.place)))
            elif self.what.startswith("malformed"):
                case = self._case = malformed.draw(seed, self.device, self.place)
                attack = malformed.ask_once if self.what == "malformed once" else models.attack
                self.place.doors.on = True
                asyncio.run(self._noting(attack(case, self.place)))
            elif self.what == "faulty":
                self.place.doors.on = True
                asyncio.run(self._noting(faulty.attack(seed, self.place)))
            else:
                case = self._case = hostile.draw(seed, self.place)
                counts += asyncio.run(self._noting(hostile.attack(case, self.place)))
                findings += [_finding(e) for e in case.errors]
        except BaseException as error:
            findings.append(_finding(error))
        finally:
            self.place.doors.on = False
        seconds, nbytes = self.place.clock.seconds, peak.bytes
        findings += self._measured(seconds, nbytes, models.LIMITS[case.device if case is not None else "host"])
        if isinstance(case, models.Case):
            counts[case.ended or "failed"] += 1
        _say(out, counts=counts, seconds=seconds, nbytes=nbytes, findings=findings, case=str(case) if findings else "")
        judged: list[tuple[str, str]] = []
        agreed = 0
        if isinstance(case, models.Case) and not findings:
            try:
                agreed = models.judge(case, self.place)
            except Finding as error:
                judged.append(_finding(error))
        _say(out, counts={"as ONNX Runtime": agreed}, findings=judged, case=str(case) if judged else "")

    def _measured(self, seconds: float, nbytes: int, limit: int) -> list[tuple[str, str]]:
        found = []
        if seconds > LONG_S:
            found.append(("slow", f"slow: it took {seconds:.1f} s of processors"))
        if nbytes > limit + MORE_BYTES:
            found.append(("memory", f"memory: it took {nbytes >> 20} MiB at a limit of {limit >> 20}"))
        found += [("read", f"read: it opened {path[:200]!r}") for path in self.place.doors.wrong[:3]]
        return found


def _finding(error: BaseException) -> tuple[str, str]:
    kind = error.kind if isinstance(error, Finding) else "untyped"
    if kind == "untyped":
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "site-packages" not in f.filename and str(ROOT) in f.filename] or frames
        # Where in the sources it was raised tells findings apart.
        where = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "nowhere"
        kind = f"untyped {type(error).__name__} {where}"
    return kind, "".join(traceback.format_exception(error, limit=-14))


def _say(out: TextIO, **what: Any) -> None:
    out.write(json.dumps(what, default=str) + "\n")
    out.flush()


def main() -> None:
    """Run what stdin says until it ends."""
    # What a driver prints must not be among the answers.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # works also where no Python does any more
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    what, device, folder, cache = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    os.chdir(folder)  # a relative path that a call writes to is there
    worker = Worker(what, device, folder, cache)
    signal.signal(signal.SIGUSR2, lambda number, frame: worker.tell())
    # A hostile call may open any device, whatever the case runs on.
    devices = ["opencl"] if device == "opencl" else ["host", "simulated"]
    asyncio.run(models.warm_up(worker.place, sorted({*devices, "opencl"}) if what == "hostile" else devices))
    gc.collect()
    gc.freeze()  # what lives as long as the process is not looked at before each case
    _say(out, ready=True)
    for line in sys.stdin:
        worker.run(int(line), out)
    worker.place.peer.close()


if __name__ == "__main__":
    main()
