"""Which of many models does a replica keep? Those that were asked for last, up to a number.

Ray counts and chooses, by its `multiplexed`, so that its routers send requests to the replicas that have their model.
A model that is to go waits for the requests that are on their way to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import ray.serve  # pyright: ignore[reportMissingImports]

from asyncrt.serve.errors import NotFound

from .replica import Replica


class Held:
    """A model that a replica has loaded. Ray calls `__del__()` of the instance when it is to go."""

    def __init__(self, replica: Replica, name: str) -> None:
        self._replica, self._name = replica, name
        self._users, self._left = 0, asyncio.Event()
        # Of the instance, so that the collector of garbage, which cannot await, finds nothing to call.
        self.__del__ = self.leave

    @contextlib.contextmanager
    def used(self) -> Any:
        """While this lasts, the model stays."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._left.set()

    async def leave(self) -> None:
        """Unload the model when nobody is on the way to it."""
        while self._users:
            self._left.clear()
            await self._left.wait()
        with contextlib.suppress(NotFound):  # unloaded by new settings
            await self._replica.service.models.unload(self._name)


def multiplexed(most: int) -> type[Replica]:
    """Return replicas that load a model when it is asked for, and keep *most* of them."""

    class Multiplexed(Replica):
        @ray.serve.multiplexed(max_num_models_per_replica=most)  # type: ignore[untyped-decorator]
        async def held(self, name: str) -> Held:
            await self.load(name)
            return Held(self, name)

        @contextlib.asynccontextmanager
        async def holding(self, name: str) -> AsyncIterator[None]:
            if name not in self._repository.names():  # the service says so
                yield
                return
            held: Held = await self.held(name)
            with held.used():
                yield

        async def _load_all(self) -> None:
            for name in {served.name for served in self.service.models}:
                await self.load(name)

    return Multiplexed
