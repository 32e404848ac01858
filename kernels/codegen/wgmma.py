"""Functions for kernels whose device multiplies matrices by groups of 128 work-items, as Hopper's do (feature "wgmma").

Both operands are read from local memory while the work-items go on (Parallel Thread Execution ISA, "Asynchronous Warpgroup
Level Matrix Instructions"). A line there has 64 elements, in eight chunks of 16 bytes; line i has its chunk x at place
``x ^ i % 8`` (the swizzle of 128 bytes), so that both reading and copying meet all banks. Work-item l of 128 has of the
result, of 64 rows, what `mma.py` says lane ``l % 32`` has, of 16 rows from ``l / 32 * 16`` on.
"""

from __future__ import annotations

from asyncrt.devices.opencl.nvidia.own_instructions import MARK
from asyncrt.layout import UINT64, DataType

from .literals import literal
from .mma import TYPES

GROUP = 128  # work-items that multiply together
ROWS = 64  # of the result, of each such group
DEPTH = 64  # terms of each sum in local memory, as many as a line has elements
ALIGNMENT = 8 * 2 * DEPTH  # bytes: lines are alike again after eight of them
_STEP = 16  # terms of one instruction
_LINES_OF_EIGHT = 8 * 2 * DEPTH

_COMMON = f"""
#ifndef ASYNCRT_WGMMA
#define ASYNCRT_WGMMA
// What was copied to local memory, the next products see.
inline void asyncrt_products_see_copies(void) {{ asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }}
// Until no more than so many calls' products are under way.
#define ASYNCRT_WAIT_FOR_PRODUCTS(calls) asm volatile("{MARK}wgmma.wait_group.sync.aligned " #calls ";" ::: "memory")
#endif"""


def name(dtype: DataType, columns: int, *, turned: bool) -> str:
    """Return the name of the function that begins a product; see `helpers`."""
    return f"asyncrt_products_{TYPES[dtype]}_{columns}{'t' if turned else ''}"


def helpers(dtype: DataType, columns: int, *, turned: bool) -> str:
    """Return the functions: one begins ``c += a b`` over `DEPTH` terms, others wait for it.

    The lines of *a* are its rows. Those of *b* are its columns if *turned*; else they are its rows, of 64 columns each,
    `DEPTH` of them and then those of the next 64 columns.
    """
    function = name(dtype, columns, turned=turned)
    sums = columns // 2
    numbers = ", ".join(f"%{i}" for i in range(sums))
    outputs = ", ".join(f'"+f"(c[{i}])' for i in range(sums))
    t = TYPES[dtype]
    kinds = f"m64n{columns}k{_STEP}.f32.{t}.{t}"
    beside = 1 if turned else 2 * DEPTH * DEPTH
    step = 2 * _STEP if turned else _STEP * 2 * DEPTH
    return f"""{_COMMON}
#ifndef {function.upper()}
#define {function.upper()}
inline void {function}(float* c, const __local ushort* a, const __local ushort* b) {{
  const ulong at = {_descriptor("a", 1)}, bt = {_descriptor("b", beside)};
  asm volatile("{MARK}wgmma.fence.sync.aligned;" ::: "memory");
  #pragma unroll
  for (int k = 0; k < {DEPTH // _STEP}; k++)
    asm volatile("{MARK}wgmma.mma_async.sync.aligned.{kinds} {{{numbers}}}, %{sums}, %{sums + 1}, 1, 1, 1, 0, {0 if turned else 1};"
      : {outputs} : "l"(at + k * {2 * _STEP // 16}), "l"(bt + k * {step // 16}));
  asm volatile("{MARK}wgmma.commit_group.sync.aligned;" ::: "memory");
}}
inline void {function}_end(float* c) {{
  asm volatile("{MARK}wgmma.wait_group.sync.aligned 0;" : {outputs} :: "memory");
}}
#endif
"""


def _descriptor(pointer: str, beside: int) -> str:
    """Say where a matrix is: its address, how far 64 columns are from the next and eight lines from the next, in units of
    16 bytes, and the swizzle of 128 bytes."""
    address = f"(ulong)(((uint)(size_t){pointer} & 0x3ffff) >> 4)"
    left, up = (literal(n, UINT64) for n in (max(beside // 16, 1), _LINES_OF_EIGHT // 16))
    return f"({address} | {left} << 16 | {up} << 32 | 1ul << 62)"
