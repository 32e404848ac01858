"""Whether bytes may be multiplied by an instruction that is named: tried before it is relied on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asyncrt.devices.opencl import dot_product as opencl_dot
from asyncrt.layout import Array


def right(text: str, name: str, given: Array) -> Array:
    """What the trial gives where the instruction means what it should."""
    result = given.copy()
    products = given[1].view(np.uint8).astype(np.int64) * given[2].view(np.int8).astype(np.int64)
    result[3] = (given[0] + products.reshape(16, 4).sum(axis=1)).astype(np.int32)
    return result


def signs_swapped(text: str, name: str, given: Array) -> Array:
    turned = given[[0, 2, 1, 3]]
    return right(text, name, turned)


def nothing(text: str, name: str, given: Array) -> Array:
    return given


def refused(text: str, name: str, given: Array) -> Array:
    raise RuntimeError("invalid output constraint")


@pytest.mark.parametrize(
    ("run", "verdict"), [(right, True), (signs_swapped, False), (nothing, False), (refused, False)]
)
def test_only_right_sums_are_trusted(run: opencl_dot.Trial, verdict: bool) -> None:
    """A driver that ignores what it does not know says nothing; its sums do."""
    assert opencl_dot.multiplies_bytes(run) is verdict


def test_the_trial_is_made_once_and_only_for_what_gains_by_it(tmp_path: Path) -> None:
    """Kernels of other operators do not wait for it."""
    path = tmp_path / "cpuinfo"
    path.write_text("flags : avx512f avx512_vnni")
    runs: list[str] = []

    def counted(text: str, name: str, given: Array) -> Array:
        runs.append(name)
        return right(text, name, given)

    dots = opencl_dot.Dots(counted, possible=True, path=path)
    told = [dots.options(text) for text in ("int x;", "#ifdef ASYNCRT_DOT", "#ifdef ASYNCRT_DOT")]
    elsewhere = opencl_dot.Dots(counted, possible=False, path=path).options("#ifdef ASYNCRT_DOT")

    assert told == [b"", b" -D ASYNCRT_DOT", b" -D ASYNCRT_DOT"]
    assert runs == ["asyncrt_dot"]
    assert elsewhere == b""


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("processor : 0\nflags : fpu avx512f avx512_vnni\nflags : fpu", True),
        ("flags : fpu avx512f avx_vnni", False),
        ("flags : avx512_vnnix avx512f", False),
        ("", False),
    ],
)
def test_a_processor_must_say_that_it_can(tmp_path: Path, text: str, verdict: bool) -> None:
    """On 512 bits; others would stop at the instruction."""
    path = tmp_path / "cpuinfo"
    path.write_text(text)

    assert opencl_dot.has_instruction(path) is verdict
    assert opencl_dot.has_instruction(tmp_path / "missing") is False
