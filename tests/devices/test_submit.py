"""The loop in C makes the calls that the loop in Python makes, and stops where that stops."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from asyncrt.devices import opencl_submit
from asyncrt.devices.opencl_submit import LAYOUT, Call, NativeSubmitter, PythonSubmitter, Submitter

_ENQUEUE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, *[ctypes.POINTER(ctypes.c_size_t)] * 3,
    ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip
_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
CALLS = [
    Call(0x10, (7,), None), Call(1 << 63, (1, 2, 3), (1, 2, 1)), Call(0x30, (4, 2**40), (4, 1)), Call(0x10, (7,), (7,)),
]  # fmt: skip


class Loader:
    """Functions of an OpenCL loader that note what they are called with, and refuse one call."""

    def __init__(self, refused: int = -1, status: int = -54) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._refused, self._status = refused, status
        self.enqueue, self.set_argument = _ENQUEUE(self._enqueue), _SET(self._set_argument)

    def _answer(self) -> int:
        return self._status if len(self.seen) == self._refused + 1 else 0

    def _enqueue(
        self, queue: int, kernel: int, axes: int, offset: Any, grid: Any, group: Any, waits: int, list: Any, event: Any
    ) -> int:
        assert (bool(offset), waits, list, event) == (False, 0, None, None)
        self.seen.append((queue, kernel, tuple(grid[:axes]), tuple(group[:axes]) if group else None))
        return self._answer()

    def _set_argument(self, kernel: int, index: int, nbytes: int, variable: int) -> int:
        value = ctypes.c_void_p.from_address(variable).value
        self.seen.append((kernel, index, nbytes, value))
        return self._answer()

    def submitters(self, submit: ModuleType) -> Sequence[Submitter]:
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
    answer = loader._answer

    def stopping() -> int:
        stop[0] = len(loader.seen) == 3
        return answer()

    loader._answer = stopping  # type: ignore[method-assign]
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


def test_an_extension_of_other_records_is_not_used(submit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was built before the tables were changed; what to do about it is said."""
    assert submit.LAYOUT == LAYOUT
    stale = ModuleType("asyncrt.devices._submit")
    stale.LAYOUT = "PN PN"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stale.__name__, stale)
    monkeypatch.setattr("asyncrt.devices._submit", stale, raising=False)
    opencl_submit.why_not_built.cache_clear()

    try:
        assert "another version; install" in opencl_submit.why_not_built()
        assert opencl_submit.native_submitter() is None
    finally:
        opencl_submit.why_not_built.cache_clear()


def test_without_the_extension_the_calls_are_made_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there was no compiler."""
    monkeypatch.setitem(sys.modules, "asyncrt.devices._submit", None)
    monkeypatch.delattr("asyncrt.devices._submit", raising=False)
    opencl_submit.why_not_built.cache_clear()

    try:
        assert "was not built; install" in opencl_submit.why_not_built()
        assert opencl_submit.native_submitter() is None
    finally:
        opencl_submit.why_not_built.cache_clear()
