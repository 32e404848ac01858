"""uvicorn as this server uses it: no signals of its own, patient for a while only, with a limit of connections."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from asyncrt.serve.options import Address, Tls, no_address
from asyncrt.serve.settings import Limits

from .joined import JoinedWrites

_BACKLOG = 1024
_KEEP_ALIVE_S = 65


class _PatientProtocol(HttpToolsProtocol):
    """A connection whose request headers have to arrive in time, and of which there are not too many."""

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._alarm: asyncio.TimerHandle | None = None
        #: Requests that run, or wait to, while others have come behind them on the connection.
        self._before: list[Any] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._limits.connections:
            transport.abort()  # and `self.transport` stays None
            return
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]  # as far as uvicorn uses one
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        between = self.cycle is None or self.cycle.response_complete
        if between and self._alarm is None:
            self._wait()

    def on_headers_complete(self) -> None:
        self._stop()
        before = self.cycle
        super().on_headers_complete()
        if before is not None and not before.response_complete:
            self._before = [*(cycle for cycle in self._before if not cycle.response_complete), before]

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self.transport is not None:
            super().connection_lost(exc)
        for cycle in self._before:  # uvicorn tells the last one only
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _wait(self) -> None:
        self._alarm = asyncio.get_running_loop().call_later(self._limits.header_timeout_s, self._give_up)

    def _stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _give_up(self) -> None:
        self._alarm = None
        if not self.transport.is_closing():
            self.transport.close()


class HttpServer(uvicorn.Server):
    """Serves an ASGI app until it is told to end."""

    def __init__(self, app: ASGIApp, address: Address, tls: Tls | None, limits: Limits) -> None:
        config = uvicorn.Config(
            app, host=address.host, port=address.port, http=functools.partial(_PatientProtocol, limits=limits),  # type: ignore[arg-type]
            ws="none", lifespan="off", proxy_headers=False, log_config=None, access_log=False,
            server_header=False, date_header=False, timeout_keep_alive=_KEEP_ALIVE_S, timeout_graceful_shutdown=1,
            backlog=_BACKLOG,
        )  # fmt: skip
        super().__init__(config)
        self._address, self._tls = address, tls
        self.bound = address

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    def listen(self) -> list[socket.socket]:
        """Take the address; port 0 becomes one that is free.

        Raises:
            WrongSettings: It cannot be had, or the certificate cannot be used.
        """
        try:
            if self._tls is not None:
                self.config.load()
                self.config.ssl = self._tls.context()
            made = socket.create_server(
                (self._address.host, self._address.port), backlog=_BACKLOG,
                family=socket.AF_INET6 if ":" in self._address.host else socket.AF_INET,
            )  # fmt: skip
        except (OSError, ssl.SSLError) as error:
            raise no_address("HTTP", self._address, error, "--port") from error
        self.bound = Address(self._address.host, made.getsockname()[1])
        return [made]
