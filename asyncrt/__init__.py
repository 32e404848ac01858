"""Run ONNX models with dynamic shapes on any OpenCL device, from asyncio.

    async with asyncrt.Runtime() as rt:
        model = await rt.load("model.onnx")
        outputs = await model.infer({"x": x})
        print(model.explain())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrt.public import *  # noqa: F403
    from asyncrt.public import __all__ as __all__
    from asyncrt.version import __version__ as __version__
else:

    def __getattr__(name: str) -> object:
        """Return a public name, or a module that they need, and load all of them if that has not been done.

        So a command is soon where it can end as commands do, whatever interrupts it.
        """
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        public = import_module("asyncrt.public")
        found = {"__all__": public.__all__, **{each: getattr(public, each) for each in public.__all__}}
        globals().update(found)
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
