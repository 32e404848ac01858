"""Every error asyncrt raises: one class for each situation a caller may want to treat differently.

    AsyncrtError
    ├── ModelError (ValueError)               the model cannot be loaded
    │   ├── ModelFormatError                  not an ONNX file, truncated, or inconsistent
    │   ├── UnsupportedOperatorError          an operator, version or attribute we do not have
    │   ├── ModelTypeError                    a dtype that the operator does not take
    │   └── ModelLimitError                   larger, or of more nodes or a higher rank, than the options allow
    ├── ArgumentError (ValueError, TypeError) an argument or an option that there cannot be
    ├── InputError (ValueError)               the caller's inputs do not fit the model
    ├── ShapeError (ValueError)               shapes or values of this inference do not fit a node
    │   ├── IndexOutOfRange (IndexError)      an index points where a node's data has no element
    │   ├── SizeLimitError                    a tensor has more elements than kernels index
    │   └── IterationLimitError               its loops go round more often than the options allow
    ├── SequenceError (ValueError)            a model's state cannot be kept so, or the sequence is closed
    ├── BatchingError (ValueError)            a model's requests cannot be batched so, or it is closed
    ├── PrecisionError (ValueError)           an option names a precision that there is not
    ├── Overloaded (RuntimeError)             too many requests wait, or the answer would be late
    ├── DeadlineExceeded (TimeoutError)       there is no answer within the request's deadline
    ├── DeviceError (RuntimeError)            something about a device
    │   ├── NoDeviceError                     none found, or none that is usable
    │   ├── KernelBuildError                  the driver refused a kernel, or hangs
    │   ├── OutOfDeviceMemory (MemoryError)   the limit or the device is full
    │   ├── DeviceCommandError                a command failed while it ran
    │   └── DeviceLostError                   the device takes no commands any more
    ├── OutOfHostMemory (MemoryError)         the host's arrays of a request would exceed the limit
    ├── NotOnHostError (BufferError, TypeError) a tensor on a device was used as if the host had it
    ├── HazardError (RuntimeError)            two commands on the same bytes are in no order: a bug, and found
    ├── InternalError (RuntimeError)          something of asyncrt itself raised what it should not: a bug
    ├── WrongLoopError (RuntimeError)         used on another event loop, or in another process, than it was opened in
    └── RuntimeClosedError (RuntimeError)     used after `close()`

A message says what was expected, what came and where. `detail` and `hint` are attributes as well as lines of the
message, so that programs need not parse prose.
"""

from __future__ import annotations

from typing import Any


class AsyncrtError(Exception):
    """Base of all errors of this package.

    Attributes:
        detail: Facts beyond the first line, or an empty string.
        hint: What to do about it, or an empty string.
    """

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        self.message, self.detail, self.hint = message, detail, hint
        lines = [message]
        if detail:
            lines += ["  " + line for line in detail.splitlines()]
        if hint:
            lines.append("  hint  " + hint)
        super().__init__("\n".join(lines))

    def __reduce__(self) -> Any:
        """Pickle what it is rather than how it was made, which takes other arguments in some classes."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[AsyncrtError], args: tuple[Any, ...], state: dict[str, Any]) -> AsyncrtError:
    builtin: type[BaseException] = kind
    while builtin.__module__ != "builtins":  # whose memory it has: of several bases not always the first one's
        assert builtin.__base__ is not None
        builtin = builtin.__base__
    error: AsyncrtError = builtin.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ModelError(AsyncrtError, ValueError):
    """The model cannot be loaded."""


class ModelFormatError(ModelError):
    """The model is not an ONNX file, is truncated, or contradicts itself."""


class UnsupportedOperatorError(ModelError):
    """The model uses an operator, an operator version or an attribute that asyncrt does not have."""


class ModelTypeError(ModelError):
    """A node gets a dtype that its operator does not take."""


class ModelLimitError(ModelError):
    """The model is larger, or has more nodes or tensors of higher rank, than `RuntimeOptions` allows."""


class ArgumentError(AsyncrtError, ValueError, TypeError):
    """An argument or an option is not of the kind, or not in the range, that it has to be; nothing has happened yet."""


class InputError(AsyncrtError, ValueError):
    """The inputs of a request do not fit the model's inputs."""


