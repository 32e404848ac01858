"""The calls of `GRPCInferenceService` as Ray's proxies make them: methods of the ingress deployment.

They are the servicer's own. Ray gives them a context that can be sent between processes, which knows neither `abort`
nor deadlines: a call whose deadline passes is cancelled by the proxy instead.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tritonclient.grpc import service_pb2_grpc

from asyncrt.errors import AsyncrtError
from asyncrt.serve.errors import NoKey
from asyncrt.serve.grpc.servicer import Servicer, telling
from asyncrt.serve.grpc.stubs import Message, config_pb, pb
from asyncrt.serve.keys import key_fits

from .replica import Replica

_FREE = ("ServerLive", "ServerReady")

# Ray pickles messages on their way from proxies to replicas, and the published ones give modules' names that they do
# not have in their package.
sys.modules.setdefault(pb.ModelInferRequest.__module__, pb)
sys.modules.setdefault(config_pb.ModelConfig.__module__, config_pb)


def add_servicer(servicer: Any, server: Any) -> None:
    """Tell a proxy of Ray's which calls there are; `GRPC_SERVICER` is the name of this."""
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)


class _Aborted(Exception):
    """The call has its status; there is nothing more to do for it."""


class _Context:
    """Ray's context with what the servicer asks of gRPC's."""

    def __init__(self, of_ray: Any) -> None:
        self._of_ray = of_ray

    def invocation_metadata(self) -> Any:
        return self._of_ray.invocation_metadata()

    def time_remaining(self) -> None:
        return None

    async def abort(self, code: Any, details: str, trailing: tuple[tuple[str, str], ...] = ()) -> None:
        self._of_ray.set_code(code)
        self._of_ray.set_details(details)
        self._of_ray.set_trailing_metadata([*self._of_ray.trailing_metadata(), *trailing])
        raise _Aborted


def _call(name: str) -> Callable[[Any, Message, Any], Awaitable[Message]]:
    async def call(self: Any, request: Message, grpc_context: Any) -> Message:
        context = _Context(grpc_context)
        try:
            async with contextlib.AsyncExitStack() as held:
                async with telling(context):
                    _check_key(self, name, context)
                    model = getattr(request, "model_name", "") or getattr(request, "name", "")
                    await held.enter_async_context(self.holding(model))
                return await getattr(Servicer(self.service), name)(request, context)
        except _Aborted:  # an answer with a status of its own; an exception would be the replica's failure to Ray
            return getattr(pb, f"{name}Response")()

    call.__name__ = name
    return call


def _check_key(replica: Any, call: str, context: _Context) -> None:
    if replica.key is not None and call not in _FREE:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not key_fits(given, replica.key.encode()):
            raise NoKey("the server asks for its key", hint="authorization: Bearer KEY, in the metadata")


def with_grpc(kind: type[Replica]) -> type[Replica]:
    """Return replicas that answer gRPC as well."""

    class WithGrpc(kind):  # type: ignore[valid-type, misc]  # a class that is known only now
        ServerLive, ServerReady, ModelReady = _call("ServerLive"), _call("ServerReady"), _call("ModelReady")
        ServerMetadata, ModelMetadata = _call("ServerMetadata"), _call("ModelMetadata")
        ModelConfig, ModelStatistics = _call("ModelConfig"), _call("ModelStatistics")
        RepositoryIndex, ModelInfer = _call("RepositoryIndex"), _call("ModelInfer")

        async def ModelStreamInfer(self, request_stream: Any, grpc_context: Any) -> AsyncIterator[Message]:
            context = _Context(grpc_context)
            try:
                async with telling(context):
                    _check_key(self, "ModelStreamInfer", context)
            except _Aborted:
                return
            async with contextlib.AsyncExitStack() as held:
                answers = Servicer(self.service).ModelStreamInfer(_brought(self, request_stream, held), context)
                async for answer in answers:
                    yield answer

    return WithGrpc


async def _brought(replica: Any, requests: Any, held: contextlib.AsyncExitStack) -> AsyncIterator[Message]:
    """Give requests when their models are there, which stay while *held* is open."""
    names = set[str]()
    async for message in requests:
        if message.model_name not in names:
            names.add(message.model_name)
            with contextlib.suppress(AsyncrtError):  # what cannot be loaded is not there, which its request is told
                await held.enter_async_context(replica.holding(message.model_name))
        yield message
