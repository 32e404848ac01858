"""The one skip question: is a node run, skipped, left as a view, or empty?

`decide` asks an operator's own rule (`Operator.views`) and turns the answer into a decision. Loading asks it with
symbolic dims, planning with the shapes of a request.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from asyncrt.layout import Shape
from asyncrt.memory.view import View

from .call import Call
from .operator import Operator
from .traits import DeviceTraits


class SkipMode(enum.Enum):
    """Whether a node is skipped, as far as loading can tell."""

    NEVER = "never"
    ALWAYS = "always"
    AT_RUNTIME = "at runtime"


class Run(NamedTuple):
    """The node is executed."""

    why: str = ""


class Skip(NamedTuple):
    """The node is not executed: each output is an input's bytes.

    Attributes:
        sources: For each output, the input that it is.
        offsets: For each output, the bytes from the input's start.
        why: The condition that held, for `explain()`.
    """

    sources: tuple[int, ...]
    offsets: tuple[int, ...]
    why: str


class Viewed(NamedTuple):
    """The node is not executed: its outputs stay views of inputs, for readers that take strides.

    Attributes:
        sources: For each output, the input that it is a view of.
        offsets: For each output, the bytes from the input's first element to its own.
        views: For each output its strides; None where its elements lie one after the other.
        why: What keeps it from being a skip, for `explain()`.
    """

    sources: tuple[int, ...]
    offsets: tuple[int, ...]
    views: tuple[View | None, ...]
    why: str


class Empty(NamedTuple):
    """The node is not executed: its outputs have no elements."""

    why: str


Decision: TypeAlias = Run | Skip | Viewed | Empty


class Fused(NamedTuple):
    """The node's work is done by a kernel of another node, whose name this is."""

    into: str


class Apart(NamedTuple):
    """A fused node is not executed: its parts are, one after the other."""

    why: str


SKIP_OFF = Run("skip is off")
MOVES = Run("moves data for these shapes")


def decide(operator: Operator, call: Call, *, skip: bool = True, stay: bool = False) -> Decision:
    """Decide whether the node of *call* is run, skipped, left as a view, or empty.

    With symbolic dims the question may raise `Undetermined` or `ValueUnknown`: it depends on the request.

    Args:
        skip: False runs what could be skipped.
        stay: Whether a result whose elements do not lie one after the other may stay a view.
    """
    outputs = call.outputs
    if outputs and all(_no_elements(o.shape) for o in outputs):
        return Empty("no elements")
    if not skip or operator.views is None:
        return Run() if skip else SKIP_OFF
    views = operator.views(call)
    if views is None:
        return Run("moves or changes data")
    sources: list[int] = []
    offsets: list[int] = []
    strided: list[View | None] = []
    for (source, moved), output in zip(views, outputs, strict=True):
        layout = call.inputs[source]
        view: View | None = moved
        if call.strided and layout is not None:
            view = moved.through(call.view(source))
        if view is None or layout is None or layout.dtype.itemsize != output.dtype.itemsize:
            return MOVES
        dense = view.is_dense
        if not dense:
            view = _shaped(view, output.shape) if stay else None
            if view is None or min(view.strides) < 0:
                return MOVES
        sources.append(source)
        offsets.append(view.offset * layout.dtype.itemsize)
        strided.append(None if dense else view._replace(offset=0))
    if any(v is not None for v in strided):
        return Viewed(tuple(sources), tuple(offsets), tuple(strided), "its readers take strides")
    return Skip(tuple(sources), tuple(offsets), operator.why)


def wants_dense(operator: Operator, call: Call) -> tuple[int, ...]:
    """Return the inputs of *call* that are strided views and that the operator cannot read as such."""
    views = None if operator.views is None else operator.views(call)
    refused: list[int] = []
    for index, view in enumerate(call.strided):
        if view is None:
            continue
        if views is not None:
            taken = all(
                output.dtype.itemsize == call.dtype(index).itemsize
                and moved.through(view) is not None
                for (source, moved), output in zip(views, call.outputs, strict=True)
                if source == index
            )
        else:
            taken = operator.takes_view is not None and operator.takes_view(call, index, view)
        if not taken:
            refused.append(index)
    return tuple(refused)


def decide_together(whole: Operator, parts: Sequence[Operator], call: Call, traits: DeviceTraits) -> Run | Apart:
    """Decide whether a fused node is run, or its parts are.

    The parts' decisions are made as if skipping were on, so that results are the same with and without it.

    Args:
        whole: The fused node's operator.
        parts: The operators of its parts.
    """
    decisions = [decide(part, c) for part, c in zip(parts, call.parts, strict=True)]
    if any(isinstance(d, Empty) for d in decisions):
        return Apart("it has no elements")
    if sum(isinstance(d, Run) for d in decisions) < 2:
        return Apart("skips leave one node to run at most")
    if any(part.unseen_indices(c) is not None for part, c in zip(parts, call.parts, strict=True)):
        return Apart("indices have to be looked at")
    assert whole.fits is not None
    why = whole.fits(call, traits)
    return Apart(why) if why else Run()


def why_not_skipped(operator: Operator, call: Call) -> str:
    """Return why a node that could be skipped was run in *call*; for `explain()`, never asked while planning."""
    views = None if operator.views is None else operator.views(call)
    if views is not None and call.strided and all(view.is_dense for _, view in views):
        # It would have been skipped, but for how its input lies.
        for source, _ in views:
            if reason := call.view(source).why_not_dense():
                return f"its input is a view that {reason}"
    if operator.why_not is not None:
        return operator.why_not(call)
    if views is None:
        return "changes data for these values" if operator.value_hints else "changes data for these shapes"
    return next((reason for _, view in views if (reason := view.why_not_dense())), "its dtype changes")


def _shaped(view: View, shape: Shape) -> View | None:
    """Return a view, which may have any shape of as many elements, in the output's shape; None if no strides can express it."""
    return view if view.shape == shape else View.dense(shape).through(view)


def _no_elements(shape: Shape) -> bool:
    return any(isinstance(d, int) and d == 0 for d in shape)
