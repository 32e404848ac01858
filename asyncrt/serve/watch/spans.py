"""A span of OpenTelemetry for each request and each batch, where its API is installed; otherwise nothing, at no cost.

Only the API is used: which spans are kept, and where they go, is what the program around the server has set up.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from asyncrt.serve.errors import situation_of

propagate: Any = None
trace: Any = None
_NOWHERE: Any = None
with contextlib.suppress(ImportError):
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context

    _NOWHERE = Context()


class _Span:
    """What a request tells of itself."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def failed(self, error: BaseException) -> None:
        """Note with what the request ended."""
        if self._span is not None:
            name = situation_of(error).name if isinstance(error, Exception) else "CANCELLED"
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, name))


_NONE = _Span()


@contextlib.contextmanager
def request_span(model: str, version: int, headers: Mapping[str, str] | None) -> Iterator[_Span]:
    """Give the span of a request, which is a child of the one that its headers name (W3C traceparent)."""
    provider = _provider()
    if provider is None:
        yield _NONE
        return
    context = propagate.extract(headers or {})
    attributes = {"asyncrt.model": model, "asyncrt.version": version}
    with _tracer(provider).start_as_current_span(
        "infer", context=context, attributes=attributes, kind=trace.SpanKind.SERVER,
        record_exception=False, set_status_on_exception=False,
    ) as span:  # fmt: skip
        yield _Span(span)


def current_span() -> Any:
    """Return the span within which this is called; None if nobody keeps it."""
    if _provider() is None:
        return None
    context = trace.get_current_span().get_span_context()
    return context if context.trace_flags.sampled else None


@contextlib.contextmanager
def batch_span(model: str, version: int, members: list[Any], sizes: tuple[int, ...]) -> Iterator[None]:
    """Have a span while a batch runs, with links to those of its requests, whichever traces they belong to."""
    links = [trace.Link(span) for span in members if span is not None]
    provider = _provider() if links else None
    if provider is None:
        yield
        return
    attributes = {
        "asyncrt.model": model, "asyncrt.version": version, "asyncrt.requests": len(members), "asyncrt.sizes": sizes,
    }  # fmt: skip
    # Its context is empty: a batch is no part of one of its requests more than of the others.
    with _tracer(provider).start_as_current_span("batch", context=_NOWHERE, links=links, attributes=attributes):
        yield


def _provider() -> Any:
    """Return who keeps spans; None if nobody does: without a provider, making them would be work for nothing."""
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


@functools.lru_cache(maxsize=1)
def _tracer(provider: Any) -> Any:
    """Return what makes spans; to ask a provider for it takes as long as a span."""
    return provider.get_tracer("asyncrt.serve")
