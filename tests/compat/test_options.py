"""Options of sessions and runs: defaults, what is refused, and what the few do that mean something."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from asyncrt.compat import log

from .api import CONSTANT, RELU, described, gives, raised, session

DEFAULTS = {
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "enable_mem_reuse": True,
    "enable_profiling": False,
    "inter_op_num_threads": 0,
    "intra_op_num_threads": 0,
    "log_severity_level": -1,
    "log_verbosity_level": 0,
    "logid": "",
    "optimized_model_filepath": "",
    "profile_file_prefix": "onnxruntime_profile_",
    "use_deterministic_compute": False,
    "use_per_session_threads": True,
}


def test_options_have_defaults_and_keep_what_is_set(ort: Any) -> None:
    """Each may be set to another value of its kind, and read again."""
    options = ort.SessionOptions()
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL

    changed = {n: not v if isinstance(v, bool) else 2 if isinstance(v, int) else "text" for n, v in DEFAULTS.items()}
    for name, value in changed.items():
        setattr(options, name, value)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL

    assert {name: getattr(options, name) for name in DEFAULTS} == changed
    assert int(options.graph_optimization_level) == 0
    assert options.execution_mode.name == "ORT_PARALLEL"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("graph_optimization_level", 99, "TypeError"),
        ("intra_op_num_threads", "many", "TypeError"),
        ("intra_op_num_threads", 2.0, "TypeError"),
        ("enable_profiling", "yes", "TypeError"),
        ("logid", 3, "TypeError"),
        ("no_such_option", 3, "AttributeError"),
    ],
)
def test_what_is_no_value_of_an_option_is_refused(name: str, value: Any, expected: str, ort: Any) -> None:
    """A wrong name, too: a program finds out that it misspelt one."""
    options = ort.SessionOptions()

    assert raised(ort, lambda: setattr(options, name, value))[0] == expected


@pytest.mark.parametrize(("options", "what"), [("SessionOptions", "session"), ("RunOptions", "run")])
def test_entries_are_kept_by_their_keys(options: str, what: str, ort: Any) -> None:
    """Both are texts, and a key that was not set is an error."""
    made = getattr(ort, options)()
    add, get = getattr(made, f"add_{what}_config_entry"), getattr(made, f"get_{what}_config_entry")

    add("some.key", "1")

    assert get("some.key") == "1"
    assert raised(ort, lambda: get("other"))[0] == "RuntimeError"
    assert raised(ort, lambda: add("some.key", 1))[0] == "TypeError"
    assert raised(ort, lambda: add("", "1"))[0] == "RuntimeError"


def test_dims_may_be_given_their_sizes(ort: Any) -> None:
    """Then the session says so, and holds inputs to them."""
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    made = session(ort, CONSTANT, options)

    assert described(made.get_inputs()) == [("x", "tensor(float)", [2, 3])]
    assert described(made.get_outputs()) == [("y", "tensor(float)", [2, 3])]
    assert gives(made, {"x": np.zeros((2, 3), np.float32)}) == [[[1, 2, 3]] * 2]
    assert raised(ort, lambda: gives(made, {"x": np.zeros((1, 3), np.float32)}))[0] == "InvalidArgument"


def test_an_initializer_may_be_given_beforehand(ort: Any) -> None:
    """So programs share weights among sessions."""
    options = ort.SessionOptions()
    value = ort.OrtValue.ortvalue_from_numpy(np.array([10, 20, 30], np.float32))  # which the program has to keep
    options.add_initializer("k", value)

    assert gives(session(ort, CONSTANT, options), {"x": np.zeros((1, 3), np.float32)}) == [[[10, 20, 30]]]
    assert gives(session(ort, CONSTANT), {"x": np.zeros((1, 3), np.float32)}) == [[[1, 2, 3]]]


def test_data_of_a_model_of_bytes_lies_in_a_folder_that_is_named(ort: Any, tmp_path: Path) -> None:
    """A path says by itself where its data is; with bytes an entry of the options does."""
    source = onnx.ModelProto()
    source.CopyFrom(CONSTANT)
    k = source.graph.initializer[0]
    k.CopyFrom(onnx.numpy_helper.from_array(np.arange(3, dtype=np.float32), "k"))
    path = tmp_path / "model.onnx"
    onnx.save(source, path, save_as_external_data=True, location="k.bin", size_threshold=0)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    x = np.zeros((1, 3), np.float32)

    assert gives(session(ort, path), {"x": x}) == [[[0, 1, 2]]]
    assert gives(session(ort, path.read_bytes(), options), {"x": x}) == [[[0, 1, 2]]]
    (tmp_path / "k.bin").unlink()
    assert raised(ort, lambda: session(ort, path))[0] == "Fail"


def test_functions_of_the_module_say_what_is_there(ort: Any) -> None:
    """A program looks for a GPU's provider and takes the CPU's."""
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert "CUDAExecutionProvider" in ort.get_all_providers()
    assert ort.get_device() == "CPU"
    assert ort.get_version_string() == ort.__version__
    assert not ort.has_collective_ops()
    assert raised(ort, lambda: ort.set_default_logger_severity(9))[0] == "RuntimeError"
    for call in (ort.disable_telemetry_events, lambda: ort.set_seed(3), lambda: ort.set_default_logger_verbosity(0)):
        call()


def test_what_has_no_meaning_here_is_said_once(
    ours: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log; results do not depend on it."""
    monkeypatch.setattr(log, "_said", set())
    caplog.set_level(logging.INFO, "asyncrt.compat")

    for _ in range(2):
        options = ours.SessionOptions()
        options.intra_op_num_threads = 1
        options.register_custom_ops_library("library.so")
        made = session(ours, RELU, options)

    said = [(record.levelname, record.message.partition(" ")[0]) for record in caplog.records]
    assert said == [("INFO", "SessionOptions.intra_op_num_threads"), ("WARNING", "the")]
    assert gives(made, {"x": np.zeros((1, 3), np.float32), "i": np.array([1, 2])}) == [[[0, 0, 0]], 3]


def test_a_callback_gets_what_is_written_to_the_log(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the severity on that was asked for, with the severity's number; after None it gets nothing."""
    monkeypatch.setattr(log, "_said", set())
    got: list[tuple[int, str]] = []
    level = log.LOG.level
    try:
        ours.set_default_logger_callback(lambda severity, _category, _id, _place, text: got.append((severity, text)), 1)
        ours.set_seed(3)
        log.LOG.warning("attention")
        log.LOG.debug("a detail")
        ours.set_default_logger_callback(None)
        log.LOG.warning("unheard")
    finally:
        log.LOG.setLevel(level)

    assert [severity for severity, _ in got] == [1, 2]
    assert "set_seed" in got[0][1]
    assert got[1][1] == "attention"
