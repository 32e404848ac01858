"""The C API of ONNX Runtime under the other name that programs import it by."""

from __future__ import annotations

from .onnxruntime_pybind11_state import *  # noqa: F403
