"""The loop in C makes the calls that the loop in Python makes, and stops where that stops."""

from __future__ import annotations

import ctypes
import struct
import sys
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from asyncrt.devices.base import Again, Move, Transfer
from asyncrt.devices.opencl import submit as opencl_submit
from asyncrt.devices.opencl.arguments import Handle, handle_of
from asyncrt.devices.opencl.submit import CALLS as CALLS_VERSION
from asyncrt.devices.opencl.submit import LAYOUT, Calls, DriverCall, NativeSubmitter, PythonSubmitter
from asyncrt.errors import DeviceCommandError

_ENQUEUE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, *[ctypes.POINTER(ctypes.c_size_t)] * 3,
    ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip
_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
CALLS = [
    DriverCall(0x10, (7,), None), DriverCall(1 << 63, (1, 2, 3), (1, 2, 1)),
    DriverCall(0x30, (4, 2**40), (4, 1)), DriverCall(0x10, (7,), (7,)),
]  # fmt: skip


class Loader:
    """Functions of an OpenCL loader that note what they are called with, and refuse one call."""

    def __init__(self, refused: int = -1, status: int = -54) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._refused, self._status = refused, status
        self.enqueue, self.set_argument = _ENQUEUE(self._enqueue), _SET(self._set_argument)

    def answer(self) -> int:
        return self._status if len(self.seen) == self._refused + 1 else 0

    def _enqueue(
        self, queue: int, kernel: int, axes: int, offset: Any, grid: Any, group: Any, waits: int, list: Any, event: Any
    ) -> int:
        assert (bool(offset), waits, list, event) == (False, 0, None, None)
        self.seen.append((queue, kernel, tuple(grid[:axes]), tuple(group[:axes]) if group else None))
        return self.answer()

    def _set_argument(self, kernel: int, index: int, nbytes: int, variable: int) -> int:
        value = ctypes.c_void_p.from_address(variable).value if variable else None
        self.seen.append((kernel, index, nbytes, value))
        return self.answer()

    def submitters(self, submit: ModuleType) -> tuple[PythonSubmitter, NativeSubmitter]:
        """Both loops."""
        addresses = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (self.set_argument, self.enqueue))
        return PythonSubmitter(self.set_argument, self.enqueue), NativeSubmitter(submit, *addresses)


@pytest.mark.parametrize("refused", [-1, 0, 2, 3])
def test_both_loops_make_the_same_calls(refused: int, submit: ModuleType) -> None:
    """Queues, kernels, sizes of every width; whichever call is refused is the last, and is said to be."""
    seen = []
    for which in (0, 1):
        loader = Loader(refused)
        calls = loader.submitters(submit)[which].calls(CALLS)

        answer = calls.submit(0x7F00_0000_1000)

        assert answer == ((4, 0) if refused < 0 else (refused, -54))
        seen.append(loader.seen)
    expected = [(0x7F00_0000_1000, *call) for call in CALLS]
    assert seen == [expected[: refused + 1 or None]] * 2


class Kernel(NamedTuple):
    """As the loop in C looks at one."""

    pointer: int
    function_name: str = "k"


class Memory(NamedTuple):
    """Likewise."""

    handle: Handle


def one_by_one() -> tuple[list[Any], list[Memory], list[tuple[Any, ...]]]:
    """Launches with buffers of both kinds, the memory that the numbers stand for, and the calls that they are."""
    constant, arena, state = (Memory(handle_of(pointer)) for pointer in (0xC0, 1 << 63, 0x50))
    launches = [
        (Kernel(0x10), (constant, 0, -1), b"\x01\0\0\0\x02\0\0\0", (7,), None, ()),
        (Kernel(1 << 63), (), b"\x03\0\0\0\0\0\0\0", (4, 2**40, 1), (4, 1, 1), (64, 8)),
    ]
    calls = [
        (0x10, 0, 8, 0xC0), (0x10, 1, 8, 1 << 63), (0x10, 2, 8, 0x50), (0x10, 3, 8, 0x2_0000_0001),
        (0xABC, 0x10, (7,), None),
        (1 << 63, 0, 8, 3), (1 << 63, 1, 64, None), (1 << 63, 2, 8, None),
        (0xABC, 1 << 63, (4, 2**40, 1), (4, 1, 1)),
    ]  # fmt: skip
    return launches, [arena, Memory(handle_of(0x99)), state], calls


def test_the_loop_in_c_sets_arguments_and_enqueues(submit: ModuleType) -> None:
    """Buffers, those that are numbers from either end, then the record, then local memory; launch after launch."""
    launches, memory, calls = one_by_one()
    loader = Loader()

    loader.submitters(submit)[1].launch(0xABC, launches, memory)

    assert calls == loader.seen