class ShapeError(AsyncrtError, ValueError):
    """The shapes or values of this inference do not fit a node."""


class IndexOutOfRange(ShapeError, IndexError):
    """An index points where a node's data has no element.

    Attributes:
        node: The node's name.
        input: Which of the node's inputs holds the index.
        position: Which element of that it is, counted row by row. If there are several, any of them.
        index: What it is.
        least, most: What it may be; `most` is None where there is no limit.
    """

    def __init__(self, node: str, input: int, position: int, index: float, least: int, most: int | None) -> None:
        self.node, self.input, self.position, self.index = node, input, position, index
        self.least, self.most = least, most
        limits = f"it must be at least {least}" if most is None else f"it must be from {least} to {most}"
        if most is not None and most < least:
            limits = "there is nothing to point at"
        super().__init__(
            f"'{node}': index {index} is out of range: {limits}",
            detail=f"element {position} of its input {input}",
        )

    def at(self, node: str) -> IndexOutOfRange:
        """Return the same error of that node."""
        return IndexOutOfRange(node, self.input, self.position, self.index, self.least, self.most)


class SizeLimitError(ShapeError):
    """A tensor of this inference has more elements than kernels index, or its elements lie further apart."""


class IterationLimitError(ShapeError):
    """The `Loop` and `Scan` nodes of a request together go round more often than `RuntimeOptions` allows."""


class SequenceError(AsyncrtError, ValueError):
    """A model's state cannot be kept as asked for, or the sequence is closed."""


class BatchingError(AsyncrtError, ValueError):
    """A model's requests cannot be batched as asked for, or the batching is closed."""


class PrecisionError(AsyncrtError, ValueError):
    """An option names a precision that asyncrt does not have."""


class Overloaded(AsyncrtError, RuntimeError):
    """A request was refused at once, because too many wait or its answer would come after its deadline.

    Attributes:
        retry_after_s: Seconds after which to try again may be of use.
    """

    def __init__(self, message: str, *, detail: str = "", hint: str = "", retry_after_s: float) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(AsyncrtError, TimeoutError):
    """The deadline of a request passed before there was an answer, or before its next part was launched."""


class DeviceError(AsyncrtError, RuntimeError):
    """A device cannot do what was asked of it."""


class NoDeviceError(DeviceError):
    """No device was found, or none that can be used."""


class KernelBuildError(DeviceError):
    """The driver refused to build a kernel, or did not come back in time."""


class OutOfDeviceMemory(DeviceError, MemoryError):
    """The memory limit, or the device itself, is full."""


class DeviceCommandError(DeviceError):
    """A command failed while it ran on the device."""


class DeviceStalledError(DeviceError):
    """Work-groups of one launch waited in vain for each other. What the request gave counts for nothing; later ones are
    launched step by step."""


class DeviceLostError(DeviceError):
    """The device takes no commands any more, and those that it has will not end."""


class OutOfHostMemory(AsyncrtError, MemoryError):
    """A request would make more on the host than its limit. Raised before it is allocated, by size alone."""


class NotOnHostError(AsyncrtError, BufferError, TypeError):
    """A tensor that is on a device was used as if it were in the host's memory."""


class HazardError(AsyncrtError, RuntimeError):
    """Two commands use the same bytes, one of them writes, and nothing orders them; see docs/hazards.md.

    Or what a plan's commands use is unknown, because it was made by a recipe that is wrong.
    """


class InternalError(AsyncrtError, RuntimeError):
    """asyncrt itself failed, which is a bug; the exception that it met is the cause of this error."""


class WrongLoopError(AsyncrtError, RuntimeError):
    """A runtime is used on another event loop than it was opened on, or in a process that was forked since."""


class RuntimeClosedError(AsyncrtError, RuntimeError):
    """The runtime, or the model's runtime, was closed."""
