"""A session's model, and the few others that it needs where ONNX Runtime takes feeds that the file does not foresee.

asyncrt holds an input to its dims and an initializer to its value. A feed that replaces initializers, or in which dims
of one name differ, goes to a model in which they are inputs, or have no names; it is loaded when the first such feed
comes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import onnx

from asyncrt.compat.errors import InvalidGraph, NotImplemented, error, translated
from asyncrt.compat.log import once
from asyncrt.compat.shared import shared_runtime
from asyncrt.sync import SyncModel

from . import edits
from .feeds import is_loose
from .interface import Interface, interface_of
from .source import Source


class Variant(NamedTuple):
    """Which model a feed needs.

    Attributes:
        replaced: The initializers that it replaces.
        loose: Whether it has dims of one name that differ.
    """

    replaced: frozenset[str] = frozenset()
    loose: bool = False


AS_IT_IS = Variant()


class Variants:
    """The models of a session; that of most feeds is loaded at once.

    Attributes:
        first: That one.
        interface: What is known of it.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self.runtime = shared_runtime()
        outline = source.outline()
        try:
            with translated(source.where):
                self.first = self.runtime.load(source.to_load())
        except NotImplemented as cause:
            unknown = _unknown_operator(outline)
            if unknown is None:
                raise
            raise error(
                InvalidGraph, f"{source.where}This is an invalid model. No Op registered for {unknown}"
            ) from cause
        self.interface: Interface = interface_of(outline, self.first.outputs)
        self._loaded: dict[Variant, SyncModel] = {AS_IT_IS: self.first}

    def of(self, fitted: Mapping[str, Any]) -> SyncModel:
        """Return the model for a feed; it is loaded if it is the first of its kind."""
        names = {arg.name for arg in self.interface.overridable}
        variant = Variant(frozenset(names.intersection(fitted)), is_loose(fitted, self.interface))
        model = self._loaded.get(variant)
        if model is not None:
            return model
        with self._lock:
            if variant not in self._loaded:
                once(f"'{self.interface.metadata.graph_name}' is loaded once more for feeds that need {variant}")
                with translated(self._source.where):
                    self._loaded[variant] = self.runtime.load(self._source.changed(lambda m: _change(m, variant)))
            return self._loaded[variant]


def _change(model: onnx.ModelProto, variant: Variant) -> None:
    edits.make_inputs(model, variant.replaced)
    if variant.loose:
        edits.loosen(model)


def _unknown_operator(model: onnx.ModelProto) -> str | None:
    """Return an operator of ONNX's that ONNX does not have, or that of a domain which the model does not import."""
    imported = {o.domain for o in model.opset_import}
    own = {(f.domain, f.name) for f in model.functions}
    for node in model.graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        standard = domain == "" or domain.startswith("ai.onnx")
        known = onnx.defs.has(node.op_type, domain) or (node.domain, node.op_type) in own
        if (standard and not known) or domain not in imported | {""}:
            return f"{domain}:{node.op_type}" if domain else str(node.op_type)
    return None
