"""What a call does before its servicer: a message that cannot be read is the caller's mistake, and told as such.

gRPC itself would end the call with UNKNOWN, and write a traceback for each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2_grpc

from asyncrt.serve.errors import BadRequest

from .servicer import Servicer, telling


@attrs.frozen
class _Unreadable:
    """What came instead of a message."""

    why: str


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no types
    """The calls of a servicer."""

    def __init__(self, servicer: Servicer) -> None:
        self._found: list[Any] = []
        self._handlers: dict[str, Any] = {}
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, self)

    # The published code takes this for the server.

    def add_generic_rpc_handlers(self, found: tuple[Any, ...]) -> None:
        """Note what the published code would have a server answer."""
        self._found += found

    def add_registered_method_handlers(self, service: str, found: dict[str, Any]) -> None:
        """Newer code says everything twice."""

    def service(self, handler_call_details: Any) -> Any:
        """Return who answers a call; None if nobody."""
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None:
            handler = next((h for f in self._found if (h := f.service(handler_call_details)) is not None), None)
            if handler is None:
                return None
            handler = self._handlers[method] = _careful(handler)
        return handler


def _careful(handler: Any) -> Any:
    read, write = _reads(handler.request_deserializer), handler.response_serializer
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(_careful_stream(handler.stream_stream), read, write)
    return grpc.unary_unary_rpc_method_handler(_careful_call(handler.unary_unary), read, write)


def _reads(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except (DecodeError, ValueError) as error:
            return _Unreadable(str(error))

    return read


def _readable(request: Any) -> Any:
    if type(request) is _Unreadable:
        raise BadRequest(f"the message cannot be read: {request.why}")
    return request


def _careful_call(answer: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        if type(request) is _Unreadable:
            async with telling(context):
                _readable(request)
        return await answer(request, context)

    return call


def _careful_stream(
    answer: Callable[[AsyncIterator[Any], Any], AsyncIterator[Any]],
) -> Callable[[AsyncIterator[Any], Any], AsyncIterator[Any]]:
    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async def readable() -> AsyncIterator[Any]:
            async for request in requests:
                yield _readable(request)

        async with telling(context):  # when all that came before has its answer: a call says one thing at a time
            async for answered in answer(readable(), context):
                yield answered

    return stream
