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
from asyncrt.runtime.batched import Batched
from asyncrt.runtime.explain import Explanation, NodeExplanation
from asyncrt.runtime.group import GroupedSequence, GroupStatistics, SequenceGroup
from asyncrt.runtime.model import Model
from asyncrt.runtime.pad_safety import PadSafety
from asyncrt.runtime.runtime import Runtime, RuntimeStatistics
from asyncrt.runtime.sequence import Sequence
from asyncrt.runtime.shared_safety import SharedSafety, Sharing
from asyncrt.scheduler.batching import BatchingStatistics, BatchOptions
from asyncrt.sync import SyncModel, load_sync
from asyncrt.version import __version__

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
