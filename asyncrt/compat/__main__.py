"""Run a program with asyncrt in the place of ONNX Runtime: `python -m asyncrt.compat PROGRAM [ARGUMENTS]`."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from .finder import install


def main(arguments: Sequence[str]) -> None:
    """Run a program as Python does."""
    parser = argparse.ArgumentParser(
        prog="python -m asyncrt.compat",
        description="Run a program that imports onnxruntime on asyncrt.",
        usage="%(prog)s [--device DEVICE] (PROGRAM | -m MODULE) [ARGUMENTS ...]",
    )
    parser.add_argument("--device", help='what it runs on, such as "cpu", "gpu:1" or "host"; without, the best found')
    parser.add_argument("-m", dest="as_module", action="store_true", help="PROGRAM is the name of a module")
    parser.add_argument("program", help="the path of a script, or the name of a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given")
    given = parser.parse_args(arguments)
    install(given.device)
    sys.argv[:] = [given.program, *given.arguments]
    if given.as_module:
        runpy.run_module(given.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(given.program))
        runpy.run_path(given.program, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
