"""What a user holds of a loaded model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrt.arguments import check_listener, check_priority, each_of
from asyncrt.errors import AsyncrtError, RuntimeClosedError
from asyncrt.kinds import is_plain, shown_to_caller
from asyncrt.layout import Array, PartialLayout

from .loop.trio_bridge import Elsewhere, anywhere

if TYPE_CHECKING:  # each way to run a model is imported when it is first asked for
    from asyncrt.scheduler.batching import BatchOptions
    from asyncrt.scheduler.batching.options import Mode

    from .batching.batched import Batched
    from .explain.explain import Explanation
    from .plan.chunk_plan import Records
    from .request.device_tensor import DeviceTensor
    from .request.network import Network
    from .request.replicas import Replicas
    from .request.warming import Progress
    from .sequences.group import SequenceGroup
    from .sequences.sequence import Sequence


class Model:
    """A model loaded into a `Runtime`. Made by `Runtime.load()`; any number of inferences may run at once."""

    def __init__(self, network: Network | Replicas) -> None:
        self.network = network
        self._session = network.session
        values = network.program.values
        #: The outputs that callers get otherwise than they are held: texts, sequences, optionals and maps.
        self._kinds = {values[v].name: t for v in network.program.outputs if not is_plain(t := values[v].layout.dtype)}

    def __repr__(self) -> str:
        return f"<Model {self.network!r}>"

    @property
    def inputs(self) -> dict[str, PartialLayout]:
        """What it takes: dtype and shape by name; dynamic dims by their names."""
        return self._layouts(self.network.program.inputs)

    @property
    def outputs(self) -> dict[str, PartialLayout]:
        """What it gives: dtype and shape by name, as far as loading can tell."""
        return self._layouts(self.network.program.outputs)

    def _layouts(self, ids: tuple[int, ...]) -> dict[str, PartialLayout]:
        values = self.network.program.values
        return {values[i].name: values[i].layout for i in ids}

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Where its runtime runs if that is not the loop of its callers."""
        return self._session.elsewhere

    @anywhere
    async def infer(
        self, inputs: Mapping[str, Any], *, priority: int = 0, deadline: float | None = None
    ) -> dict[str, Array]:
        """Run the model once.

        Args:
            inputs: An array for each input, or what `infer_on_device()` has returned. Arrays must not be changed before
                this returns.
            priority: Lower goes first among requests that wait.
            deadline: Seconds from now within which it has to be launched; of equal priorities the earliest goes first.

        Returns:
            An array for each output, of its own memory.

        Raises:
            ArgumentError: *priority* is no integer, or *deadline* no finite number.
            InputError: The inputs do not fit the model; nothing was enqueued.
            ShapeError: Shapes or values do not fit a node.
            OutOfDeviceMemory: The memory limit, or the device, is full.
            DeviceCommandError: A command of this inference failed on the device.
            DeadlineExceeded: It waited for longer than *deadline*; nothing was launched after that.
            RuntimeClosedError: The runtime was closed.
            WrongLoopError: This is another event loop than the runtime was opened on, or another process.
        """
        self._session.check_here()
        priority, until = check_priority(priority), self.network.until(deadline)
        network = self.network
        arrays = network.checked.fitting(inputs)
        if not arrays:
            from .request.on_device import infer_from_device, names_device_tensors

            if names_device_tensors(inputs):
                return self._shown(await infer_from_device(network, inputs, priority, until))
            arrays = await network.checked.take(inputs)
        outcome = await network.attempt_in_turn(arrays, priority, until)
        if outcome is None:
            outcome = await network.infer(arrays, priority, deadline=until, may_stand_in=True)
        return self._named(*outcome)

    @anywhere
    async def infer_on_device(
        self, inputs: Mapping[str, Any], *, priority: int = 0, deadline: float | None = None
    ) -> dict[str, DeviceTensor]:
        """Run the model once, and leave its results on the device, to be inputs of models of this runtime.

        So a chain of models needs nothing of the host but its first inputs and its last results. What it takes and
        raises is as for `infer()`.

        Args:
            inputs: An array or such a result for each input. One that is on another device of the runtime, or of which
                the host needs the contents, is read.
            priority: Lower goes first among requests that wait.
            deadline: Seconds from now within which it has to be launched.

        Returns:
            A tensor for each output. One that only the host can make or hold is on the host.

        Raises:
            InputError: A tensor is of another runtime; or as `infer()`.
        """
        from .request.on_device import infer_on_device

        self._session.check_here()
        priority, until = check_priority(priority), self.network.until(deadline)
        return await infer_on_device(self.network, inputs, priority, until)

    def infer_here(
        self, inputs: Mapping[str, Any], *, priority: int = 0, deadline: float | None = None
    ) -> dict[str, Array] | None:
        """Run the model once on this thread, which has the event loop's turn; None if that is not the way it goes.

        What it takes and raises is as for `infer()`.
        """
        self._session.check_open()
        check_priority(priority)
        until = self.network.until(deadline)
        arrays = None if self.network.direct is None else self.network.checked.fitting(inputs)
        outcome = None if arrays is None else self.network.attempt(arrays, until, on_loop=False)
        return None if outcome is None else self._named(*outcome)

    def _named(self, results: Mapping[int, Array], records: Records) -> dict[str, Array]:
        """Return the outputs by name, and keep the records for `explain()`."""
        self.network.note(records)
        values = self.network.program.values
        named = {values[id].name: array for id, array in results.items()}
        return self._shown(named) if self._kinds else named

    def _shown(self, named: dict[str, Array]) -> dict[str, Array]:
        """Return outputs as callers get them."""
        kinds = self._kinds
        return {name: shown_to_caller(kinds[name], array) if name in kinds else array for name, array in named.items()}

    @anywhere
    async def ready(
        self,
        shapes: Iterable[Mapping[str, Any]] | None = None,
        *,
        progress: Callable[[Progress], object] | None = None,
    ) -> None:
        """Return when every kernel is there: requests run on the device from then on, and none waits for a compiler.

        Such requests have memory at hand, too, one at a time: up to 64 MB where shapes are guessed.

        Args:
            shapes: What requests are to be like: for each a shape for each input, by name, and every input whose
                contents decide shapes is ones. None is what likely shapes need, as `Runtime.load()` guesses them.
            progress: Called on the loop with how far that is.

        Raises:
            InputError: Shapes do not fit the model.
            ShapeError: Or a node of it.
            KernelBuildError: The driver refused a kernel.
            OutOfDeviceMemory: The weights do not fit.
            RuntimeClosedError: The runtime was closed.
        """
        self._session.check_here()
        check_listener("progress", progress)
        if shapes is None:
            await self.network.warmed(progress)
        else:
            from .request.inputs import of_shapes

            for each in [of_shapes(self.network.program, given) for given in each_of("shapes", shapes)]:
                await self.network.bring(each)
        self._session.check_here()

    def infer_sync(
        self, inputs: Mapping[str, Any], *, priority: int = 0, deadline: float | None = None
    ) -> dict[str, Array]:
        """Run the model once from another thread than the runtime's loop; see `infer()`."""
        self._session.check_open()
        loop = self._session.loop
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            raise AsyncrtError(
                "infer_sync() would block the event loop that runs the inference", hint="use `await model.infer(...)`"
            )
        if loop.is_closed() or not loop.is_running():
            raise RuntimeClosedError(f"the runtime's event loop {'is closed' if loop.is_closed() else 'does not run'}")

        async def there() -> dict[str, Array]:
            return await self.infer(inputs, priority=priority, deadline=deadline)

        return asyncio.run_coroutine_threadsafe(there(), loop).result()

    @anywhere
    async def profile(self, inputs: Mapping[str, Any], *, priority: int = 0) -> Explanation:
        """Run the model once with its commands timed; returns what became of every node, and how long each took.

        Timing slows down this request and those that run at the same time. Run the model once before, so that no plan
        is made and no kernel is built meanwhile.

        Raises:
            AsyncrtError: A trace is being taken.
            InputError: As `infer()` does, and what else that raises.
        """
        self._session.check_here()
        priority = check_priority(priority)
        network, arrays = self.network.placed(await self.network.checked.take(inputs))
        request = network.number()
        async with network.session.traced() as tracer:
            _, records = await network.infer(arrays, priority, request=request)
        network.note(records)
        from .explain.explain import explain

        return explain(network.program, records, tracer.node_times(request), network.where)

    def sequence(self, state: Mapping[str, str] | None = None) -> Sequence:
        """Begin a sequence of steps that keep state on the device, such as the cache of keys and values of a decoder.

        Args:
            state: Which inputs are which outputs of the step before, ``{"past": "present"}``. None goes by the names
                that exporters give them.

        Raises:
            SequenceError: The names say nothing, or a tensor of the state cannot stay on the device.
        """
        from .sequences.sequence import Sequence

        self._session.check_open()
        return Sequence(self.network.for_sequence(), state)

    def sequences(self, state: Mapping[str, str] | None = None, *, max_batch: int = 16) -> SequenceGroup:
        """Begin a group of sequences whose steps run together, those that wait at the same time as one inference.

        Args:
            state: As for `sequence()`.
            max_batch: How many rows an inference has at most; a sequence has one, or as many as its inputs.

        Raises:
            SequenceError: As for `sequence()`.
        """
        from .sequences.group import SequenceGroup

        self._session.check_open()
        return SequenceGroup(self.network, state, max_batch)

    def batched(
        self,
        *,
        max_batch: int | None = None,
        max_delay: float | None = None,
        mode: Mode | None = None,
        max_waste: float | None = None,
        max_work: int | None = None,
        buckets: Iterable[int] | None = None,
        max_queue: int | None = None,
        max_queue_bytes: int | None = None,
        max_in_flight: int | None = None,
        ageing_s: float | None = None,
        batch_invariant: bool | None = None,
        config: BatchOptions | str | Path | None = None,
        pad_values: Mapping[str, Any] = {},
        mask: str | Iterable[str] | None = None,
        batch: str | None = None,
        samples: Iterable[Mapping[str, Any]] | None = None,
    ) -> Batched:
        """Return this model with requests of different callers and shapes run as one; see docs/batching.md.

        The arguments from *max_batch* to *batch_invariant* are fields of `BatchOptions`; None leaves one to *config*.

        Args:
            config: Options, or a file of them.
            pad_values: What inputs are padded with, by name; others are with 0.
            mask: The inputs that say which elements are not padding, 1 or 0; callers may leave them out. None takes
                those that are called so.
            batch: The name of the batch dim, if it cannot be told.
            samples: Requests to find out with what is safe to pad; of different shapes. None draws some.

        Raises:
            BatchingError: The model has no batch dim, or no such input.
            ArgumentError: An option has a value that it cannot have.
        """
        from .batching.batched import Batched, batch_options

        self._session.check_open()
        given = {
            "max_batch": max_batch, "max_delay": max_delay, "mode": mode, "max_waste": max_waste, "max_work": max_work,
            "buckets": buckets, "max_queue": max_queue, "max_queue_bytes": max_queue_bytes,
            "max_in_flight": max_in_flight, "ageing_s": ageing_s, "batch_invariant": batch_invariant,
        }  # fmt: skip
        options = batch_options(config, given)
        return Batched(
            self.network, options,
            pad_values=pad_values, mask=mask, batch=batch, samples=samples,
        )  # fmt: skip

    def explain(self) -> Explanation:
        """Return what became of every node of the inference that finished last, and why.

        Raises:
            AsyncrtError: None has finished yet.
        """
        from .explain.explain import explain

        network = self.network.latest
        if network.last is None:
            raise AsyncrtError("there is nothing to explain: no inference of this model has finished yet")
        return explain(network.program, network.last, where=network.where)
