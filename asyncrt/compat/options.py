"""What may a program ask of a session and of a run? All of it is accepted; this says what has a meaning here.

Of a session: overrides of dims, initializers given beforehand, profiling, and the folder of external data. Of a run:
that it is terminated. The rest is how ONNX Runtime spends threads and memory, which one runtime for all sessions does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np

from .checks import flag, number, of, text
from .enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from .errors import NotImplemented as Missing
from .errors import Refused, error
from .log import once
from .values import OrtValue

_LONGEST_KEY = 1024
_MODE, _ORDER, _LEVEL = of(ExecutionMode), of(ExecutionOrder), of(GraphOptimizationLevel)
#: A program that sets one of these gets the same results without.
_WITHOUT_MEANING = frozenset({
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
    "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads", "use_deterministic_compute",
    "use_per_session_threads",
})  # fmt: skip


def _option(convert: Callable[[Any], Any], default: Any) -> Any:
    return attrs.field(init=False, default=default, converter=convert)


def _tell(options: object, attribute: attrs.Attribute[Any], value: Any) -> Any:
    if attribute.name in _WITHOUT_MEANING:
        once(f"SessionOptions.{attribute.name} has no meaning here: all sessions share one runtime")
    elif attribute.name == "optimized_model_filepath" and value:
        once("SessionOptions.optimized_model_filepath: no optimised model is written", logging.WARNING)
    return value


class _Entries:
    """Settings by name, as sessions and runs have them."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._entries: dict[str, str] = {}

    def add(self, key: Any, value: Any) -> None:
        if not 0 < len(text(key)) <= _LONGEST_KEY:
            raise Refused(f"Config key is empty or longer than maximum length {_LONGEST_KEY}")
        self._entries[key] = text(value)

    def get(self, key: Any) -> str:
        if text(key) not in self._entries:
            raise Refused(f"{self._owner} does not have configuration with key: {key}")
        return self._entries[key]

    def find(self, key: str) -> str | None:
        return self._entries.get(key)


@attrs.define(eq=False, on_setattr=[attrs.setters.convert, _tell])
class SessionOptions:
    """What a session is made with."""

    enable_cpu_mem_arena: bool = _option(flag, True)
    enable_mem_pattern: bool = _option(flag, True)
    enable_mem_reuse: bool = _option(flag, True)
    enable_profiling: bool = _option(flag, False)
    execution_mode: ExecutionMode = _option(_MODE, ExecutionMode.ORT_SEQUENTIAL)  # noqa: RUF009  # a field
    execution_order: ExecutionOrder = _option(_ORDER, ExecutionOrder.DEFAULT)  # noqa: RUF009  # a field
    graph_optimization_level: GraphOptimizationLevel = _option(_LEVEL, GraphOptimizationLevel.ORT_ENABLE_ALL)  # noqa: RUF009  # a field
    inter_op_num_threads: int = _option(number, 0)
    intra_op_num_threads: int = _option(number, 0)
    log_severity_level: int = _option(number, -1)
    log_verbosity_level: int = _option(number, 0)
    logid: str = _option(text, "")
    optimized_model_filepath: str = _option(text, "")
    profile_file_prefix: str = _option(text, "onnxruntime_profile_")
    use_deterministic_compute: bool = _option(flag, False)
    use_per_session_threads: bool = _option(flag, True)

    _entries: _Entries = attrs.field(init=False, factory=lambda: _Entries("SessionOptions"))
    _providers: list[str] = attrs.field(init=False, factory=list)
    _dims: dict[str, int] = attrs.field(init=False, factory=dict)
    _denoted: dict[str, int] = attrs.field(init=False, factory=dict)
    _initializers: dict[str, Any] = attrs.field(init=False, factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries.add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        return self._entries.get(key)

    def find_config_entry(self, key: str) -> str | None:
        """Return an entry, or None."""
        return self._entries.find(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        self._dims[text(name)] = number(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        self._denoted[text(denotation)] = number(size)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        self._initializers[text(name)] = of(OrtValue)(value).numpy()

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        if len(names) != len(values):
            raise Refused("Expecting names and values to have equal length")
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    @property
    def dims(self) -> Mapping[str, int]:
        """Sizes for dims, by their names."""
        return self._dims

    @property
    def denoted_dims(self) -> Mapping[str, int]:
        """Sizes for dims, by their denotations."""
        return self._denoted

    @property
    def initializers(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Values for initializers, by their names."""
        return self._initializers

    # Execution providers and what belongs to them.

    def has_providers(self) -> bool:
        return bool(self._providers)

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        self._providers.append(text(name))
        once(f"the execution provider {name} has no meaning here: asyncrt chooses the device")

    def add_provider_for_devices(self, devices: Sequence[Any], options: Mapping[str, str]) -> None:
        raise Refused("there is no OrtEpDevice here", hint="asyncrt.compat.install(device=...) chooses the device")

    def set_provider_selection_policy(self, policy: Any) -> None:
        once("SessionOptions.set_provider_selection_policy() has no meaning here: asyncrt chooses the device")

    def set_provider_selection_policy_delegate(self, delegate: Any) -> None:
        once("SessionOptions.set_provider_selection_policy_delegate() has no meaning here: asyncrt chooses the device")

    def register_custom_ops_library(self, path: str) -> None:
        once(
            f"the custom operators of '{text(path)}' are not loaded: a model that needs them does not load",
            logging.WARNING,
        )

    def set_load_cancellation_flag(self, cancel: bool) -> None:
        once("SessionOptions.set_load_cancellation_flag() has no meaning here")


class RunOptions:
    """What a run is made with."""

    __slots__ = (
        "_entries", "_lock", "_running", "_terminate", "log_severity_level", "log_verbosity_level", "logid",
        "only_execute_path_to_fetches",
    )  # fmt: skip

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self._entries = _Entries("RunOptions")
        self._lock = threading.Lock()
        self._terminate = False
        self._running: set[Future[Any]] = set()

    @property
    def terminate(self) -> bool:
        """Whether runs with these options end, those that are under way as well."""
        return self._terminate

    @terminate.setter
    def terminate(self, value: Any) -> None:
        with self._lock:
            self._terminate = flag(value)
            ending = tuple(self._running) if self._terminate else ()
        for future in ending:
            future.cancel()

    @contextmanager
    def running(self, future: Future[Any]) -> Iterator[None]:
        """While this lasts, *future* is cancelled if the program says `terminate`."""
        with self._lock:
            self._running.add(future)
            ends = self._terminate
        try:
            if ends:
                future.cancel()
            yield
        finally:
            with self._lock:
                self._running.discard(future)

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries.add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        return self._entries.get(key)

    def add_active_adapter(self, adapter: Any) -> None:
        raise error(Missing, "there are no LoRA adapters here")
