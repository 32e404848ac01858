"""NumPy before 2.0 has no arrays of texts; all else runs there."""

from __future__ import annotations

import subprocess
import sys

from ..environment import ROOT, with_sources

PROGRAM = """
import numpy as np
del np.dtypes.StringDType
import onnx.parser
import asyncrt

ADDS = '<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = Add (x, x) }'
JOINS = '<ir_version: 8, opset_import: ["" : 20]> g (string[n] x) => (string[n] y) { y = StringConcat (x, x) }'
with asyncrt.load_sync(onnx.parser.parse_model(ADDS), "host") as model:
    print(model.infer_sync({"x": np.ones(3, np.float32)})["y"].tolist())
try:
    asyncrt.load_sync(onnx.parser.parse_model(JOINS), "host")
except asyncrt.ModelTypeError as error:
    print(error.message)
"""


def test_a_process_with_an_older_numpy_runs_models_of_numbers() -> None:
    """And refuses texts by their type."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=with_sources(), cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[2.0, 2.0, 2.0]", "input 'x' has dtype string, which asyncrt lacks"]
