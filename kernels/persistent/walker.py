"""One kernel that carries out all steps of a plan, however they are many: it walks the rows of a table (`table.py`).

A launch takes a GPU's driver some five microseconds, and the device as long again from the end of a kernel to the start
of the next. Here the kernels of the steps are functions of one kernel, whose work-groups stay on the device for the whole
request. They take the work-groups of a step in turns, several small ones side by side, and meet behind it, which takes
about a microsecond. The table is data, so that a new shape needs no build.

Groups that wait for each other must all be on the device: `scheduler/persistent.py` sees to it. If they are not, those
that wait give up after a while and say so in memory.

The barriers are PTX (Parallel Thread Execution ISA): `barrier` among part of a work-group, and `red.release` and
`ld.acquire` among all of them.

On a processor nobody promises that two groups run at the same time. There each group, which has one work-item, takes
the next work-groups of a step that nobody has taken, until there are none, and waits for those that others have taken:
never for a group that has not begun. A thread that wakes up late finds the rest, or nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.devices.opencl.nvidia.own_instructions import MARK
from asyncrt.kernels.codegen.atomics import pause
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import KernelSource
from asyncrt.layout import INT32, UINT8

from .local_arrays import placed
from .table import HEADER_NBYTES, ROW_NBYTES

MOST_GROUP, LEAST_GROUP = 512, 256
"""Work-items of the kernel."""
INTS = ("steps", "patience")
"""What a launch is told: rows of the table; and for how many milliseconds a group waits for the others."""

_SIGNATURE = re.compile(r"^ASYNCRT_HINT (.*?)__kernel void (\w+)\((.*)\) \{$", re.M)
_ID = re.compile(r"\b(?:get_(?:local|group|global|num|sub|work)_\w*|barrier|mem_fence)\b")
# What a step's function is told of the work-group and the work-item that it is.
_PLACES = {
    "get_local_id": "x", "get_group_id": "g", "get_local_size": "w", "get_num_groups": "n",
}  # fmt: skip

_TYPES = """
typedef struct { int x0, x1, x2, g0, g1, g2, w0, w1, w2, n0, n1, n2, slot, size; } asyncrt_place;
"""

_MEET = """
#define ASYNCRT_STEP inline
inline void asyncrt_meet_beside(const asyncrt_place* at) {
  asm volatile("barrier.sync %0, %1;" :: "r"(at->slot + 1), "r"(at->size) : "memory");
}
inline ulong asyncrt_now(void) { ulong t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) :: "memory"); return t; }
// Behind all that this group has written.
inline void asyncrt_come(__global uint* meeting) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(meeting) : "memory");
}
// Behind all that every group has written before it came. Returns whether they all came.
inline int asyncrt_meet(__global uint* meeting, const uint awaited, const int patience) {
  const ulong begun = asyncrt_now();
  for (uint looks = 1;; looks++) {
    uint come, ended;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(meeting) : "memory");
    if (come >= awaited) return 1;
    if (looks % 256) continue;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ended) : "l"(meeting + 1) : "memory");
    if (ended || asyncrt_now() - begun > (ulong)patience * 1000000) { meeting[1] = 1; return 0; }
  }
}
"""
_SHARE = f"""
#define ASYNCRT_STEP __attribute__((noinline))  // a third less to compile, and as fast
#define asyncrt_meet_beside(at) ((void)0)
// The first of the next work-groups of a step that nobody has taken.
inline int asyncrt_take(__global int* share, const int many) {{
  return __atomic_fetch_add(share, many, __ATOMIC_RELAXED);
}}
// Behind all work-groups of a step, of which this group carried out so many.
inline void asyncrt_share(__global int* share, const int done, const int total) {{
  if (done) __atomic_fetch_add(share + 1, done, __ATOMIC_RELEASE);
  while (__atomic_load_n(share + 1, __ATOMIC_ACQUIRE) < total) {{ {pause()} }}
}}
"""


class Walker(NamedTuple):
    """A kernel that walks tables whose steps have these kernels.

    Attributes:
        source: Its buffers are the table, the meeting (`MEETING_NBYTES`), and `arenas` more.
        kernels: The place of each in it.
        own: Bytes of local memory that each needs for its arrays.
        group: Its work-items.
        space: Bytes of local memory for the steps.
        arenas: How many buffers a launch brings beside its table.
    """

    source: KernelSource
    kernels: dict[KernelSource, int]
    own: tuple[int, ...]
    group: int
    space: int
    arenas: int


MEETING_NBYTES = 16
"""Of what groups meet by: how many have come, whether one gave up, and how many have left; zeros between launches.
Where they share the work-groups of each step, how many have left, and `SHARE_NBYTES` for each step."""
SHARE_NBYTES = 64
"""Of how many work-groups of a step were taken, and how many are done; other cores look at the next step's."""
_PARTS = 8  # that each group takes of a step, if all come: the last ends little later than the first


class Function(NamedTuple):
    """A kernel as a function: its text, and what its arrays need of local memory."""

    text: str
    own: int


