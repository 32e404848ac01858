"""How does a kernel get instructions that one generation of NVIDIA's processors has alone?

The driver compiles OpenCL C to PTX that later processors take as well (``.target sm_90``), and so refuses what only
this one has (``sm_90a``; Parallel Thread Execution ISA, "PTX Module Directives"). A text that wants it writes it as
comments of PTX, behind `MARK`. They pass the compiler; `revealed` makes them instructions, of a program for this
processor alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MARK = "//@@ "
"""What stands before an instruction in the assembly of a text."""
_TARGET = re.compile(rb"(\.target sm_90)\b")
_CAPABILITY = (9, 0)


class Trial(NamedTuple):
    """A kernel that shows whether the driver builds such programs, with as much local memory as their kernels have.

    It is not run: the instructions want groups of 128 work-items, and a kernel that fails takes its context along.

    Attributes:
        floats: Of local memory.
    """

    floats: int
    name: str = "asyncrt_trial"

    @property
    def text(self) -> str:
        """It is of no other use."""
        return f"""__kernel void {self.name}(__global float* x) {{
  __local float space[{self.floats}];
  const int id = (int)get_local_id(0);
  asm volatile("{MARK}wgmma.fence.sync.aligned;" ::: "memory");
  space[{self.floats - 1} - id] = x[id];
  barrier(CLK_LOCAL_MEM_FENCE);
  x[id] = space[{self.floats - 1} - (id ^ 1)];
}}"""


def may_have(major: int, minor: int) -> bool:
    """Return whether a processor of this compute capability multiplies matrices by groups of 128 work-items (wgmma)."""
    return (major, minor) == _CAPABILITY


def revealed(binary: bytes) -> bytes | None:
    """Return the program whose marked instructions are carried out; None if it is no PTX for such a processor."""
    program, changed = _TARGET.subn(rb"\1a", binary)
    return program.replace(MARK.encode(), b"") if changed else None
