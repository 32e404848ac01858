"""Load a model, run several shapes of it at once, and see what became of each node.

Run it as `python examples/quickstart.py`, or with the path of a model of yours behind it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import onnx

import asyncrt

THREE_NODES = """<ir_version: 8, opset_import: ["" : 17]>
quickstart (float[rows, 4] x) => (float[4, rows] y) {
    positive = Relu (x)
    turned = Transpose <perm = [1, 0]> (positive)
    y = Softmax <axis = -1> (turned)
}"""


def make_inputs(model: asyncrt.Model, size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Ones for each input of the model, of that size along every dynamic dimension."""
    inputs = {}
    for name, (dtype, shape) in model.inputs.items():
        dims = [dim if isinstance(dim, int) else size for dim in shape or ()]
        inputs[name] = np.ones(dims, dtype.numpy if dtype else np.float32)
    return inputs


async def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else onnx.parser.parse_model(THREE_NODES)

    async with asyncrt.Runtime() as rt:
        model = await rt.load(source)
        requests = [make_inputs(model, size) for size in (2, 3, 5)]
        for outputs in await asyncio.gather(*(model.infer(request) for request in requests)):
            print(", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in outputs.items()))

        await model.infer(make_inputs(model, 1))  # with a single row, Transpose moves nothing and is skipped
        print(model.explain())


if __name__ == "__main__":
    asyncio.run(main())
