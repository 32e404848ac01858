"""TopK: the k greatest (or least) elements along an axis, sorted, and where they are; NaN is greater than all.

Of equal elements the one that comes first goes first. For a small k, a work-item of a CPU device keeps the best k in
order. For a larger one it collects elements that go before the k-th of those that it has seen, as integers in whose order they
go; whenever it has twice as many, it finds the k-th of them digit by digit, and forgets what is behind it. What is left
is sorted by digits. On other devices a line is sorted: blocks by counting, then runs are merged by binary search, an
element per work-item.

Sources: ONNX TopK-11; Knuth, The Art of Computer Programming 3, 5.2.5 (sorting by digits).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Dim
from asyncrt.kernels.arithmetic import least
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import compute_type
from asyncrt.kernels.impl import Impl, ImplBuilder, Launch, inp, out, scratch
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.copy import BITS
from asyncrt.kernels.patterns.walk import WalkedBuffer, lines, walk
from asyncrt.kernels.reach import MOST, check_extent
from asyncrt.kernels.shapes import check, count, normal_axis
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import INT32, INT64, UINT32, UINT64, Array, Shape

_SMALL = 8  # up to this k the best are kept in order, on CPU devices
_DIGIT = 8  # bits


def _axis(call: Call) -> int:
    return normal_axis(call, call.attributes.get("axis", -1), len(call.shape(0)))


def infer(call: Call) -> tuple[Shape, Shape]:
    shape, axis, wanted = call.shape(0), _axis(call), call.ints(1)
    check(call, len(wanted) == 1, f"k must be one value, there are {len(wanted)}")
    k = wanted[0]
    check(call, isinstance(k, Dim) or k >= 0, f"k is negative: {k}")
    if not isinstance(k, Dim) and not isinstance(shape[axis], Dim):
        check(call, k <= shape[axis], f"k is {k} on an axis of {shape[axis]} elements")
    result = (*shape[:axis], k, *shape[axis + 1 :])
    return result, result


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array, Array]:
    x: Any = inputs[0]
    wanted: Any = inputs[1]
    k, axis = int(wanted.reshape(-1)[0]), attributes.get("axis", -1)
    if attributes.get("largest", 1):  # a stable sort of the reverse, reversed: greatest first, first of equals first
        order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    order = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


def host_nbytes(call: Call) -> int:
    """The order of all elements, not of the first k alone."""
    return (3 * 8 + 2 * call.dtype(0).itemsize) * count(call.shape(0))


def _helpers(call: Call) -> str:
    """Return functions for whether ``v`` goes before ``w``, apart from their places, and for whether it does not, which
    of two numbers one comparison says."""
    kind = compute_type(call.dtype(0))
    less = "(a < b || (b != b && a == a))"
    order, behind = ("v, w", ">=") if not call.attributes.get("largest", 1) else ("w, v", "<=")
    return (
        f"inline int $_less(const {kind} a, const {kind} b) {{ return {less}; }}\n"
        f"inline int $_before(const {kind} v, const {kind} w) {{ return $_less({order}); }}\n"
        f"inline int $_passed(const {kind} v, const {kind} w) {{ return v {behind} w || !$_before(v, w); }}"
    )


def implement(call: Call, traits: DeviceTraits) -> Impl:
    axis = _axis(call)
    outer, extent, inner = lines(call.shape(0), axis)
    k = call.outputs[0].shape[axis]
    if traits.is_cpu and k <= _SMALL:
        return Impl("best in order", _keep(call, traits, (outer, extent, inner), k))
    if traits.is_cpu:
        return _by_digits(call, traits, (outer, extent, inner), k)
    return _sort(call, traits, (outer, extent, inner), k)


def _keep(call: Call, traits: DeviceTraits, line: tuple[int, int, int], k: int) -> tuple[Launch, ...]:
    outer, extent, inner = line
    dtype = call.dtype(0)
    kind, name = compute_type(dtype), dtype.name
    one = f"""{kind} best = LOAD({name}, x, p);
      int at = 0;
      for (int j = 1; j < extent; j++) {{
        const {kind} v = LOAD({name}, x, p + j * inner);
        if ($_passed(v, best)) continue;
        best = v;
        at = j;
      }}
      STORE({name}, y, q, best);
      z[q] = at;"""
    launch = walk(
        "top_k",
        one if k == 1 else f"""int filled = 0;
      {kind} bar = 0;
      for (int j = 0; j < extent; j++) {{
        const {kind} v = LOAD({name}, x, p + j * inner);
        if (filled == k && $_passed(v, bar)) continue;
        int at = filled < k ? filled++ : k - 1;
        for (; at > 0; at--) {{
          const {kind} w = LOAD({name}, y, q + (at - 1) * inner);
          if (!$_before(v, w)) break;
          STORE({name}, y, q + at * inner, w);
          z[q + at * inner] = z[q + (at - 1) * inner];
        }}
        STORE({name}, y, q + at * inner, v);
        z[q + at * inner] = j;
        bar = LOAD({name}, y, q + (filled - 1) * inner);
      }}""",
        (outer, inner),
        (WalkedBuffer("x", inp(0), dtype, "r"), WalkedBuffer("y", out(0), dtype, "rw"), WalkedBuffer("z", out(1), INT64, "rw")),
        traits,
        offsets=(("p", (extent * inner, 1)), ("q", (k * inner, 1))),
        ints=(("extent", extent), ("inner", inner), ("k", k)),
        work=2 * extent,
        helpers=_helpers(call),
    )
    return () if launch is None else (launch,)


def _by_digits(call: Call, traits: DeviceTraits, line: tuple[int, int, int], k: int) -> Impl:
    outer, extent, inner = line
    check_extent(call.name, "the axis that is sorted", extent, MOST // 2)
    dtype, made = call.dtype(0), ImplBuilder()
    bits, keys = BITS[dtype.itemsize], UINT64 if dtype.itemsize == 8 else UINT32
    kind, key = compute_type(dtype), keys.c
    room = least(2 * k, extent)
    kept = [WalkedBuffer(f"k{i}", made.scratch(keys.itemsize * outer * inner * room), keys, "rw") for i in range(2)]
    places = [WalkedBuffer(f"o{i}", made.scratch(4 * outer * inner * room), INT32, "rw") for i in range(2)]
    made.launch(walk(
        "top_k_digits",
        f"""__global {key}* from = k0 + s, *to = k1 + s;
      __global int* mine = o0 + s, *next = o1 + s;
      {kind} bar = 0;
      int many = 0, full = 0;
      for (int j = 0; j < extent; j++) {{
        const {kind} v = LOAD({dtype.name}, x, p + j * inner);
        if (full && $_passed(v, bar)) continue;
        from[many] = $_key(v);
        mine[many++] = j;
        if (many < room || many == k) continue;
        const int last = $_best(from, mine, many, k);
        bar = LOAD({dtype.name}, x, p + last * inner);
        many = k;
        full = 1;
      }}
      if (many > k) $_best(from, mine, many, k);
      for (int low = 0; low < {8 * keys.itemsize}; low += {_DIGIT}) {{
        int count[{1 << _DIGIT}];
        for (int d = 0; d < {1 << _DIGIT}; d++) count[d] = 0;
        for (int j = 0; j < k; j++) count[$_digit(from[j], low)]++;
        if (count[$_digit(from[0], low)] == k) continue;
        for (int d = 0, at = 0; d < {1 << _DIGIT}; d++) {{ const int more = count[d]; count[d] = at; at += more; }}
        for (int j = 0; j < k; j++) {{
          const int at = count[$_digit(from[j], low)]++;
          to[at] = from[j];
          next[at] = mine[j];
        }}
        __global {key}* const was = from; from = to; to = was;
        __global int* const were = mine; mine = next; next = were;
      }}
      __global const {bits.c}* const given = (__global const {bits.c}*)x + p;
      for (int j = 0; j < k; j++) {{ y[q + j * inner] = given[mine[j] * inner]; z[q + j * inner] = mine[j]; }}""",
        (outer, inner),
        (
            WalkedBuffer("x", inp(0), dtype, "r"), WalkedBuffer("y", out(0), bits, "w"),
            WalkedBuffer("z", out(1), INT64, "w"), *kept, *places,
        ),
        traits,
        offsets=(("p", (extent * inner, 1)), ("q", (k * inner, 1)), ("s", (room * inner, room))),
        ints=(("extent", extent), ("inner", inner), ("k", k), ("room", room)),
        work=extent,
        helpers=_helpers(call) + _key(call) + _best(key, 8 * keys.itemsize),
    ))  # fmt: skip
    return made.impl("by digits")


def _best(key: str, width: int) -> str:
    """Return functions for a digit of a key of so many bits, and to keep the *k* least of *many* keys, in the order in
    which they came; the latter's result is the place of the greatest of them."""
    return f"""
inline int $_digit(const {key} v, const int low) {{ return (int)(v >> low & {(1 << _DIGIT) - 1}); }}
inline int $_best(__global {key}* const keys, __global int* const places, const int many, const int k) {{
  {key} last = 0;
  int equal = k;
  for (int low = {width - _DIGIT}; low >= 0; low -= {_DIGIT}) {{
    int count[{1 << _DIGIT}];
    for (int d = 0; d < {1 << _DIGIT}; d++) count[d] = 0;
    for (int j = 0; j < many; j++)
      if (low == {width - _DIGIT} || keys[j] >> low >> {_DIGIT} == last) count[$_digit(keys[j], low)]++;
    int d = 0;
    while (equal > count[d]) equal -= count[d++];
    last = last << {_DIGIT} | d;
  }}
  int kept = 0, place = 0;
  for (int j = 0; j < many; j++) {{
    const {key} v = keys[j];
    if (v > last || (v == last && equal-- <= 0)) continue;
    if (v == last) place = places[j];
    keys[kept] = v;
    places[kept++] = places[j];
  }}
  return place;
}}"""