def function_of(source: KernelSource) -> Function | None:
    """Return a kernel as a function of another; None if it cannot be one."""
    if MARK in source.text:
        return None  # with it all other steps are slower by a fifth
    signature = _SIGNATURE.search(source.text)
    if signature is None or _ID.search(source.text[: signature.start()]):
        return None  # what comes before would ask where it is, too, and is not told
    moved = placed(source.text, "asyncrt_space")
    if moved is None:
        return None
    head = "ASYNCRT_STEP void \\2(const asyncrt_place* asyncrt_at, __local char* asyncrt_space, \\3) {"
    return Function(_SIGNATURE.sub(head, moved.text, count=1), moved.nbytes)


def walker(sources: Sequence[KernelSource], group: int, space: int, arenas: int, *, ptx: bool = True) -> Walker:
    """Return the kernel that walks tables of steps with kernels *sources*, each of which can be a function.

    Args:
        group: Work-items of its work-groups.
        space: Bytes of local memory for the arrays of the steps.
        arenas: Buffers that a launch brings.
        ptx: Whether the device takes PTX.
    """
    functions = [function_of(source) for source in sources]
    assert all(functions)
    texts = [f.text for f in functions if f is not None]
    helpers = "\n".join([_TYPES, _MEET if ptx else _SHARE, *_defined(), *texts, *_undefined()])
    names = tuple(f"m{i}" for i in range(arenas))
    buffers = (("table", INT32, "r"), ("meeting", INT32, "rw"), *((n, UINT8, "rw") for n in names))
    body = _meeting_body(sources, group, space, names) if ptx else _sharing_body(sources, space, names)
    attributes = f"__attribute__((reqd_work_group_size({group}, 1, 1)))"
    name = "walk_" + hashlib.sha256("".join(s.name for s in sources).encode()).hexdigest()[:8]
    source = kernel(name, buffers, INTS, body, helpers=helpers, attributes=attributes)
    own = tuple(f.own for f in functions if f is not None)
    return Walker(source, {s: i for i, s in enumerate(sources)}, own, group, space, arenas)


def _defined() -> list[str]:
    """Let the functions of steps ask for their place as kernels do."""
    lines = [
        f"#define {name}(d) ((d) == 0 ? asyncrt_at->{c}0 : (d) == 1 ? asyncrt_at->{c}1 : asyncrt_at->{c}2)" for name, c in _PLACES.items()
    ]
    lines.append("#define get_global_id(d) (get_group_id(d) * get_local_size(d) + get_local_id(d))")
    lines.append("#define get_global_size(d) (get_num_groups(d) * get_local_size(d))")
    lines.append("#define barrier(flags) asyncrt_meet_beside(asyncrt_at)")
    return lines


def _undefined() -> list[str]:
    return [f"#undef {name}" for name in (*_PLACES, "get_global_id", "get_global_size", "barrier")]


def _call(source: KernelSource, place: int, row: str) -> str:
    """Write the call of a step's function, with its buffers and its record from the row."""
    text = source.text
    match = _SIGNATURE.search(text)
    assert match is not None
    parameters = [p.strip() for p in match[3].split(",")]
    given, buffers, locals_ = [], 0, 0
    for parameter in parameters:
        kind = parameter.rsplit(" ", 1)[0]
        if parameter.startswith("__global"):
            given.append(f"({kind})ASYNCRT_BUFFER({buffers})")
            buffers += 1
        elif parameter.startswith("__local"):
            given.append(f"({kind})(own + row[{11 + locals_}])")
            locals_ += 1
        else:
            record = HEADER_NBYTES + 8 * len(source.accesses)
            given.append(f"*(const {row} {source.name}_args*)((const {row} char*)row + {record})")
    return f"      case {place}: {source.name}(&place, own, {', '.join(given)}); break;"


def _arenas(names: Sequence[str]) -> str:
    return " ".join(f"arenas[{i}] = (ulong){name};" for i, name in enumerate(names))


def _calls(sources: Sequence[KernelSource], *, row: str) -> str:
    """Write the call of a row's step, as the work-group *v* of it. The row lies in memory of the kind *row*."""
    calls = "\n".join(_call(source, i, row) for i, source in enumerate(sources))
    return f"""
      place.g0 = v; place.g1 = place.g2 = 0;
      if (place.n0 != total) {{
        place.g0 = v % place.n0; place.g1 = v / place.n0 % place.n1; place.g2 = v / place.n0 / place.n1;
      }}
      switch (row[0]) {{
{calls}
      }}"""


