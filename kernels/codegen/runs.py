"""Runs of eight elements of 16 bits, which a work-item reads and writes at once where they begin at a multiple of 16 bytes."""

from __future__ import annotations

from asyncrt.layout import BFLOAT16, FLOAT16, DataType

RUN = 8
TYPES = (FLOAT16, BFLOAT16)


def read(dtype: DataType, to: str, address: str, count: str) -> str:
    """Write the call that reads a run, or its first *count*, as floats; needs `helpers`."""
    return f"asyncrt_read_run_{dtype.name}({to}, {address}, {count});"


def write(address: str, words: str, count: str) -> str:
    """Write the call that stores a run of 16 bits, or its first *count*, from four words; needs `helpers`."""
    return f"asyncrt_write_run((__global ushort*)({address}), {words}, {count});"


def each(statement: str) -> str:
    """Carry out a statement for each ``x`` of a run."""
    return f"""
    #pragma unroll
    for (int x = 0; x < {RUN}; x++) {{ {statement} }}
    """


def _reader(dtype: DataType, low: str, high: str) -> str:
    return f"""
inline void asyncrt_read_run_{dtype.name}(float* to, const __global {dtype.c}* from, const int count) {{
  if (count >= {RUN} && !((ulong)from & 15)) {{
    const uint4 v = *(const __global uint4*)from;
    const uint words[4] = {{v.x, v.y, v.z, v.w}};
    #pragma unroll
    for (int i = 0; i < 4; i++) {{ to[2 * i] = {low}; to[2 * i + 1] = {high}; }}
  }} else {{
    #pragma unroll
    for (int x = 0; x < {RUN}; x++) to[x] = x < count ? LOAD({dtype.name}, from, x) : 0;
  }}
}}"""


helpers = f"""
#ifndef ASYNCRT_RUNS
#define ASYNCRT_RUNS
inline float asyncrt_half_of(const uint word) {{ const ushort own = (ushort)word; return vload_half(0, (const half*)&own); }}
{_reader(FLOAT16, "asyncrt_half_of(words[i])", "asyncrt_half_of(words[i] >> 16)")}
{_reader(BFLOAT16, "as_float(words[i] << 16)", "as_float(words[i] & 0xffff0000)")}
inline void asyncrt_write_run(__global ushort* to, const uint* words, const int count) {{
  if (count >= {RUN} && !((ulong)to & 15)) {{
    *(__global uint4*)to = (uint4)(words[0], words[1], words[2], words[3]);
  }} else {{
    #pragma unroll
    for (int x = 0; x < {RUN}; x++)
      if (x < count) to[x] = (ushort)(words[x / 2] >> x % 2 * 16);
  }}
}}
#endif
"""
"""The functions; a kernel that calls them also has `source.PRELUDE`."""
