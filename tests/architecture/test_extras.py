"""What `pip install asyncrt[cpu]` brings is all that a machine without any OpenCL driver needs."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from importlib.metadata import files, requires
from pathlib import Path

import pytest

from asyncrt.devices.opencl.drivers import _INTEL_NEEDS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="Intel's runtime is for x86-64 Linux"
)
def test_the_cpu_extra_brings_every_library_that_the_driver_loads() -> None:
    """Intel's driver does not ask for all it needs, so the extra must; another package's library is chance.

    The packages of the extra and what they require, installed as in any environment made by `make`, hold each library
    that `drivers.prepare()` loads.
    """
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cpu"]
    brought: set[str] = set()
    seen: set[str] = set()
    waiting = list(extra)
    while waiting:
        match = re.match(r"[\w.-]+", waiting.pop())
        assert match is not None
        if match[0] not in seen:
            seen.add(match[0])
            brought |= {path.name for path in files(match[0]) or ()}
            waiting += [r for r in requires(match[0]) or () if "extra ==" not in r]

    assert {"libintelocl.so", *_INTEL_NEEDS} - brought == set()
