"""From a kernel's body to OpenCL C: the signature, the argument record, and the macros that every kernel may use.

A kernel's arguments are its buffers, then one record by value: a 64-bit byte offset per buffer and the 32-bit sizes.
The body sees each buffer as a typed pointer that is already moved to its offset, and each size as a const int.

Storage and arithmetic differ for half, bfloat16 and bool. ``LOAD(T, p, i)`` and ``STORE(T, p, i, v)`` convert between
the storage type of dtype ``T`` and its arithmetic type (`compute_type`), and need no fp16 extension.
"""

from __future__ import annotations

import functools
import hashlib
import re
import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

import attrs

from asyncrt.devices.opencl.record import record_slots
from asyncrt.errors import InternalError
from asyncrt.kernels.impl import Access, KernelSource
from asyncrt.layout import BFLOAT16, BOOL, DATA_TYPES, FLOAT16, FLOAT32, FLOAT64, INT32, DataType

from .functions import functions
from .literals import literal

# How a kernel gets a size; `specialised` puts numbers in the place of some.
_SIZE = "  const int {name} = args.v[{index}];"
_SIZES = re.compile(r"^  const int (\w+) = args\.v\[(\d+)\];$", re.M)

_ACCESS = {"r": Access.READ, "w": Access.WRITE, "rw": Access.READ_WRITE}

# Guarded, because several kernels may be built as one program.
PRELUDE = """\
#ifndef ASYNCRT_PRELUDE
#define ASYNCRT_PRELUDE
// On CPU devices work-items are large and written in vectors: the driver should not try to make vectors of work-items,
// which takes Intel's runtime several times as long as the rest of the build.
#ifdef ASYNCRT_CPU
#define ASYNCRT_HINT __attribute__((vec_type_hint(float16)))
#else
#define ASYNCRT_HINT
#endif
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
inline float asyncrt_bf16_load(ushort x) { return as_float((uint)x << 16); }
inline ushort asyncrt_bf16_store(float x) {
  const uint u = as_uint(x);
  return isnan(x) ? (ushort)0x7fc0 : (ushort)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
%s
#endif
"""


def _macros() -> str:
    lines: list[str] = []
    for t in DATA_TYPES:
        load, store = "(p)[i]", f"(p)[i] = ({t.c})(v)"
        if t is FLOAT16:
            load, store = "vload_half(i, p)", "vstore_half_rte(v, i, p)"
        elif t is BFLOAT16:
            load, store = "asyncrt_bf16_load((p)[i])", "(p)[i] = asyncrt_bf16_store(v)"
        elif t is BOOL:
            store = "(p)[i] = (uchar)((v) != 0)"
        lines.append(f"#define LOAD_{t.name}(p, i) {load}")
        lines.append(f"#define STORE_{t.name}(p, i, v) {store}")
    lines.append("#define LOAD(T, p, i) LOAD_##T(p, i)")
    lines.append("#define STORE(T, p, i, v) STORE_##T(p, i, v)")
    return "\n".join(lines)


_PRELUDE_TEXT = PRELUDE % _macros()


EACH_ROUNDED = "#pragma OPENCL FP_CONTRACT OFF"
"""From here on, or in this block, each product and each sum is rounded. Without it NVIDIA's compiler joins those of
several statements, which the language does not allow."""


def compute_type(dtype: DataType) -> str:
    """Return the OpenCL C type in which values of *dtype* are calculated: float for half and bfloat16."""
    return "float" if dtype in (FLOAT16, BFLOAT16, FLOAT32) else "double" if dtype is FLOAT64 else dtype.c


def rounded(text: str, dtype: DataType) -> str:
    """Return OpenCL C for the float *text* as it is after a kernel has stored it as *dtype*, if that is a float."""
    if dtype is FLOAT16:
        return f"asyncrt_half({text})"
    return f"asyncrt_bf16_load(asyncrt_bf16_store({text}))" if dtype is BFLOAT16 else text


def accumulator_type(dtype: DataType) -> str:
    """Return the OpenCL C type in which sums of *dtype* are kept: long or ulong for integers."""
    if dtype.is_float:
        return compute_type(dtype)
    return "ulong" if dtype.numpy.kind == "u" else "long"


