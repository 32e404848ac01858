"""Where ONNX Runtime defines its sessions and values."""

from __future__ import annotations

from asyncrt.compat.binding import IOBinding
from asyncrt.compat.devices import OrtDevice
from asyncrt.compat.devices import device_type as get_ort_device_type
from asyncrt.compat.enums import OrtDeviceVendorId
from asyncrt.compat.environment import AdapterFormat, ModelCompiler
from asyncrt.compat.session import InferenceSession
from asyncrt.compat.values import OrtValue, SparseTensor, copy_tensors

Session = InferenceSession

__all__ = [
    "AdapterFormat",
    "IOBinding",
    "InferenceSession",
    "ModelCompiler",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "SparseTensor",
    "copy_tensors",
    "get_ort_device_type",
]