@pytest.mark.parametrize("refused", range(9))
def test_what_the_driver_refuses_of_a_launch_is_said(refused: int, submit: ModuleType) -> None:
    """Whatever it is, it is the last call."""
    launches, memory, calls = one_by_one()
    loader = Loader(refused)
    what = {4: r"refused kernel k over \(7,\)", 8: r"refused kernel k over \(4, 1099511627776, 1\)"}

    with pytest.raises(DeviceCommandError, match=what.get(refused, "refused setting an argument of k")) as caught:
        loader.submitters(submit)[1].launch(0xABC, launches, memory)

    assert "-54" in caught.value.detail
    assert calls[: refused + 1] == loader.seen


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({0: object()}, AttributeError), ({1: (7,)}, IndexError), ({1: (object(),)}, AttributeError),
        ({2: bytearray(8)}, TypeError), ({3: (1, 2, 3, 4)}, ValueError), ({3: (-1,)}, OverflowError),
        ({4: (1, 1)}, ValueError), ({5: ("8",)}, TypeError),
    ],
)  # fmt: skip
def test_what_is_no_launch_is_not_enqueued(
    change: dict[int, Any], error: type[Exception], submit: ModuleType
) -> None:
    """Nor what comes behind it; what was before it is."""
    launches, memory, calls = one_by_one()
    loader = Loader()
    broken = [change.get(place, part) for place, part in enumerate(launches[0])]

    with pytest.raises(error):
        loader.submitters(submit)[1].launch(0xABC, [launches[1], tuple(broken), launches[1]], memory)

    enqueued = [call for call in loader.seen if call[0] == 0xABC]
    assert enqueued == calls[-1:]


@pytest.mark.parametrize("refused", [-1, 0, 1])
def test_both_loops_set_the_same_arguments(refused: int, submit: ModuleType) -> None:
    """To what the variable holds then, which may be another object the next time."""
    places = [(0x10, 0), (1 << 63, 7)]
    variable = ctypes.c_void_p(0xABC0)
    seen = []
    for which in (0, 1):
        loader = Loader(refused)
        arguments = loader.submitters(submit)[which].arguments(places)

        answer = arguments.bind(ctypes.addressof(variable))

        assert answer == (0 if refused < 0 else -54)
        seen.append(loader.seen)
    expected = [(kernel, index, ctypes.sizeof(ctypes.c_void_p), 0xABC0) for kernel, index in places]
    assert seen == [expected[: refused + 1 or None]] * 2


def test_the_loop_in_c_stops_when_it_is_told_to(submit: ModuleType) -> None:
    """From another thread, as a rule; here from the driver's third call, which is the last."""
    stop, loader = bytearray(1), Loader()
    answer = loader.answer

    def stopping() -> int:
        stop[0] = len(loader.seen) == 3
        return answer()

    loader.answer = stopping  # type: ignore[method-assign]
    calls = loader.submitters(submit)[1].calls(CALLS)

    first = calls.submit(1, stop)
    loader.seen.clear()
    never = calls.submit(1, stop)
    again = calls.submit(1, bytearray(1))

    assert (first, never, again) == ((3, 0), (0, 0), (4, 0))
    assert len(loader.seen) == 4


def test_a_table_of_other_records_is_refused(submit: ModuleType) -> None:
    """The driver would be called with whatever lies there."""
    loader = Loader()
    enqueue = ctypes.cast(loader.enqueue, ctypes.c_void_p).value
    size = struct.calcsize("@" + LAYOUT.split()[0])

    with pytest.raises(ValueError, match=f"records of {size} bytes"):
        submit.submit(enqueue, 1, b"\0" * (size + 8), None)

    assert loader.seen == []


