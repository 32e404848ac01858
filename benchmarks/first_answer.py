"""How long does this process take to its first answer, from before the first import?

Run as a file, ``python first_answer.py asyncrt MODEL INPUTS.npz FOLDER [DEVICE]``, so that nothing is imported before
the clock starts. Prints JSON: the seconds, and how many kernels were built once all are there. With ``onnxruntime``
instead of ``asyncrt``, and no folder, the peer's seconds.
"""

import time

START = time.perf_counter()

import json  # noqa: E402
import sys  # noqa: E402


def with_asyncrt(model: str, inputs: str, folder: str, device: str = "") -> dict[str, float]:
    import asyncio

    import asyncrt

    async def first() -> dict[str, float]:
        from pathlib import Path

        async with asyncrt.Runtime(device or None, options=asyncrt.RuntimeOptions(cache_dir=Path(folder))) as rt:
            loaded = await rt.load(model)
            import numpy as np

            await loaded.infer(dict(np.load(inputs)))
            answer = time.perf_counter() - START
            await loaded.ready()
            return {"answer": answer, "built": float(rt.statistics().kernels_built)}

    return asyncio.run(first())


def with_onnxruntime(model: str, inputs: str) -> dict[str, float]:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, dict(np.load(inputs)))
    return {"answer": time.perf_counter() - START, "built": 0.0}


if __name__ == "__main__":
    who, *arguments = sys.argv[1:]
    print(json.dumps(with_asyncrt(*arguments) if who == "asyncrt" else with_onnxruntime(*arguments)))
