"""The life of a server process: open the doors, load the models, serve, and end well when it is told to.

The doors are open while models load, so that whoever asks is told that the server lives and is not ready. The first
signal to end closes the doors to new requests and lets those that run finish; the second one does not wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from asyncrt.runtime.loop.malloc_trim import one_heap
from asyncrt.runtime.runtime import Runtime

from .errors import WrongSettings
from .first_request import curl_for
from .http.app import make_app
from .http.embeddings import Embeddings
from .http.live import Page
from .http.server import HttpServer
from .options import Doors
from .repository import Repository
from .service import Service
from .settings import Limits, ModelSettings
from .watch.access_log import AccessLog

_log = logging.getLogger("asyncrt.serve")

Announce = Callable[[str], None]
"""Tells the user a line."""


class _Door(Protocol):
    async def close(self) -> None: ...


class Ending:
    """What signals ask for: `asked` is set by the first, `now` by the second."""

    def __init__(self) -> None:
        self.asked, self.now = asyncio.Event(), asyncio.Event()

    def signalled(self) -> None:
        """Note a signal."""
        (self.now if self.asked.is_set() else self.asked).set()

    @contextlib.contextmanager
    def by_signals(self) -> Iterator[None]:
        """While this lasts, SIGTERM and SIGINT are noted here."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(NotImplementedError):  # on Windows Ctrl-C ends the loop itself
                    loop.add_signal_handler(number, self.signalled)
                    undo.callback(loop.remove_signal_handler, number)
            yield


async def serve(
    runtime: Runtime,
    repository: Repository,
    doors: Doors,
    limits: Limits,
    default: ModelSettings,
    log: AccessLog,
    announce: Announce,
) -> None:
    """Serve until a signal comes."""
    one_heap()
    ending = Ending()
    with ending.by_signals(), contextlib.closing(log):
        async with runtime:
            service = Service(runtime, repository, limits, default, log)
            async with _open(service, doors, announce) as said:
                await _serve(service, ending, announce, said, is_open=doors.key is None and doors.tls is None)


async def _serve(service: Service, ending: Ending, announce: Announce, said: str, *, is_open: bool) -> None:
    """Load the models and serve them; where a plain line of curl does, tell one."""
    starting = asyncio.create_task(service.start())
    asked = asyncio.create_task(ending.asked.wait())
    try:
        await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            announce(f"ready: {said}")
            curls = (curl_for(served, said.split()[0]) for served in service.models if is_open)
            if (curl := next(filter(None, curls), None)) is not None:
                announce(f"try it: {curl}")
        await asked
        announce("ending: requests that run have their answers first")
        await _drain(service, ending)
    finally:
        for task in (starting, asked):
            task.cancel()
        await asyncio.wait((starting, asked))
    if not ending.now.is_set():
        await service.models.close()


async def _drain(service: Service, ending: Ending) -> None:
    """Return when all that run have ended, when they have had their time, or after a second signal."""
    drained, now = asyncio.create_task(service.drain()), asyncio.create_task(ending.now.wait())
    await asyncio.wait((drained, now), return_when=asyncio.FIRST_COMPLETED)
    left = not (drained.done() and drained.result())
    if left:
        _log.warning("%d requests are cut off", service.admission.inside)
        ending.now.set()
    for task in (drained, now):
        task.cancel()
    await asyncio.wait((drained, now))


@contextlib.asynccontextmanager
async def _open(service: Service, doors: Doors, announce: Announce) -> AsyncIterator[str]:
    """Open the doors while this lasts; gives where they are, in words."""
    more = [*Embeddings(service).routes(), *Page(service).routes()]
    http = HttpServer(make_app(service, doors.key, more), doors.http, doors.tls, service.limits)
    sockets = http.listen()
    said = f"{'http' if doors.tls is None else 'https'}://{http.bound}"
    grpc: _Door | None = None
    if doors.grpc is not None:
        try:
            from .grpc.server import GrpcServer
        except ImportError as error:
            raise WrongSettings(
                f"gRPC needs a package that is not installed: {error.name}",
                hint="pip install 'asyncrt[grpc]', or serve HTTP alone with --grpc-port -1",
            ) from error
        opened = await GrpcServer.open(service, doors.grpc, doors.tls, doors.key)
        grpc, said = opened, f"{said} grpc://{opened.bound}"
    announce(f"live: {said}")
    serving = asyncio.create_task(http.serve(sockets))
    try:
        yield said
    finally:
        http.should_exit = True
        if grpc is not None:
            await grpc.close()
        await serving