@pytest.mark.parametrize(("layout", "calls"), [("PN PN", CALLS_VERSION), (LAYOUT, CALLS_VERSION - 1), (LAYOUT, None)])
def test_an_extension_of_another_version_is_not_used(
    layout: str, calls: int | None, submit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was built before the tables or the functions were changed; what to do about it is said."""
    assert (submit.LAYOUT, submit.CALLS) == (LAYOUT, CALLS_VERSION)
    stale = ModuleType("asyncrt.devices.opencl._submit")
    stale.LAYOUT = layout  # type: ignore[attr-defined]
    if calls is not None:
        stale.CALLS = calls  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stale.__name__, stale)
    monkeypatch.setattr("asyncrt.devices.opencl._submit", stale, raising=False)
    opencl_submit.why_not_built.cache_clear()

    try:
        assert "another version; install" in opencl_submit.why_not_built()
        assert opencl_submit.native_submitter() is None
    finally:
        opencl_submit.why_not_built.cache_clear()


def test_without_the_extension_the_calls_are_made_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there was no compiler."""
    monkeypatch.setitem(sys.modules, "asyncrt.devices.opencl._submit", None)
    monkeypatch.delattr("asyncrt.devices.opencl._submit", raising=False)
    opencl_submit.why_not_built.cache_clear()

    try:
        assert "was not built; install" in opencl_submit.why_not_built()
        assert opencl_submit.native_submitter() is None
    finally:
        opencl_submit.why_not_built.cache_clear()

_COPY = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, *[ctypes.POINTER(ctypes.c_size_t)] * 3,
    *[ctypes.c_size_t] * 4, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip
_FINISH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Copier(Loader):
    """One that copies, too: what is read is the number of the call, in each byte."""

    def __init__(self, refused: int = -1) -> None:
        super().__init__(refused)
        self.write, self.read = _COPY(self._write), _COPY(self._read)
        self.finish, self.flush = _FINISH(self._finish), _FINISH(self._flush)

    def _copy(self, what: str, buffer: int, blocking: int, origin: Any, region: Any) -> int:
        assert (origin[1], origin[2], region[1], region[2]) == (0, 0, 1, 1)
        self.seen.append((what, buffer, origin[0], region[0], bool(blocking)))
        return self.answer()

    def _write(self, queue: int, buffer: int, blocking: int, at: Any, host_at: Any, region: Any, *rest: Any) -> int:
        self.written = ctypes.string_at(rest[4], region[0])
        return self._copy("write", buffer, blocking, at, region)

    def _read(self, queue: int, buffer: int, blocking: int, at: Any, host_at: Any, region: Any, *rest: Any) -> int:
        ctypes.memset(rest[4], len(self.seen), region[0])
        return self._copy("read", buffer, blocking, at, region)

    def _finish(self, queue: int) -> int:
        self.seen.append(("finish",))
        return 0

    def _flush(self, queue: int) -> int:
        self.seen.append(("flush",))
        return 0

    def calls(self, submit: ModuleType) -> Calls:
        """Launches that can be run."""
        functions = (self.set_argument, self.enqueue, self.write, self.read, self.finish, self.flush)
        addresses = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions)
        return NativeSubmitter(submit, *addresses).calls(CALLS[:2])


@pytest.mark.parametrize("refused", [-1, 0, 1, 2, 3, 4, 5])
def test_launches_are_run_to_their_end_between_copies(refused: int, submit: ModuleType) -> None:
    """The last copy is waited for; if a command is refused, those before it are, because their memory is another's."""
    arena, constant = Memory(handle_of(0xA0)), Memory(handle_of(1 << 63))
    one, two = np.zeros(3, np.uint8), np.zeros((2, 2), np.float32)
    source = np.arange(4, dtype=np.int16)
    copier = Copier(refused)
    writes = (Transfer(arena, 64, source), Transfer(arena, 0, np.array(7)))

    answer = copier.calls(submit).run(0xABC, writes, (Transfer(constant, 8, one), Transfer(arena, 128, two)))

    calls = [
        ("write", 0xA0, 64, 8, False), ("write", 0xA0, 0, 8, False), *((0xABC, *call) for call in CALLS[:2]),
        ("read", 1 << 63, 8, 3, False), ("read", 0xA0, 128, 16, True),
    ]  # fmt: skip
    if refused < 0:
        assert (answer, copier.seen) == ((6, 0), calls)
        assert one.tolist() == [4, 4, 4]
        assert two.tobytes() == bytes([5] * 16)
    else:
        assert (answer, copier.seen) == ((refused, -54), [*calls[: refused + 1], ("finish",)])


@pytest.mark.parametrize("refused", [-1, 1])
def test_launches_are_begun_and_ended_by_two_calls(refused: int, submit: ModuleType) -> None:
    """The first waits for nothing but where a command is refused; the second copies what comes back, and waits."""
    arena, result = Memory(handle_of(0xA0)), np.zeros(3, np.uint8)
    copier = Copier(refused)
    calls = copier.calls(submit)
    begun = [("write", 0xA0, 64, 8, False), *((0xABC, *call) for call in CALLS[:2])]

    first = calls.run(0xABC, (Transfer(arena, 64, np.array(7)),), (), waits=False)

    if refused >= 0:
        assert (first, copier.seen) == ((1, -54), [*begun[:2], ("finish",)])
        return
    assert (first, copier.seen) == ((3, 0), [*begun, ("flush",)])
    assert calls.run(0xABC, (), (Transfer(arena, 8, result),), launches=False) == (1, 0)
    assert copier.seen[4:] == [("read", 0xA0, 8, 3, True)]


