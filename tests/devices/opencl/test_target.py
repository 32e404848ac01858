"""What compiled code depends on: the key under which it is kept has all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrt.devices.base import AVX512, Registers
from asyncrt.devices.opencl import target as opencl_target
from asyncrt.devices.opencl.device import OpenCLDevice
from asyncrt.devices.opencl.info import Probe
from asyncrt.devices.opencl.target import compiled_for, processor, registers_of, settings, steering, surroundings

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC
cpu MHz\t\t: 2596.096
flags\t\t: fpu sse4_2 avx2{more}
bogomips\t: 5192.24

"""


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(EPYC.format(more=""))
    return path


def test_processors_of_one_name_are_told_apart(cpuinfo: Path) -> None:
    """By what they have, and by their model; not by how fast they run just now, nor by how many there are."""
    old = processor(cpuinfo)
    cpuinfo.write_text(EPYC.format(more=" avx512f"))
    newer = processor(cpuinfo)
    cpuinfo.write_text(EPYC.format(more="").replace("model\t\t: 1", "model\t\t: 17"))
    another = processor(cpuinfo)
    cpuinfo.write_text(EPYC.format(more="").replace("2596.096", "3100.0") * 4)
    busy = processor(cpuinfo)

    assert len({tuple(old), tuple(newer), tuple(another)}) == 3
    assert old == busy


def test_cores_that_differ_all_count(cpuinfo: Path) -> None:
    """Code runs on any of them."""
    cpuinfo.write_text(EPYC.format(more="") + EPYC.format(more=" avx512f"))

    assert [
        said for said in processor(cpuinfo) if said.startswith("flags")
    ] == ["flags=fpu sse4_2 avx2", "flags=fpu sse4_2 avx2 avx512f"]


def test_processors_of_other_architectures_are_told_apart(cpuinfo: Path) -> None:
    """Arm's file has other words."""
    cpuinfo.write_text("processor : 0\nFeatures : fp asimd sve\nCPU part : 0xd0c\n\n")

    assert processor(cpuinfo) == ["CPU part=0xd0c", "Features=fp asimd sve"]


@pytest.mark.parametrize("text", [None, "", "nothing : that is known"])
def test_a_system_that_does_not_say_is_asked_otherwise(text: str | None, cpuinfo: Path) -> None:
    """NumPy knows what the processor has on every system."""
    if text is None:
        cpuinfo.unlink()
    else:
        cpuinfo.write_text(text)

    said = processor(cpuinfo)

    assert len(said) > 3
    assert said == processor(cpuinfo)


def test_what_steers_a_driver_counts() -> None:
    """Of the environment nothing else does: neither a number of threads nor a folder."""
    given = {
        "CL_CONFIG_CPU_TARGET_ARCH": "corei7", "POCL_WORK_GROUP_METHOD": "cbs", "IGC_ForceOCLSIMDWidth": "8",
        "CL_CONFIG_CPU_TBB_NUM_WORKERS": "3", "POCL_CACHE_DIR": "/tmp/x", "HOME": "/root",
        "OCL_ICD_VENDORS": "/tmp/y",
    }  # fmt: skip

    assert steering(given) == [
        "CL_CONFIG_CPU_TARGET_ARCH=corei7", "IGC_ForceOCLSIMDWidth=8", "POCL_WORK_GROUP_METHOD=cbs",
    ]  # fmt: skip


def test_the_settings_beside_intels_runtime_count(tmp_path: Path) -> None:
    """What is set there steers it as the environment does; its comments do not."""
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 08:01 17    {tmp_path / 'my lib'}/libintelocl.so.2026.22\n")
    (tmp_path / "my lib").mkdir()
    file = tmp_path / "my lib" / "cl.cfg"
    missing = settings(maps)
    file.write_text("# CL_CONFIG_CPU_TARGET_ARCH = corei7\n\n")
    commented = settings(maps)
    file.write_text("# a comment\n CL_CONFIG_CPU_TARGET_ARCH = corei7 \n")

    assert missing == commented == settings(tmp_path / "no maps") == ""
    assert settings(maps) == "CL_CONFIG_CPU_TARGET_ARCH = corei7"


@pytest.mark.parametrize("part", ["processor", "steering", "settings"])
def test_each_of_them_makes_another_key(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor counts for its own code alone: what a GPU runs is the same beside another one."""
    ask = surroundings.__wrapped__
    cpu, gpu = ask(is_cpu=True), ask(is_cpu=False)
    monkeypatch.setattr(opencl_target, part, lambda *given: ["another"])
    if part == "settings":
        monkeypatch.setattr(opencl_target, part, lambda: "another")

    assert cpu != ask(is_cpu=True)
    assert (gpu == ask(is_cpu=False)) is (part == "processor")


def test_an_opened_device_says_what_its_code_depends_on(device: OpenCLDevice) -> None:
    """Its name and driver, what surrounds them, and what the driver was seen to compile for."""
    _, binary = device.build([Probe()], None)
    identity = device.info.identity

    assert binary is not None
    assert device.info.name in identity
    assert surroundings(is_cpu=device.info.kind == "cpu") in identity
    assert identity.endswith(f"|{compiled_for(binary)}")


INTEL = b"\x7fELF\x02\x01" + bytes(10) + b"\x04\xff" + bytes(30) + b"\x06\x00\x00\x00" + bytes(12)


@pytest.mark.parametrize(
    ("program", "target"),
    [
        (INTEL, "6"),
        (INTEL[:51], ""),
        (INTEL.replace(b"\x04\xff", b"\x02\x00"), ""),  # an executable
        (b"poclbin" + bytes(100), ""),
        (b"//\n// Generated by NVIDIA NVVM Compiler\n" + bytes(100), ""),
        (b"", ""),
    ],
)
def test_intels_programs_say_what_they_are_for(program: bytes, target: str) -> None:
    """Others' do not, or not there."""
    assert compiled_for(program) == target


@pytest.mark.parametrize(
    ("target", "native", "machine", "expected"),
    [
        ("1", 16, "x86_64", Registers(4, 16)),
        ("3", 16, "x86_64", Registers(8, 16)),
        ("4", 16, "x86_64", AVX512),
        ("8", 16, "x86_64", AVX512),
        ("", 16, "x86_64", AVX512),
        ("", 8, "AMD64", Registers(8, 16)),
        ("", 4, "aarch64", Registers(4, 32)),
        ("", 4, "x86_64", Registers(4, 16)),
        ("", 1, "riscv64", Registers(4, 16)),
    ],
)
def test_registers_are_those_that_code_is_compiled_for(
    target: str, native: int, machine: str, expected: Registers
) -> None:
    """Intel's runtime may be told to compile for less than the processor has; others say what the processor has."""
    assert expected == registers_of(target, native, machine)