@functools.lru_cache(maxsize=4096)
def kernel(
    name: str,
    buffers: tuple[tuple[str, DataType, str], ...],
    ints: tuple[str, ...],
    body: str,
    *,
    helpers: str = "",
    attributes: str = "",
    local: tuple[tuple[str, str], ...] = (),
    contract: bool = True,
) -> KernelSource:
    """Return the source of a kernel. Equal arguments give the same object.

    Args:
        name: What it is called in traces and `explain()`; made unique by a digest of the text.
        buffers: ``(name, dtype, access)`` with access "r", "w" or "rw". The body sees ``__global`` pointers.
        ints: Names of the sizes; the body sees them as ``const int``.
        body: OpenCL C statements.
        helpers: OpenCL C before the kernel. Functions in it need names that no other kernel uses:
            write ``$`` where the kernel's unique name should stand.
        attributes: Such as ``__attribute__((reqd_work_group_size(16, 16, 1)))``.
        local: ``(name, C type)`` of each ``__local`` pointer argument.
        contract: Whether the compiler may round a product and a sum once.
    """
    parts = (
        name, repr([(n, t.name, a) for n, t, a in buffers]), repr(ints), body, helpers, attributes, repr(local),
        repr(contract),
    )  # fmt: skip
    unique = f"{name}_{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12]}"
    offsets, sizes = record_slots(len(buffers), len(ints))
    arguments = [
        f"__global {'const ' if access == 'r' else ''}{dtype.c}* {n}_" for n, dtype, access in buffers
    ] + [f"const {unique}_args args"]
    arguments += [f"__local {ctype}* {n}" for n, ctype in local]
    moved = [
        "  __global {c}{t}* {n} = (__global {c}{t}*)((__global {c}char*){n}_ + args.o[{i}]);".format(
            c="const " if access == "r" else "", t=dtype.c, n=n, i=i
        )
        for i, (n, dtype, access) in enumerate(buffers)
    ]
    sized = [_SIZE.format(name=n, index=i) for i, n in enumerate(ints)]
    text = "\n".join(
        [
            _PRELUDE_TEXT,
            functions(helpers + body),
            f"typedef struct {{ long o[{offsets}]; int v[{sizes}]; }} {unique}_args;",
            *([] if contract else [EACH_ROUNDED]),
            helpers.replace("$", unique),
            f"ASYNCRT_HINT {attributes} __kernel void {unique}({', '.join(arguments)}) {{",
            *moved,
            *sized,
            body.replace("$", unique),
            "}\n",
            *([] if contract else ["#pragma OPENCL FP_CONTRACT ON\n"]),
        ]
    )
    if not text.isascii():
        # Such a text is kept nowhere: the ints that it was made from are no plain ones (`runtime/plan/traced_int.py`).
        raise InternalError(f"the kernel '{name}' would have numbers of one plan in its text")
    accesses, itemsizes = tuple(_ACCESS[a] for _, _, a in buffers), tuple(t.itemsize for _, t, _ in buffers)
    return _only(KernelSource(unique, text, accesses, len(ints), len(local), itemsizes))


_known: WeakValueDictionary[str, KernelSource] = WeakValueDictionary()
_one_at_a_time = threading.Lock()


def _only(source: KernelSource) -> KernelSource:
    """Return the source of that name that is in use, or this one: two threads may plan the same at the same time."""
    with _one_at_a_time:
        return _known.setdefault(source.name, source)


def specialised(source: KernelSource, fixed: Sequence[tuple[int, int]]) -> KernelSource:
    """Return *source* with some of its sizes as numbers in its text; what it is called with stays the same.

    Args:
        fixed: ``(index, value)`` of those sizes. It may only be launched with these values.
    """
    values = dict(fixed)
    digest = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:12]

    def size(match: re.Match[str]) -> str:
        value = values.get(int(match[2]))
        return match[0] if value is None else f"  const int {match[1]} = {literal(value, INT32)};"

    name = f"{source.name}_{digest}"
    return attrs.evolve(source, name=name, text=_SIZES.sub(size, source.text).replace(source.name, name))
