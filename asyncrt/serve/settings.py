"""What may be set, for the server and for each model: frozen records, and the small file of a model.

A model's file is TOML, lies beside it, and is checked in full before anything is loaded: an unknown word, or a value
that there cannot be, is an error that names the file and the table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from asyncrt.arguments import check_names, check_text, each_of, shown, whole
from asyncrt.errors import ArgumentError
from asyncrt.option_fields import counted, measured, one_of, switch
from asyncrt.scheduler.batching import BatchOptions

from .errors import WrongSettings

T = TypeVar("T")
_MOST_BYTES = 1 << 40


@attrs.frozen(kw_only=True)
class Limits:
    """What the server takes at most.

    Attributes:
        body_bytes: Of one request, decoded.
        pending_bytes: Of the requests that are there at the same time.
        requests: Requests that are there at the same time; one more is refused before its body is read.
        body_timeout_s: Seconds that a body may take to arrive.
        header_timeout_s: Seconds that the header of a request may take to arrive.
        connections: Connections of HTTP that are open at the same time.
        request_timeout_s: Seconds that a request may take; less if it says so itself.
        drain_s: Seconds that running requests have when the server is told to end.
    """

    body_bytes: int = counted(256 << 20, 1, _MOST_BYTES)
    pending_bytes: int = counted(1 << 30, 1, _MOST_BYTES)
    requests: int = counted(1024)
    body_timeout_s: float = measured(30.0, 1e-3)
    header_timeout_s: float = measured(10.0, 1e-3)
    connections: int = counted(4096)
    request_timeout_s: float = measured(60.0, 1e-3)
    drain_s: float = measured(30.0, 0)


def _text_or_none(given: Any) -> str | None:
    return None if given is None else check_text("output", given)


def _state(given: Any) -> dict[str, str] | None:
    return None if given is None else check_names("state", given, texts=True)


@attrs.frozen(kw_only=True)
class SequenceSettings:
    """How a model keeps the state of sequences between requests.

    Attributes:
        state: Which inputs are which outputs of the step before; None goes by their names.
        max_sequences: Sequences that are open at the same time.
        max_idle_s: Seconds after its last step in which a sequence is closed, if nobody ends it.
        max_batch: Rows of steps that run together.
    """

    state: dict[str, str] | None = attrs.field(default=None, converter=_state)
    max_sequences: int = counted(256)
    max_idle_s: float = measured(60.0, 1e-3)
    max_batch: int = counted(16)


@attrs.frozen(kw_only=True)
class EmbeddingSettings:
    """How a model with a tokeniser beside it makes vectors of texts.

    Attributes:
        output: Which has them; None takes the first with a vector for each text, or else for each token.
        pooling: Of vectors of tokens: their "mean", or the "first".
        normalise: Whether vectors have length 1.
        max_tokens: Longer texts are cut off.
    """

    output: str | None = attrs.field(default=None, converter=_text_or_none)
    pooling: str = one_of("mean", ("mean", "first"))
    normalise: bool = switch(True)
    max_tokens: int = counted(512)


def _sizes(given: Any) -> tuple[dict[str, int], ...]:
    found = []
    for sizes in each_of("warmup", given):
        named = check_names("each of warmup", sizes)
        found.append({name: whole(f"the size of {name}", size, 0, 1 << 40) for name, size in named.items()})
    return tuple(found)


def _versions(given: Any) -> str | tuple[int, ...]:
    if isinstance(given, str):
        if given not in ("latest", "all"):
            raise ArgumentError(f'versions must be "latest", "all" or a list of numbers, got {shown(given)}')
        return given
    return tuple(whole("each of versions", v, 1) for v in each_of("versions", given))


@attrs.frozen(kw_only=True)
class ModelSettings:
    """How one model is served.

    Attributes:
        batching: How requests of different callers are put together; None runs each by itself.
        sequences: How state is kept; None if requests that name a sequence are refused.
        embeddings: How vectors of texts are made, if there is a tokeniser beside the model; None if they are not.
        versions: Which of those that are there are served: the "latest", "all", or these.
        warmup: Sizes of the dynamic dims, by name, that are run before the model is ready.
        priority: Of requests that name none; 1 goes first.
        timeout_s: Seconds that a request may take; None is the server's limit.
    """

    batching: BatchOptions | None = None
    sequences: SequenceSettings | None = None
    embeddings: EmbeddingSettings | None = EmbeddingSettings()
    versions: str | tuple[int, ...] = attrs.field(default="latest", converter=_versions)
    warmup: tuple[dict[str, int], ...] = attrs.field(default=(), converter=_sizes)
    priority: int = counted(2)
    timeout_s: float | None = measured(None, 1e-3, optional=True)

    @classmethod
    def read(cls, path: Path) -> ModelSettings:
        """Return what a file says.

        Raises:
            WrongSettings: It is not TOML, or says what there cannot be.
        """
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise WrongSettings(f"{path.name}: settings are TOML, which this is not: {error}") from error
        return cls.of(given, path.name)

    @classmethod
    def of(cls, given: Mapping[str, Any], where: str) -> ModelSettings:
        """Return what tables say that came from *where*."""
        found = dict(given)
        for name, kind in _TABLES.items():
            if name in found:
                found[name] = _switched(kind, found[name], f"{where}, [{name}]")
        return record(cls, found, where)


_TABLES: dict[str, type[Any]] = {
    "batching": BatchOptions, "sequences": SequenceSettings, "embeddings": EmbeddingSettings,
}  # fmt: skip


def _switched(kind: type[T], given: Any, where: str) -> T | None:
    """Return a table's record; true is the record of defaults, and false none."""
    if isinstance(given, bool):
        return kind() if given else None
    return record(kind, given, where)


def record(kind: type[T], given: Any, where: str) -> T:
    """Return a record of a table.

    Raises:
        WrongSettings: It has a word or a value that there cannot be.
    """
    if not isinstance(given, Mapping):
        raise WrongSettings(f"{where}: expected a table, got {shown(given)}")
    fields: Iterable[attrs.Attribute[Any]] = attrs.fields(kind)  # type: ignore[arg-type]
    known = [f.name for f in fields]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise WrongSettings(f"{where}: there is no setting {shown(unknown[0])}; there are {', '.join(sorted(known))}")
    try:
        return kind(**given)
    except ArgumentError as error:
        raise WrongSettings(f"{where}: {error.message}", hint=error.hint) from error
