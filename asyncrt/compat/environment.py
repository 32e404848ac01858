"""The functions of the module `onnxruntime`: what is there, and settings of the whole process."""

from __future__ import annotations

import platform
from typing import Any

from asyncrt.version import __version__ as asyncrt_version

from .errors import NotImplemented as Missing
from .errors import Refused, WrongType, error
from .log import LoggerCallback, once, set_callback, set_severity
from .providers import AVAILABLE, KNOWN

VERSION = "1.32.0"
"""Of ONNX Runtime, whose functions, classes and constants there are."""


def get_available_providers() -> list[str]:
    return list(AVAILABLE)


def get_all_providers() -> list[str]:
    return list(KNOWN)


def get_device() -> str:
    """Return "CPU": inputs and outputs lie in the host's memory, wherever asyncrt runs the model."""
    return "CPU"


def get_version_string() -> str:
    return VERSION


def get_build_info() -> str:
    return f"asyncrt {asyncrt_version} in the place of ONNX Runtime {VERSION}"


def has_collective_ops() -> bool:
    return False


def get_ep_devices() -> list[Any]:
    return []


def get_default_session_options() -> Any:
    from .options import SessionOptions

    return SessionOptions()


def set_default_logger_severity(severity: int) -> None:
    """Show what is at least as severe in the log `asyncrt.compat`."""
    if not 0 <= severity <= 4:
        raise Refused("Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal")
    set_severity(severity)


def set_default_logger_callback(callback: LoggerCallback | None, severity: int = 2) -> None:
    """Give each record of the log `asyncrt.compat` to *callback* too, and to it no longer where that is None."""
    if callback is not None:
        set_default_logger_severity(severity)
    set_callback(callback)


def set_default_logger_verbosity(verbosity: int) -> None:
    once("set_default_logger_verbosity() has no meaning here")


def set_seed(seed: int) -> None:
    if not isinstance(seed, int):
        raise WrongType(f"seed must be an integer, got a {type(seed).__name__}")
    once("set_seed() has no meaning here: operators that draw numbers take their seed from the model")


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    once("set_global_thread_pool_sizes() has no meaning here")


def enable_telemetry_events() -> None:
    """Nothing has to be done for it: nothing is sent anywhere."""


def disable_telemetry_events() -> None:
    """Nothing has to be done for it: nothing is sent anywhere."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Any = None) -> None:
    once("preload_dlls() has no meaning here")


def create_and_register_allocator(memory: Any, arena: Any) -> None:
    once("create_and_register_allocator() has no meaning here")


def create_and_register_allocator_v2(provider: str, memory: Any, options: Any, arena: Any) -> None:
    once("create_and_register_allocator_v2() has no meaning here")


def register_execution_provider_library(name: str, path: str) -> None:
    raise error(Missing, f"the execution provider '{name}' cannot be loaded: asyncrt chooses the device")


def unregister_execution_provider_library(name: str) -> None:
    raise error(Missing, f"the execution provider '{name}' was not loaded")


def print_debug_info() -> None:
    print(get_build_info())
    print("platform:", platform.platform())


class _Absent:
    """A class of ONNX Runtime that programs import and few use. There is none of it here."""

    def __init__(self, *values: Any, **named: Any) -> None:
        raise error(Missing, f"there is no {type(self).__name__} here")


class AdapterFormat(_Absent): ...


class LoraAdapter(_Absent): ...


class ModelCompiler(_Absent): ...


class ModelPackage(_Absent): ...


class ModelPackageComponentContext(_Absent): ...


class ModelPackageContext(_Absent): ...


class ModelPackageOptions(_Absent): ...


class OrtEpAssignedNode(_Absent): ...


class OrtEpAssignedSubgraph(_Absent): ...


class OrtEpContextData(_Absent): ...


class OrtEpContextDataBuffer(_Absent): ...


class OrtEpDevice(_Absent): ...


class OrtExternalInitializerInfo(_Absent): ...


class OrtHardwareDevice(_Absent): ...


class OrtSyncStream(_Absent): ...
