"""Run programs that `import onnxruntime` on asyncrt, unchanged.

python -m asyncrt.compat PROGRAM [ARGUMENTS]    # instead of: python PROGRAM [ARGUMENTS]

import asyncrt.compat

asyncrt.compat.install()                        # before the program imports onnxruntime
"""

from __future__ import annotations

from .finder import install, uninstall

__all__ = ["install", "uninstall"]
