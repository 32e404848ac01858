"""How far do kernels reach? The one rule for the sizes of what they index.

Kernels calculate with 32-bit ints: rows times columns, an index times a stride, the number of a work-item. A product may
overflow where its factors fit, and then a kernel would read and write bytes of others. So no launch may touch a tensor of
more than `MOST` elements, or one whose elements lie further apart than that. The offsets of a launch in its buffers are
64-bit bytes: memory may be larger, and so may tensors of nodes that move no data.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrt.errors import SizeLimitError
from asyncrt.layout import show_shape
from asyncrt.memory.view import View

from .call import Call
from .impl import Impl, KernelChoice, KernelSource, Launch, ReferenceKernel

_ROUNDING = 1 << 20
MOST = (1 << 31) - _ROUNDING
"""Elements that kernels index at most, 2,146,435,072.

What keeps it below 2^31 is that kernels count past the end before they see it: loops in steps of a vector or a group (up
to 1024), grids rounded up to groups and tiles (up to 256), pieces of rows rounded up to vectors for each work-item of a
CPU (16 for each of 4 items per core, 70,000 on 1,024 cores), and rows rounded up to what a work-item takes (up to 65,536).
"""

_HINT = 'split the tensor over several requests or nodes; the device "host" has no such limit'


def check_launch(
    call: Call, launch: Launch, impl: Impl, written: tuple[View, ...] = (), *, hint: str = _HINT
) -> None:
    """Check that a launch's kernel can index all tensors that it may touch; a reference can always.

    Args:
        call: All its tensors count, whether this launch touches them or another one of *impl*.
        written: The view of each output that the launch writes, where not all are dense.
        hint: For the error.

    Raises:
        SizeLimitError: The kernel cannot.
    """
    if isinstance(launch.kernel, ReferenceKernel):
        return
    for count, owner, kind, index in _reached(call, launch, launch.kernel, impl, written):
        if count > MOST:
            raise _beyond(owner, kind, index, count, hint)


def check_extent(name: str, what: str, extent: int, most: int = MOST) -> None:
    """Check an *extent* that kernels count through, though no tensor need be as long.

    Args:
        name: The node's.
        what: What has that extent, for the message.
        most: How far they may count; less than `MOST` where they calculate with multiples of it.

    Raises:
        SizeLimitError: It is too long.
    """
    if extent > most:
        raise SizeLimitError(f"'{name}': {what} has {extent:,} elements; kernels count {most:,}", hint=_HINT)


def unfit(call: Call, launch: Launch) -> SizeLimitError:
    """Return the error for a launch with a size or stride that its argument record cannot hold."""
    furthest = max(launch.ints, key=abs)
    return SizeLimitError(f"'{call.name}': a size or stride of {furthest:,} does not fit 32 bits", hint=_HINT)


def _reached(
    call: Call, launch: Launch, kernel: KernelSource | KernelChoice, impl: Impl, written: tuple[View, ...]
) -> Iterator[tuple[int, Call, str, int]]:
    """Yield the number of elements, the call, and which buffer, for everything that the launch may index."""
    yield from _tensors(call)
    for part in call.parts if impl.walks_parts else ():
        yield from _tensors(part)
    for index, view in enumerate(written):
        yield _end(view), call, "output", index
    for index, request in enumerate(impl.weights):
        yield request.elements, call, "weights", index
    for ref, itemsize in zip(launch.buffers, kernel.itemsizes, strict=False):
        if ref.kind == "scratch":
            yield impl.scratch[ref.index] // itemsize, call, "scratch", ref.index


def _tensors(call: Call) -> Iterator[tuple[int, Call, str, int]]:
    """Yield the same for the tensors of a call; a strided one counts with the gaps between its elements."""
    for index, layout in enumerate(call.inputs):
        if layout is not None:
            yield layout.count, call, "input", index
    for index, layout in enumerate(call.outputs):
        yield layout.count, call, "output", index
    for index, view in enumerate(call.strided):
        if view is not None:
            yield _end(view), call, "input", index


def _end(view: View) -> int:
    """Return how many elements of memory there are up to the view's last one."""
    return view.offset + view.span


def _beyond(call: Call, kind: str, index: int, count: int, hint: str) -> SizeLimitError:
    if kind in ("scratch", "weights"):
        what, detail = {"scratch": f"scratch memory {index}", "weights": "a constant, packed,"}[kind], ""
    else:
        layout = (call.inputs if kind == "input" else call.outputs)[index]
        assert layout is not None
        what = f"{kind} {index}, {layout},"
        detail = "" if layout.count == count else f"it lies as a view of {show_shape(layout.shape)}"
    have = "has" if not detail else "reaches over"
    return SizeLimitError(
        f"'{call.name}': {what} {have} {count:,} elements; kernels index {MOST:,}", detail=detail, hint=hint
    )
