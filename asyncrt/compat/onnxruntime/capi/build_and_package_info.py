"""What ONNX Runtime says of its build."""

from __future__ import annotations

from asyncrt.compat.environment import VERSION as __version__

package_name = "onnxruntime"

__all__ = ["__version__", "package_name"]
