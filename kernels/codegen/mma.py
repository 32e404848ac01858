"""Functions for kernels whose device multiplies matrices with NVIDIA's `mma.sync` (feature "mma").

OpenCL C has no words for them; NVIDIA's compiler takes PTX (Parallel Thread Execution ISA, 9.7.14). Lanes of 32 work-items
hold parts of the matrices as that document draws them: of a result of 16 × 8, lane l has columns ``l % 4 * 2`` and the next
of rows ``l / 4`` and ``l / 4 + 8``.

Factors have half precision, or the 11 significant bits of TF32: a float32 is the sum of two such numbers, but for an error
like those of its own rounding.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.layout import BFLOAT16, FLOAT16, FLOAT32, DataType

TYPES = {FLOAT16: "f16", BFLOAT16: "bf16"}
"""Of the dtypes that can be multiplied as they are, the name in PTX."""

LANES = 32


class Numbers(NamedTuple):
    """How factors lie in local memory.

    Attributes:
        word: Their type there, in OpenCL C.
        nbytes: Of one.
    """

    word: str
    nbytes: int

    @property
    def chunk(self) -> int:
        """Elements of a copy, of a row of the matrices that lanes read, and between lines, so that banks differ."""
        return COPY // self.nbytes

    @staticmethod
    def of(dtype: DataType) -> Numbers:
        return _FLOATS if dtype is FLOAT32 else _HALVES


COPY = 16
"""Bytes of a copy."""
_HALVES, _FLOATS = Numbers("ushort", 2), Numbers("float", 4)


def split(bits: str, rest: str) -> str:
    """Make the float of these *bits* the sum of two numbers of 11 bits, of which *rest* is the second.

    The first is rounded; of both, tensor cores do not read what is beyond 11 bits.
    """
    return f"const float v = as_float({bits}); {bits} += 0x1000; {rest} = as_uint(v - as_float({bits} & 0xffffe000u));"


_COPIES = """
#ifndef ASYNCRT_MMA
#define ASYNCRT_MMA
inline uint asyncrt_local(const __local void* p) { return (uint)(size_t)p; }
// Four matrices of 8 x 8, whose rows are where each eighth lane says; turned: their columns.
inline void asyncrt_matrices(uint* r, const __local void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(asyncrt_local(p)) : "memory");
}
inline void asyncrt_matrices_turned(uint* r, const __local void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(asyncrt_local(p)) : "memory");
}
// 16 bytes: the first `bytes` of them from memory, then zeros.
inline void asyncrt_copy16(__local void* to, const __global void* from, const int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
    :: "r"(asyncrt_local(to)), "l"((ulong)from), "r"(bytes) : "memory");
}
// It will be read soon.
inline void asyncrt_fetch(const __global void* p) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"((ulong)p));
}
// What no work-item reads again: it takes no place in the first cache, and neighbours are fetched to the second.
inline uint asyncrt_stream1(const __global void* p) {
  uint v;
  asm volatile("ld.global.L1::no_allocate.L2::256B.u32 %0, [%1];" : "=r"(v) : "l"((ulong)p) : "memory");
  return v;
}
inline uint2 asyncrt_stream2(const __global void* p) {
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.L2::256B.v2.u32 {%0,%1}, [%2];"
    : "=r"(v.x), "=r"(v.y) : "l"((ulong)p) : "memory");
  return v;
}
inline uint4 asyncrt_stream4(const __global void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
    : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"((ulong)p) : "memory");
  return v;
}
inline void asyncrt_copies_end_a_group(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until no more than so many groups of copies are under way.
#define ASYNCRT_WAIT_FOR_COPIES(groups) asm volatile("cp.async.wait_group " #groups ";" ::: "memory")
// What one of the 32 lanes wrote to local memory, the others see.
inline void asyncrt_lanes_meet(void) { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
inline float asyncrt_of_lane(const float x, const int other) {
  uint y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(y) : "r"(as_uint(x)), "r"(other));
  return as_float(y);
}
#endif"""

_SPLIT = """
#ifndef ASYNCRT_MMA_TF32
#define ASYNCRT_MMA_TF32
// Rows of four floats, where `asyncrt_matrices` has rows of eight halves.
#define asyncrt_matrices_of_floats asyncrt_matrices
// c += a b, of 16 x 8 and 8 x 8; of a float's bits the last 13 are not read.
inline void asyncrt_mma_tf32(float* c, const uint* a, const uint b0, const uint b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif
"""

_FLOATS_OF = {
    FLOAT16: 'asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" '
             ': "=f"(y.x), "=f"(y.y) : "r"(pair));',
    BFLOAT16: "y = (float2)(as_float(pair << 16), as_float(pair & 0xffff0000u));",
}  # fmt: skip


def helpers(dtype: DataType) -> str:
    """Return the functions: products, matrices from local memory to lanes, and copies that go on beside other work."""
    if dtype is FLOAT32:
        return f"{_COPIES}{_SPLIT}"
    t = TYPES[dtype]
    return f"""{_COPIES}
#ifndef ASYNCRT_MMA_{t}
#define ASYNCRT_MMA_{t}
// c += a b, of 16 x 16 and 16 x 8.
inline void asyncrt_mma_{t}(float* c, const uint* a, const uint b0, const uint b1) {{
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{t}.{t}.f32 {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}}
inline uint asyncrt_pair_{t}(const float low, const float high) {{
  uint y;
  asm("cvt.rn.{t}x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}}
inline float2 asyncrt_floats_{t}(const uint pair) {{
  float2 y;
  {_FLOATS_OF[dtype]}
  return y;
}}
#endif
"""
