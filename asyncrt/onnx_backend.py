"""How does a program written against ONNX's backend interface, ONNX's own test suite included, use asyncrt?

    import asyncrt.onnx_backend as backend

    outputs = backend.prepare(model, device="CPU").run([x, y])

`device` is ONNX's "CPU", "CUDA" or "CUDA:1", meaning the best OpenCL CPU, the best GPU or the second one; or any name
that `Runtime` takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from asyncrt.arguments import check_text, each_of, shown
from asyncrt.devices.find import open_device
from asyncrt.errors import ArgumentError, InputError, ModelTypeError, NoDeviceError
from asyncrt.graph.reading.source import ModelSource
from asyncrt.layout import Array, dtype_of
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.explain.explain import Explanation
from asyncrt.sync import SyncModel, load_sync

_ONNX_NAMES = {"CPU": "cpu", "CUDA": "gpu"}


class AsyncrtBackendRep(BackendRep):  # type: ignore[misc]  # onnx has no types
    """A model on a device. Made by `prepare()`; the device is given back when it is closed or collected."""

    def __init__(self, model: SyncModel) -> None:
        self._model = model
        self._outputs = namedtupledict("Outputs", list(model.outputs))

    def run(self, inputs: Sequence[Any] | Mapping[str, Any], **kwargs: Any) -> tuple[Array, ...]:
        """Run the model once.

        Args:
            inputs: Arrays in the order of the model's inputs, or by name.
            kwargs: `priority`, as `Model.infer()` takes it.

        Returns:
            The outputs in the model's order, as a tuple that also takes an output's name as its index.
        """
        results = self._model.infer_sync(self._by_name(inputs), **kwargs)
        return self._outputs(*results.values())  # type: ignore[no-any-return]

    def explain(self) -> Explanation:
        """Return what became of every node in the last run, as `Model.explain()` does."""
        return self._model.explain()

    def close(self) -> None:
        """Give the device back."""
        self._model.close()

    def _by_name(self, inputs: Sequence[Any] | Mapping[str, Any]) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        names = list(self._model.inputs)
        if not isinstance(inputs, list | tuple) or len(inputs) != len(names):
            count = len(inputs) if isinstance(inputs, list | tuple) else f"a {type(inputs).__name__}"
            raise InputError(f"expected a list of {len(names)} arrays ({', '.join(names)}), got {count}")
        return dict(zip(names, inputs, strict=True))


class AsyncrtBackend(Backend):  # type: ignore[misc]  # onnx has no types
    """ONNX's backend interface."""

    @classmethod
    def prepare(
        cls,
        model: ModelSource,
        device: str = "CPU",
        *,
        streams: int | None = None,
        options: RuntimeOptions | None = None,
        **kwargs: Any,
    ) -> AsyncrtBackendRep:
        """Load a model.

        Raises:
            ModelError: It cannot be loaded; the error names the node.
            NoDeviceError: There is no such device.
        """
        return AsyncrtBackendRep(load_sync(model, _spec(device), streams=streams, options=options))

    @classmethod
    def run_model(cls, model: ModelSource, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Array, ...]:
        """Load a model, run it once, and give the device back."""
        prepared = cls.prepare(model, device, **kwargs)
        try:
            return prepared.run(inputs)
        finally:
            prepared.close()

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Run a single node.

        Args:
            inputs: Arrays for the node's inputs, those it leaves out not counted.
            outputs_info: Not needed: asyncrt finds the outputs' dtypes and shapes itself.
            kwargs: `opset_version`, if it is not the newest; others as `prepare()` takes them.
        """
        if not isinstance(node, onnx.NodeProto):
            raise ArgumentError(f"node must be an onnx.NodeProto, got {shown(node)}")
        opset = _opset(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        names = [name for name in node.input if name]
        given = list(itertools.islice(each_of("inputs", inputs), len(names) + 1))
        if len(names) != len(given):
            count = len(given) if len(given) <= len(names) else "more"
            raise InputError(f"{node.op_type} takes {len(names)} inputs ({', '.join(names)}), got {count}")
        arrays = {name: _array(name, value) for name, value in zip(names, given, strict=True)}
        helper = onnx.helper
        graph = helper.make_graph(
            [node],
            node.op_type,
            [helper.make_tensor_value_info(name, _number(name, a), a.shape) for name, a in arrays.items()],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        opsets = [helper.make_opsetid("", opset)]
        if node.domain not in ("", "ai.onnx"):
            opsets.append(helper.make_opsetid(node.domain, 1))
        return cls.run_model(helper.make_model(graph, opset_imports=opsets), arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether there is such a device and it works. Blocks while it is tried."""
        try:
            open_device(_spec(device)).close()
        except NoDeviceError:
            return False
        return True


def _spec(device: str) -> str:
    """Return asyncrt's name of one of ONNX's devices; asyncrt's own names stay."""
    kind, colon, index = check_text("device", device).partition(":")
    return _ONNX_NAMES.get(kind, kind) + colon + index


def _opset(version: Any) -> int:
    if not isinstance(version, int) or isinstance(version, bool) or not 0 < version < 1 << 31:
        raise ArgumentError(f"opset_version must be an integer from 1 on, got {shown(version)}")
    return version


def _array(name: str, value: Any) -> Array:
    try:
        array: Array = np.asarray(value)
    except Exception as error:  # an object's own way to be an array may raise anything
        raise InputError(f"input '{name}' is not an array: {error!r}") from error
    return array


def _number(name: str, array: Array) -> int:
    dtype = dtype_of(array.dtype)
    if dtype is None:
        raise ModelTypeError(f"input '{name}' has dtype {array.dtype}, which asyncrt lacks")
    return dtype.onnx


prepare = AsyncrtBackend.prepare
run_model = AsyncrtBackend.run_model
run_node = AsyncrtBackend.run_node
supports_device = AsyncrtBackend.supports_device
is_compatible = AsyncrtBackend.is_compatible
