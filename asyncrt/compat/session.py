"""ONNX Runtime's `InferenceSession`, on asyncrt. Any number of threads may run it; their requests overlap.

A feed that fits goes to asyncrt as it is, which costs little more than `SyncModel.infer_sync()`. Only what asyncrt does
not take is looked at here: it is wrong, and the error is ONNX Runtime's, or ONNX Runtime takes it all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from asyncrt.public import AsyncrtError, InputError

from .binding import IOBinding
from .checks import of
from .devices import OrtMemoryInfo
from .enums import OrtAllocatorType, OrtMemType
from .errors import Fail, InvalidArgument, Refused, WrongType, WrongValue, error, translated, translation
from .log import LOG, once
from .model.feeds import check_present, fit
from .model.interface import ModelMetadata, NodeArg
from .model.source import Source
from .model.variants import Variants
from .options import RunOptions, SessionOptions
from .profiling import Profile
from .providers import CPU, check_providers
from .shared import shared_threads
from .values import OrtValue, OrtValueVector

_ENDED = "Exiting due to terminate flag being set to true."


class InferenceSession:
    """A model that runs on the runtime of this process.

    Args:
        path_or_bytes: A path, or the bytes of a file.
        sess_options: Options, or None.
        providers: Names of execution providers, or pairs of one and its options; accepted, and of no meaning.
        provider_options: Likewise.
        kwargs: What ONNX Runtime takes as well: `enable_fallback`, `disabled_optimizers`, `read_config_from_model`.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise WrongType(f"sess_options must be SessionOptions or None, got a {type(sess_options).__name__}")
        self._sess_options = SessionOptions() if sess_options is None else sess_options
        self._enable_fallback = int(kwargs.get("enable_fallback", 1)) == 1
        source = Source(path_or_bytes, self._sess_options)
        self._model_path = None if source.path is None else str(source.path)
        self._model_bytes = source.bytes
        self.set_providers(providers, provider_options)
        self._variants = Variants(source)
        self._model = self._variants.first
        self._interface = self._variants.interface
        self._output_types = {arg.name: arg.type for arg in self._interface.outputs}
        self.input_names = frozenset(self._interface.args)
        # Programs read these as well, although they are none of their business: insightface prints `_providers`.
        self._inputs_meta, self._outputs_meta = self.get_inputs(), self.get_outputs()
        self._overridable_initializers, self._model_meta = self.get_overridable_initializers(), self.get_modelmeta()
        self._providers, self._provider_options = self.get_providers(), self.get_provider_options()
        self._profile = None
        if self._sess_options.enable_profiling:
            self._profile = Profile(self._variants.runtime, self._sess_options.profile_file_prefix)

    # What is known of it.

    def get_inputs(self) -> list[NodeArg]:
        return list(self._interface.inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._interface.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        return list(self._interface.overridable)

    def get_modelmeta(self) -> ModelMetadata:
        return self._interface.metadata

    def get_session_options(self) -> SessionOptions:
        return self._sess_options

    def get_providers(self) -> list[str]:
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {CPU: {}}

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        return [_host_memory() for _ in self._interface.inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return [_host_memory() for _ in self._interface.outputs]

    def get_tuning_results(self) -> list[Any]:
        return []

    # Runs.

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: The outputs to return; none of them means all.
            input_feed: Arrays, `OrtValue`s, or lists of numbers, by the names of inputs.
            run_options: Options, or None.

        Returns:
            The outputs, in the order of their names.
        """
        names = self._outputs_named(output_names)
        outputs = self._infer(input_feed, run_options)
        return list(outputs.values()) if names is None else [outputs[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Begin a run; *callback* is called on another thread with its outputs, *user_data*, and what went wrong."""
        check_present(input_feed, self._interface.inputs)

        def work() -> None:
            results, status = [], ""
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as failure:
                status = str(failure) or repr(failure)
            try:
                callback(results, user_data, status)
            except BaseException:
                LOG.exception("the callback of run_async() raised")

        shared_threads().submit(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run the model with values and return values."""
        feed = {name: of(OrtValue)(value) for name, value in input_dict_ort_values.items()}
        names = self._outputs_named(output_names) or list(self._output_types)
        outputs = self._infer(feed, run_options)
        return [OrtValue.of(outputs[name], self._output_types[name]) for name in names]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run the model with what is bound, and bring the results to where they are bound to."""
        if iobinding.session is not self:
            raise WrongValue("IOBinding must be used with the session that created it.")
        names = iobinding.wanted()
        try:
            results = self.run(names, iobinding.feed(), run_options)
        except AsyncrtError as cause:
            raise Refused(f"Error in execution: {cause}") from cause
        iobinding.deliver(results, [self._output_types[name] for name in names])

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run the model; the results are appended to *fetches*."""
        fetches += self.run_with_ort_values(fetch_names, dict(zip(feed_names, feeds, strict=True)), run_options)

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    # Profiling.

    def end_profiling(self) -> str:
        """Write the profile and return the name of its file."""
        return "" if self._profile is None else self._profile.end()

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._profile is None else self._profile.start_ns

    # What has no meaning here.

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Check the names; where the model runs does not depend on them."""
        try:
            check_providers(providers, provider_options)
        except WrongValue as cause:
            if not self._enable_fallback:
                raise
            once(f"{cause.message}: {CPU} is used")

    def enable_fallback(self) -> None:
        self._enable_fallback = True

    def disable_fallback(self) -> None:
        self._enable_fallback = False

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        once("InferenceSession.set_ep_dynamic_options() has no meaning here")

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        once("InferenceSession.set_tuning_results() has no meaning here")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        once("InferenceSession.release_captured_graph() has no meaning here")

    @property
    def _sess(self) -> InferenceSession:
        return self

    # Inside.

    def _outputs_named(self, names: Any) -> Sequence[str] | None:
        """Return the names of the outputs to return, which there are; None means all."""
        if not names:
            return None
        if isinstance(names, str):
            raise WrongType("output_names must be a list of names, got a text")
        for name in names:
            if name not in self._output_types:
                if not isinstance(name, str):
                    raise WrongType(f"output_names must be a list of names, got a {type(name).__name__}")
                raise error(InvalidArgument, f"Invalid output name:{name}")
        checked: Sequence[str] = names
        return checked

    def _infer(self, feed: Mapping[str, Any], options: RunOptions | None) -> dict[str, Any]:
        if options is None:
            try:
                return self._model.infer_sync(feed)
            except InputError:
                pass  # the next lines find out what ONNX Runtime would do
            except AsyncrtError as cause:
                raise translation(cause) from cause
        elif not isinstance(options, RunOptions):
            raise WrongType(f"run_options must be RunOptions or None, got a {type(options).__name__}")
        fitted = fit(feed, self._interface)
        model = self._variants.of(fitted)
        with translated():
            if options is None:
                return model.infer_sync(fitted)
            if options.terminate:
                raise error(Fail, _ENDED)
            future = model.submit(fitted)
            with options.running(future):
                try:
                    return future.result()
                except CancelledError:
                    raise error(Fail, _ENDED) from None
                finally:
                    future.cancel()  # Ctrl-C, for one, ends the waiting and not the inference


def _host_memory() -> OrtMemoryInfo:
    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)
