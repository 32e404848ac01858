"""Which constants of ONNX Runtime do programs name? They have its names and numbers; few of them mean anything here."""

from __future__ import annotations

import enum


class _Constant(enum.Enum):
    """As pybind11 makes them: each is a number for those who ask, and equal to none."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class GraphOptimizationLevel(_Constant):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Constant):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Constant):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class ModelPackageWriteMode(_Constant):
    PRESERVE = 0
    DENSE = 1


class OrtAllocatorType(_Constant):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_Constant):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtSparseFormat(_Constant):
    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class OrtDeviceMemoryType(_Constant):
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtHardwareDeviceType(_Constant):
    CPU = 0
    GPU = 1
    NPU = 2


class OrtMemoryInfoDeviceType(_Constant):
    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtExecutionProviderDevicePolicy(_Constant):
    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtCompileApiFlags(_Constant):
    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class ArenaExtendStrategy(_Constant):
    kNextPowerOfTwo = 0
    kSameAsRequested = 1


class OrtDeviceVendorId(enum.IntEnum):
    """Numbers of makers of devices, as PCI has them."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086
