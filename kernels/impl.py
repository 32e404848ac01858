"""How a node is carried out: which kernels, over which memory, with which sizes. Pure data, bound to no device.

Kernels take sizes as arguments, so that a new shape needs no build. A `KernelSource` is made by `source.kernel()`.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import attrs

from asyncrt.layout import Array, Layout


class Access(enum.Enum):
    """What a kernel does with a buffer."""

    READ = "read"
    WRITE = "write"
    READ_WRITE = "read and write"


@attrs.frozen(eq=False)
class KernelSource:
    """OpenCL C for one kernel; equal sources are the same object while they are in use.

    Attributes:
        name: The kernel's function name, unique to its text.
        text: OpenCL C of this kernel alone; several can be built as one program.
        accesses: What it does with each buffer, in argument order.
        ints: How many 32-bit sizes follow the buffers' offsets in its argument record.
        local: Number of ``__local`` arguments after the record.
        itemsizes: Bytes of an element of each buffer, in argument order.
    """

    name: str
    text: str
    accesses: tuple[Access, ...]
    ints: int
    local: int = 0
    itemsizes: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<KernelSource {self.name}>"


@attrs.frozen(eq=False)
class ReferenceKernel:
    """A kernel for devices that take no OpenCL C: the operator's NumPy reference over the launch's buffers.

    Attributes:
        name: For traces.
        run: Takes one array (or None) per input, returns one per output.
        inputs: Layout of each input; None where absent.
        outputs: Layout of each output.
    """

    name: str
    run: Callable[[Sequence[Array | None]], Sequence[Array]]
    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout, ...]

    @property
    def accesses(self) -> tuple[Access, ...]:
        present = sum(1 for i in self.inputs if i is not None)
        return (Access.READ,) * present + (Access.WRITE,) * len(self.outputs)


@attrs.frozen(eq=False)
class KernelChoice:
    """One of several kernels, by a number that remembers how it was calculated: for other sizes it may be another one.
    They differ in their text alone: what a launch gives them is the same.

    Attributes:
        number: Which one.
        kernel: Returns the kernel of a number; one object for all choices of the same kernels.
    """

    number: int
    kernel: Callable[[int], KernelSource]

    @property
    def now(self) -> KernelSource:
        """The kernel of the number as it is."""
        return self.kernel(int.__index__(self.number))

    @property
    def accesses(self) -> tuple[Access, ...]:
        return self.now.accesses

    @property
    def itemsizes(self) -> tuple[int, ...]:
        return self.now.itemsizes


def chosen(number: int, kernel: Callable[..., KernelSource], *form: Hashable) -> KernelSource | KernelChoice:
    """Return the kernel of *number*, or all of them where it may become another number (`runtime/plan/recipe.py`).

    Args:
        kernel: Returns it for a form and a number.
        form: What the kernel's source depends on beside the number.
    """
    remembers = isinstance(number, int) and type(number) is not int
    return KernelChoice(number, _of(kernel, form)) if remembers else kernel(*form, number)


@functools.cache
def _of(kernel: Callable[..., KernelSource], form: tuple[Hashable, ...]) -> Callable[[int], KernelSource]:
    return functools.cache(functools.partial(kernel, *form))


class Ref(NamedTuple):
    """A buffer of a launch, by its role in the node.

    `kind` is "input", "output", "scratch", "weights", or "found": where the launch notes an index that is out of range
    (see `indices.py`)."""

    kind: str
    index: int  # type: ignore[assignment]  # tuple.index, which nobody asks of a reference


def inp(index: int) -> Ref:
    return Ref("input", index)


def out(index: int) -> Ref:
    return Ref("output", index)


def scratch(index: int) -> Ref:
    return Ref("scratch", index)


def weights(index: int) -> Ref:
    return Ref("weights", index)


FOUND = Ref("found", 0)


class Normalisation(NamedTuple):
    """What is done to rows: each is normalised, scaled and shifted.

    Attributes:
        statistics: As for `patterns/normalize.py:normalize_rows`.
        epsilon: Of the operator.
        scale, bias: Of each column, in the rows' dtype; a bias may be absent.
    """

    statistics: str
    epsilon: float
    scale: Ref
    bias: Ref | None

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Its buffers."""
        return (self.scale,) if self.bias is None else (self.scale, self.bias)


