"""One version of a model that is served: how its requests run, and how it goes when another takes its place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import DeadlineExceeded
from asyncrt.layout import Array
from asyncrt.runtime.batching.batched import Batched
from asyncrt.runtime.model import Model
from asyncrt.runtime.runtime import Runtime

from .errors import BadRequest, WrongSettings
from .open_sequences import OpenSequences
from .protocol.messages import InferRequest, TensorInfo, check_outputs
from .repository import Found
from .settings import ModelSettings
from .texts import Texts
from .watch.batches import BatchWatch
from .watch.counts import Counts


class ServedModel:
    """A version of a model, loaded and ready. Made by `serve()`.

    Attributes:
        counts: What it has done.
    """

    def __init__(self, name: str, version: int, model: Model, settings: ModelSettings, counts: Counts) -> None:
        self.name, self.version, self.settings, self.counts = name, version, settings, counts
        self.model = model
        self.inputs = [TensorInfo.of(n, layout) for n, layout in model.inputs.items()]
        self.outputs = [TensorInfo.of(n, layout) for n, layout in model.outputs.items()]
        self.batched: Batched | None = None
        self.sequences: OpenSequences | None = None
        self.texts: Texts | None = None
        self._users = 0
        self._left = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ServedModel {self.name} {self.version}, {self._users} requests>"

    @classmethod
    async def serve(
        cls, runtime: Runtime, found: Found, version: int, settings: ModelSettings, counts: Counts
    ) -> ServedModel:
        """Load a version, and do all that is to be done before its first request."""
        model = await runtime.load(found.files[version])
        try:
            served = cls(found.name, version, model, settings, counts)
            if found.tokenizer is not None and settings.embeddings is not None:
                served.texts = await asyncio.to_thread(Texts, model, found.tokenizer, settings.embeddings)
            if settings.batching is not None:
                served.batched = model.batched(config=settings.batching)
                served.batched.watch = BatchWatch(found.name, version, counts)
                await served.batched.open()
            if settings.sequences is not None:
                served.sequences = OpenSequences(model, settings.sequences)
            await model.ready()
            for sizes in settings.warmup:
                await model.infer(_likely(model, sizes))
        except BaseException:
            await runtime.unload(model)
            raise
        return served

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """While this lasts, the model stays."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._left.set()

    @property
    def executions(self) -> int:
        """How many inferences its requests took."""
        alone = self.counts.stages["run"].count
        if self.batched is not None:
            return self.batched.statistics().executions
        return alone if self.sequences is None else self.sequences.inferences

    async def infer(self, request: InferRequest, limit_s: float) -> dict[str, Array]:
        """Run a request.

        Args:
            limit_s: Seconds from now that it may take, if neither it nor the model says less.
        """
        check_outputs(self.model.outputs, request.outputs)
        asked = request.parameters
        priority = asked.priority or self.settings.priority
        given = (asked.timeout_s, self.settings.timeout_s, limit_s)
        timeout = min(t for t in given if t is not None)
        if self.batched is not None and not asked.in_sequence:  # it sees to the deadline itself, and goes by it
            return await self.batched.infer(request.inputs, priority=priority, deadline=timeout)
        scope = asyncio.timeout(timeout)
        try:
            async with scope:
                if asked.in_sequence:
                    return await self._stateful().step(request.inputs, asked, priority, timeout)
                return await self.model.infer(request.inputs, priority=priority, deadline=timeout)
        except TimeoutError as error:
            if isinstance(error, DeadlineExceeded) or not scope.expired():
                raise
            raise DeadlineExceeded(f"no answer within {timeout:.6g} s") from error

    def _stateful(self) -> OpenSequences:
        if self.sequences is None:
            raise BadRequest(
                f"model '{self.name}' keeps no state between requests", hint="its settings may have [sequences]"
            )
        return self.sequences

    async def close(self, runtime: Runtime) -> None:
        """Give everything back when those who use it have gone."""
        while self._users:
            self._left.clear()
            await self._left.wait()
        if self.batched is not None:
            await self.batched.close()
        if self.sequences is not None:
            await self.sequences.close()
        await runtime.unload(self.model)


def _likely(model: Model, sizes: dict[str, int]) -> dict[str, Array]:
    """Return inputs of ones in which dynamic dims have these sizes, and those that are not named 1."""
    names = {d.name for x in model.inputs.values() for d in x.shape or () if isinstance(d, Dim)}
    unknown = [name for name in sizes if name not in names]
    if unknown:
        known = ", ".join(sorted(n for n in names if n is not None))
        raise WrongSettings(f"warmup has a size of '{unknown[0]}', no dynamic dim; there are {known or 'none'}")
    filled: dict[str, Array] = {}
    for name, x in model.inputs.items():
        if x.dtype is None or x.shape is None:
            raise WrongSettings(f"warmup cannot make input '{name}', of which dtype or rank are unknown")
        shape = [sizes.get(d.name or "", 1) if isinstance(d, Dim) else d for d in x.shape]
        filled[name] = np.ones(shape, x.dtype.numpy)
    return filled
