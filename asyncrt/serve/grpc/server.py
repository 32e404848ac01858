"""gRPC's server as this one uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from asyncrt.serve.errors import NoKey, tell
from asyncrt.serve.keys import key_fits
from asyncrt.serve.options import Address, Tls, no_address
from asyncrt.serve.service import Service

from .handlers import Handlers
from .servicer import Servicer

_GRACE_S = 1.0  # for what is cut off; the service has drained before
_FREE = ("/ServerLive", "/ServerReady")


class GrpcServer:
    """The open door of gRPC.

    Attributes:
        bound: Where it is.
    """

    def __init__(self, server: Any, bound: Address) -> None:
        self._server = server
        self.bound = bound

    @classmethod
    async def open(cls, service: Service, address: Address, tls: Tls | None, key: str | None) -> GrpcServer:
        """Open it.

        Raises:
            WrongSettings: The address cannot be had, or the certificate cannot be used.
        """
        options = [
            ("grpc.max_receive_message_length", service.limits.body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        checks = [] if key is None else [_KeyCheck(key)]
        server = grpc.aio.server(options=options, interceptors=checks)
        server.add_generic_rpc_handlers((Handlers(Servicer(service)),))
        try:
            if tls is None:
                port = server.add_insecure_port(str(address))
            else:
                pair = tls.key.read_bytes(), tls.certificate.read_bytes()
                port = server.add_secure_port(str(address), grpc.ssl_server_credentials([pair]))
        except (RuntimeError, OSError) as error:
            raise no_address("gRPC", address, error, "--grpc-port") from error
        await server.start()
        return cls(server, Address(address.host, port))

    async def close(self) -> None:
        """Close it; what has not ended by now is cut off."""
        await self._server.stop(_GRACE_S)


class _KeyCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # it has no types
    """Lets those in that carry the key; health is told to everybody."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        details = handler_call_details
        handler = await continuation(details)
        given = dict(details.invocation_metadata or ()).get("authorization", "")
        if handler is None or details.method.endswith(_FREE) or key_fits(given, self._key):
            return handler
        return _refusing_streams() if handler.request_streaming else _refusing_calls()


def _refusal() -> tuple[Any, str]:
    told = tell(NoKey("the server asks for its key", hint="authorization: Bearer KEY, in the metadata"))
    return grpc.StatusCode[told.situation.grpc], told.message


def _refusing_calls() -> Any:
    async def refuse(request: Any, context: Any) -> None:
        await context.abort(*_refusal())

    return grpc.unary_unary_rpc_method_handler(refuse)


def _refusing_streams() -> Any:
    async def refuse(requests: Any, context: Any) -> None:
        await context.abort(*_refusal())

    return grpc.stream_stream_rpc_method_handler(refuse)