class Launch(NamedTuple):
    """One kernel launch of a node.

    Attributes:
        kernel: What to run.
        buffers: Its buffers, in argument order.
        ints: Its 32-bit sizes, in argument order.
        grid: Global size.
        group: Local size; None leaves it to the driver.
        local: Bytes of each ``__local`` argument.
        varying: Indices of sizes that stay arguments in a specialised variant, so that more launches share it.
        also: Returns the kernel that makes the same, of one row, and copies so many parts of it elsewhere
            (`patterns/copy.py:copied_as_made`); None where there is none.
        normal: What it does to each row of its input, whose elements are adjacent, and nothing else; None if it is no
            such launch.
        of_rows: Returns the launch that does the same with the rows of its first buffer once they are normalised as is
            said, of so many elements each, and writes these rows to a buffer; None where there is none.
    """

    kernel: KernelSource | ReferenceKernel | KernelChoice
    buffers: tuple[Ref, ...]
    ints: tuple[int, ...]
    grid: tuple[int, ...]
    group: tuple[int, ...] | None = None
    local: tuple[int, ...] = ()
    varying: tuple[int, ...] = ()
    also: Callable[[int], KernelSource | KernelChoice] | None = None
    normal: Normalisation | None = None
    of_rows: Callable[[Normalisation, int, Ref], Launch | None] | None = None


class WeightsRequest(NamedTuple):
    """A constant input wanted in another layout; packed once per program and layout (see `weights.py`).

    Attributes:
        source: Index of the input, whose value is a constant of the model.
        layout: Names the wanted layout; part of the cache's key.
        pack: Makes the wanted bytes from the constant.
        elements: How many elements `pack` makes; known in advance, because padding may add many.
    """

    source: int
    layout: str
    pack: Callable[[Array], Array]
    elements: int


class Impl(NamedTuple):
    """How a node runs at one set of shapes.

    Attributes:
        name: For `explain()`: which of the operator's implementations this is.
        launches: In order.
        scratch: Bytes of each scratch buffer.
        weights: Constants wanted in another layout.
        walks_parts: For a node that stands for several: whether kernels may number the elements of what its parts make,
            though it is not stored, so that all of it has to be within `reach.MOST`.
    """

    name: str
    launches: tuple[Launch, ...]
    scratch: tuple[int, ...] = ()
    weights: tuple[WeightsRequest, ...] = ()
    walks_parts: bool = True

    @property
    def looks_at_indices(self) -> bool:
        """Whether its kernels check the indices that they use."""
        return any(FOUND in launch.buffers for launch in self.launches)


@attrs.define
class ImplBuilder:
    """An implementation that is being put together.

    Attributes:
        launches: In order.
        sizes: Bytes of each scratch buffer.
        requests: Constants wanted in another layout.
    """

    launches: list[Launch] = attrs.Factory(list)
    sizes: list[int] = attrs.Factory(list)
    requests: list[WeightsRequest] = attrs.Factory(list)

    def scratch(self, nbytes: int) -> Ref:
        """Return one more scratch buffer."""
        self.sizes.append(nbytes)
        return scratch(len(self.sizes) - 1)

    def weights(self, request: WeightsRequest) -> Ref:
        """Return the buffer of one more constant in another layout."""
        self.requests.append(request)
        return weights(len(self.requests) - 1)

    def launch(self, *launches: Launch | None) -> None:
        """Add what is to be launched next; None is nothing to launch."""
        self.launches += [launch for launch in launches if launch is not None]

    def add(self, part: Impl) -> None:
        """Launch next what another implementation launches, which has no scratch buffers.

        The constants in another layout that its launches name are those that it wants, or if it wants none, this one's.
        """
        assert not part.scratch
        mine = {weights(i): self.weights(request) for i, request in enumerate(part.weights)}
        for launch in part.launches:
            self.launch(launch._replace(buffers=tuple(mine.get(ref, ref) for ref in launch.buffers)))

    def impl(self, name: str) -> Impl:
        """Return the implementation, by that name."""
        return Impl(name, tuple(self.launches), tuple(self.sizes), tuple(self.requests))
