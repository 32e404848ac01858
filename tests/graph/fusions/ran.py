"""How does a model with an input ``x`` and an output ``y`` run, and what became of its nodes?"""

from __future__ import annotations

import onnx

from asyncrt import Runtime, RuntimeOptions
from asyncrt.devices.base import DeviceInfo
from asyncrt.layout import Array
from asyncrt.runtime.explain.explain import Explanation

APART = frozenset({"fuse"})


async def ran(
    made: onnx.ModelProto, x: Array, without: frozenset[str] = frozenset()
) -> tuple[Array, Explanation, DeviceInfo]:
    """Return the result, what became of each node, and what the device is."""
    async with Runtime(options=RuntimeOptions(warm=False, without=without)) as rt:
        loaded = await rt.load(made)
        result = (await loaded.infer({"x": x}))["y"]
        return result, loaded.explain(), rt.info
