"""The calls of gRPC: each asks the service what HTTP's paths ask it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import attrs
import grpc
from tritonclient.grpc import service_pb2_grpc

from asyncrt.serve.errors import Situation, tell
from asyncrt.serve.protocol.loading import settings_given
from asyncrt.serve.protocol.messages import InferResponse
from asyncrt.serve.service import Service
from asyncrt.serve.watch.counts import Clock

from .codec import format_infer, parameters_of, parse_infer
from .stubs import Message, config_pb, pb

_log = logging.getLogger("asyncrt.serve")
_AHEAD = 64  # requests of one stream that may be under way

Context = Any  # grpc.aio's, which has no types


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # it has no types
    """`GRPCInferenceService`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # Health and metadata.

    async def ServerLive(self, request: Message, context: Context) -> Message:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Message, context: Context) -> Message:
        return pb.ServerReadyResponse(ready=self._service.is_ready)

    async def ModelReady(self, request: Message, context: Context) -> Message:
        found = self._service.is_ready and request.version in ("", *self._service.models.versions(request.name))
        return pb.ModelReadyResponse(ready=found and bool(self._service.models.versions(request.name)))

    async def ServerMetadata(self, request: Message, context: Context) -> Message:
        return pb.ServerMetadataResponse(**self._service.server_metadata())

    async def ModelMetadata(self, request: Message, context: Context) -> Message:
        async with telling(context):
            return pb.ModelMetadataResponse(**self._service.model_metadata(request.name, request.version))

    async def ModelConfig(self, request: Message, context: Context) -> Message:
        async with telling(context):
            config = self._service.model_config(request.name, request.version)
            for tensor in (*config["input"], *config["output"]):
                tensor["data_type"] = config_pb.DataType.Value(tensor["data_type"])
            return pb.ModelConfigResponse(config=config_pb.ModelConfig(**config))

    async def ModelStatistics(self, request: Message, context: Context) -> Message:
        async with telling(context):
            return pb.ModelStatisticsResponse(model_stats=self._service.statistics(request.name, request.version))

    # The repository.

    async def RepositoryIndex(self, request: Message, context: Context) -> Message:
        async with telling(context):
            found = self._service.models.index(only_ready=request.ready)
            return pb.RepositoryIndexResponse(models=[attrs.asdict(entry) for entry in found])

    async def RepositoryModelLoad(self, request: Message, context: Context) -> Message:
        async with telling(context):
            given = settings_given(parameters_of(request.parameters))
            await self._service.models.load(request.model_name, given)
            return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Message, context: Context) -> Message:
        async with telling(context):
            await self._service.models.unload(request.model_name)
            return pb.RepositoryModelUnloadResponse()

    # Inference.

    async def ModelInfer(self, request: Message, context: Context) -> Message:
        async with telling(context):
            return await self._infer(request, context, "grpc")

    async def _infer(self, message: Message, context: Context, door: str) -> Message:
        service, clock = self._service, Clock()
        nbytes: int = message.ByteSize()
        with service.admission.enter(nbytes):
            headers = {k: v for k, v in context.invocation_metadata() or () if isinstance(v, str)}
            with service.using(message.model_name, message.model_version, door, clock, headers) as served:
                remaining = context.time_remaining() if door == "grpc" else None
                request = await service.timed(clock, "decode", nbytes, lambda: parse_infer(message, remaining))
                response: InferResponse = await service.infer(served, request, clock)
                size = sum(a.nbytes for a in response.outputs.values())
                return await service.timed(clock, "encode", size, lambda: format_infer(response))

    async def ModelStreamInfer(
        self, request_iterator: AsyncIterator[Message], context: Context
    ) -> AsyncIterator[Message]:
        """Answer the requests of a stream in their order; several may be under way. An error ends only its request."""
        under_way: asyncio.Queue[asyncio.Task[Message] | None] = asyncio.Queue(_AHEAD)
        tasks: set[asyncio.Task[Any]] = set()

        async def read() -> None:
            try:
                async for message in request_iterator:
                    task = asyncio.create_task(self._streamed(message, context))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    await under_way.put(task)
            finally:
                await under_way.put(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await under_way.get()) is not None:
                yield await task
            await reader  # a stream that cannot be read ends with its error
        finally:
            for each in (reader, *tasks):
                each.cancel()
            await asyncio.gather(reader, *tasks, return_exceptions=True)

    async def _streamed(self, message: Message, context: Context) -> Message:
        try:
            return pb.ModelStreamInferResponse(infer_response=await self._infer(message, context, "grpc stream"))
        except Exception as error:
            _note(error)
            return pb.ModelStreamInferResponse(
                error_message=tell(error).message, infer_response=pb.ModelInferResponse(id=message.id)
            )


def _note(error: Exception) -> None:
    if tell(error).situation is Situation.FAILED:
        _log.error("a request failed", exc_info=error)


@contextlib.asynccontextmanager
async def telling(context: Context) -> AsyncIterator[None]:
    """While this lasts, an error ends the call with its status."""
    try:
        yield
    except Exception as error:
        _note(error)
        told = tell(error)
        await context.abort(grpc.StatusCode[told.situation.grpc], told.message, tuple(told.headers.items()))
