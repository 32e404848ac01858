"""Does a driver multiply small integers and add the products at once, if asked by name?

Processors have instructions for it, which no function of OpenCL C becomes: on Intel's runtime `dot` is a call for each
element, and its compiler fills half of a multiplication of pairs with zeros. Kernels that gain by them
(`kernels/int8/tiles.py`) contain `DOT`, which names one instruction where its macro is defined. What a driver makes of
such a name is its own affair, and may be wrong without a word; so each is tried first, on a processor that says it can,
and the best is defined whose sums are all right.

The same goes for those that look 16 numbers up in a table (`LOOKUP`), or 64 bytes (`BYTES_LOOKUP`): `shuffle` is some
instructions for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from asyncrt.layout import Array

from .target import CPUINFO

WANTED = "ASYNCRT_DOT"
"""What the text of a kernel has in it that gains by the instructions."""


LOOKUP_WANTED = "ASYNCRT_LOOKUP"
"""The same, and the macro that is defined where a table of 16 floats is looked up at once."""

BYTES_LOOKUP_WANTED = "ASYNCRT_BYTES_LOOKUP"
"""The same where a table of 256 bytes is looked up for 64 at once."""


class Instruction(NamedTuple):
    """One that multiplies vectors of 32-bit numbers, in each of which are several unsigned and several signed integers.

    Attributes:
        macro: What is defined where it may be used.
        flags: What the processor says that it has.
        numbers: In a register.
        bytes: Whether a number holds four bytes, rather than two shorts.
        step: Statements that return ``s`` with the products of ``u`` and ``w`` added. The letters of the constraints
            are those that both Intel's compiler, for which this is not yet a program for x86, and PoCL's understand.
        small: The same for four bytes, where the unsigned ones are below 16 and a number holds two shorts otherwise.
    """

    macro: str
    flags: frozenset[str]
    numbers: int
    bytes: bool
    step: str
    small: str = ""

    @property
    def function(self) -> str:
        """``$_dot(s, u, w)`` for 16 numbers."""
        return _function("$_dot", self.numbers, self.step)

    @property
    def small_function(self) -> str:
        """``$_small_dot(s, u, w)``, the same by what `small` says; it must not be empty."""
        return _function("$_small_dot", self.numbers, self.small)


def _function(name: str, numbers: int, step: str) -> str:
    one, all16 = f"int{numbers}", "0123456789abcdef"
    parts = (all16[i : i + numbers] for i in range(0, 16, numbers))
    whole = ", ".join(f"{name}_step(s.s{part}, u.s{part}, w.s{part})" for part in parts)
    return f"""
