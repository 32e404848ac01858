"""What a request and an answer are, whichever door they come through; and what their parameters mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from asyncrt.arguments import shown
from asyncrt.dims import Dim
from asyncrt.layout import Array, PartialLayout
from asyncrt.serve.errors import BadRequest

from .datatypes import name_of

SequenceId: TypeAlias = int | str

_MOST_PRIORITY = 1 << 30
_MOST_US = 10**15  # thirty years
_MOST_ID = 4096  # characters
NO_SEQUENCE: tuple[SequenceId, SequenceId] = (0, "")


@attrs.frozen
class Parameters:
    """What a request asks for beside its tensors.

    Attributes:
        timeout_s: Seconds within which an answer is of use, from its arrival.
        priority: 1 goes first; 0 is the model's default.
        sequence_id: Whose step it is; 0 and "" are nobody's.
        binary_outputs: Whether outputs that say nothing else are wanted as bytes.
    """

    timeout_s: float | None = None
    priority: int = 0
    sequence_id: SequenceId = 0
    sequence_start: bool = False
    sequence_end: bool = False
    binary_outputs: bool = False

    @property
    def in_sequence(self) -> bool:
        """Whether it is a step of a sequence."""
        return self.sequence_id not in NO_SEQUENCE

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Parameters:
        """Return what parameters say; those that are unknown say nothing.

        Raises:
            BadRequest: One of them has a value that it cannot have.
        """
        timeout = _whole(given, "timeout", _MOST_US)
        sequence = given.get("sequence_id", 0)
        if type(sequence) not in (int, str) or (isinstance(sequence, str) and len(sequence) > _MOST_ID):
            raise BadRequest(f"the parameter sequence_id must be an integer or a text, got {shown(sequence)}")
        found = cls(
            timeout_s=timeout / 1e6 if timeout else None,
            priority=_whole(given, "priority", _MOST_PRIORITY),
            sequence_id=sequence,
            sequence_start=_switch(given, "sequence_start"),
            sequence_end=_switch(given, "sequence_end"),
            binary_outputs=_switch(given, "binary_data_output"),
        )
        if (found.sequence_start or found.sequence_end) and not found.in_sequence:
            raise BadRequest("sequence_start and sequence_end need a sequence_id other than 0")
        return found


def _whole(given: Mapping[str, Any], name: str, most: int) -> int:
    value = given.get(name, 0)
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)  # as some clients write what JSON cannot hold
    if type(value) is not int or not 0 <= value <= most:
        raise BadRequest(f"the parameter {name} must be an integer from 0 to {most}, got {shown(value)}")
    found: int = value
    return found


def _switch(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"the parameter {name} must be true or false, got {shown(value)}")
    return value


@attrs.frozen
class InferRequest:
    """A request.

    Attributes:
        id: Its caller's name for it, which the answer has as well.
        inputs: Arrays by name.
        outputs: The outputs that are wanted, and whether as bytes (None: as the request says); no names are all.
    """

    inputs: dict[str, Array]
    outputs: dict[str, bool | None] = attrs.Factory(dict)
    id: str = ""
    parameters: Parameters = Parameters()

    def is_binary(self, output: str) -> bool:
        """Whether an output is wanted as bytes."""
        said = self.outputs.get(output)
        return self.parameters.binary_outputs if said is None else said


@attrs.frozen
class InferResponse:
    """The answer to a request."""

    model: str
    version: str
    id: str
    outputs: dict[str, Array]


def check_id(given: Any) -> str:
    """Return a request's own name for itself."""
    if not isinstance(given, str) or len(given) > _MOST_ID:
        raise BadRequest(f"id must be a text of up to {_MOST_ID} characters, got {shown(given)}")
    return given


def select(outputs: dict[str, Array], wanted: Mapping[str, bool | None]) -> dict[str, Array]:
    """Return those outputs that are wanted, in that order."""
    if not wanted:
        return outputs
    check_outputs(outputs, wanted)
    return {name: outputs[name] for name in wanted}


def check_outputs(there: Mapping[str, object], wanted: Mapping[str, bool | None]) -> None:
    """Raise unless the model has all outputs that are wanted."""
    unknown = [name for name in wanted if name not in there]
    if unknown:
        raise BadRequest(f"there is no output {shown(unknown[0])}; there are {', '.join(there)}")


@attrs.frozen
class TensorInfo:
    """An input or an output as the protocol describes it; -1 is a size that may vary."""

    name: str
    datatype: str
    shape: list[int]

    @classmethod
    def of(cls, name: str, layout: PartialLayout) -> TensorInfo:
        """Return what is known of a tensor; of an unknown rank there is one size."""
        dims = (None,) if layout.shape is None else layout.shape
        sizes = [-1 if d is None or isinstance(d, Dim) else int(d) for d in dims]
        return cls(name, "" if layout.dtype is None else name_of(layout.dtype), sizes)
