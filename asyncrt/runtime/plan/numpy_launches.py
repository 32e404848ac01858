"""Operators' references as launches, for devices that take no OpenCL C."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrt.graph.ir import ProgramNode
from asyncrt.kernels.call import Call
from asyncrt.kernels.impl import FOUND, Impl, Launch, Ref, ReferenceKernel, inp, out
from asyncrt.kernels.indices import FINDING, Indices, note
from asyncrt.layout import Array, Layout, Shape
from asyncrt.memory.view import View

from .node_errors import naming


def reference_impl(node: ProgramNode, call: Call, indices: Indices | None = None) -> Impl:
    """The operator's reference as one launch. Values that the plan knows are part of it; the rest is read.

    Args:
        indices: What another launch looks at; where one is out of range, the results are zeros.
    """
    known = call.values
    read = [i for i, layout in enumerate(call.inputs) if layout is not None and known[i] is None]
    attributes, reference = node.attributes, node.operator.reference
    types, views = call.output_types, call.strided
    layouts = [
        layout if layout is None or not views or views[i] is None else _span(layout, call.view(i))
        for i, layout in enumerate(call.inputs)
    ]

    def run(arrays: Any) -> list[Array]:
        given = [known[i] if a is None else a for i, a in enumerate(arrays)]
        if views:
            given = [g if v is None or g is None else _strided(v, g) for g, v in zip(given, views, strict=True)]
        looked = None if indices is None else given[indices.input]
        if indices is not None and looked is not None and indices.first_outside(looked) is not None:
            return [np.zeros(layout.shape, layout.dtype.numpy) for layout in call.outputs]
        with naming(node, call, "failed"), np.errstate(all="ignore"):
            results = reference(attributes, given)
        return [np.asarray(r, t.numpy) for r, t in zip(results, types, strict=False)]

    kernel = ReferenceKernel(
        node.operator.name,
        run,
        tuple(layout if i in read else None for i, layout in enumerate(layouts)),
        call.outputs,
    )
    buffers: tuple[Ref, ...] = (*(inp(i) for i in read), *(out(i) for i in range(len(call.outputs))))
    return Impl("reference", (Launch(kernel, buffers, (), (1,)),))


def reference_look(call: Call, indices: Indices) -> Launch | None:
    """The launch that looks at indices, and notes one that is out of range; None of no indices."""
    layout, view = call.inputs[indices.input], call.view(indices.input)
    assert layout is not None
    if not layout.count:
        return None

    def run(arrays: Sequence[Array | None]) -> list[Array]:
        (memory,) = arrays
        assert memory is not None
        array = _strided(view, memory)
        return [note(indices.first_outside(array), array)]

    kernel = ReferenceKernel("look at indices", run, (_span(layout, view),), (FINDING,))
    return Launch(kernel, (inp(indices.input), FOUND), (), (1,))


def reference_copy(layout: Layout, view: View) -> Launch:
    """The launch that writes *view* out densely as *layout*."""
    kernel = ReferenceKernel("copy", functools.partial(_dense, view), (_span(layout, view),), (layout,))
    return Launch(kernel, (inp(0), out(0)), (), (1,))


def reference_append(layout: Layout, view: View, part: View, capacity: Shape) -> Launch:
    """The launch that writes *view* to *part* of memory of shape *capacity*, whose other bytes stay."""
    whole = Layout(layout.dtype, (math.prod(capacity),))

    def run(arrays: Sequence[Array | None]) -> list[Array]:
        new, memory = arrays
        assert new is not None
        assert memory is not None
        strides = [s * memory.itemsize for s in part.strides]
        np.lib.stride_tricks.as_strided(memory[part.offset :], part.shape, strides)[...] = _strided(view, new)
        return [memory]

    kernel = ReferenceKernel("append", run, (_span(layout, view), whole), (whole,))
    return Launch(kernel, (inp(0), out(0), out(0)), (), (1,))


def _span(layout: Layout, view: View) -> Layout:
    """All memory that *view* walks over, as a tensor of one axis."""
    return Layout(layout.dtype, (view.span,))


def _strided(view: View, memory: Array) -> Array:
    """The tensor that lies in *memory* as *view* says."""
    strides = [s * memory.itemsize for s in view.strides]
    return np.lib.stride_tricks.as_strided(memory, view.shape, strides, writeable=False)


def _dense(view: View, arrays: Sequence[Array | None]) -> list[Array]:
    (memory,) = arrays
    assert memory is not None
    return [np.asarray(_strided(view, memory), order="C")]