def _sharing_body(sources: Sequence[KernelSource], space: int, names: Sequence[str]) -> str:
    """Write the walk of groups of one work-item, each of which takes what is left of a step, and does what the items of
    its work-groups do one after the other."""
    numbers = max(len(names), 1)
    return f"""
  __local char own[{max(space, 1)}] __attribute__((aligned(128)));
  ulong arenas[{numbers}];
  #define ASYNCRT_BUFFER(i) (buffers[i] < {numbers} ? arenas[buffers[i]] : buffers[i])
  const int groups = (int)get_num_groups(0);
  {_arenas(names)}
  for (int step = 0; step < steps; step++) {{
    const __global int* row = table + step * {ROW_NBYTES // 4};
    const __global ulong* buffers = (const __global ulong*)(row + {HEADER_NBYTES // 4});
    __global int* share = meeting + {MEETING_NBYTES // 4} + step * {SHARE_NBYTES // 4};
    const int total = row[1], many = groups == 1 ? total : (total + {_PARTS} * groups - 1) / ({_PARTS} * groups);
    asyncrt_place place;
    place.n0 = row[2]; place.n1 = row[3]; place.n2 = row[4]; place.w0 = row[5]; place.w1 = row[6]; place.w2 = row[7];
    place.slot = 0; place.size = row[9];
    int done = 0;
    for (int begin; (begin = groups == 1 ? done : asyncrt_take(share, many)) < total; ) {{
      const int end = min(begin + many, total);
      for (int v = begin; v < end; v++)
        for (int x = 0; x < place.size; x++) {{
          place.x0 = x; place.x1 = place.x2 = 0;
          if (place.w0 != place.size) {{
            place.x0 = x % place.w0; place.x1 = x / place.w0 % place.w1; place.x2 = x / place.w0 / place.w1;
          }}{_calls(sources, row="__global")}
        }}
      done += end - begin;
    }}
    if (groups > 1) asyncrt_share(share, done, total);
  }}
  // The last to leave puts everything back as it was.
  if (groups > 1 && __atomic_add_fetch(meeting, 1, __ATOMIC_ACQ_REL) == groups) {{
    for (int step = 0; step < steps; step++) {{
      __global int* share = meeting + {MEETING_NBYTES // 4} + step * {SHARE_NBYTES // 4};
      share[0] = share[1] = 0;
    }}
    meeting[0] = 0;
  }}
  #undef ASYNCRT_BUFFER"""


def _meeting_body(sources: Sequence[KernelSource], group: int, space: int, names: Sequence[str]) -> str:
    """Write the walk of groups that meet behind each step, of which each takes its turns. What a group has to do next
    it finds out while it waits for the others."""
    words = ROW_NBYTES // 4
    return f"""
  __local char space[{max(space, 1)}] __attribute__((aligned(128)));
  __local int rows[{2 * words}] __attribute__((aligned(16)));
  __local ulong arenas[{max(len(names), 1)}];
  __local int all;
  #define ASYNCRT_BUFFER(i) (buffers[i] < {max(len(names), 1)} ? arenas[buffers[i]] : buffers[i])
  const int id = (int)get_local_id(0), mine = (int)get_group_id(0), groups = (int)get_num_groups(0);
  if (id == 0) {{ all = 1; {_arenas(names)} }}
  for (int i = id; i < {words}; i += {group}) rows[i] = table[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = 0; step < steps; step++) {{
    const __local int* row = rows + step % 2 * {words};
    const __local ulong* buffers = (const __local ulong*)(row + {HEADER_NBYTES // 4});
    const int total = row[1], slots = row[8], size = row[9];
    asyncrt_place place;
    place.n0 = row[2]; place.n1 = row[3]; place.n2 = row[4]; place.w0 = row[5]; place.w1 = row[6]; place.w2 = row[7];
    place.slot = id / size; place.size = size;
    const int own_id = id - place.slot * size;
    place.x0 = own_id; place.x1 = place.x2 = 0;
    if (place.w0 != size) {{
      place.x0 = own_id % place.w0; place.x1 = own_id / place.w0 % place.w1; place.x2 = own_id / place.w0 / place.w1;
    }}
    __local char* own = space + place.slot * row[10];
    const int first = place.slot < slots ? place.slot * groups + mine : total;
    if (step) {{
      if (id == 0) all = asyncrt_meet((__global uint*)meeting, step * groups, patience);
      barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
      if (!all) return;
    }}
    // What the next step is comes from memory while this one is carried out.
    int coming[{-(-words // group)}];
    if (step + 1 < steps) {{
      #pragma unroll
      for (int i = 0; i < {-(-words // group)}; i++)
        if (id + i * {group} < {words}) coming[i] = table[(step + 1) * {words} + id + i * {group}];
    }}
    for (int v = first; v < total; v += groups * slots) {{{_calls(sources, row="__local")}
      asyncrt_meet_beside(&place);
    }}
    if (step + 1 < steps) {{
      #pragma unroll
      for (int i = 0; i < {-(-words // group)}; i++)
        if (id + i * {group} < {words}) rows[(step + 1) % 2 * {words} + id + i * {group}] = coming[i];
    }}
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (id == 0 && step + 1 < steps) asyncrt_come((__global uint*)meeting);
  }}
  // The last to leave puts the meeting back as it was.
  if (id == 0 && atomic_inc((volatile __global uint*)meeting + 2) == groups - 1) {{ meeting[2] = 0; meeting[0] = 0; }}
  #undef ASYNCRT_BUFFER"""
