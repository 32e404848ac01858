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
        """Return a public name, and import what it needs if that has not been done; the list of names needs nothing.

        So a command is soon where it can end as commands do, whatever interrupts it.
        """
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        public = import_module("asyncrt.public")
        if name == "__all__":
            return public.__all__
        if name not in public.__all__:
            return _module(name)
        globals()[name] = found = getattr(public, name)
        return found

    def _module(name: str) -> object:
        """Return a module of the package, such as `asyncrt.errors`."""
        from importlib import import_module

        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
