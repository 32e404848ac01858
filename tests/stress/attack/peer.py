"""Other opinions of a model: ONNX Runtime's and onnx.reference's, in a process that may die of what asyncrt refuses.

`Peer.ask` starts the process when it is first asked, and again when it has died or taken too long; then there is no
opinion.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np

from ...environment import ROOT, with_sources

Who: TypeAlias = Literal["ONNX Runtime", "reference"]
PATIENCE_S = 5.0


class Peer:
    """Asks a process what it makes of a model."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, who: Who, model: bytes, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return outputs by name; None if there is no opinion."""
        if self._process is None:
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=with_sources(),
                cwd=ROOT,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, (who, model, dict(inputs)))
            if select.select([process.stdout], [], [], PATIENCE_S)[0]:
                answer: dict[str, Any] | None = _receive(process.stdout)
                return answer
        except (OSError, EOFError):
            pass
        self.close()
        return None

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def _send(pipe: BinaryIO | Any, thing: object) -> None:
    data = pickle.dumps(thing)
    pipe.write(struct.pack("<q", len(data)) + data)
    pipe.flush()


def _receive(pipe: BinaryIO | Any) -> Any:
    size = pipe.read(8)
    if len(size) < 8:
        raise EOFError
    return pickle.loads(pipe.read(struct.unpack("<q", size)[0]))  # by a child of this process, and from nowhere else


def _onnx_runtime(model: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import onnx

    from ...second_opinion import onnxruntime_session

    session = onnxruntime_session(onnx.ModelProto.FromString(model))  # which is refused where it has no say
    taken = {i.name for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, {n: a for n, a in inputs.items() if n in taken}), strict=True))


def _reference(model: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(_in_order(onnx.ModelProto.FromString(model)))
    outputs = evaluator.run(None, dict(inputs))
    return dict(zip(evaluator.output_names, map(_as_callers_have, outputs), strict=True))


def _as_callers_have(value: Any) -> Any:
    return value if value is None or isinstance(value, list | dict) else np.asarray(value)


def _in_order(model: Any) -> Any:
    """Return *model* with each node of its graph after those whose outputs it takes, as far as that can be."""
    waiting = list(model.graph.node)
    made = {o for node in waiting for o in node.output}
    del model.graph.node[:]
    while waiting:
        ready = [node for node in waiting if made.isdisjoint(node.input)] or waiting[:1]
        model.graph.node.extend(ready)
        made.difference_update(o for node in ready for o in node.output)
        waiting = [node for node in waiting if all(node is not other for other in ready)]
    return model


def main() -> None:
    """Answer until nobody asks."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            who, model, inputs = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (_onnx_runtime if who == "ONNX Runtime" else _reference)(model, inputs)
        except Exception:  # it does not take the model, or these inputs
            answer = None
        _send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    main()
