"""`IOBinding`: inputs and outputs in the program's own memory, as ONNX Runtime's tests of it ask."""

from __future__ import annotations

from typing import Any

import numpy as np

from .api import CONSTANT, RELU, raised, session

X = np.arange(6, dtype=np.float32).reshape(2, 3)
EXPECTED = X + np.array([1, 2, 3], np.float32)


def test_bound_inputs_give_results_of_their_own(ort: Any) -> None:
    """In the order in which the outputs were bound, to be copied or taken as values."""
    made = session(ort, RELU)
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("i", np.array([1, 2]))
    binding.bind_output("z")
    binding.bind_output("y", "cpu")

    made.run_with_iobinding(binding)

    z, y = binding.copy_outputs_to_cpu()
    assert (z.tolist(), y.tolist()) == (3, X.tolist())
    assert [value.numpy().tolist() for value in binding.get_outputs()] == [3, X.tolist()]
    assert [value.data_type() for value in binding.get_outputs()] == ["tensor(int64)", "tensor(float)"]


def test_results_go_to_bound_values(ort: Any) -> None:
    """They are those values afterwards."""
    made = session(ort, CONSTANT)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(X))
    target = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.bind_ortvalue_output("y", target)

    made.run_with_iobinding(binding)

    np.testing.assert_array_equal(EXPECTED, target.numpy())
    assert binding.get_outputs()[0].data_ptr() == target.data_ptr()


def test_addresses_may_be_bound(ort: Any) -> None:
    """Inputs are read, and results written, where the program's own arrays lie."""
    made = session(ort, CONSTANT)
    binding = made.io_binding()
    x, y = X.copy(), np.zeros((2, 3), np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, [2, 3], x.ctypes.data)
    binding.bind_output("y", "cpu", 0, 1, (2, 3), y.ctypes.data)

    made.run_with_iobinding(binding)
    np.testing.assert_array_equal(EXPECTED, y)

    x += 1
    made.run_with_iobinding(binding)
    np.testing.assert_array_equal(EXPECTED + 1, y)


def test_a_binding_is_used_again(ort: Any) -> None:
    """With other inputs, and with none after they are cleared."""
    made = session(ort, CONSTANT)
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    made.run_with_iobinding(binding)
    binding.bind_cpu_input("x", X + 1)

    made.run_with_iobinding(binding)

    np.testing.assert_array_equal(EXPECTED + 1, binding.copy_outputs_to_cpu()[0])
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    binding.bind_cpu_input("x", X)
    assert raised(ort, lambda: made.run_with_iobinding(binding))[0] == "RuntimeError"


def test_what_cannot_be_bound_is_refused(ort: Any) -> None:
    """Names that there are not, what is no array, devices that there are not, memory of which too little is said."""
    made = session(ort, CONSTANT)
    binding = made.io_binding()
    address = X.ctypes.data
    expected = {
        "name": (lambda: binding.bind_cpu_input("q", X), "RuntimeError"),
        "list": (lambda: binding.bind_cpu_input("x", X.tolist()), "RuntimeError"),
        "device": (lambda: binding.bind_input("x", "cuda", 0, np.float32, [2, 3], address), "RuntimeError"),
        "no shape": (lambda: binding.bind_output("y", "cpu", 0, buffer_ptr=address), "ValueError"),
    }

    assert {n: raised(ort, call)[0] for n, (call, _) in expected.items()} == {n: e for n, (_, e) in expected.items()}


def test_a_bound_run_that_does_not_fit_is_refused(ort: Any) -> None:
    """With a `RuntimeError`, whatever it is: inputs, names of outputs, and targets of another type or shape."""
    made = session(ort, CONSTANT)

    def run(x: Any, name: str, target: Any = None) -> None:
        binding = made.io_binding()
        binding.bind_cpu_input("x", x)
        if target is None:
            binding.bind_output(name)
        else:
            binding.bind_ortvalue_output(name, target)
        made.run_with_iobinding(binding)

    wide = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float64)
    large = ort.OrtValue.ortvalue_from_shape_and_type([3, 3], np.float32)
    cases = [
        ((X.astype(np.float64), "y"), "Actual: (tensor(double)) , expected: (tensor(float))"),
        ((X[:, :2], "y"), "Got: 2 Expected: 3"),
        ((X, "q"), "Invalid output name"),
        ((X, "y", wide), "Unexpected output data type. Actual: (tensor(double)) , expected: (tensor(float))"),
        ((X, "y", large), "the computed output"),
    ]
    for given, text in cases:
        name, message = raised(ort, lambda given=given: run(*given))
        assert name == "RuntimeError"
        assert text in message
        assert message.startswith("Error in execution: ")


def test_a_binding_belongs_to_its_session(ort: Any) -> None:
    """Another session of the same model refuses it."""
    binding = session(ort, CONSTANT).io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")

    assert raised(ort, lambda: session(ort, CONSTANT).run_with_iobinding(binding))[0] == "ValueError"
