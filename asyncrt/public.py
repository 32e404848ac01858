"""What users may use, in one place. `import asyncrt` loads it when the first of these names is asked for."""

from __future__ import annotations

from asyncrt.errors import (
    ArgumentError,
    AsyncrtError,
    BatchingError,
    DeadlineExceeded,
    DeviceCommandError,
    DeviceError,
    DeviceLostError,
    HazardError,
    IndexOutOfRange,
    InputError,
    InternalError,
    KernelBuildError,
    ModelError,
    ModelFormatError,
    ModelLimitError,
    ModelTypeError,
    NoDeviceError,
    OutOfDeviceMemory,
    OutOfHostMemory,
    Overloaded,
    PrecisionError,
    RuntimeClosedError,
    SequenceError,
    ShapeError,
    SizeLimitError,
    UnsupportedOperatorError,
    WrongLoopError,
)
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.explain.record import NodeExplanation
from asyncrt.runtime.model import Model
from asyncrt.runtime.runtime import Runtime, RuntimeStatistics
from asyncrt.scheduler.batching import BatchingStatistics, BatchOptions
from asyncrt.sync import SyncModel, load_sync
from asyncrt.version import __version__

from .runtime.batching.batched import Batched
from .runtime.batching.pad_safety import PadSafety
from .runtime.explain.explain import Explanation
from .runtime.request.warming import Progress
from .runtime.sequences.group import GroupedSequence, GroupStatistics, SequenceGroup
from .runtime.sequences.sequence import Sequence
from .runtime.sequences.shared_safety import SharedSafety, Sharing

__all__ = [
    "ArgumentError",
    "AsyncrtError",
    "BatchOptions",
    "Batched",
    "BatchingError",
    "BatchingStatistics",
    "DeadlineExceeded",
    "DeviceCommandError",
    "DeviceError",
    "DeviceLostError",
    "Explanation",
    "GroupStatistics",
    "GroupedSequence",
    "HazardError",
    "IndexOutOfRange",
    "InputError",
    "InternalError",
    "KernelBuildError",
    "Model",
    "ModelError",
    "ModelFormatError",
    "ModelLimitError",
    "ModelTypeError",
    "NoDeviceError",
    "NodeExplanation",
    "OutOfDeviceMemory",
    "OutOfHostMemory",
    "Overloaded",
    "PadSafety",
    "PrecisionError",
    "Progress",
    "Runtime",
    "RuntimeClosedError",
    "RuntimeOptions",
    "RuntimeStatistics",
    "Sequence",
    "SequenceError",
    "SequenceGroup",
    "ShapeError",
    "SharedSafety",
    "Sharing",
    "SizeLimitError",
    "SyncModel",
    "UnsupportedOperatorError",
    "WrongLoopError",
    "__version__",
    "load_sync",
]
