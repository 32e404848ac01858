"""What holds for every test: the order of all commands is checked, unless a test or the environment says otherwise."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import zlib

import hypothesis
import numpy as np
import pytest

os.environ.setdefault("ASYNCRT_CHECK_HAZARDS", "1")
# Tests test kernels, not NumPy; those of the stand-in (`tests/runtime/request/test_stand_in.py`) take this back.
os.environ.setdefault("ASYNCRT_WITHOUT", "stand_in")

import asyncrt.devices.opencl.device  # noqa: F401  # before any test imports pyopencl, which then finds the drivers

from .native import arena as arena  # fixtures
from .native import boxes as boxes
from .native import formulas as formulas
from .native import launcher as launcher
from .native import rows as rows
from .native import steps as steps
from .native import submit as submit
from .ops.run import PROGRAMS, workbench
from .paths import either_path as either_path
from .paths import users_path as users_path
from .programs import shared_programs as shared_programs

# The same examples in each run, however busy the machine.
hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("suite")

# The first process of a run makes the folder; those that it starts inherit its name.
_made = None if PROGRAMS in os.environ else tempfile.mkdtemp(prefix="asyncrt-programs-")
os.environ.setdefault(PROGRAMS, _made or "")


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers in each run, whichever tests of its module ran before it in the same process."""
    for shared in vars(request.module).values():
        if isinstance(shared, np.random.Generator):
            begin = np.random.PCG64(zlib.crc32(request.node.nodeid.encode()))
            shared.bit_generator.state = begin.state


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of tests are objects that need not be gone through whenever a runtime rests and collects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """What is still to be imported looks at what is there; and the device of tests of operators is closed."""
    gc.unfreeze()
    if workbench.cache_info().currsize:
        workbench().close()


def pytest_unconfigure() -> None:
    """What the run's processes have built is removed by the one that made the folder."""
    if _made is not None:
        shutil.rmtree(_made, ignore_errors=True)
