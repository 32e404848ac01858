"""Numbers in kernel text: every one is written by `literal`, and the compiler reads what was meant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import asyncrt.kernels.codegen.literals
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.literals import literal
from asyncrt.kernels.codegen.source import compute_type, kernel
from asyncrt.kernels.impl import Impl, Launch, out
from asyncrt.layout import (
    BFLOAT16,
    BOOL,
    DATA_TYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT32,
    UINT64,
    DataType,
    Layout,
)

from ...ops.run import best_device, run_impl

KERNELS = Path(asyncrt.kernels.codegen.literals.__file__).parent


@pytest.mark.parametrize(
    ("expected", "value", "dtype"),
    [
        ("0x1.8000000000000p+0f", 1.5, FLOAT32),
        ("(-0x1.8000000000000p+0f)", -1.5, FLOAT32),
        ("(-0x0.0p+0f)", -0.0, FLOAT32),
        ("0x1.99999a0000000p-4f", 0.1, FLOAT16),
        ("0x1.999999999999ap-4", 0.1, FLOAT64),
        ("INFINITY", 1e39, FLOAT32),
        ("(-INFINITY)", -np.inf, BFLOAT16),
        ("NAN", -np.nan, FLOAT32),
        ("((double)NAN)", np.nan, FLOAT64),
        ("(-(double)INFINITY)", -np.inf, FLOAT64),
        ("(-128)", -128, INT8),
        ("(-2147483647 - 1)", -(2**31), INT32),
        ("(-9223372036854775807L - 1)", -(2**63), INT64),
        ("4294967295U", 2**32 - 1, UINT32),
        ("18446744073709551615UL", 2**64 - 1, UINT64),
        ("1", True, BOOL),
    ],
)
def test_a_number_is_written_so_that_it_can_stand_anywhere(expected: str, value: float, dtype: DataType) -> None:
    """What is negative is in parentheses, floats are exact, and every type's constants have its suffix."""
    assert expected == literal(value, dtype)


@pytest.mark.parametrize(("value", "dtype"), [(128, INT8), (-1, UINT64), (2**63, INT64), (0.5, INT32), (2, BOOL)])
def test_a_number_that_a_type_lacks_is_refused(value: float, dtype: DataType) -> None:
    """Nothing is cut to fit: the caller has to know what it means."""
    with pytest.raises(ValueError, match=re.escape(repr(value))):
        literal(value, dtype)


def _edges(dtype: DataType) -> list[float]:
    if dtype is BOOL:
        return [0, 1]
    if dtype.is_integer:
        limits = np.iinfo(dtype.name)
        return [int(limits.min), int(limits.min) + 1, -1 if limits.min else 1, 0, 7, int(limits.max)]
    limits = ml_dtypes.finfo(dtype.numpy)
    numbers = [limits.max, limits.min, limits.smallest_normal, limits.smallest_subnormal, dtype.numpy.type(0.1)]
    return [*map(float, numbers), 0.0, -0.0, -1.5, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", DATA_TYPES, ids=str)
def test_the_compiler_reads_the_number_that_was_written(dtype: DataType) -> None:
    """Bit for bit, in the type in which values of the dtype are calculated, and also behind a minus."""
    device = best_device()
    if dtype is FLOAT64 and "fp64" not in device.info.features:
        pytest.skip("the device has no float64")
    wide = FLOAT32 if dtype in (FLOAT16, BFLOAT16) else dtype
    numbers = _edges(dtype)
    t = compute_type(dtype)
    body = " ".join(f"y[{i}] = ({t}){literal(n, dtype)};" for i, n in enumerate(numbers))
    body += f" y[{len(numbers)}] = 1 -{literal(numbers[-2], dtype)} < 0;"
    source = kernel("literals", (("y", wide, "w"),), (), body)
    output = Layout(wide, (len(numbers) + 1,))
    call = Call("literals", Attributes(), (), (), (output,), (wide,))

    (got,) = run_impl(Impl("literals", (Launch(source, (out(0),), (), (1,)),)), call, ())

    expected = np.array(numbers, wide.numpy)
    assert expected[~np.isnan(numbers)].tobytes() == got[:-1][~np.isnan(numbers)].tobytes()
    assert np.isnan(numbers).tolist() == [n != n for n in got[:-1].tolist()]


def _formatted(tree: ast.AST) -> Iterator[tuple[str, ast.FormattedValue, str]]:
    """Every value in an f-string that is no message, with the text before and behind it."""
    spoken = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise | ast.Assert)
        or (isinstance(node, ast.FunctionDef) and node.name == "__repr__")
        or (isinstance(node, ast.Call) and re.search(r"Error$|^check$|^Undetermined$", ast.unparse(node.func)))
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr) or id(node) in spoken:
            continue
        # What stands right behind another value is part of a name.
        parts = [str(v.value) if isinstance(v, ast.Constant) else "_" for v in (*node.values, ast.Constant(""))]
        for i, value in enumerate(node.values):
            if isinstance(value, ast.FormattedValue):
                yield parts[i - 1] if i else "", value, parts[i + 1]


def _is_number(before: str, value: ast.FormattedValue, after: str) -> bool:
    suffixed = re.match(r"(\.0*)?([fFlL]|[uU][lL]?)\b", after) and not re.search(r"\w$", before)
    return bool(suffixed) or value.conversion == ord("r") or ".hex()" in ast.unparse(value)


def test_nothing_else_writes_numbers_into_kernels() -> None:
    """A number with a suffix of C behind it, or written as Python would, was not written by `literal`."""
    found = [
        f"{path.relative_to(KERNELS)}:{formatted[1].lineno}: {ast.unparse(formatted[1].value)}"
        for path in sorted(KERNELS.rglob("*.py"))
        if path.name != "literals.py"
        for formatted in _formatted(ast.parse(path.read_text()))
        if _is_number(*formatted)
    ]

    assert found == []


def test_what_writes_a_number_is_found() -> None:
    """The search above sees a suffix and a repr, and leaves names and messages alone."""
    text = '''f"{a}f"; f"{b!r}"; f"x{i}l = 0.0f"; check(call, True, f"{c!r}"); f"{d} {e}.0f"; f"{g}UL"'''

    seen = [ast.unparse(found[1].value) for found in _formatted(ast.parse(text)) if _is_number(*found)]

    assert seen == ["a", "b", "e", "g"]