inline {one} {name}_step({one} s, {one} u, {one} w) {{ {step} }}
inline int16 {name}(int16 s, int16 u, int16 w) {{ return (int16)({whole}); }}"""


_FOUR = '__asm__("{0}vpdpbusd %2, %1, %0" : "+{1}r"(s) : "{1}r"(u), "{1}r"(w)); return s;'
_TWO = 'int{} p; __asm__("vpmaddwd %2, %1, %0" : "=vr"(p) : "vr"(u), "vr"(w)); return s + p;'
# Two products of a byte below 16 and a signed one are far from where 16 bits would saturate.
_PAIRS = (
    'int{0} p, t; __asm__("vpmaddubsw %2, %1, %0" : "=vr"(p) : "vr"(u), "vr"(w));'
    ' __asm__("vpmaddwd %2, %1, %0" : "=vr"(t) : "vr"(p), "vr"((int{0})0x00010001)); return s + t;'
)
_TWO_IN_PLACE = '__asm__("pmaddwd %1, %0" : "+xr"(u) : "xr"(w)); return s + u;'

# The letter x is for the first 16 registers: encodings without EVEX have no more, and a compiler that gives one another
# says nothing.
INSTRUCTIONS = (
    Instruction(f"{WANTED}_4X16", frozenset({"avx512f", "avx512_vnni"}), 16, True, _FOUR.format("", "v")),
    Instruction(f"{WANTED}_4X8", frozenset({"avx2", "avx_vnni"}), 8, True, _FOUR.format("{vex} ", "x")),
    Instruction(f"{WANTED}_2X16", frozenset({"avx512f", "avx512bw"}), 16, False, _TWO.format(16), _PAIRS.format(16)),
    Instruction(f"{WANTED}_2X8", frozenset({"avx2"}), 8, False, _TWO.format(8), _PAIRS.format(8)),
    Instruction(f"{WANTED}_2X4", frozenset({"sse2"}), 4, False, _TWO_IN_PLACE),
)
"""The best first."""

# Without any of them: what every compiler makes something of.
_PLAIN = """
inline int16 $_dot(int16 s, int16 u, int16 w) {
  s += ((u << 16) >> 16) * ((w << 16) >> 16);
  return s + (u >> 16) * (w >> 16);
}"""

DOT = (
    "\n#if "
    + "\n#elif ".join(f"defined({i.macro})\n#define $_NUMBERS {1 if i.bytes else 2}{i.function}" for i in INSTRUCTIONS)
    + f"\n#else\n#define $_NUMBERS 2{_PLAIN}\n#endif\n"
)
"""``$_dot(s, u, w)`` adds to 16 sums the products of unsigned and signed integers: of four bytes in each number where
``$_NUMBERS``, which is how many numbers four bytes take, is 1, and of two shorts, as large as bytes, where it is 2."""

SMALL_DOT = (
    f"\n#if {' || '.join(f'defined({i.macro})' for i in INSTRUCTIONS if i.bytes)}"
    "\n#define $_SMALL\n#define $_small_dot $_dot\n#elif "
    + "\n#elif ".join(f"defined({i.macro})\n#define $_SMALL{i.small_function}" for i in INSTRUCTIONS if i.small)
    + "\n#endif\n"
)
"""``$_small_dot(s, u, w)`` for four bytes in each number, the unsigned ones below 16, where ``$_SMALL`` is defined. It
comes after `DOT`."""

_LOOKED_UP = """
inline float16 $_looked_up(float16 table, uint16 i) {
  float16 r;
  __asm__("vpermps %2, %1, %0" : "=vr"(r) : "vr"(i), "vr"(table));
  return r;
}"""

LOOKUP = f"\n#ifdef {LOOKUP_WANTED}{_LOOKED_UP}\n#endif\n"
"""``$_looked_up(table, i)``: of 16 floats those that the lowest four bits of each ``i`` say, where `LOOKUP_WANTED` is
defined."""

_BYTES_LOOKED_UP = """
inline int16 $_bytes_at(__global const uchar* p) {
  return (int16)(as_int4(vload16(0, p)), as_int4(vload16(1, p)), as_int4(vload16(2, p)), as_int4(vload16(3, p)));
}
inline int16 $_bytes_looked_up(__global const uchar* table, int16 i) {
  const int16 t0 = $_bytes_at(table), t1 = $_bytes_at(table + 64);
  const int16 t2 = $_bytes_at(table + 128), t3 = $_bytes_at(table + 192);
  int16 low = i, high = i;
  __asm__("vpermi2b %2, %1, %0" : "+vr"(low) : "vr"(t0), "vr"(t1));
  __asm__("vpermi2b %2, %1, %0" : "+vr"(high) : "vr"(t2), "vr"(t3));
  const uint16 top = as_uint16(i) & 0x80808080u;
  return bitselect(low, high, as_int16((top << 1) - (top >> 7)));
}"""

BYTES_LOOKUP = f"\n#ifdef {BYTES_LOOKUP_WANTED}{_BYTES_LOOKED_UP}\n#endif\n"
"""``$_bytes_looked_up(table, i)``: of 256 bytes those that the 64 bytes of ``i`` say, and ``$_bytes_at(p)``, 64 bytes,
where `BYTES_LOOKUP_WANTED` is defined."""

Trial: TypeAlias = Callable[[str, str, Array], Array]
"""Builds a text, and returns an array after its kernel, whose name comes second, has changed it."""


class Dots:
    """What one driver is told when it builds a text.

    Args:
        possible: Whether the device is this machine's processor.
    """

    def __init__(self, *, possible: bool, path: Path = CPUINFO) -> None:
        self._said = processor_says(path) if possible else frozenset[str]()
        self._dot: bytes | None = None
        self._lookups: dict[str, bytes] = {}

    def options(self, text: str, run: Trial) -> bytes:
        """Return the options to add for *text*. Blocks at the first text that gains by them.

        Args:
            run: Has the driver run the trial.
        """
        lookups = b"".join(self._lookup_option(macro, run) for macro in _LOOKUPS if macro in text)
        return (self._dot_option(run) if WANTED in text else b"") + lookups

    def _dot_option(self, run: Trial) -> bytes:
        if self._dot is None:
            best = next((i for i in INSTRUCTIONS if i.flags <= self._said and multiplies(i, run)), None)
            self._dot = b" -D " + best.macro.encode() if best else b""
        return self._dot

    def _lookup_option(self, macro: str, run: Trial) -> bytes:
        if macro not in self._lookups:
            flags, right = _LOOKUPS[macro]
            self._lookups[macro] = b" -D " + macro.encode() if flags <= self._said and right(run) else b""
        return self._lookups[macro]


def processor_says(path: Path = CPUINFO) -> frozenset[str]:
    """Return the flags of this machine's processor."""
    try:
        flags = next((line for line in path.read_text().splitlines() if line.startswith("flags")), "")
    except OSError:  # another system: nobody knows
        return frozenset()
    return frozenset(flags.split())


