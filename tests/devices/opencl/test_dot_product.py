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
    are_bytes = "vpdpbusd" in text or "vpmaddubsw" in text
    unsigned, signed = (np.uint8, np.int8) if are_bytes else (np.int16, np.int16)
    products = given[1].view(unsigned).astype(np.int64) * given[2].view(signed).astype(np.int64)
    result[3] = (given[0] + products.reshape(16, -1).sum(axis=1)).astype(np.int32)
    return result


def signs_swapped(text: str, name: str, given: Array) -> Array:
    turned = given[[0, 2, 1, 3]]
    return right(text, name, turned)


def second_half_left_out(text: str, name: str, given: Array) -> Array:
    result = right(text, name, given)
    result[3, 8:] = given[0, 8:]
    return result


def nothing(text: str, name: str, given: Array) -> Array:
    return given


def refused(text: str, name: str, given: Array) -> Array:
    raise RuntimeError("invalid output constraint")


BYTES = tuple(i for i in opencl_dot.INSTRUCTIONS if i.bytes)


@pytest.mark.parametrize("run", [second_half_left_out, nothing, refused])
@pytest.mark.parametrize("instruction", opencl_dot.INSTRUCTIONS, ids=lambda i: i.macro)
def test_only_right_sums_are_trusted(instruction: opencl_dot.Instruction, run: opencl_dot.Trial) -> None:
    """A driver that ignores what it does not know says nothing; its sums do."""
    assert opencl_dot.multiplies(instruction, right)
    assert not opencl_dot.multiplies(instruction, run)


@pytest.mark.parametrize("instruction", BYTES, ids=lambda i: i.macro)
def test_unsigned_bytes_are_told_from_signed_ones(instruction: opencl_dot.Instruction) -> None:
    """Which operand is which, compilers count from either end."""
    assert not opencl_dot.multiplies(instruction, signs_swapped)


def test_an_instruction_is_not_trusted_where_its_pairs_of_small_bytes_are_wrong() -> None:
    """The unsigned bytes are below 16 there, and signs may be told wrongly there alone."""
    small = [i for i in opencl_dot.INSTRUCTIONS if i.small]

    def swapped_there(text: str, name: str, given: Array) -> Array:
        return (signs_swapped if "vpmaddubsw" in text else right)(text, name, given)

    assert small
    assert [opencl_dot.multiplies(i, right) for i in small] == [True] * len(small)
    assert not any(opencl_dot.multiplies(i, swapped_there) for i in small)


def test_the_trial_is_made_once_and_only_for_what_gains_by_it(tmp_path: Path) -> None:
    """Kernels of other operators do not wait for it."""
    path = tmp_path / "cpuinfo"
    path.write_text("flags : avx512f avx512_vnni")
    runs: list[str] = []

    def counted(text: str, name: str, given: Array) -> Array:
        runs.append(name)
        return right(text, name, given)

    dots = opencl_dot.Dots(possible=True, path=path)
    told = [dots.options(text, counted) for text in ("int x;", opencl_dot.DOT, opencl_dot.DOT)]
    elsewhere = opencl_dot.Dots(possible=False, path=path).options(opencl_dot.DOT, counted)

    assert told == [b"", b" -D ASYNCRT_DOT_4X16", b" -D ASYNCRT_DOT_4X16"]
    assert runs == ["asyncrt_dot"]
    assert elsewhere == b""


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ("flags : fpu sse2 avx2 avx512f avx512bw avx512_vnni avx_vnni\nflags : fpu", b" -D ASYNCRT_DOT_4X16"),
        ("flags : fpu sse2 avx2 avx_vnni", b" -D ASYNCRT_DOT_4X8"),
        ("flags : sse2 avx2 avx512f avx512bw avx512_vnnix", b" -D ASYNCRT_DOT_2X16"),
        ("processor : 0\nflags : fpu sse2 avx2", b" -D ASYNCRT_DOT_2X8"),
        ("flags : sse2", b" -D ASYNCRT_DOT_2X4"),
        ("Features : asimd", b""),
        ("", b""),
    ],
)
def test_the_best_is_used_that_a_processor_says_it_has(tmp_path: Path, flags: str, best: bytes) -> None:
    """Others would stop at the instruction."""
    path = tmp_path / "cpuinfo"
    path.write_text(flags)

    assert opencl_dot.Dots(possible=True, path=path).options(opencl_dot.DOT, right) == best
    assert opencl_dot.Dots(possible=True, path=tmp_path / "missing").options(opencl_dot.DOT, right) == b""


def test_after_one_that_a_driver_has_not_comes_the_next(tmp_path: Path) -> None:
    """A driver may compile for less than the processor has."""
    path = tmp_path / "cpuinfo"
    path.write_text("flags : sse2 avx2 avx512f avx512bw avx512_vnni")

    def narrow(text: str, name: str, given: Array) -> Array:
        return refused(text, name, given) if "int16 trial_dot_step" in text else right(text, name, given)

    assert opencl_dot.Dots(possible=True, path=path).options(opencl_dot.DOT, narrow) == b" -D ASYNCRT_DOT_2X8"


def test_a_table_is_looked_up_at_once_only_where_a_trial_says_so(tmp_path: Path) -> None:
    """Every number comes from where its lowest four bits say, or the driver is not asked for it."""
    path = tmp_path / "cpuinfo"
    path.write_text("flags : avx512f")

    def looked_up(text: str, name: str, given: Array) -> Array:
        return np.concatenate([given[:3], given[1][given[0] & 15][None]])

    def options(run: opencl_dot.Trial, path: Path = path) -> bytes:
        return opencl_dot.Dots(possible=True, path=path).options(f"{opencl_dot.LOOKUP_WANTED} is in it", run)

    assert options(looked_up) == b" -D ASYNCRT_LOOKUP"
    assert options(nothing) == b""
    assert options(refused) == b""
    path.write_text("flags : avx2")
    assert options(looked_up) == b""
