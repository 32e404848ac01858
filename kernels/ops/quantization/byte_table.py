"""ByteTable: for each 8-bit integer the one that a table of 256 has for it.

`passes/quantized/tables.py` puts it where what a model calculates between two quantised values depends on nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from asyncrt.devices.opencl.dot_product import BYTES_LOOKUP, BYTES_LOOKUP_WANTED
from asyncrt.kernels.arithmetic import greatest
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import kernel
from asyncrt.kernels.impl import Impl, KernelSource, Launch, inp, out
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.patterns.grid import GPU_GROUP, cut_rows, round_up
from asyncrt.kernels.shapes import check
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import UINT8, Array, DataType, Shape

ENTRIES = 256


def _infer(call: Call) -> tuple[Shape]:
    check(call, call.shape(1) == (ENTRIES,), f"the table must have {ENTRIES} entries")
    return (call.shape(0),)


def _reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    x, table = inputs
    assert x is not None
    assert table is not None
    return (table[x.view(np.uint8)],)


def _types(attributes: Attributes, inputs: Sequence[DataType | None], outputs: int) -> Sequence[DataType]:
    assert inputs[1] is not None
    return (inputs[1],)


def _implement(call: Call, traits: DeviceTraits) -> Impl:
    n = call.outputs[0].count
    if not traits.is_cpu:
        launch = Launch(_kernel(False), (inp(0), inp(1), out(0)), (n, 1), (round_up(n, GPU_GROUP),), (GPU_GROUP,))
        return Impl("table", (launch,))
    chunk = greatest(1, cut_rows(1, n, traits, align=64).chunk)
    launch = Launch(_kernel(True), (inp(0), inp(1), out(0)), (n, chunk), (-(-n // chunk),), (1,))
    return Impl("table", (launch,))


@functools.cache
def _kernel(cpu: bool) -> KernelSource:
    buffers = (("x", UINT8, "r"), ("table", UINT8, "r"), ("y", UINT8, "w"))
    if not cpu:
        body = """
  const int c = (int)get_global_id(0);
  if (c < n) y[c] = table[x[c]];"""
        return kernel("byte_table", buffers, ("n", "chunk"), body)
    body = f"""
  int c = (int)get_global_id(0) * chunk;
  const int end = min(c + chunk, n);
#ifdef {BYTES_LOOKUP_WANTED}
  for (; c + 64 <= end; c += 64) {{
    const int16 found = $_bytes_looked_up(table, $_bytes_at(x + c));
    vstore16(as_uchar16(found.s0123), 0, y + c); vstore16(as_uchar16(found.s4567), 1, y + c);
    vstore16(as_uchar16(found.s89ab), 2, y + c); vstore16(as_uchar16(found.scdef), 3, y + c);
  }}
#endif
  for (; c < end; c++) y[c] = table[x[c]];"""
    return kernel("byte_table", buffers, ("n", "chunk"), body, helpers=BYTES_LOOKUP)


OPERATOR = Operator(
    name="ByteTable",
    infer=_infer,
    reference=_reference,
    implement=_implement,
    types=_types,
    domain="asyncrt",
    examples=(
        Example(("u8[3,50]", np.arange(ENTRIES).astype(np.uint8)[::-1].copy()), {}),
        Example(("i8[2,700]", (np.arange(ENTRIES) // 2 - 64).astype(np.int8)), {}),
    ),
)
