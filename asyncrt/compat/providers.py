"""Which execution providers are there? One, "CPUExecutionProvider": a program that takes it gives and gets host arrays.

Where a session runs is asyncrt's choice; other providers are accepted, with the warning that ONNX Runtime gives for one
that it was built without.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from .errors import WrongValue

CPU = "CPUExecutionProvider"
AVAILABLE = (CPU,)
KNOWN = (
    "NvTensorRTRTXExecutionProvider", "TensorrtExecutionProvider", "CUDAExecutionProvider", "MIGraphXExecutionProvider",
    "ROCMExecutionProvider", "OpenVINOExecutionProvider", "DnnlExecutionProvider", "VitisAIExecutionProvider",
    "QNNExecutionProvider", "NnapiExecutionProvider", "VSINPUExecutionProvider", "JsExecutionProvider",
    "CoreMLExecutionProvider", "ArmNNExecutionProvider", "ACLExecutionProvider", "DmlExecutionProvider",
    "RknpuExecutionProvider", "WebNNExecutionProvider", "WebGpuExecutionProvider", "XnnpackExecutionProvider",
    "CANNExecutionProvider", "TvmExecutionProvider", "AzureExecutionProvider", CPU,
)  # fmt: skip


def check_providers(providers: Any, provider_options: Any) -> None:
    """Warn of providers that are not there.

    Raises:
        WrongValue: They are not written as providers are, or there is no such.
    """
    names = [_name(p, provider_options is None) for p in _sequence("providers", providers or ())]
    if provider_options is not None:
        given = _sequence("provider_options", provider_options)
        if len(names) != len(given):
            raise WrongValue("'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(options, dict) for options in given):
            raise WrongValue("'provider_options' values must be dicts.")
    for name in names:
        if name not in AVAILABLE:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(AVAILABLE)}'",
                stacklevel=4,
            )
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise WrongValue(f"Unknown Provider Type: {unknown[0]}")


def _sequence(what: str, value: Any) -> Sequence[Any]:
    if isinstance(value, Sequence):
        return value
    raise WrongValue(f"'{what}' should be a sequence.")


def _name(provider: Any, with_options: bool) -> str:
    if isinstance(provider, str):
        return provider
    if not with_options:
        raise WrongValue("Only string values for 'providers' are supported if 'provider_options' is given.")
    if isinstance(provider, tuple) and len(provider) == 2 and isinstance(provider[1], dict):
        return _name(provider[0], False)
    raise WrongValue("'providers' values must be either strings or (string, dict) tuples.")
