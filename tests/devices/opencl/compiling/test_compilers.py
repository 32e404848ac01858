"""Kernels that are compiled in processes beside this one: the same programs, and errors where a process crashes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.opencl.compiling import compilers as opencl_compilers
from asyncrt.devices.opencl.compiling import worker
from asyncrt.devices.opencl.compiling.compilers import Compilers, find_compilers
from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.devices.opencl.nvidia.own_instructions import MARK
from asyncrt.errors import KernelBuildError
from asyncrt.kernels.codegen.source import kernel
from asyncrt.layout import FLOAT32

from ....builders import model, node

#: What stands in for a process that compiles: it says that it is ready, reads a request, and then does something else.
STAND_IN = """
    import struct, sys
    answers = sys.stdout.buffer
    def send(kind, data):
        answers.write(struct.pack("<BQ", kind, len(data)) + data)
        answers.flush()
    send(0, b"")
    options, text = struct.unpack("<QQ", sys.stdin.buffer.read(16))
    sys.stdin.buffer.read(options + text)
"""


@pytest.fixture
def all_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the smallest program is compiled beside."""
    monkeypatch.setattr(opencl_compilers, "_MUCH", 0)


@pytest.fixture
def compilers(all_much: None) -> Iterator[Compilers]:
    compilers = Compilers("opencl:0:0", "a processor", 2)
    yield compilers
    compilers.close()


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script of the process, to be written."""
    script = tmp_path / "worker.py"
    monkeypatch.setattr(opencl_compilers, "_SCRIPT", script)
    return script


@pytest.fixture
def device(all_much: None, device: OpenCLDevice) -> OpenCLDevice:
    if device.compilers is None:
        pytest.skip("this driver compiles side by side in a process")
    return device


@pytest.mark.asyncio
async def test_programs_of_other_processes_are_those_of_this_one(
    all_much: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model gives the same bytes, and nothing is compiled here."""
    here: list[str] = []
    compile_ = OpenCLDevice.compile

    def noted(self: OpenCLDevice, text: str) -> object:
        here.append(text)
        return compile_(self, text)

    monkeypatch.setattr(OpenCLDevice, "compile", noted)
    nodes = [node("h = MatMul(x, w)"), node("s = Softmax(h)"), node("y = ReduceMean(s)")]
    w = np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32)
    source = model(nodes, ["x f32[n,24]"], ["y", "s"], {"w": w})
    given = {"x": np.random.default_rng(1).standard_normal((7, 24), np.float32)}
    found, compiled = [], []
    for beside in (True, False):
        async with Runtime(options=RuntimeOptions(without={"disk_cache"})) as rt:
            device = rt.device
            if not isinstance(device, OpenCLDevice) or device.compilers is None:
                pytest.skip("this driver compiles side by side in a process")
            if not beside:
                monkeypatch.setattr(device, "compilers", None)
            here.clear()
            found.append(await (await rt.load(source)).infer(given))
            compiled.append(len(here))

    assert compiled[0] == 0 < compiled[1]
    assert [found[0][name].tobytes() for name in ("y", "s")] == [found[1][name].tobytes() for name in ("y", "s")]


def test_what_a_driver_refuses_is_told_with_its_log(device: OpenCLDevice) -> None:
    """As where no other process was asked."""
    source = kernel("refused", (("x", FLOAT32, "rw"),), (), "x[0] = there_is_no_such_thing;")

    with pytest.raises(KernelBuildError, match="there_is_no_such_thing"):
        device.build([source], None)


def test_a_compiler_that_crashes_is_an_error(compilers: Compilers, stand_in: Path) -> None:
    """Of those who wait for the kernel; this process lives, and the next program gets another one."""
    stand_in.write_text(textwrap.dedent(STAND_IN) + "import os; os.abort()")
    with pytest.raises(KernelBuildError, match=r"compiler ended with -6"):
        compilers.compile(b"", "a text")

    stand_in.write_text(textwrap.dedent(STAND_IN) + "send(1, b'a binary')")

    assert compilers.compile(b"", "a text") == b"a binary"


def test_a_process_that_has_ended_is_replaced(compilers: Compilers, stand_in: Path) -> None:
    """It ends when there is nothing to do, as likely as not just before it is asked."""
    stand_in.write_text(textwrap.dedent(STAND_IN) + "send(1, text.to_bytes(1, 'big'))")

    found = [compilers.compile(b"-w", "a" * n) for n in (3, 4, 5)]

    assert found == [b"\3", b"\4", b"\5"]


