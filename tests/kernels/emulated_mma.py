"""Instructions of NVIDIA's tensor cores, carried out in OpenCL C by the work-items of any device.

So kernels that use them are tested where there are none. Lanes hold the parts of matrices that the PTX ISA gives them
(9.7.14); where an instruction hands data from lane to lane, these functions go through local memory, between barriers.
"""

from __future__ import annotations

from typing import Any

import pytest

from asyncrt.kernels.attention import matrices
from asyncrt.kernels.codegen import mma, wgmma
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.conv import tensor_cores as convolutions
from asyncrt.kernels.impl import KernelSource
from asyncrt.kernels.matmul import few_rows_mma, tensor_cores, warpgroups
from asyncrt.layout import FLOAT16, FLOAT32, DataType

from ..ops.run import workbench

_MOST = 256  # work-items of a group

_COMMON = """
#ifndef EMULATED
#define EMULATED
#define EMULATED_LANE ((int)get_local_id(0) & 31)
#define EMULATED_WARP ((int)get_local_id(0) & ~31)
inline void emulated_matrices(
    uint* r, const __local ushort* space, const int at, __local uint* shared, const int turned) {
  shared[get_local_id(0)] = at;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int q = 0; q < 4; q++) {
    const int first = EMULATED_WARP + q * 8, row = EMULATED_LANE / 4, pair = EMULATED_LANE % 4 * 2;
    r[q] = turned ? space[shared[first + pair] + row] | (uint)space[shared[first + pair + 1] + row] << 16
                  : space[shared[first + row] + pair] | (uint)space[shared[first + row] + pair + 1] << 16;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
}
inline float emulated_of_lane(const float x, const int other, __local uint* shared) {
  shared[get_local_id(0)] = as_uint(x);
  barrier(CLK_LOCAL_MEM_FENCE);
  const float y = as_float(shared[get_local_id(0) ^ other]);
  barrier(CLK_LOCAL_MEM_FENCE);
  return y;
}
inline void asyncrt_copy16(__local void* to, const __global void* from, const int bytes) {
  for (int i = 0; i < 8; i++) ((__local ushort*)to)[i] = 2 * i < bytes ? ((const __global ushort*)from)[i] : 0;
}
#define asyncrt_fetch(p)
inline uint asyncrt_stream1(const __global void* p) { return *(const __global uint*)p; }
inline uint2 asyncrt_stream2(const __global void* p) { return *(const __global uint2*)p; }
inline uint4 asyncrt_stream4(const __global void* p) { return *(const __global uint4*)p; }
#define asyncrt_matrices(r, p) emulated_matrices(r, space, (p) - space, emulated, 0)
#define asyncrt_matrices_turned(r, p) emulated_matrices(r, space, (p) - space, emulated, 1)
#define asyncrt_of_lane(x, other) emulated_of_lane(x, other, emulated)
#define asyncrt_lanes_meet() barrier(CLK_LOCAL_MEM_FENCE)
#define asyncrt_copies_end_a_group()
#define ASYNCRT_WAIT_FOR_COPIES(groups)
#endif
"""


_SPLIT = """
#ifndef EMULATED_TF32
#define EMULATED_TF32
inline float emulated_read_tf32(const uint word) { return as_float(word & 0xffffe000u); }
inline void emulated_matrices_of_floats(uint* r, const __local float* space, const int at, __local uint* shared) {
  shared[get_local_id(0)] = at;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int q = 0; q < 4; q++)
    r[q] = as_uint(space[shared[EMULATED_WARP + q * 8 + EMULATED_LANE / 4] + EMULATED_LANE % 4]);
  barrier(CLK_LOCAL_MEM_FENCE);
}
inline void emulated_mma_tf32(float* c, const uint* a, const uint b0, const uint b1, __local uint* shared) {
  const int id = (int)get_local_id(0);
  for (int q = 0; q < 4; q++) shared[id * 6 + q] = a[q];
  shared[id * 6 + 4] = b0; shared[id * 6 + 5] = b1;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int x = 0; x < 4; x++) {
    const int row = EMULATED_LANE / 4 + x / 2 * 8, column = EMULATED_LANE % 4 * 2 + x % 2;
    for (int k = 0; k < 8; k++)
      c[x] += emulated_read_tf32(shared[(EMULATED_WARP + row % 8 * 4 + k % 4) * 6 + row / 8 + k / 4 * 2])
          * emulated_read_tf32(shared[(EMULATED_WARP + column * 4 + k % 4) * 6 + 4 + k / 4]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
}
#define asyncrt_matrices_of_floats(r, p) emulated_matrices_of_floats(r, space, (p) - space, emulated)
#define asyncrt_mma_tf32(c, a, b0, b1) emulated_mma_tf32(c, a, b0, b1, emulated)
#endif
"""