def _key(call: Call) -> str:
    """Return a function that makes unsigned integers of elements, the least of those that go first; -0 is 0."""
    dtype = call.dtype(0)
    kind, key = compute_type(dtype), "ulong" if dtype.itemsize == 8 else "uint"
    sign = "0x8000000000000000ul" if dtype.itemsize == 8 else "0x80000000u"
    made = f"({key})v"
    if dtype.is_float:
        made = f"v != v ? ~({key})0 : v == 0 ? {sign} : as_{key}(v) & {sign} ? ~as_{key}(v) : as_{key}(v) | {sign}"
    elif dtype.numpy.kind == "i":
        made = f"({key})v ^ {sign}"
    turned = "" if not call.attributes.get("largest", 1) else "~"
    return f"\ninline {key} $_key(const {kind} v) {{ return {turned}({made}); }}"


class _SortJob(NamedTuple):
    """A sort of the lines along an axis: what its launches have in common.

    Attributes:
        call, traits: What is asked for, and of which device.
        outer, extent, inner: The data's extents around the axis.
        k: How many elements of each line are wanted.
        helpers: Functions ``$_less`` and ``$_before``.
    """

    call: Call
    traits: DeviceTraits
    outer: int
    extent: int
    inner: int
    k: int
    helpers: str

    @property
    def data(self) -> WalkedBuffer:
        return WalkedBuffer("x", inp(0), self.call.dtype(0), "r")

    def element(self, at: str) -> str:
        return f"LOAD({self.call.dtype(0).name}, x, p + {at} * inner)"

    def walk(
        self, name: str, statement: str, buffers: tuple[WalkedBuffer, ...], *, width: int, work: int
    ) -> Launch | None:
        """Return a launch that walks all places, line after line: ``j`` is the place in a line that begins at ``p``."""
        return walk(
            name,
            statement,
            (self.outer, self.inner, self.extent),
            (self.data, *buffers),
            self.traits,
            offsets=(("p", (self.extent * self.inner, 1, 0)), ("j", (0, 0, 1))),
            ints=(("extent", self.extent), ("inner", self.inner), ("width", width)),
            work=work,
            helpers=self.helpers,
        )


