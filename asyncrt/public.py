"""What users may use, in one place, and where each of it is. A name's module is imported when the name is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from asyncrt.uncollected import uncollected

if TYPE_CHECKING:  # what `HOMES` says, as type checkers read it
    from asyncrt.errors import (
        ArgumentError,
        AsyncrtError,
        BatchingError,
        DeadlineExceeded,
        DeviceCommandError,
        DeviceError,
        DeviceLostError,
        DeviceStalledError,
        HazardError,
        IndexOutOfRange,
        InputError,
        InternalError,
        IterationLimitError,
        KernelBuildError,
        ModelError,
        ModelFormatError,
        ModelLimitError,
        ModelTypeError,
        NoDeviceError,
        NotOnHostError,
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
    from asyncrt.runtime.batching.batched import Batched
    from asyncrt.runtime.batching.pad_safety import PadSafety
    from asyncrt.runtime.explain.explain import Explanation
    from asyncrt.runtime.explain.record import NodeExplanation
    from asyncrt.runtime.model import Model
    from asyncrt.runtime.request.device_tensor import DeviceTensor
    from asyncrt.runtime.request.warming import Progress
    from asyncrt.runtime.runtime import Runtime
    from asyncrt.runtime.sequences.device_group import GroupedSequence, GroupStatistics
    from asyncrt.runtime.sequences.group import SequenceGroup
    from asyncrt.runtime.sequences.sequence import Sequence
    from asyncrt.runtime.sequences.shared_safety import SharedSafety, Sharing
    from asyncrt.runtime.statistics import RuntimeStatistics
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
    "DeviceStalledError",
    "DeviceTensor",
    "Explanation",
    "GroupStatistics",
    "GroupedSequence",
    "HazardError",
    "IndexOutOfRange",
    "InputError",
    "InternalError",
    "IterationLimitError",
    "KernelBuildError",
    "Model",
    "ModelError",
    "ModelFormatError",
    "ModelLimitError",
    "ModelTypeError",
    "NoDeviceError",
    "NodeExplanation",
    "NotOnHostError",
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

HOMES = {
    "BatchOptions": "asyncrt.scheduler.batching",
    "Batched": "asyncrt.runtime.batching.batched",
    "BatchingStatistics": "asyncrt.scheduler.batching",
    "DeviceTensor": "asyncrt.runtime.request.device_tensor",
    "Explanation": "asyncrt.runtime.explain.explain",
    "GroupStatistics": "asyncrt.runtime.sequences.device_group",
    "GroupedSequence": "asyncrt.runtime.sequences.device_group",
    "Model": "asyncrt.runtime.model",
    "NodeExplanation": "asyncrt.runtime.explain.record",
    "PadSafety": "asyncrt.runtime.batching.pad_safety",
    "Progress": "asyncrt.runtime.request.warming",
    "Runtime": "asyncrt.runtime.runtime",
    "RuntimeOptions": "asyncrt.options",
    "RuntimeStatistics": "asyncrt.runtime.statistics",
    "Sequence": "asyncrt.runtime.sequences.sequence",
    "SequenceGroup": "asyncrt.runtime.sequences.group",
    "SharedSafety": "asyncrt.runtime.sequences.shared_safety",
    "Sharing": "asyncrt.runtime.sequences.shared_safety",
    "SyncModel": "asyncrt.sync",
    "__version__": "asyncrt.version",
    "load_sync": "asyncrt.sync",
}
"""The modules of the names; those of all others are errors."""


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the module that a public name is of, and return what has that name."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with uncollected():
            globals()[name] = found = getattr(import_module(HOMES.get(name, "asyncrt.errors")), name)
        return found
