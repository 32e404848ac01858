"""What a kernel calculates from its results before it stores them: an expression, with further operands.

A kernel that has an epilogue sees its result as rows of columns. For each row it says where the operands' rows begin
(`EpilogueForm.rows`), then it stores elements (`EpilogueForm.element`) or vectors of 16 (`EpilogueForm.stored_vector`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asyncrt.kernels.impl import Ref
from asyncrt.layout import FLOAT32, DataType
from asyncrt.memory.view import View, collapse

from . import constants, runs
from .source import compute_type
from .vectors import ALL_VECTORS, INTEGER_VECTORS

_GATHERED = 2


def _first(dtype: DataType) -> str:
    """``$_first(p, step, n)``: the first *n* of 16 elements, zeros behind them; nothing else is read."""
    vector, loaded = ALL_VECTORS[dtype], "vload16(0, p)"
    if dtype in INTEGER_VECTORS:
        loaded = f"convert_int16({loaded})"
    return f"""
inline {vector} __attribute__((overloadable)) $_first(__global const {dtype.c}* p, int step, int n) {{
  {vector.removesuffix("16")} t[16];
  if (step == 1 && n >= 16) return {loaded};
  for (int i = 0; i < 16; i++) t[i] = i < n ? p[i * step] : 0;
  return vload16(0, t);
}}"""


def store_some(dtype: DataType) -> str:
    """Return ``$_store(v, n, p)``, which stores the first *n* of 16 elements, or all; nothing else is written."""
    c = dtype.c
    whole = f"convert_{c}16(v)" if dtype in INTEGER_VECTORS else "v"
    return f"""
inline void __attribute__((overloadable)) $_store({ALL_VECTORS[dtype]} v, int n, __global {c}* p) {{
  const {c}16 a = {whole};
  if (n >= 16) {{ vstore16(a, 0, p); return; }}
  {c}8 e = a.lo;
  if (n & 8) {{ vstore8(e, 0, p); p += 8; e = a.hi; }}
  {c}4 q = e.lo;
  if (n & 4) {{ vstore4(q, 0, p); p += 4; q = e.hi; }}
  {c}2 d = q.lo;
  if (n & 2) {{ vstore2(d, 0, p); p += 2; d = q.hi; }}
  if (n & 1) *p = d.x;
}}"""


SOME = _first(FLOAT32) + store_some(FLOAT32)
"""For kernels of floats that store fewer than 16 at the end of a row (`EpilogueForm.stored_some`)."""


class Operand(NamedTuple):
    """A tensor in a buffer, read through a view."""

    ref: Ref
    dtype: DataType
    view: View


class Epilogue(NamedTuple):
    """What becomes of each element before it is stored.

    Attributes:
        expression: OpenCL C over ``v``, the element, and ``a0, a1, ...``, the operands, each in its arithmetic type.
        operands: Broadcast to the shape of the result, with any strides; no kernel writes to them.
        vector: The expression also holds for ``float16`` vectors (no comparisons, no ``?:``).
        helpers: OpenCL C functions that the expression calls; ``$`` stands for the kernel's unique name.
        result: The dtype of what it gives; None is that of what it takes. Only for an operator that `converts`.
        numbers: What the expression reads by `constants.read`.
    """

    expression: str
    operands: tuple[Operand, ...] = ()
    vector: bool = False
    helpers: str = ""
    result: DataType | None = None
    numbers: tuple[float, ...] = ()


class EpilogueForm(NamedTuple):
    """What the source of a kernel with an epilogue depends on; the default is no epilogue.

    Attributes:
        steps: For each operand 0 if one element serves a whole row, 1 if a row's elements are adjacent, else 2.
        axes: How many axes the rows of all operands have after merging.
        numbers: How many numbers the expression reads that are arguments.
    """

    expression: str = "v"
    dtypes: tuple[DataType, ...] = ()
    steps: tuple[int, ...] = ()
    axes: int = 0
    vector: bool = True
    helper_text: str = ""
    numbers: int = 0

    @property
    def buffers(self) -> tuple[tuple[str, DataType, str], ...]:
        return tuple((f"E{i}", t, "r") for i, t in enumerate(self.dtypes))

    @property
    def ints(self) -> tuple[str, ...]:
        each = range(len(self.dtypes))
        axes = (x for a in range(self.axes) for x in (f"ed{a}", *(f"es{a}_{i}" for i in each)))
        return (*(f"eo{i}" for i in each), *(f"ec{i}" for i in each), *axes, *constants.sizes(self.numbers))

    @property
    def helpers(self) -> str:
        if not self.vector:
            return self.helper_text
        text = self.helper_text + "".join(_first(d) for d in INTEGER_VECTORS if d in self.dtypes)
        if _GATHERED not in self.steps:
            return text
        # In vectors as well: a value must not depend on the strides of its operands.
        return f"""{text}
