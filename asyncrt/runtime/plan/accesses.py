"""Which bytes does a launch read and write? A function of the plan, asked only when somebody checks.

What a step may touch is what its node's layouts say: all of an input, an output or a scratch buffer. That a kernel
keeps to them is not decided here.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.kernels.impl import Access
from asyncrt.kernels.indices import FINDING
from asyncrt.memory.hazards import WHOLE, Region
from asyncrt.memory.view import View, collapse

from .chunk_plan import PlanStep


class Touch(NamedTuple):
    """What a launch does with the bytes of one of its buffers."""

    region: Region
    write: bool


def touches(step: PlanStep) -> tuple[Touch, ...]:
    """Return what *step* reads and writes, in the order of its kernel's arguments."""
    assert step.origin is not None, "plans are made with their origins where hazards are checked"
    call, scratch, launch, offsets, written = step.origin
    found: list[Touch] = []
    for (kind, index), offset, access in zip(launch.buffers, offsets, launch.kernel.accesses, strict=True):
        if kind == "weights":
            region = WHOLE  # packed: only whoever packed it knows its size
        elif kind == "scratch":
            region = Region(offset, scratch[index])
        elif kind == "found":
            region = Region(offset, FINDING.nbytes)
        else:
            layout = (call.inputs if kind == "input" else call.outputs)[index]
            assert layout is not None
            if kind == "output":
                view = written[index] if written else None
            else:
                view = call.strided[index] if call.strided else None
            region = Region(offset, layout.nbytes) if view is None else strided(view, offset, layout.dtype.itemsize)
        found.append(Touch(region, access is not Access.READ))
    return tuple(found)


def strided(view: View, offset: int, itemsize: int) -> Region:
    """Return the bytes of a view that begins at byte *offset*: what lies together is one run."""
    offset += view.offset * itemsize
    dims, (strides,) = collapse(view.shape, view.strides)
    if strides[-1] == 1:
        return Region(offset, dims[-1] * itemsize, dims[:-1], tuple(s * itemsize for s in strides[:-1]))
    return Region(offset, itemsize, dims, tuple(s * itemsize for s in strides))
