"""One process of a deployment: a runtime of its own, and the service of `asyncrt serve` without its doors.

Ray constructs it, calls `reconfigure()` before the first request and whenever the settings of models change, asks
`check_health()`, and calls `__del__()` when the requests that it has sent here have ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import ray.serve  # pyright: ignore[reportMissingImports]
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from asyncrt.layout import Array
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.runtime import Runtime
from asyncrt.serve.errors import BadRequest, WrongSettings, tell
from asyncrt.serve.http.app import make_app
from asyncrt.serve.http.embeddings import Embeddings
from asyncrt.serve.http.io import refuse
from asyncrt.serve.http.live import Page
from asyncrt.serve.protocol.messages import InferRequest, Parameters
from asyncrt.serve.repository import Repository
from asyncrt.serve.service import Service
from asyncrt.serve.settings import Limits, ModelSettings
from asyncrt.serve.watch.access_log import AccessLog
from asyncrt.serve.watch.counts import Clock

_CHANGES = "/v2/repository/models/"


@attrs.frozen(kw_only=True)
class Wanted:
    """What each replica is: the same record goes to all of them.

    Attributes:
        source: A file or a repository, at the same path on every machine.
        devices: As `Runtime` takes them; replicas of one machine take them in turn. None is the best.
        default: Settings of models that have none of their own.
        key: What callers have to carry; None asks for nothing.
    """

    source: Path
    name: str | None
    devices: tuple[str, ...]
    streams: int | None
    options: RuntimeOptions
    default: ModelSettings
    limits: Limits
    key: str | None = attrs.field(repr=False)

    def device(self, rank: int) -> str | None:
        """Return the device of the replica that is *rank*-th on its machine."""
        return self.devices[rank % len(self.devices)] if self.devices else None


class Replica:
    """A process that serves all models of its source."""

    async def __init__(self, wanted: Wanted) -> None:  # type: ignore[misc]  # Ray awaits it
        runtime = Runtime(wanted.device(_local_rank()), streams=wanted.streams, options=wanted.options)
        await runtime.open()
        self._repository = Repository(wanted.source, wanted.name)
        self.service = Service(runtime, self._repository, wanted.limits, wanted.default, AccessLog(None))
        more = [*Embeddings(self.service).routes(), *Page(self.service).routes()]
        self._app = make_app(self.service, wanted.key, more)
        self.key = wanted.key
        #: By name; of models that it does not name, their files say them.
        self._settings: Mapping[str, Any] = {}

    # What Ray calls.

    async def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Load the models with these settings; each takes the place of the one before between two requests.

        Raises:
            WrongSettings: They name a model that there is not.
            NotLoaded: A model cannot be loaded; the one before stays.
        """
        unknown = sorted(settings.keys() - set(self._repository.names()))
        if unknown:
            there = ", ".join(self._repository.names()) or "none"
            raise WrongSettings(f"there are settings of '{unknown[0]}', and no model of that name; there are {there}")
        self._settings = settings
        await self._load_all()
        self.service.admission.open()

    async def check_health(self) -> None:
        """Raise when this replica can serve no more, so that Ray starts another."""
        self.service.check_ready()

    async def __del__(self) -> None:
        if hasattr(self, "service"):
            await self.service.drain()
            await self.service.models.close()
            await self.service.runtime.close()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of HTTP."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path.startswith(_CHANGES):
            error = BadRequest("one replica alone cannot change its models", hint="deploy other settings through Ray")
            await refuse(send, tell(error), body_read=False)
            return
        async with self.holding(_model_of(path) or ray.serve.get_multiplexed_model_id()):
            await self._app(scope, receive, send)

    async def infer(
        self, inputs: Mapping[str, Array], *, model: str = "", version: str = "", outputs: tuple[str, ...] = (),
        priority: int = 0, timeout_s: float | None = None,
    ) -> dict[str, Array]:  # fmt: skip
        """Answer a request of Python's; see `Client.infer()`."""
        asked = Parameters(timeout_s=timeout_s, priority=priority)
        request, clock = InferRequest(dict(inputs), dict.fromkeys(outputs), parameters=asked), Clock()
        name = model or self._only()
        with self.service.admission.enter(sum(array.nbytes for array in request.inputs.values())):
            async with self.holding(name):
                with self.service.using(name, version, "ray", clock) as served:
                    return (await self.service.infer(served, request, clock)).outputs

    # Which models are there.

    @contextlib.asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        """Keep a model while this lasts, if there is one of that name."""
        yield

    async def load(self, name: str) -> None:
        """Load a model, with the settings that were deployed if they name it."""
        await self.service.models.load(name, self._settings.get(name))

    async def _load_all(self) -> None:
        for name in self._repository.names():
            await self.load(name)

    def _only(self) -> str:
        names = self._repository.names()
        if len(names) != 1:
            raise BadRequest(f"a request has to name its model; there are {', '.join(names)}")
        return names[0]


def _local_rank() -> int:
    """Return how many replicas of the deployment came before this one on its machine."""
    rank = getattr(ray.serve.get_replica_context(), "rank", None)  # older Rays do not tell
    return int(getattr(rank, "local_rank", 0))


def _model_of(path: str) -> str:
    """Return which model a path is about; "" if none."""
    parts = path.split("/")
    return parts[3] if parts[:3] == ["", "v2", "models"] and len(parts) > 3 and parts[3] != "stats" else ""


class App:
    """The ASGI app that Ray is given: it asks the replica in whose process it is."""

    def __init__(self) -> None:
        self._lifespan = Starlette()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            await ray.serve.get_replica_context().servable_object.answer(scope, receive, send)