@pytest.mark.parametrize("script", ["raise SystemExit(1)", "print('welcome to another program')"])
def test_where_no_process_starts_kernels_are_compiled_in_this_one(
    script: str, compilers: Compilers, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once that was seen, none is tried again."""
    monkeypatch.setattr(opencl_compilers, "_START_S", 5.0)
    stand_in.write_text(script)

    first = compilers.compile(b"", "a text")
    stand_in.write_text(textwrap.dedent(STAND_IN) + "send(1, b'a binary')")

    assert [first, compilers.compile(b"", "a text")] == [None, None]


def test_no_process_is_started_for_a_short_text(stand_in: Path) -> None:
    """It would take longer to start than the text to compile. One that is there already is used."""
    answers = "send(1, b'first'); sys.stdin.buffer.read(17); send(1, b'second')"
    stand_in.write_text(textwrap.dedent(STAND_IN) + answers)
    compilers = Compilers("opencl:0:0", "a processor", 2)

    found = [compilers.compile(b"", text) for text in ("a", "a" * (1 << 20), "a")]
    compilers.close()

    assert found == [None, b"first", b"second"]
    assert compilers.compile(b"", "a" * (1 << 20)) is None


def test_where_requests_go_first_a_process_is_started_sooner(stand_in: Path) -> None:
    """What is compiled in this one takes time that they need."""
    stand_in.write_text(textwrap.dedent(STAND_IN) + "import os; send(1, os.read(int(sys.argv[1]), 1))")
    found = []
    for gives_way in (False, True):
        compilers = Compilers("opencl:0:0", "a processor", 2)
        compilers.gives_way = gives_way
        found.append(compilers.compile(b"", "a" * (20 << 10)))
        compilers.close()

    assert found == [None, worker.GIVE_WAY]


def test_instructions_of_one_processor_are_compiled_in_this_process(
    device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process gave would be the program without them."""
    asked: list[str] = []
    monkeypatch.setattr(device.compilers, "compile", lambda options, text: asked.append(text))
    body = f'const char* of_one = "{MARK}"; x[0] = of_one[0];'
    sources = [kernel(f"marked{i}", (("x", FLOAT32, "rw"),), (), text) for i, text in enumerate((body, "x[0] = 1;"))]

    for source in sources:
        with contextlib.suppress(KernelBuildError):  # no driver of another processor takes them
            device.build([source], None)

    assert [sources[1].text in text for text in asked] == [True]


def test_other_drivers_compile_in_this_process() -> None:
    """They do so side by side, and others go on meanwhile, as far as is known."""
    assert find_compilers("Portable Computing Language", "cpu", "opencl:0:0", "") is None
    assert find_compilers("Intel(R) OpenCL", "gpu", "opencl:0:0", "") is None
    assert find_compilers("Intel(R) OpenCL", "cpu", "opencl:0:0", "") is not None
    assert find_compilers("NVIDIA CUDA", "gpu", "opencl:0:0", "") is not None


WAYS = """
import os, signal, sys, time
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import worker
def offers(expected):
    end = time.monotonic() + 30
    while (signal.getitimer(signal.ITIMER_REAL)[1] > 0) != expected and time.monotonic() < end:
        time.sleep(1e-3)
    return signal.getitimer(signal.ITIMER_REAL)[1] > 0
said, says = os.pipe()
told = worker.Offers(said)
with told:
    found = [offers(True)]
    signal.pause()  # until a handler was run, which ends nothing
    os.write(says, worker.GIVE_WAY + worker.HURRY)
    found.append(offers(False))
with told:
    found.append(offers(False))
    os.write(says, worker.HURRY + worker.GIVE_WAY)
    found.append(offers(True))
print(found, offers(False))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it takes Linux")
def test_a_process_gives_way_until_it_is_to_hurry() -> None:
    """It offers the processor again and again while the driver compiles; what was said last holds."""
    command = [sys.executable, "-c", WAYS, str(worker.__file__)]

    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert said == "[True, False, False, True] False"


def test_processes_hurry_while_somebody_waits(stand_in: Path, tmp_path: Path) -> None:
    """Those that compile, and those that start meanwhile."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    says = f"import os; open({str(begun)!r}, 'w').close(); said = int(sys.argv[1]); first = os.read(said, 1)"
    stand_in.write_text(textwrap.dedent(STAND_IN) + says + "; send(1, first + os.read(said, 1))")
    compilers = Compilers("opencl:0:0", "a processor", 2)
    compilers.gives_way = True
    with futures.ThreadPoolExecutor(1) as pool:
        compiled = pool.submit(compilers.compile, b"", "a" * (1 << 20))
        begun.open().close()  # returns when the process opens it, too
        compilers.hurry(True)
        first = compiled.result(30)
        second = pool.submit(compilers.compile, b"", "a" * (1 << 20))
        begun.open().close()
        compilers.hurry(False)

        assert first == worker.GIVE_WAY + worker.HURRY
        assert second.result(30) == worker.HURRY + worker.GIVE_WAY
    compilers.close()


@pytest.mark.skipif(sys.platform == "win32", reason="the system stops no process")
def test_what_compiles_rests_until_it_is_let_go_on(
    compilers: Compilers, stand_in: Path, tmp_path: Path
) -> None:
    """From its process's start on, where it rests then; it says nothing and answers nothing meanwhile."""
    began = tmp_path / "began"
    says = f"open({str(began)!r}, 'w').close(); send(1, b'done'); sys.stdin.buffer.read()"
    stand_in.write_text(textwrap.dedent(STAND_IN) + says)
    compilers.pause(True)
    with futures.ThreadPoolExecutor(1) as pool:
        build = pool.submit(compilers.compile, b"", "a text")
        assert not futures.wait([build], 0.3).done
        assert not began.exists()

        compilers.pause(False)

        assert build.result(30) == b"done"


@pytest.mark.skipif(sys.platform == "win32", reason="processes have no such limit there")
def test_a_process_that_has_many_files_open_compiles(compilers: Compilers, stand_in: Path) -> None:
    """More than the 1,024 that `select` knows: a server has one for each caller."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1100
    if hard != resource.RLIM_INFINITY and hard < 2 * wanted:
        pytest.skip("this process may not have so many")
    stand_in.write_text(textwrap.dedent(STAND_IN) + "send(1, b'done')")
    with contextlib.ExitStack() as undo:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * wanted), hard))
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(wanted):
            undo.callback(os.close, os.open(os.devnull, os.O_RDONLY))

        assert compilers.compile(b"", "a text") == b"done"


@pytest.mark.skipif(sys.platform != "linux", reason="it takes Linux")
def test_a_process_is_of_the_same_session_and_of_a_group_of_its_own(compilers: Compilers, stand_in: Path) -> None:
    """Linux shares cores out among sessions first, whatever gives way in one; signals of a terminal go to a group."""
    says = "import os; send(1, f'{os.getsid(0)} {os.getpgid(0) == os.getpid()}'.encode())"
    stand_in.write_text(textwrap.dedent(STAND_IN) + says)

    assert compilers.compile(b"", "a text") == f"{os.getsid(0)} True".encode()


@pytest.mark.asyncio
@pytest.mark.parametrize(("without", "gives_way"), [("", True), ("stand_in", False)])
async def test_builds_give_way_where_requests_need_not_wait_for_them(
    without: str, gives_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until somebody does; and the threads that ask for them do not: they hold what requests wait for."""
    monkeypatch.setenv("ASYNCRT_WITHOUT", without)
    priorities: list[int] = []
    hurried: list[bool] = []
    async with Runtime() as rt:
        device = rt.device
        if not isinstance(device, OpenCLDevice) or device.compilers is None:
            pytest.skip("this driver compiles side by side in a process")
        build = device.build

        def builds(*given: object) -> object:
            priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return build(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(device, "build", builds)
        monkeypatch.setattr(device.compilers, "hurry", hurried.append)
        loaded = await rt.load(model([node("y = Tanh(x)")], ["x f32[n]"], ["y"]))
        await loaded.ready()

        assert device.compilers.gives_way == gives_way
        assert hurried[:2] == [True, False] * gives_way
        assert priorities
        assert set(priorities) == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_a_device_that_closes_waits_for_no_compiler(stand_in: Path, tmp_path: Path) -> None:
    """Its processes end in the middle of their work, and whoever waits for a kernel is told."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    endless = f"open({str(begun)!r}, 'w').close(); import threading; threading.Event().wait()"
    stand_in.write_text(textwrap.dedent(STAND_IN) + endless)
    compilers = Compilers("opencl:0:0", "a processor", 2)
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(compilers.compile, b"", "a" * (1 << 20))
        begun.open().close()  # returns when the process opens it, too
        compilers.close()

        with pytest.raises(KernelBuildError, match="closed while a kernel was built"):
            waiting.result(30)
