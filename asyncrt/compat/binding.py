"""What are inputs and outputs that a program binds beforehand? Arrays that are read when the session runs, and memory
that its results are copied to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .checks import of
from .devices import check_on_host
from .devices import device_type as kind_of_device
from .errors import Refused, WrongValue
from .types import number_of, tensor_type
from .values import OrtValue, OrtValueVector, at_address


class Session(Protocol):
    """What a binding needs to know of its session."""

    @property
    def input_names(self) -> frozenset[str]:
        """What a run may be given."""
        ...


class IOBinding:
    """Inputs and outputs of a session, bound to memory of the program's. Made by `InferenceSession.io_binding()`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._inputs: dict[str, Any] = {}
        #: None where a result gets memory of its own.
        self._outputs: dict[str, OrtValue | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        if not isinstance(arr_on_cpu, np.ndarray):
            raise Refused("Unable to create OrtValue from the given python object")
        self._inputs[self._known(name)] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        check_on_host(device_type)
        self._inputs[self._known(name)] = at_address(buffer_ptr, element_type, shape)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._inputs[self._known(name)] = of(OrtValue)(ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        if buffer_ptr is None:
            kind_of_device(device_type.lower())  # there is one; results come to the host, whichever it is
            self._outputs[name] = None
            return
        if element_type is None or shape is None:
            raise WrongValue("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        check_on_host(device_type)
        self._outputs[name] = OrtValue.of(at_address(buffer_ptr, element_type, shape))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._outputs[name] = of(OrtValue)(ortvalue)

    def synchronize_inputs(self) -> None:
        """Nothing has to be done for it: inputs are read when the session runs."""

    def synchronize_outputs(self) -> None:
        """Nothing has to be done for it: results are there when the session has run."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the results of the run before, in the order in which outputs were bound."""
        return list(self._results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        return OrtValueVector(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the results of the run before as `InferenceSession.run()` does, each in memory of its own."""
        values = [result.to_python() for result in self._results]
        return [value.copy() if isinstance(value, np.ndarray) else value for value in values]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results = []

    @property
    def _iobinding(self) -> IOBinding:
        return self

    # For the session.

    def feed(self) -> dict[str, Any]:
        """Return what is bound as inputs."""
        return dict(self._inputs)

    def wanted(self) -> list[str]:
        """Return the names of what is bound as outputs."""
        if not self._outputs:
            raise Refused("Error in execution: At least one output should be requested.")
        return list(self._outputs)

    def deliver(self, results: Sequence[Any], types: Sequence[str]) -> None:
        """Bring results to where they are bound to; all of them fit or none is written.

        Args:
            types: As ONNX Runtime writes them.
        """
        pairs = list(zip(self._outputs.items(), results, types, strict=True))
        for (name, target), result, _ in pairs:
            if target is not None:
                _check_target(name, target.numpy(), result)
        for (_, target), result, _ in pairs:
            if target is not None:
                np.copyto(target.numpy(), result)
        self._results = [OrtValue.of(result, type) if target is None else target for (_, target), result, type in pairs]

    def _known(self, name: str) -> str:
        if name not in self.session.input_names:
            raise Refused(f"Failed to find NodeArg with name: {name} in the def list")
        return name


def _check_target(name: str, target: np.ndarray[Any, Any], result: Any) -> None:
    if not isinstance(result, np.ndarray):
        raise Refused(f"Error in execution: output '{name}' is no tensor, and bound to one")
    if target.dtype != result.dtype:
        actual, expected = (tensor_type(number_of(array.dtype)) for array in (target, result))
        raise Refused(f"Error in execution: Unexpected output data type. Actual: ({actual}) , expected: ({expected})")
    if target.shape != result.shape:
        raise Refused(
            f"Error in execution: The output OrtValue provided for output '{name}' has shape {list(target.shape)}"
            f" but the computed output shape is {list(result.shape)}"
        )
