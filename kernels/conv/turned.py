"""How 16 channels of a position come into one vector, from planes that hold the positions of a channel."""

from __future__ import annotations

from asyncrt.kernels.codegen.tiles import turn


def turned_in() -> str:
    """Return ``$_turned(x, c, C, plane, near, places)``, which turns 16 positions of the channels from *c* on.

    ``x`` is where the first position is in the plane of channel 0; ``places`` says where the vector of each goes. Behind the
    last channel it is repeated.
    """
    loads = " ".join(f"const float16 x{j} = vload16(0, x + min(c + {j}, C - 1) * plane);" for j in range(16))
    steps, names = turn([f"x{j}" for j in range(16)], "y")
    stores = " ".join(f"vstore16({name}, 0, near + places[{j}]);" for j, name in enumerate(names))
    return f"""
__attribute__((noinline)) void $_turned(
    __global const float* x, int c, int C, int plane, __global float* near, __global const int* places) {{
  {loads} {steps} {stores}
}}
"""


def turned_out(space: str = "__global ") -> str:
    """Return ``$_turned_out(done, to)``, which turns the vectors of 16 positions into one for each channel.

    Args:
        space: Where they lie: in buffers, or in the kernel's own memory.
    """
    loads = " ".join(f"const float16 x{j} = vload16({j}, done);" for j in range(16))
    steps, names = turn([f"x{j}" for j in range(16)], "y")
    stores = " ".join(f"vstore16({name}, {j}, to);" for j, name in enumerate(names))
    return f"""
inline void $_turned_out({space}const float* done, float* to) {{
  {loads} {steps} {stores}
}}
"""
