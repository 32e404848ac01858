"""Is every way in which such a runtime is known to go wrong found by the tests? Each is put in, one at a time.

    python -m tests.stress.mutants            # all of them, with a summary
    python -m tests.stress.mutants S4 leases  # those with a word in their name

A mutant is a text of a file and what stands there instead. It is put into a copy of the sources, and the tests that
should find it run there; those that pass all the same are its survivors, and a gap in the tests. The classes S1 to S9
are those of published bugs of OpenVINO's GPU plugin, where skipping at run time comes from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0

SKIPS = "tests/kernels/test_every_skip_rule.py"
GRAPHS = "tests/stress/test_graphs.py::test_many_models_give_the_same_bytes_in_every_way"
ORDERS = "tests/stress/test_schedules.py"
FAULTS = "tests/stress/faults/test_faults.py"
HAZARDS = "tests/runtime/test_hazards.py"
BRANCHES = "tests/runtime/plan/test_parallel_lanes.py"
REQUESTS = "tests/runtime/test_requests.py"
TRANSITIONS = "tests/runtime/plan/test_skip_transitions.py"


@attrs.frozen
class Mutant:
    """Something that would be wrong.

    Attributes:
        name: What is wrong.
        file: Where.
        text: What stands there once, and only once.
        instead: What stands there in the mutant.
        tests: Which should find it.
    """

    name: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "S1 a predicate that holds of nothing: steps that are not known count as one",
        "kernels/ops/tensor/slice.py",
        "        x = np.take(x, first + step * np.arange(count), axis)",
        "        x = np.take(x, first + abs(step) * np.arange(count), axis)",
        ("tests/ops/tensor/test_slice.py",),
    ),
    Mutant(
        "S1 a reversed slice is taken for its input",
        "memory/view.py",
        "        shape[axis], strides[axis] = count, strides[axis] * step",
        "        shape[axis], strides[axis] = count, strides[axis] * abs(step)",
        (SKIPS,),
    ),
    Mutant(
        "S2 a later axis makes a refused view dense again",
        "memory/view.py",
        "            if stride != step and dim != 1:\n                return False\n            step = step * dim\n"
        "        return True",
        "            dense = stride == step or dim == 1\n            step = step * dim\n        return dense",
        (SKIPS, "tests/memory/test_view.py"),
    ),
    Mutant(
        "S3 a decision of another shape holds",
        "asyncrt/runtime/plan/planner.py",
        "            parts.append(self.layouts[v])\n",
        "            parts.append(self.layouts[v] and (self.layouts[v].dtype, len(self.layouts[v].shape)))\n",
        (TRANSITIONS, HAZARDS),
    ),
    Mutant(
        "S4 the readers of an alias do not keep its source alive",
        "asyncrt/runtime/plan/planner.py",
        "                place.base.last = max(place.base.last, self.program.last_use[v])\n",
        "                pass\n",
        ("tests/stress/test_found_by_mutants.py",),
    ),
    Mutant(
        "S4 an output that is an alias dies with its last reader",
        "asyncrt/graph/passes/memory_dependencies.py",
        "        if value.id in outputs or any(c != own for c in chunks):",
        "        if value.id in outputs and not chunks or any(c != own for c in chunks):",
        (REQUESTS, GRAPHS),
    ),
    Mutant(
        "S5 an alias keeps its source's place and forgets its own offset",
        "asyncrt/runtime/plan/planner.py",
        "            self.places[v] = Location(place.base, place.offset + offset, view)\n            if view",
        "            self.places[v] = Location(place.base, place.offset, view)\n            if view",
        (REQUESTS, GRAPHS),
    ),
    Mutant(
        "S6 who takes over a block does not hear of its users",
        "memory/pool.py",
        "        waits = tuple(e for e in self._pending(buffer) if e.stream != stream)",
        "        waits = ()",
        (ORDERS, "tests/memory/test_pool_model.py"),
    ),
    Mutant(
        "S6 the stream is not told to wait",
        "asyncrt/runtime/loop/marks.py",
        "            self._streams[stream].wait_for([self._marks[e] for e in needed])\n",
        "            pass\n",
        (FAULTS, "tests/runtime/watch/test_checked.py"),
    ),
    Mutant(
        "a request that became late while it was prepared is launched",
        "scheduler/state.py",
        "                if self._late(request):\n                    self._expire(request, given)\n"
        "            case Launched",
        "            case Launched",
        ("tests/scheduler/test_state.py", "tests/scheduler/test_random_walks.py"),
    ),
    Mutant(
        "a request that became late on its way to the stream is launched",
        "asyncrt/runtime/request/inference.py",
        "            self.dispatcher.check_deadline(self.request)\n",
        "",
        ("tests/runtime/loop/test_deadlines.py",),
    ),
    Mutant(
        "S7 a view loses its strides",
        "asyncrt/runtime/plan/planner.py",
        "            self.places[v] = Location(place.base, place.offset + offset, view)\n"
        "            if view is not None:",
        "            self.places[v] = Location(place.base, place.offset + offset, None)\n            if False:",
        (GRAPHS, "tests/runtime/plan/test_views.py"),
    ),
    Mutant(
        "S8 a tensor is part of two others",
        "asyncrt/runtime/plan/planner.py",
        "                and tensor.whole is None\n",
        "",
        (GRAPHS, HAZARDS),
    ),
    Mutant(
        "S8 what the host has is written in place",
        "asyncrt/runtime/plan/planner.py",
        "                and tensor.array is None\n",
        "",
        ("tests/stress/test_found_by_mutants.py",),
    ),
    Mutant(
        "S9 planning repeats itself for every value",
        "memory/arena.py",
        "        for living in alive[step:end]:\n            living.append(place)",
        "        for living in alive[step:end]:\n            living.extend([place] * (len(living) + 1))",
        ("tests/memory/test_arena.py",),
    ),
    Mutant(
        "waits: the last event is left out",
        "asyncrt/events.py",
        "        return tuple(event for event in events if not self.reached(event))",
        "        return tuple(event for event in events if not self.reached(event))[:-1]",
        (ORDERS,),
    ),
    Mutant(
        "waits: of two events on a stream the older one counts",
        "asyncrt/events.py",
        "        if stamp > newest.get(stream, 0):",
        "        if stamp < newest.get(stream, 1 << 60):",
        ("tests/scheduler/test_events.py",),
    ),
    Mutant(
        "waits: the guard is the first user's alone",
        "memory/buffer.py",
        "        self._after = latest((*self._after, *after))\n",
        "        self._after = self._after or latest(after)\n",
        (ORDERS, "tests/memory/test_pool_model.py"),
    ),
    Mutant(
        "leases: memory is free when its commands are enqueued",
        "asyncrt/runtime/request/inference.py",
        "                lease.drop(after=self.events)\n",
        "                lease.drop()\n",
        ("tests/runtime/watch/test_checked.py", FAULTS),
    ),
    Mutant(
        "leases: a cancelled request's memory is free at once",
        "memory/buffer.py",
        "            self.buffer.busy_until = self._after\n",
        "            self.buffer.busy_until = ()\n",
        (ORDERS, "tests/memory/test_pool.py"),
    ),
    Mutant(
        "leases: a chunk that was enqueued in part is forgotten",
        "asyncrt/runtime/execute/enqueue.py",
        "                events.append(dispatcher.abandon(number, bound))\n",
        "                pass\n",
        (FAULTS,),
    ),
    Mutant(
        "leases: giving up without waiting frees the block",
        "memory/buffer.py",
        "        self._after = buffer.busy_until\n",
        "        self._after = ()\n",
        ("tests/memory/test_pool_model.py", ORDERS),
    ),
    Mutant(
        "branches: a lane does not wait for the last of those that it comes after",
        "asyncrt/runtime/execute/lanes.py",
        "[self._marks[s] for s in segments if s in self._marks]",
        "[self._marks[s] for s in segments if s in self._marks][:-1]",
        (BRANCHES, GRAPHS),
    ),
    Mutant(
        "branches: results are read before all lanes are over",
        "asyncrt/runtime/execute/lanes.py",
        "        self._wait(own, lanes.joins)\n",
        "",
        (BRANCHES,),
    ),
    Mutant(
        "branches: tensors share bytes as if there were one lane",
        "asyncrt/runtime/plan/parallel_lanes.py",
        "Lifetimes(self._steps, lambda a, b: not users[a] & ~after[b] or not users[b] & ~after[a])",
        "Lifetimes(self._steps)",
        (BRANCHES, GRAPHS),
    ),
    Mutant(
        "branches: who reads the whole of a tensor does not come after who writes its parts",
        "asyncrt/runtime/plan/parallel_lanes.py",
        "((own, False), (own, True), ",
        "((own, False), ",
        (BRANCHES, GRAPHS),
    ),
    Mutant(
        "branches: memory is free before all streams have passed",
        "asyncrt/runtime/execute/lanes.py",
        "                self._events.append(event)\n",
        "",
        (BRANCHES, FAULTS),
    ),
    Mutant(
        "branches: what fails on another stream than a request's own is not told",
        "asyncrt/runtime/loop/dispatcher.py",
        "                    waiting.failed = error\n",
        "                    pass\n",
        (BRANCHES,),
    ),
    Mutant(
        "branches: a request is over before all its streams have told so",
        "asyncrt/runtime/loop/dispatcher.py",
        "            while self.timeline.pending(waiting.beside):",
        "            while False:",
        (BRANCHES,),
    ),
    Mutant(
        "branches: a wait that is needed counts as implied",
        "scheduler/lanes.py",
        "if other != lane and step > behind[lane][other]:",
        "if other != lane and step > behind[lane][other] + 1:",
        ("tests/scheduler/test_lanes.py",),
    ),
    Mutant(
        "sizes: a class too small by one",
        "memory/pool.py",
        "    return -(-nbytes // step) * step\n",
        "    return nbytes // step * step\n",
        ("tests/memory/test_pool.py",),
    ),
    Mutant(
        "sizes: tensors of an arena are needed until the step before",
        "memory/arena.py",
        "bisect.bisect_right(starts, last)",
        "bisect.bisect_left(starts, last)",
        ("tests/memory/test_arena.py",),
    ),
    Mutant(
        "keys: a kernel on disk is of any driver",
        "kernels/resident/kernel_cache.py",
        '        return f"{self._version}|{self._device.info.identity}"',
        "        return self._version",
        ("tests/kernels/resident/test_kernel_cache.py",),
    ),
    Mutant(
        "keys: a kernel on disk is of any text",
        "kernels/resident/library.py",
        '    return f"{about}|kernel {kernel.name}|{_digest(kernel.text)}"',
        '    return f"{about}|kernel {kernel.name}"',
        ("tests/kernels/resident/test_kernel_cache.py",),
    ),
    Mutant(
        "keys: a constant packed otherwise is the same",
        "kernels/resident/weights.py",
        "            entry = self._entries.get(packing.key)\n            if entry is None:",
        "            entry = self._entries.get(packing.key) or self._entries.get(Stored(packing.key.value))\n"
        "            if entry is None:",
        ("tests/kernels/resident/test_weights.py",),
    ),
    Mutant(
        "keys: plans of other contents are used",
        "asyncrt/runtime/request/next_plan.py",
        "contents.append((array.shape, array.tobytes()))",
        "contents.append((array.shape, b\"\"))",
        (HAZARDS, GRAPHS),
    ),
    Mutant(
        "inputs: whatever comes fits once anything did",
        "asyncrt/runtime/request/inputs.py",
        "if kept or shapes != self._fitted:",
        "if kept or self._fitted is None:",
        ("tests/runtime/request/test_inputs.py",),
    ),
    Mutant(
        "chunks: the memory of one that ran at once is the next one's",
        "asyncrt/runtime/request/inference.py",
        "            self.leases.append(lease)\n            self.arenas[chunk.index] = lease.allocation\n",
        "            lease.drop()\n            self.arenas[chunk.index] = lease.allocation\n",
        ("tests/runtime/request/test_direct_chunks.py",),
    ),
    Mutant(
        "parts: one runs at once whatever is enqueued",
        "asyncrt/runtime/request/callers_thread/direct.py",
        "if not dispatcher.nothing_enqueued(request) or dispatcher.frugal(request)",
        "if dispatcher.frugal(request)",
        ("tests/runtime/request/test_iterations.py",),
    ),
    Mutant(
        "callbacks: what is reached before anybody watches is lost",
        "asyncrt/devices/simulated.py",
        "        if mark.reached:\n            callback(mark.error)\n        else:",
        "        if mark.reached:\n            pass\n        else:",
        ("tests/devices",),
    ),
    Mutant(
        "callbacks: of several that arrive together the first is told",
        "asyncrt/runtime/loop/completion.py",
        "        for event, error in arrived:\n",
        "        for event, error in arrived[:1]:\n",
        (FAULTS,),
    ),
    Mutant(
        "errors: a request fails for what another did",
        "asyncrt/runtime/loop/dispatcher.py",
        "            if waiting.hit and waiting.runs < RUNS:",
        "            if False:",
        (FAULTS,),
    ),
    Mutant(
        "errors: a failed command counts as passed",
        "asyncrt/runtime/loop/turns.py",
        "    if error is None:\n        future.set_result(answer)",
        "    if True:\n        future.set_result(answer)",
        (FAULTS,),
    ),
    Mutant(
        "errors: who waits is not told of a lost device",
        "asyncrt/runtime/loop/dispatcher.py",
        "                waiting.future.set_exception(self._loss())\n",
        "                pass\n",
        (FAULTS,),
    ),
    Mutant(
        "sharing: an output is the caller's input",
        "asyncrt/runtime/execute/transfers.py",
        "    return data.copy().view(fetch.layout.dtype.numpy).reshape(fetch.layout.shape)",
        "    return data.view(fetch.layout.dtype.numpy).reshape(fetch.layout.shape)",
        (REQUESTS,),
    ),
    Mutant(
        "sharing: an output is a constant",
        "asyncrt/runtime/execute/transfers.py",
        "        copy = fetch.array.copy()\n",
        "        copy = fetch.array\n",
        (REQUESTS,),
    ),
    Mutant(
        "sharing: small inputs of two requests travel in one array",
        "asyncrt/runtime/execute/transfers.py",
        "    staging = bytearray(plan.staging)\n",
        "    staging = _STAGING.setdefault(id(plan), bytearray(plan.staging))\n",
        (REQUESTS, HAZARDS),
    ),
    Mutant(
        "shapes: what loading assumes of a slice holds for every request",
        "kernels/ops/tensor/slice.py",
        "    return first, 2 * dim // (dim + 1)",
        "    return first, 1",
        ("tests/graph/test_symbolic.py",),
    ),
    Mutant(
        "memory: requests that all wait for memory wait for ever, or fail",
        "asyncrt/runtime/loop/shortage.py",
        "        alone = len(pending) == 1 and not now.ready\n",
        "        alone = True\n",
        ("tests/stress/faults/test_memory_is_short.py",),
    ),
    Mutant(
        "uploads: memory that a stream writes to is released",
        "kernels/resident/weights.py",
        "            if upload.passed:\n                self._release(upload)",
        "            if True:\n                self._release(upload)",
        (FAULTS, "tests/stress/faults/test_cancellation.py"),
    ),
)

#: What the mutant of that file needs beside its text.
_MORE = {"_STAGING": "\n_STAGING: dict = {}\n"}


def found_by(mutant: Mutant) -> str | None:
    """Return the test that finds *mutant*, or None; raises `ValueError` if its text does not stand there once."""
    with tempfile.TemporaryDirectory(prefix="asyncrt-mutant-") as folder:
        copy = Path(folder)
        ignore = shutil.ignore_patterns("__pycache__", ".venv", "*.egg-info")
        for name in ("asyncrt", "kernels", "memory", "scheduler", "tests"):
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / mutant.file
        source = path.read_text(encoding="utf-8")
        if source.count(mutant.text) != 1:
            raise ValueError(f"{mutant.name}: the text stands {source.count(mutant.text)} times in {mutant.file}")
        more = "".join(text for word, text in _MORE.items() if word in mutant.instead)
        path.write_text(source.replace(mutant.text, mutant.instead) + more, encoding="utf-8")
        found = os.pathsep.join([str(copy), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": found, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *mutant.tests]
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"it hangs for {TIMEOUT_S:g} s"
        if done.returncode == 0:
            return None
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else done.stdout[-300:] + done.stderr[-300:]


def run(mutants: Sequence[Mutant], console: Console) -> list[Mutant]:
    """Run each; returns those that nothing finds."""
    survivors: list[Mutant] = []
    table = Table("mutant", "found by", title=f"{len(mutants)} mutants")
    with Progress(console=console, transient=True) as progress:
        for mutant in progress.track(mutants, description="mutants"):
            found = found_by(mutant)
            table.add_row(mutant.name, "[bold red]nothing[/]" if found is None else found)
            if found is None:
                survivors.append(mutant)
    console.print(table)
    console.print(f"{len(mutants) - len(survivors)} of {len(mutants)} found")
    return survivors


def main() -> None:
    words = sys.argv[1:]
    chosen = [m for m in MUTANTS if not words or any(w in m.name for w in words)]
    sys.exit(bool(run(chosen, Console())))


if __name__ == "__main__":
    main()