@pytest.mark.parametrize("stopped", [False, True])
def test_what_is_told_to_stop_launches_no_more_and_reads_nothing(stopped: bool, submit: ModuleType) -> None:
    """What was enqueued by then is waited for, because its memory is another's afterwards."""
    arena, result, stop = Memory(handle_of(0xA0)), np.zeros(3, np.uint8), bytearray(1)

    class Stopping(Copier):
        def answer(self) -> int:
            stop[0] = stopped and len(self.seen) == 2
            return super().answer()

    copier = Stopping()
    begun = [("write", 0xA0, 64, 8, False), *((0xABC, *call) for call in CALLS[:2])]

    answer = copier.calls(submit).run(
        0xABC, (Transfer(arena, 64, np.array(7)),), (Transfer(arena, 8, result),), stop=stop
    )

    if stopped:
        assert (answer, copier.seen) == ((2, 0), [*begun[:2], ("finish",)])
        assert not result.any()
    else:
        assert (answer, copier.seen) == ((4, 0), [*begun, ("read", 0xA0, 8, 3, True)])


def test_launches_without_results_are_waited_for(submit: ModuleType) -> None:
    """By the queue, as there is no copy."""
    copier = Copier()

    assert copier.calls(submit).run(0xABC, (), ()) == (2, 0)
    assert copier.seen[-1] == ("finish",)


@pytest.mark.parametrize("host", [np.zeros((4, 4))[:, ::2], object()])
def test_what_has_no_bytes_side_by_side_is_not_copied(host: Any, submit: ModuleType) -> None:
    """Nothing is called then."""
    copier, arena = Copier(), Memory(handle_of(0xA0))

    for writes, reads in (((Transfer(arena, 0, host),), ()), ((), (Transfer(arena, 0, host),))):
        with pytest.raises((ValueError, TypeError, BufferError)):
            copier.calls(submit).run(0xABC, writes, reads)
    assert copier.seen == []


@pytest.mark.parametrize(
    ("most", "ends", "answer"),
    [
        (1, "", (1, 4, 0)), (3, "", (3, 4, 0)), (9, "going", (2, 4, 0)), (9, "findings", (2, 4, 0)),
        (9, "refused", (1, 3, -54)),
    ],
)  # fmt: skip
def test_launches_are_repeated_with_what_was_moved_meanwhile(
    most: int, ends: str, answer: tuple[int, int, int], submit: ModuleType
) -> None:
    """What was read goes up the next time, and is collected; it ends when a byte says so, or the driver."""
    copier = Copier(7 if ends == "refused" else -1)  # the second time's copy back
    arena, given, made = Memory(handle_of(0xA0)), np.full(2, 99, np.uint8), np.zeros(2, np.uint8)
    numbers, collected = np.arange(1, 10, dtype=np.uint8), np.zeros((9, 2), np.uint8)
    moves = (
        Move(made, 0, 0, given, 0, 0, 1), Move(numbers, 0, 1, given, 1, 0, 1), Move(made, 0, 0, collected, 0, 2, 2),
    )  # fmt: skip
    byte, written = np.ones(1, np.uint8), list[list[int]]()
    answers = copier.answer

    def answering() -> int:
        if copier.seen[-1][0] == "write":
            written.append(list(copier.written))
            at = len(written) == 2
            byte[0] = not at if ends == "going" else at
        return answers()

    copier.answer = answering  # type: ignore[method-assign]
    going, findings = byte if ends == "going" else b"", byte if ends == "findings" else b""
    writes, reads = (Transfer(arena, 0, given),), (Transfer(arena, 0, made),)

    assert copier.calls(submit).repeat(0xABC, writes, reads, Again(moves, most, going, findings)) == answer

    times = answer[0]
    assert written == [[99, 99], *([4 * t - 1, t] for t in range(1, times + (ends == "refused")))]
    assert collected[:times].tolist() == [[4 * t + 3] * 2 for t in range(times)]


@pytest.mark.parametrize(
    "move", [(0, 0, 1, 0), (-1, 0, 0, 0), (0, 0, 0, -1), (0, 3, 0, 0), (0, 0, 0, 9), (2**62, 2**62, 0, 0)]
)
def test_what_would_be_moved_beyond_its_memory_is_refused(move: tuple[int, ...], submit: ModuleType) -> None:
    """Nothing is called then."""
    copier, at, step = Copier(), move[:2], move[2:]
    buffers = np.zeros(8, np.uint8), np.zeros(8, np.uint8)

    again = Again((Move(buffers[0], *at, buffers[1], *step, 8 if move[2] else 2),), 4, b"", b"")
    with pytest.raises(ValueError, match="leaves its memory"):
        copier.calls(submit).repeat(0xABC, (), (), again)
    assert copier.seen == []
