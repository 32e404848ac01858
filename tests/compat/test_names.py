"""Every name that ONNX Runtime has for programs is there."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

CLASSES = [
    "InferenceSession", "IOBinding", "OrtValue", "SessionOptions", "RunOptions", "NodeArg", "ModelMetadata",
    "OrtDevice", "OrtMemoryInfo",
]  # fmt: skip
ENUMS = [
    "GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder", "ModelPackageWriteMode", "OrtAllocatorType",
    "OrtMemType", "OrtSparseFormat",
    "OrtDeviceMemoryType", "OrtHardwareDeviceType", "OrtMemoryInfoDeviceType", "OrtExecutionProviderDevicePolicy",
    "OrtCompileApiFlags",
]  # fmt: skip
#: What ONNX Runtime has for itself, or for providers that there are not here.
LEFT_OUT = {
    "onnxruntime": {"contextlib", "import_capi_exception", "onnxruntime_validation"},
    "InferenceSession": {"get_input_epdevices", "get_provider_graph_assignment_info"},
    "IOBinding": set(),
    "OrtValue": set(),
    "SessionOptions": {
        "add_external_initializers_from_files_in_memory", "clear_ep_context_data_read_func",
        "set_ep_context_data_read_func",
    },
    "OrtMemoryInfo": {"create_v2"},
}  # fmt: skip


def names(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_module_has_every_public_name(ours: Any) -> None:
    """What `import onnxruntime` gives programs; what is left out is no part of its API."""
    theirs = pytest.importorskip("onnxruntime")
    modules = {name for name in names(theirs) if inspect.ismodule(getattr(theirs, name))} - {"capi"}

    assert names(theirs) - names(ours) - modules == LEFT_OUT["onnxruntime"] - modules
    assert set(ours.__all__) <= names(ours)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_every_public_name(name: str, ours: Any) -> None:
    """Methods and properties; attributes of instances are in the tests of what they do."""
    theirs = getattr(pytest.importorskip("onnxruntime"), name)
    own = getattr(ours, name)
    there = names(own) | set(getattr(own, "__annotations__", ())) | set(getattr(own, "__slots__", ()))

    assert names(theirs) - there == LEFT_OUT.get(name, set())


@pytest.mark.parametrize("name", ENUMS)
def test_constants_have_their_numbers(name: str, ours: Any) -> None:
    """Programs store them as numbers, and make them from numbers."""
    theirs, own = getattr(pytest.importorskip("onnxruntime"), name), getattr(ours, name)

    expected = {member: int(value) for member, value in theirs.__members__.items()}
    assert {member: int(value) for member, value in own.__members__.items()} == expected
    assert {own(number).name for number in expected.values()} <= set(expected)
    assert [repr(m) for m in own] == [repr(theirs(int(m))) for m in own]


def test_exceptions_have_their_names_in_both_modules(ours: Any) -> None:
    """Where programs import them from."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    expected = {n for n in names(state) if inspect.isclass(c := getattr(state, n)) and issubclass(c, Exception)}

    for name in ("onnxruntime_pybind11_state", "_pybind_state"):
        module = getattr(ours.capi, name)
        there = {n for n in expected if issubclass(getattr(module, n), Exception)}
        assert there == expected
        assert module.InvalidArgument("x").args == ("x",)


@pytest.mark.parametrize("name", ["ModelCompiler", "LoraAdapter", "AdapterFormat", "SparseTensor"])
def test_what_there_is_not_says_so_when_it_is_used(name: str, ours: Any) -> None:
    """It can be imported and asked for with `isinstance()`."""
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.NotImplemented, match=r"NOT_IMPLEMENTED : there"):
        getattr(ours, name)("of something")
