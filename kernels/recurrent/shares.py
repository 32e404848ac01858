"""Recurrent layers on CPU devices whose walks are shared: each work-item has a part of the units, and of the weights.

Weights that a core's caches hold are read several times as fast as others, and each step reads all of them. What a step
makes of one unit the next one needs for all units, so that work-items wait for each other behind every phase of a step.
Nobody promises that they run at the same time: whoever is done with its own share of a phase, and finds one that nobody
has begun, does that as well. So a work-item waits for shares that others have begun, never for a work-item that has
not; and whoever comes late goes on where the others are. Who does a share changes no bit of it.

States are kept twice: a phase reads one, and writes the other.
"""

from __future__ import annotations

import functools

from asyncrt.kernels.codegen.atomics import SCHED_YIELD, pause
from asyncrt.kernels.codegen.tiles import PANEL
from asyncrt.kernels.impl import KernelSource, Launch, Ref
from asyncrt.kernels.traits import DeviceTraits

from .interface import CellForm
from .tiles import MEETING, Walks, begin, finish, phases, places, tiles_kernel

_PATIENCE = 64  # pauses, about 3 us: those who share a walk end a phase little later than each other
_BRIEF = 16  # pauses; whoever waits longer lets another thread have the core, which may be the one that it waits for


def walked_in_shares(
    form: CellForm, refs: tuple[Ref, ...], ints: tuple[int, ...], directions: int, walks: Walks, traits: DeviceTraits
) -> tuple[Launch, Launch]:
    """Return the launches, one behind the other; their scratch is the third of *refs*."""
    gives_way = "sched_yield" in traits.features
    sizes, number = (*ints, walks.blocks, walks.height, walks.own, walks.shares), directions * walks.blocks
    return (
        Launch(_first(form), refs, sizes, (number,), (1,)),
        Launch(_walk(form, gives_way), refs, sizes, (number * walks.shares,), (1,)),
    )


_STATES = """
  __global int* const done = (__global int*)(S + walk * own);  /* shares of all phases */
  __global int* const begun = done + MEETING;                  /* of each share, how many phases */
  __global float* const c = (__global float*)(begun + shares * MEETING);  /* [height, HP], as are the next three */
  __global float* const part = c + height * HP;
  __global float* const states = part + height * HP;
  __global float* const gate = states + 2 * height * HP;       /* [panels * gates, rows, 32] */
""".replace("MEETING", str(MEETING))


@functools.cache
def _first(form: CellForm) -> KernelSource:
    """Return the kernel that prepares walks."""
    body = f"""
  const int walk = (int)get_global_id(0);
  {places(form)}
  {_STATES}
  __global float* const h = states;
  {begin(form)}
  *done = 0;
  for (int s = 0; s < shares; s++) begun[s * {MEETING}] = 0;"""
    return tiles_kernel(form, f"{form.operator.lower()}_first", ("shares",), body)


@functools.cache
def _walk(form: CellForm, gives_way: bool) -> KernelSource:
    """Return the kernel that carries out walks once they are prepared.

    Args:
        gives_way: Whether it may call ``sched_yield``.
    """
    wait = f"if (waited < {_BRIEF}) {{ {pause()} }} else sched_yield();" if gives_way else f"{{ {pause()} }}"
    each = phases(form, ended="vstore16(vload16(0, hu), 0, to + r * HP + u);")
    cases = " ".join(f"case {number}: {{ {text} break; }}" for number, text in enumerate(each))
    # A share that this work-item did for another is one that nobody else may do next time, either: no patience for it.
    body = f"""
  const int item = (int)get_global_id(0), walk = item / shares, own_share = item % shares;
  {places(form)}
  {_STATES}
  const int last = longest * {len(each)};
  uint absent = ~0u;
  for (int phase; (phase = __atomic_load_n(done, __ATOMIC_ACQUIRE) / shares) <= last; ) {{
    const int i = phase / {len(each)}, all = (phase + 1) * shares;
    __global float* const h = states + (i % 2) * height * HP;
    __global float* const to = states + ((i + 1) % 2) * height * HP;
    int patience = {_PATIENCE};
    for (int s = 0; s < shares; s++) {{
      const int share = (own_share + s) % shares;
      if (s && !(absent >> share & 1))
        for (; patience && __atomic_load_n(done, __ATOMIC_RELAXED) < all; patience--) {{ {pause()} }}
      int before = phase;
      const int mine = __atomic_compare_exchange_n(
          begun + share * {MEETING}, &before, phase + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
      if (s) absent = mine ? absent | 1u << share : absent & ~(1u << share);
      if (!mine) continue;
      const int p0 = share * panels / shares, p1 = (share + 1) * panels / shares;
      const int u0 = p0 * {PANEL}, u1 = min(p1 * {PANEL}, H);
      if (phase == last) {{
        {finish(form)}
      }} else switch (phase % {len(each)}) {{ {cases} }}
      __atomic_fetch_add(done, 1, __ATOMIC_ACQ_REL);
    }}
    for (int waited = 0; __atomic_load_n(done, __ATOMIC_ACQUIRE) < all; waited++) {wait}
  }}"""
    return tiles_kernel(form, f"{form.operator.lower()}_shares", ("shares",), body, SCHED_YIELD if gives_way else "")
