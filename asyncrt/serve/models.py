"""Which models are ready, and how they come and go while requests run.

A request takes the version that is there when it comes, and that version stays until the request has its answer. So a
new version takes an old one's place between two requests, and none of them fails; if it cannot be loaded, the old one
stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import attrs

from asyncrt.arguments import shown
from asyncrt.errors import AsyncrtError
from asyncrt.runtime.runtime import Runtime

from .errors import NotFound, NotLoaded, told_in_full
from .repository import Found, Repository
from .served_model import ServedModel
from .settings import ModelSettings
from .watch.counts import Counts

_log = logging.getLogger("asyncrt.serve")


@attrs.frozen
class IndexEntry:
    """A model, or a version of one, as the repository's index has it; `state` is READY or UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str


class Models:
    """The models of one server.

    Args:
        default: The settings of models that have no file of their own.
    """

    def __init__(self, runtime: Runtime, repository: Repository, default: ModelSettings) -> None:
        self.runtime = runtime
        self.repository = repository
        self._default = default
        #: The versions of each name, the oldest first.
        self._ready: dict[str, dict[int, ServedModel]] = {}
        #: Why a model is not ready: of those that were tried, or unloaded.
        self._reasons: dict[str, str] = {}
        self._changing: dict[str, asyncio.Lock] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[ServedModel]:
        return iter([served for versions in self._ready.values() for served in versions.values()])

    # Requests.

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return a model that is ready; without a version, the newest.

        Raises:
            NotFound: There is none.
        """
        versions = self._ready.get(name)
        if not versions:
            raise NotFound(f"there is no model {shown(name)} that is ready")
        if not version:
            return versions[max(versions)]
        found = versions.get(int(version)) if version.isdecimal() and len(version) < 19 else None
        if found is None:
            raise NotFound(f"model '{name}' has no version {shown(version)}; there are {', '.join(map(str, versions))}")
        return found

    @contextlib.contextmanager
    def use(self, name: str, version: str = "") -> Iterator[ServedModel]:
        """Give a model that stays while this lasts."""
        served = self.find(name, version)
        with served.used():
            yield served

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that are ready."""
        return [str(v) for v in self._ready.get(name, ())]

    def index(self, *, only_ready: bool = False) -> list[IndexEntry]:
        """Return what there is, ready or not."""
        found = []
        for name in sorted({*self.repository.names(), *self._ready, *self._reasons}):
            versions = self._ready.get(name)
            if versions:
                found += [IndexEntry(name, str(v), "READY", "") for v in versions]
            elif not only_ready:
                found.append(IndexEntry(name, "", "UNAVAILABLE", self._reasons.get(name, "it was not loaded")))
        return found

    # Changes.

    async def load_all(self) -> None:
        """Load all that there are, one after the other.

        Raises:
            NotFound: There is no model at all; or whatever loading one raises.
        """
        names = self.repository.names()
        if not names:
            raise NotFound(
                f"there is no model to serve in {self.repository.path}",
                hint="a repository has NAME.onnx, or NAME/VERSION/model.onnx, where a version is a number",
            )
        for name in names:
            await self.load(name)

    async def load(self, name: str, given: dict[str, Any] | None = None) -> None:
        """Load a model, or what is new of it, and let it take the old one's place.

        Args:
            given: Settings to use instead of its file's.

        Raises:
            NotFound: There is none.
            NotLoaded: It cannot be loaded; what was there before stays.
        """
        found = self.repository.find(name)
        async with self._changing.setdefault(name, asyncio.Lock()):
            try:
                new = await self._serve(found, given)
            except AsyncrtError as error:
                why = self._without_paths(told_in_full(error))
                if name not in self._ready:
                    self._reasons[name] = why
                raise NotLoaded(error, f"model '{name}' cannot be loaded: {why}") from error
            old, self._ready[name] = self._ready.get(name, {}), new
            self._reasons.pop(name, None)
            self._let_go(old)
        _log.info("model '%s' is ready: version %s", name, ", ".join(map(str, new)))

    async def _serve(self, found: Found, given: dict[str, Any] | None) -> dict[int, ServedModel]:
        if given is None:
            settings = await asyncio.to_thread(found.read_settings, self._default)
        else:
            settings = ModelSettings.of(given, "config")
        before, new = self._ready.get(found.name, {}), dict[int, ServedModel]()
        try:
            for version in found.chosen(settings):
                counts = before[version].counts if version in before else Counts()
                new[version] = await ServedModel.serve(self.runtime, found, version, settings, counts)
        except BaseException:
            self._let_go(new)
            raise
        return new

    async def unload(self, name: str) -> None:
        """Let a model go; its requests that are under way end as usual.

        Raises:
            NotFound: It is not there.
        """
        async with self._changing.setdefault(name, asyncio.Lock()):
            if name not in self._ready:
                raise NotFound(f"there is no model {shown(name)} that is ready")
            self._let_go(self._ready.pop(name))
            self._reasons[name] = "it was unloaded"
        _log.info("model '%s' was unloaded", name)

    def _let_go(self, versions: dict[int, ServedModel]) -> None:
        for served in versions.values():
            task = asyncio.create_task(served.close(self.runtime))
            self._leaving.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a model could not be unloaded", exc_info=task.exception())

    async def close(self) -> None:
        """Let all go, when their requests have ended."""
        for versions in self._ready.values():
            self._let_go(versions)
        self._ready.clear()
        while self._leaving:
            await asyncio.wait(self._leaving)

    def _without_paths(self, text: str) -> str:
        """Return a message without what it says about where files are."""
        folder = self.repository.path if self.repository.path.is_dir() else self.repository.path.parent
        for path in (folder.resolve(), folder):
            text = text.replace(f"{path}/", "")
        return text