inline float16 $_gathered(__global const float* p, int step) {{
  float t[16];
  for (int i = 0; i < 16; i++) t[i] = p[i * step];
  return vload16(0, t);
}}"""

    def rows(self, row: str) -> str:
        """Write the statements after which operand i's row *row* begins at ``e<i>``."""
        each = range(len(self.dtypes))
        if not self.dtypes:
            return ""
        if self.axes == 1:
            return " ".join(f"const int e{i} = eo{i} + ({row}) * es0_{i};" for i in each)
        lines = [f"int er = {row};", *(f"int e{i} = eo{i};" for i in each)]
        for a in range(self.axes):
            moves = " ".join(f"e{i} += ei * es{a}_{i};" for i in each)
            lines.append(f"{{ const int eq = er / ed{a}, ei = er - eq * ed{a}; {moves} er = eq; }}")
        return " ".join(lines)

    def fetched(self, column: str, end: int) -> str:
        """Write the statements that fetch what a row needs of the operands from *column* to *end* further on.

        They come after those of `rows`; `tiles.FETCH` has what they call.
        """
        return " ".join(f"ASYNCRT_FETCH({at}); ASYNCRT_FETCH({at} + {end});" for at in self._adjacent(column))

    def fetched_run(self, column: str) -> str:
        """Write the statements that fetch what lies from *column* on, as far as memory hands over at once.

        They come after those of `rows`; `mma.helpers` has what they call.
        """
        return " ".join(f"asyncrt_fetch({at});" for at in self._adjacent(column))

    def _adjacent(self, column: str) -> list[str]:
        """Where the elements of *column* are of the operands whose rows' elements are adjacent."""
        return [f"E{i} + e{i} + {column}" for i, step in enumerate(self.steps) if step == 1]

    def held(self, count: int) -> str:
        """Declare what `hold` reads for *count* elements.

        A compiler must suppose that a store changes operands, so a load behind it waits for memory once more. A kernel
        that stores many elements reads first what belongs to several of them.
        """
        return " ".join(f"{compute_type(d)} h{i}[{count}];" for i, d in enumerate(self.dtypes))

    def hold(self, index: str, column: str) -> str:
        """Write the statements that read what belongs to *column*; they come after those of `rows`."""
        return " ".join(f"h{i}[{index}] = {load};" for i, load in enumerate(self._loads(column)))

    def hold_run(self, index: str, column: str, count: str) -> str:
        """Write the statements that read what belongs to *column* and those behind it: eight, or *count* if that is less.

        They come after those of `rows`; `runs.helpers` has what they call.
        """
        statements = []
        for i, (dtype, step) in enumerate(zip(self.dtypes, self.steps, strict=True)):
            if step == 1 and dtype in runs.TYPES:
                statements.append(runs.read(dtype, f"h{i} + {index}", f"E{i} + e{i} + {column}", count))
            else:
                load = self._loads(f"{column} + x")[i]
                statements.append(runs.each(f"if (x < {count}) h{i}[{index} + x] = {load};"))
        return " ".join(statements)

    def _loads(self, column: str) -> list[str]:
        offset = ("", f" + {column}", f" + ({column}) * ec{{i}}")
        each = enumerate(zip(self.dtypes, self.steps, strict=True))
        return [f"LOAD({d.name}, E{i}, e{i}{offset[s].format(i=i)})" for i, (d, s) in each]

    def element(
        self, dtype: DataType, target: str, at: str, column: str, value: str, result: DataType | None = None, held: str = "",
        further: str = "",
    ) -> str:  # fmt: skip
        """Write the statement that stores *value*, of *column*, as element *at* of *target*.

        Args:
            dtype: Of the value.
            result: Of what is stored; None is the same.
            held: The index under which `hold` has read its operands.
            further: Statements over ``stored``, what is stored.
        """
        result = result or dtype
        t = compute_type(result)
        stored = f"STORE({result.name}, {target}, {at}, ({t})({self.expression}));"
        if further:
            stored = f"const {t} stored = {self.expression}; STORE({result.name}, {target}, {at}, stored); {further}"
        return f"{{ {self._operands(dtype, column, value, held)} {stored} }}"

    def calculated(self, dtype: DataType, target: str, value: str, held: str) -> str:
        """Write the statement that lets the variable *target* be what becomes of *value*; the rest as for `element`."""
        t = compute_type(dtype)
        return f"{{ {self._operands(dtype, '0', value, held)} {target} = ({t})({self.expression}); }}"

    def _operands(self, dtype: DataType, column: str, value: str, held: str) -> str:
        """Declare what the expression is over."""
        operands = [f"h{i}[{held}]" for i in range(len(self.dtypes))] if held else self._loads(column)
        loads = " ".join(
            f"const {compute_type(d)} a{i} = {operand};"
            for i, (d, operand) in enumerate(zip(self.dtypes, operands, strict=True))
        )
        t = compute_type(dtype)
        return f"const {t} v = ({t})({value}); {loads}"

    def stored_vector(
        self, address: str, column: str, value: str, dtype: DataType = FLOAT32, result: DataType = FLOAT32
    ) -> str:
        """Write the statement that stores *value*, 16 of *dtype* from *column* on, at *address*; needs `vector`."""
        operands = " ".join(self._load16(i, column) for i in range(len(self.dtypes)))
        stored = f"({ALL_VECTORS[result]})({self.expression})"
        if result in INTEGER_VECTORS:
            stored = f"convert_{result.c}16({stored})"
        return f"{{ const {ALL_VECTORS[dtype]} v = {value}; {operands} vstore16({stored}, 0, {address}); }}"

    def stored_some(
        self, address: str, column: str, value: str, count: str, dtype: DataType = FLOAT32, result: DataType = FLOAT32
    ) -> str:
        """Write the statement that stores the first *count* of 16 elements of *dtype*, or all, as those of *result*.

        It needs `vector`, and as helpers `SOME`, or `store_some` for another result.
        """
        operands = ""
        for i, (operand, step) in enumerate(zip(self.dtypes, self.steps, strict=True)):
            at, apart = (f"E{i} + e{i} + {column}", "1") if step == 1 else (f"E{i} + e{i} + ({column}) * ec{i}", f"ec{i}")
            vector = ALL_VECTORS[operand]
            loaded = f"({vector})(E{i}[e{i}])" if step == 0 else f"$_first({at}, {apart}, {count})"
            operands += f" const {vector} a{i} = {loaded};"
        stored = f"$_store(({ALL_VECTORS[result]})({self.expression}), {count}, {address});"
        return f"{{ const {ALL_VECTORS[dtype]} v = {value};{operands} {stored} }}"

    def _load16(self, index: int, column: str) -> str:
        """Write the statement that loads 16 of an operand's elements."""
        dtype, step, at = self.dtypes[index], self.steps[index], f"E{index} + e{index}"
        if step == 0:
            loaded = f"({ALL_VECTORS[dtype]})(E{index}[e{index}])"
        elif step == _GATHERED:
            loaded = f"$_gathered({at} + ({column}) * ec{index}, ec{index})"
        else:
            loaded = f"vload16(0, {at} + {column})"
            if dtype in INTEGER_VECTORS:
                loaded = f"convert_int16({loaded})"
        return f"const {ALL_VECTORS[dtype]} a{index} = {loaded};"

    def stored_pair(self, rows: Sequence[str], addresses: Sequence[str], column: str, value: str, width: int) -> str:
        """Write the statement that stores *value*, 8 floats of each of two rows, at two addresses; needs `vector`.

        Args:
            rows: The rows' numbers.
            column: The first of their columns.
            width: How many of the 8 there are: at least 4.
        """
        operands = " ".join(f"{ALL_VECTORS[d]} a{i};" for i, d in enumerate(self.dtypes))
        for row, half in zip(rows, ("lo", "hi"), strict=True):
            if self.dtypes:
                operands += f" {{ {self.rows(row)} {' '.join(self._load8(i, column, half, width) for i in range(len(self.dtypes)))} }}"
        stores = " ".join(
            f"vstore8(w.{half}, 0, {at});" if width == 8
            else f"vstore4(w.{half}.lo, 0, {at}); vstore4(w.{half}.s{_last4(width)}, 0, {at} + {width - 4});"
            for at, half in zip(addresses, ("lo", "hi"), strict=True)
        )  # fmt: skip
        return f"{{ const float16 v = {value}; {operands} const float16 w = (float16)({self.expression}); {stores} }}"

    def _load8(self, index: int, column: str, half: str, width: int) -> str:
        """Write the statement that loads half of operand *index*, *width* elements of a row."""
        at, dtype = f"E{index} + e{index} + {column}", self.dtypes[index]
        eight = ALL_VECTORS[dtype].replace("16", "8")
        wide = "convert_int{n}" if dtype in INTEGER_VECTORS else ""
        if self.steps[index] == 0:
            return f"a{index}.{half} = ({eight})(E{index}[e{index}]);"
        if self.steps[index] == _GATHERED:
            c = [f"E{index}[e{index} + ({column} + {min(i, width - 1)}) * ec{index}]" for i in range(8)]
            return f"a{index}.{half} = ({eight})({', '.join(c)});"
        if width == 8:
            return f"a{index}.{half} = {wide.format(n=8)}(vload8(0, {at}));"
        # Nothing beyond the row is read: the last four elements may overlap the first four.
        four = wide.format(n=4)
        return (
            f"a{index}.{half}.s{_last4(width)} = {four}(vload4(0, {at} + {width - 4})); "
            f"a{index}.{half}.lo = {four}(vload4(0, {at}));"
        )


