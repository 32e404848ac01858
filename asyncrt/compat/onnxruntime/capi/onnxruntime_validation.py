"""What ONNX Runtime says of its package."""

from __future__ import annotations

from asyncrt.compat.environment import VERSION


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Return the package's name, its version, and that of CUDA, which there is none of."""
    return "onnxruntime", VERSION, ""


def check_distro_info() -> None:
    """Nothing has to be done for it: asyncrt does not depend on the distribution."""
