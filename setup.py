"""Build what is in C; everything else is in pyproject.toml, which has no stable table for extensions.

An installation without a compiler works: the same calls are made from Python then.
"""

from __future__ import annotations

import sys
import sysconfig

from setuptools import Extension, setup

EXTENSIONS = [
    Extension(
        name.replace("/", "."),
        [f"{name}.c"],
        depends=["asyncrt/devices/opencl/_work.h"],  # so it is in the archive of sources, too
        extra_compile_args=[] if sys.platform == "win32" else ["-ffp-contract=off"],  # bits as NumPy's
        define_macros=[("Py_LIMITED_API", "0x030B0000")],  # 3.11: the first in which buffers are part of it
        py_limited_api=True,
        optional=True,
    )
    for name in (
        *("asyncrt/devices/opencl/_submit", "asyncrt/devices/opencl/_launcher", "asyncrt/devices/opencl/_programs"),
        *("asyncrt/runtime/plan/_formulas", "asyncrt/runtime/plan/_steps", "asyncrt/memory/_arena"),
        *("asyncrt/runtime/execute/_rows", "asyncrt/kernels/ops/image/_boxes"),
    )
]

if sysconfig.get_config_var("Py_GIL_DISABLED"):  # such an interpreter has no limited API
    setup()
else:
    setup(ext_modules=EXTENSIONS, options={"bdist_wheel": {"py_limited_api": "cp311"}})