def _last4(width: int) -> str:
    """The last four of *width* components, as OpenCL spells them."""
    return "".join(str(i) for i in range(width - 4, width))


NONE = EpilogueForm()


def join(epilogue: Epilogue | None, first: int) -> tuple[bool, Epilogue | None]:
    """Return whether the axes of the result from *first* on can be merged, and *epilogue* for the merged result.

    They cannot where an operand's strides do not walk those axes as one.
    """
    if epilogue is None:
        return True, None
    joined: list[Operand] = []
    for operand in epilogue.operands:
        shape, strides, offset = operand.view
        axes, (steps,) = collapse(shape[first:], strides[first:])
        if len(axes) > 1:
            return False, None
        joined.append(operand._replace(view=View((*shape[:first], *axes), (*strides[:first], *steps), offset)))
    return True, epilogue._replace(operands=tuple(joined))


class Bound(NamedTuple):
    """An epilogue at one set of shapes: what its kernel's source depends on, and its part of a launch."""

    form: EpilogueForm = NONE
    refs: tuple[Ref, ...] = ()
    ints: tuple[int, ...] = ()


def bind(
    epilogue: Epilogue | None, shape: Sequence[int], *, integers: bool = False, converts: bool = False
) -> Bound:
    """Return *epilogue* for a result of *shape*, whose last axis is the columns and all others the rows.

    Args:
        integers: Whether the kernel stores vectors also where operands are `INTEGER_VECTORS`.
        converts: Whether the result may have another dtype than what the kernel makes; of floats it stores vectors of
            float32 alone.
    """
    if epilogue is None:
        return Bound()
    operands = epilogue.operands
    for index, operand in enumerate(operands):
        if operand.view.shape != tuple(shape):
            raise ValueError(f"operand {index} of an epilogue has the shape {operand.view.shape}, its result {tuple(shape)}")
    axes, strides = collapse(shape[:-1], *(o.view.strides[:-1] for o in operands))
    columns = tuple(0 if shape[-1] == 1 else o.view.strides[-1] for o in operands)
    ints = [*(o.view.offset for o in operands), *columns]
    for a in range(len(axes) - 1, -1, -1):
        ints += [axes[a], *(s[a] for s in strides)]
    form = EpilogueForm(
        epilogue.expression,
        tuple(o.dtype for o in operands),
        tuple(c if c in (0, 1) else _GATHERED for c in columns),
        len(axes),
        epilogue.vector
        and (not converts or epilogue.result in (None, FLOAT32, *INTEGER_VECTORS))
        and all(
            o.dtype is FLOAT32 or (integers and o.dtype in INTEGER_VECTORS and c in (0, 1))
            for o, c in zip(operands, columns, strict=True)
        ),
        epilogue.helpers,
        len(epilogue.numbers),
    )
    return Bound(form, tuple(o.ref for o in operands), (*ints, *constants.bits(epilogue.numbers)))