def trial(function: str, name: str) -> str:
    """Return a text whose kernel ``asyncrt_dot`` adds the products of 16 numbers and the next 16 to those before."""
    return f"""{function.replace("$", "trial")}
__kernel void asyncrt_dot(__global int* x) {{
  vstore16({name.replace("$", "trial")}(vload16(0, x), vload16(1, x), vload16(2, x)), 3, x);
}}"""


def multiplies(instruction: Instruction, run: Trial) -> bool:
    """Whether the sums of all its trials are right; whatever one raises means no."""
    shorts = not instruction.bytes
    if not _right(trial(instruction.function, "$_dot"), run, shorts=shorts):
        return False
    return not instruction.small or _right(trial(instruction.small_function, "$_small_dot"), run, small=True)


def looks_up(run: Trial) -> bool:
    """Whether all that is looked up is right; whatever the trial raises means no."""
    text = f"""{_LOOKED_UP.replace("$", "trial")}
__kernel void asyncrt_lookup(__global int* x) {{
  vstore16(as_int16(trial_looked_up(as_float16(vload16(1, x)), as_uint16(vload16(0, x)))), 3, x);
}}"""
    given = np.zeros((4, 16), np.int32)
    given[0] = np.random.default_rng(0).integers(-(2**31), 2**31, 16)
    given[1] = np.arange(1, 17, dtype=np.float32).view(np.int32)
    try:
        got = run(text, "asyncrt_lookup", given)
    except Exception:
        return False
    return bool((got[3] == given[1][given[0] & 15]).all())


def looks_bytes_up(run: Trial) -> bool:
    """The same for 64 bytes, in a table of 256."""
    text = f"""{_BYTES_LOOKED_UP.replace("$", "trial")}
__kernel void asyncrt_bytes_lookup(__global int* x) {{
  const int16 found = trial_bytes_looked_up((__global const uchar*)(x + 16), vload16(0, x));
  vstore16(found, 5, x);
}}"""
    given = np.zeros((6, 16), np.int32)
    given[:5] = np.random.default_rng(0).integers(-(2**31), 2**31, (5, 16))
    try:
        got = run(text, "asyncrt_bytes_lookup", given)
    except Exception:
        return False
    table = given[1:5].view(np.uint8).reshape(-1)
    return bool((got[5].view(np.uint8) == table[given[0].view(np.uint8)]).all())


_LOOKUPS: Mapping[str, tuple[frozenset[str], Callable[[Trial], bool]]] = {
    LOOKUP_WANTED: (frozenset({"avx512f"}), looks_up),
    BYTES_LOOKUP_WANTED: (frozenset({"avx512f", "avx512vbmi"}), looks_bytes_up),
}
"""For each macro what the processor has to say that it has, and whether a trial is right."""


def _right(text: str, run: Trial, *, shorts: bool = False, small: bool = False) -> bool:
    given = np.zeros((4, 16), np.int32)
    given[:3] = np.random.default_rng(0).integers(-(2**31), 2**31, (3, 16))
    if small:
        given[1] &= 0x0F0F0F0F
    if shorts:  # as large as bytes
        given[1] &= 0x00FF00FF
        given[2] = (given[2].view(np.int16) >> 8).view(np.int32)
    unsigned, signed = (np.int16, np.int16) if shorts else (np.uint8, np.int8)
    products = given[1].view(unsigned).astype(np.int64) * given[2].view(signed).astype(np.int64)
    wanted = (given[0] + products.reshape(16, -1).sum(axis=1)).astype(np.int32)
    try:
        got = run(text, "asyncrt_dot", given)
    except Exception:
        return False
    return bool((got[3] == wanted).all())