def _helpers(dtype: DataType) -> str:
    """Return what `mma.helpers` does, for any device."""
    if dtype is FLOAT32:
        return f"{_COMMON}{_SPLIT}"
    t = mma.TYPES[dtype]
    read = "vload_half(0, (const half*)&own)" if dtype is FLOAT16 else "asyncrt_bf16_load(own)"
    write = "vstore_half_rte(v, 0, (half*)&own)" if dtype is FLOAT16 else "own = asyncrt_bf16_store(v)"
    return f"""{_COMMON}
#ifndef EMULATED_{t}
#define EMULATED_{t}
inline float emulated_read_{t}(const uint word, const int high) {{
  const ushort own = high ? word >> 16 : word;
  return {read};
}}
inline uint emulated_write_{t}(const float v) {{ ushort own; {write}; return own; }}
inline uint asyncrt_pair_{t}(const float low, const float high) {{
  return emulated_write_{t}(low) | emulated_write_{t}(high) << 16;
}}
inline float2 asyncrt_floats_{t}(const uint pair) {{
  return (float2)(emulated_read_{t}(pair, 0), emulated_read_{t}(pair, 1));
}}
inline void emulated_mma_{t}(float* c, const uint* a, const uint b0, const uint b1, __local uint* shared) {{
  const int id = (int)get_local_id(0);
  for (int q = 0; q < 4; q++) shared[id * 6 + q] = a[q];
  shared[id * 6 + 4] = b0; shared[id * 6 + 5] = b1;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int x = 0; x < 4; x++) {{
    const int row = EMULATED_LANE / 4 + x / 2 * 8, column = EMULATED_LANE % 4 * 2 + x % 2;
    for (int k = 0; k < 16; k++) {{
      const uint left = shared[(EMULATED_WARP + row % 8 * 4 + k % 8 / 2) * 6 + row / 8 + k / 8 * 2];
      const uint right = shared[(EMULATED_WARP + column * 4 + k % 8 / 2) * 6 + 4 + k / 8];
      c[x] += emulated_read_{t}(left, k % 2) * emulated_read_{t}(right, k % 2);
    }}
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
}}
#define asyncrt_mma_{t}(c, a, b0, b1) emulated_mma_{t}(c, a, b0, b1, emulated)
#endif
"""


def _warpgroup_helpers(dtype: DataType, columns: int, *, turned: bool) -> str:
    """Return what `wgmma.helpers` does, for any device: each work-item reads what its own sums are of."""
    function, t = wgmma.name(dtype, columns, turned=turned), mma.TYPES[dtype]
    right = "b[j * 64 + (k / 8 ^ j % 8) * 8 + k % 8]"
    if not turned:
        right = "b[j / 64 * 4096 + k * 64 + (j % 64 / 8 ^ k % 8) * 8 + j % 8]"
    return f"""
#define asyncrt_products_see_copies()
#define ASYNCRT_WAIT_FOR_PRODUCTS(calls)
inline void {function}(float* c, const __local ushort* a, const __local ushort* b) {{
  for (int i = 0; i < {columns // 2}; i++) {{
    const int row = (int)get_local_id(0) % 128 / 32 * 16 + EMULATED_LANE / 4 + i % 4 / 2 * 8;
    const int j = i / 4 * 8 + EMULATED_LANE % 4 * 2 + i % 2;
    for (int k = 0; k < 64; k++)
      c[i] += emulated_read_{t}(a[row * 64 + (k / 8 ^ row % 8) * 8 + k % 8], 0) * emulated_read_{t}({right}, 0);
  }}
}}
inline void {function}_end(float* c) {{ }}
"""


def _kernel(name: str, buffers: Any, ints: Any, body: str, **more: Any) -> KernelSource:
    """Return the kernel with local memory for what lanes hand to one another."""
    return kernel(name, buffers, ints, f"  __local uint emulated[{6 * _MOST}];\n{body}", **more)


@pytest.fixture
def emulated_mma(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for tensor cores run on the device of tests, unless that has some itself."""
    if "mma" in workbench().device.info.features:
        return
    users = (
        (tensor_cores, "tensor_core_kernel"), (few_rows_mma, "strip_kernel"), (matrices, "matrix_kernel"),
        (convolutions, "patches_kernel"),
    )  # fmt: skip
    for module, name in users:
        monkeypatch.setattr(module, "helpers", _helpers)
        monkeypatch.setattr(module, "kernel", _kernel)
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)  # what is kept is not emulated


@pytest.fixture
def emulated_wgmma(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for kernels whose work-items multiply by groups of 128."""
    if "wgmma" in workbench().device.info.features:
        return
    monkeypatch.setattr(warpgroups.mma, "helpers", _helpers)
    monkeypatch.setattr(warpgroups.wgmma, "helpers", _warpgroup_helpers)
    monkeypatch.setattr(warpgroups, "kernel", _kernel)
    monkeypatch.setattr(warpgroups, "warpgroup_kernel", warpgroups.warpgroup_kernel.__wrapped__)
