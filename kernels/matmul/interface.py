"""What the kernels of a matrix product have in common: their arguments, and how a result is stored."""

from __future__ import annotations

from typing import NamedTuple

from asyncrt.devices.base import Registers
from asyncrt.kernels.codegen import epilogue, runs
from asyncrt.kernels.codegen.conversion import to_integer
from asyncrt.kernels.codegen.source import compute_type
from asyncrt.kernels.patterns.lane_rows import LaneRows
from asyncrt.kernels.patterns.normalize import LocalRows
from asyncrt.layout import FLOAT32, DataType


class FewBits(NamedTuple):
    """What a right-hand side is whose elements are ``(number - zero) * scale`` (`few_bits.py`).

    Attributes:
        bits: Of a number.
        zeros: The dtype of the zero points; None where all are half of what the bits can say.
    """

    bits: int
    zeros: DataType | None

    @property
    def numbers(self) -> int:
        """Elements of a packed word."""
        return 32 // self.bits


class ProductForm(NamedTuple):
    """What the source of a kernel depends on; everything else is an argument.

    Attributes:
        alpha, beta: What the product and the bias are multiplied by, as literals; "" is nothing.
        axes: How many batch axes there are.
        bias_contiguous: The bias has a value for each column.
        last: The epilogue.
        registers: Of a CPU device.
        few: What *b* is made of, where it has few bits.
        copies: How many parts of the result's only row are copied elsewhere as well.
        normal: How rows of *a* are normalised before they are multiplied, where they are.
    """

    name: str
    a: DataType
    b: DataType
    bias: DataType | None
    alpha: str
    beta: str
    axes: int
    bias_contiguous: bool
    last: epilogue.EpilogueForm
    registers: Registers
    few: FewBits | None = None
    normal: LocalRows | LaneRows | None = None
    copies: int = 0

    @property
    def ints(self) -> tuple[str, ...]:
        batch = (x for i in range(self.axes) for x in (f"d{i}", f"sa{i}", f"sb{i}"))
        scalars = ("M", "N", "K", "sa_m", "sa_k", "sb_k", "sb_n", "a_off", "b_off", "sc_m", "sc_n")
        copies = (f"copy{i}_{x}" for i in range(self.copies) for x in ("first", "count", "columns", "apart", "to"))
        return (*scalars, *batch, *(() if self.few is None else ("block",)), *self.last.ints, *copies)

    @property
    def buffers(self) -> tuple[tuple[str, DataType, str], ...]:
        bias = () if self.bias is None else (("bias", self.bias, "r"),)
        few: tuple[tuple[str, DataType, str], ...] = () if self.few is None else (("S", FLOAT32, "r"),)
        if self.few is not None and self.few.zeros is not None:
            few += (("Z", self.few.zeros, "r"),)
        rows = () if self.normal is None else self.normal.buffers
        copies = tuple((f"C{i}", self.a, "w") for i in range(self.copies))
        own = (("A", self.a, "r"), ("B", self.b, "r"), ("Y", self.a, "w"))
        return (*own, *bias, *few, *rows, *self.last.buffers, *copies)

    @property
    def is_unaligned(self) -> str:
        """OpenCL C: whether an operand's buffer begins elsewhere than at a multiple of 16 bytes, as parts of others may."""
        if isinstance(self.normal, LaneRows):
            return f"(((ulong)B | {self.normal.unaligned}) & 15)"
        return "(((ulong)A | (ulong)B) & 15)" if self.normal is None else "((ulong)B & 15)"

    def left(self, m: str, k: str) -> str:
        """The left-hand side's element of row *m* and term *k*."""
        if self.normal is not None:
            return f"LOAD({self.a.name}, rows, {self.normal.at(m, k)})"
        return f"LOAD({self.a.name}, A, ao + {m} * sa_m + {k} * sa_k)"

    def left_at(self, m: str, k: str) -> str:
        """Where the left-hand side's element of row *m* and term *k* lies, whose terms are adjacent."""
        return f"A + ao + {m} * sa_m + {k}" if self.normal is None else f"rows + {self.normal.at(m, k)}"

    @property
    def left_space(self) -> str:
        """Where the left-hand side lies."""
        return "__global" if self.normal is None else "__local"

    def normalised(self, group: int) -> str:
        """Normalise the rows of the left-hand side, in a work-group of so many work-items, where that is wanted."""
        return "" if self.normal is None else self.normal.made(group)

    def normalised_one_by_one(self, group: int) -> str:
        """Do what `normalised` does where `is_unaligned`."""
        return self.normal.made_one_by_one(group) if isinstance(self.normal, LaneRows) else self.normalised(group)

    def local_rows(self, group: int) -> str:
        """Declare what `normalised` needs."""
        return "" if self.normal is None else self.normal.arrays(group)

    def batch(self) -> str:
        """Find this work-item's matrices: they begin at ``ao`` and ``bo``, and at row ``first`` of the result."""
        lines = ["int rest = (int)get_global_id(2); const int first = rest * M; int ao = a_off, bo = b_off;"]
        lines += [
            f"{{ const int q = rest / d{i}, r = rest - q * d{i}; ao += r * sa{i}; bo += r * sb{i}; rest = q; }}"
            for i in range(self.axes)
        ]
        return " ".join(lines)

    def rows(self, m: str) -> str:
        """Find row *m* of this work-item's matrix in the epilogue's operands."""
        return self.last.rows(f"first + {m}")

    def held(self, count: int) -> str:
        """Declare what `hold` reads for *count* elements."""
        bias = "" if self.bias is None else f"{compute_type(self.bias)} held[{count}];"
        return f"{bias} {self.last.held(count)}"

    def hold(self, index: str, m: str, n: str) -> str:
        """Read what belongs to an element; `EpilogueForm.held` says why."""
        bias = "" if self.bias is None else f"held[{index}] = {self._bias(m, n)};"
        return f"{bias} {self.last.hold(index, n)}"

    def hold_run(self, index: str, m: str, n: str, count: str) -> str:
        """Read what belongs to eight elements from column *n* on, or to *count* if that is less."""
        bias = ""
        if self.bias is not None and self.bias_contiguous and self.bias in runs.TYPES:
            bias = runs.read(self.bias, f"held + {index}", f"bias + ({m}) * sc_m + {n}", count)
        elif self.bias is not None:
            bias = runs.each(f"if (x < {count}) held[{index} + x] = {self._bias(m, f'{n} + x')};")
        return f"{bias} {self.last.hold_run(index, n, count)}"

    def _bias(self, m: str, n: str) -> str:
        assert self.bias is not None
        return f"LOAD({self.bias.name}, bias, ({m}) * sc_m + ({n}) * sc_n)"

    def element(self, value: str, m: str, n: str, held: str = "") -> str:
        """Store ``alpha * value + beta * bias[m, n]``, after the epilogue, as one element.

        Args:
            held: The index under which `hold` has read what belongs to it.
        """
        text = self._sum(value, f"held[{held}]" if held else self._bias(m, n) if self.bias else "")
        if (self.alpha or self.beta) and not self.a.is_float:
            text = to_integer(text, self.a)
        copies = " ".join(self._copy(i, n) for i in range(self.copies))
        return self.last.element(self.a, "Y", f"(first + {m}) * N + {n}", n, text, held=held, further=copies)

    def _copy(self, i: int, n: str) -> str:
        """Store ``stored``, of column *n*, where part *i* is copied to, if it is in that part."""
        at = f"copy{i}_to + c / copy{i}_columns * copy{i}_apart + c % copy{i}_columns"
        store = f"STORE({self.a.name}, C{i}, {at}, stored);"
        return f"{{ const int c = {n} - copy{i}_first; if (c >= 0 && c < copy{i}_count) {store} }}"

    def calculated(self, target: str, value: str, held: str) -> str:
        """Let the variable *target* be what `element` would store; `hold` or `hold_run` has read what belongs to it."""
        return self.last.calculated(self.a, target, self._sum(value, f"held[{held}]"), held)

    def _sum(self, value: str, bias: str) -> str:
        text = _times(self.alpha, value)
        return text if self.bias is None else f"{text} + {_times(self.beta, bias)}"

    def vector(self, value: str, m: str, n: str) -> str:
        """Store the same as 16 floats, from column *n* on; the bias has a value for each column, or one for a row."""
        text = _times(self.alpha, value)
        if self.bias is not None:
            at = f"bias + ({m}) * sc_m"
            text += " + " + _times(self.beta, f"vload16(0, {at} + {n})" if self.bias_contiguous else f"(float16)(*({at}))")
        return self.last.stored_vector(f"Y + (first + {m}) * N + {n}", n, text)


def _times(factor: str, value: str) -> str:
    return f"{factor} * {value}" if factor else value