def _sort(call: Call, traits: DeviceTraits, line: tuple[int, int, int], k: int) -> Impl:
    outer, extent, inner = line
    check_extent(call.name, "the axis that is sorted", extent, MOST // 2)
    job = _SortJob(call, traits, outer, extent, inner, k, _helpers(call))
    width, source = min(extent, 16 if traits.is_cpu else 256), 0
    made = ImplBuilder()
    for _ in range(2):  # runs are merged from one into the other, and back
        made.scratch(4 * outer * extent * inner)
    made.launch(_sort_blocks(job, width))
    while width < extent:
        made.launch(_merge(job, width, source))
        width, source = 2 * width, 1 - source
    made.launch(_take(job, source))
    return made.impl("sort")


def _sort_blocks(job: _SortJob, width: int) -> Launch | None:
    """Sort blocks of *width* places, into scratch 0: an element's place is how many go before it."""
    kind = compute_type(job.call.dtype(0))
    return job.walk(
        "top_k_blocks",
        f"""const int m0 = j - j % width, m1 = min(m0 + width, extent);
      const {kind} v = {job.element("j")};
      int at = m0;
      for (int m = m0; m < m1; m++) {{
        const {kind} w = {job.element("m")};
        at += m < j ? !$_before(v, w) : $_before(w, v);
      }}
      order[i - j + at] = j;""",
        (WalkedBuffer("order", scratch(0), INT32, "w"),),
        width=width,
        work=width,
    )


def _merge(job: _SortJob, width: int, source: int) -> Launch | None:
    """Merge neighbouring runs of *width* places from scratch *source* into the other one."""
    kind = compute_type(job.call.dtype(0))
    return job.walk(
        "top_k_merge",
        f"""const int m0 = j - j % (2 * width);
      const int middle = min(m0 + width, extent), m1 = min(m0 + 2 * width, extent);
      const int mine = from[i], base = i - j, left = j < middle;
      const {kind} v = {job.element("mine")};
      int low = left ? middle : m0, high = left ? m1 : middle;
      while (low < high) {{
        const int m = (low + high) / 2;
        const {kind} w = {job.element("from[base + m]")};
        if (left ? $_before(w, v) : !$_before(v, w)) low = m + 1;
        else high = m;
      }}
      to[base + j + low - middle] = mine;""",
        (WalkedBuffer("from", scratch(source), INT32, "r"), WalkedBuffer("to", scratch(1 - source), INT32, "w")),
        width=width,
        work=16,
    )


def _take(job: _SortJob, source: int) -> Launch | None:
    """Write the first k elements of each line, in the order that scratch *source* has, and where they were."""
    outer, extent, inner, k = job.outer, job.extent, job.inner, job.k
    bits = BITS[job.call.dtype(0).itemsize]
    return walk(
        "top_k_take",
        "const int at = order[s]; y[q] = x[p + at * inner]; z[q] = at;",
        (outer, inner, k),
        (
            WalkedBuffer("x", inp(0), bits, "r"),
            WalkedBuffer("order", scratch(source), INT32, "r"),
            WalkedBuffer("y", out(0), bits, "w"),
            WalkedBuffer("z", out(1), INT64, "w"),
        ),
        job.traits,
        offsets=(
            ("p", (extent * inner, 1, 0)),
            ("q", (k * inner, 1, inner)),
            ("s", (inner * extent, extent, 1)),
        ),
        ints=(("inner", inner),),
    )


def _k(k: int) -> Array:
    return np.array([k], np.int64)


_TIES = np.array([[1, 3, 3, 1, 2, 3], [0, 0, 0, 0, 0, 0]], np.float32)
_MANY = (np.arange(1500, dtype=np.int64) * 7919 % 101).reshape(3, 500)
_LONG = np.tile(_MANY, 2)[:2, :901].astype(np.float32)
_SIGNS = np.concatenate(
    [np.array([np.nan, -0.0, 0.0, np.inf, -np.inf, 1e-42, -1e-42, np.nan, 0.0, -0.0] * 4), np.linspace(-2, 2, 61)]
).astype(np.float32)[None]
OPERATOR = Operator(
    name="TopK",
    infer=infer,
    reference=reference,
    host_nbytes=host_nbytes,
    implement=implement,
    shape_infer_dependencies=(1,),
    examples=(
        Example(("f32[3,50]", _k(3)), outputs=2),
        Example(("f32[3,50]", _k(50)), {"largest": 0}, outputs=2),
        Example(("f32[2,9,5]", _k(4)), {"axis": 1}, outputs=2),
        Example(("f16[4,3]", _k(2)), {"axis": 0, "largest": 0}, outputs=2),
        Example(("i32[7]", _k(1)), outputs=2),
        Example((_TIES, _k(4)), outputs=2),
        Example((_TIES, _k(4)), {"largest": 0}, outputs=2),
        Example((_MANY, _k(300)), outputs=2),
        Example((_LONG, _k(700)), outputs=2),
        Example((_LONG, _k(600)), {"largest": 0}, outputs=2),
        Example((_LONG.T.copy(), _k(513)), {"axis": 0}, outputs=2),
        Example((_MANY, _k(70)), {"largest": 0}, outputs=2),
        Example((_MANY.T.copy(), _k(100)), {"axis": 0}, outputs=2),
        Example((_MANY.astype(np.float32), _k(65)), outputs=2),
        Example((_SIGNS, _k(70)), outputs=2),
        Example((_SIGNS, _k(99)), {"largest": 0}, outputs=2),
        Example((_MANY.astype(np.int32) - 50, _k(499)), {"largest": 0}, outputs=2),
        Example((_MANY.astype(np.uint8), _k(200)), outputs=2),
        Example(((_MANY << 40) - (50 << 40) + _MANY[::-1], _k(499)), outputs=2),
        Example(("f16[2,300,2]", _k(90)), {"axis": 1}, outputs=2),
        Example(("f32[2,1]", _k(1)), outputs=2),
    ),
)
