"""Einsum: products of elements, summed over the labels that the result does not have.

A permutation, or a diagonal, of one operand is a view of it. A product of two that is a (batched) matrix product, apart
from the order and number of axes, is one; everything else is a kernel that walks the result and sums.

Source: ONNX Einsum-12.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncrt.dims import Dim
from asyncrt.errors import ShapeError
from asyncrt.kernels.call import Attributes, Call
from asyncrt.kernels.codegen.source import accumulator_type, compute_type
from asyncrt.kernels.impl import Impl, ImplBuilder, inp, out
from asyncrt.kernels.matmul.product import Operand, matmul
from asyncrt.kernels.operator import Example, Operator, ViewOf
from asyncrt.kernels.patterns.copy import copy_launch, materialise
from asyncrt.kernels.patterns.walk import WalkedBuffer, walk
from asyncrt.kernels.shapes import broadcast_shapes, check, count
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import FLOAT32, Array, Shape, row_major
from asyncrt.memory.view import View, collapse


class _Contraction(NamedTuple):
    """An equation at one set of shapes; a label is a letter, or "." and a number for an axis of an ellipsis.

    Attributes:
        dims: Size of each label.
        strides: For each operand, the elements from one index of a label to the next; 0 where it is not an axis.
        labels: The labels of each operand's axes.
        result: The labels of the result's axes.
    """

    dims: dict[str, int]
    strides: tuple[dict[str, int], ...]
    labels: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]

    @property
    def summed(self) -> list[str]:
        return [label for label in self.dims if label not in self.result]


def _terms(call: Call) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The labels of each operand and of the result."""
    equation = str(call.attributes.get("equation", "")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    check(call, len(terms) == len(call.inputs), f"equation {equation!r} is not for {len(call.inputs)} operands")
    for term in (*terms, right):
        well_formed = re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", term) is not None
        check(call, well_formed, f"equation {equation!r} is malformed")
    extra = []
    for index, term in enumerate(terms):
        rank, letters = len(call.shape(index)), len(term.replace("...", ""))
        fits = letters <= rank if "..." in term else letters == rank
        check(call, fits, f"operand {index} has {rank} axes, and {term!r} is not for that many")
        extra.append(rank - letters)
    longest = max(extra, default=0)

    def split(term: str, count: int) -> tuple[str, ...]:
        before, dots, after = term.partition("...")
        return (*before, *(f".{k}" for k in range(longest - count, longest) if dots), *after)

    labels = tuple(split(term, n) for term, n in zip(terms, extra, strict=True))
    if arrow:
        check(call, "..." in right or longest == 0, f"the result of {equation!r} has no ellipsis")
        result = split(right, longest)
    else:
        letters_once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
        result = (*split("...", longest), *letters_once)
    every = {label for term in labels for label in term}
    check(call, len(set(result)) == len(result), f"the result of {equation!r} has a label twice")
    check(call, every.issuperset(result), f"the result of {equation!r} has a label that no operand has")
    return labels, result


def _form(call: Call) -> _Contraction:
    labels, result = _terms(call)
    dims: dict[str, int] = {}
    for index, term in enumerate(labels):
        for label, dim in zip(term, call.shape(index), strict=True):
            dims[label] = broadcast_shapes(call, (dims.get(label, 1),), (dim,))[0]
    strides = []
    for index, term in enumerate(labels):
        shape, mine = call.shape(index), dict.fromkeys(dims, 0)
        for label, dim, stride in zip(term, shape, row_major(shape), strict=True):
            if dim is dims[label] or dim == dims[label]:  # otherwise it is 1, and repeated
                mine[label] = mine[label] + stride
        strides.append(mine)
    return _Contraction(dims, tuple(strides), labels, result)


def infer(call: Call) -> tuple[Shape]:
    labels, result = _terms(call)
    dims: dict[str, int] = {}
    for index, term in enumerate(labels):
        own: dict[str, int] = {}
        for label, dim in zip(term, call.shape(index), strict=True):
            same = own.setdefault(label, dim)
            known = not isinstance(same, Dim) and not isinstance(dim, Dim)
            check(call, not known or same == dim, f"a diagonal of operand {index} has axes of {same} and {dim} elements")
            dims[label] = broadcast_shapes(call, (dims.get(label, 1),), (dim,))[0]
    return (tuple(dims[label] for label in result),)


def reference(attributes: Attributes, inputs: Sequence[Array | None]) -> tuple[Array]:
    arrays: list[Any] = list(inputs)
    dtype = arrays[0].dtype
    wide = [a if a.dtype.kind in "iuO" else a.astype(np.float64) for a in arrays]
    try:
        equation = attributes["equation"].replace(" ", "")
        result = np.einsum(equation, *wide)
        if len(arrays) == 1 and result.size == arrays[0].size and dtype.kind != "O":
            bits = arrays[0].view(f"u{dtype.itemsize}")  # every sum is of one element: also -0.0 stays what it is
            return (np.array(np.einsum(equation, bits)).view(dtype),)
    except ValueError as error:
        raise ShapeError(f"Einsum {attributes['equation']!r}: {error}") from error
    return (np.array(result).astype(dtype),)


def views(call: Call) -> tuple[ViewOf] | None:
    if len(call.inputs) != 1:
        return None
    form = _form(call)
    if any(form.dims[label] != 1 for label in form.summed):
        return None
    shape, strides = tuple(form.dims[r] for r in form.result), tuple(form.strides[0][r] for r in form.result)
    return (ViewOf(0, View(shape, strides)),)


def implement(call: Call, traits: DeviceTraits) -> Impl:
    moved = views(call)
    if moved is not None:
        return materialise(call, moved, traits)
    form = _form(call)
    product = None
    if len(call.inputs) == 2 and all(form.dims[label] > 0 for label in form.summed):
        product = (
            _product(call, traits, form, _as_product(form, 0, 1))
            or _product(call, traits, form, _as_product(form, 1, 0))
            or _product(call, traits, form, _as_product(form, 0, 1, permuted=True))
        )
    return product or _generic(call, traits, form)


def _suffix(labels: Sequence[str], form: _Contraction, operand: int) -> int:
    """How many of the last *labels* the operand walks as one axis."""
    for first in range(len(labels)):
        part = labels[first:]
        if len(collapse([form.dims[r] for r in part], [form.strides[operand][r] for r in part])[0]) == 1:
            return len(part)
    return 0


def _merged(labels: Sequence[str], form: _Contraction, *operands: int) -> tuple[int, tuple[int, ...]] | None:
    """The size of *labels* as one axis and each operand's stride on it; None if they are not one."""
    dims, strides = collapse([form.dims[r] for r in labels], *([form.strides[k][r] for r in labels] for k in operands))
    return (dims[0], tuple(s[0] for s in strides)) if len(dims) == 1 else None


class _ProductLabels(NamedTuple):
    """An equation as a matrix product ``[*batch, rows, summed] @ [*batch, summed, columns]`` of two of its operands.

    Attributes:
        left, right: Numbers of the operands.
        batch, rows, columns: The labels of the product, in its order.
        summed: The labels that are summed over, in the order in which the left operand has them.
        permuted: The result has another order, so that the product is copied to it.
    """

    left: int
    right: int
    batch: list[str]
    rows: list[str]
    columns: list[str]
    summed: list[str]
    permuted: bool

    @property
    def result(self) -> list[str]:
        return [*self.batch, *self.rows, *self.columns]


def _as_product(form: _Contraction, left: int, right: int, *, permuted: bool = False) -> _ProductLabels | None:
    """Return the equation as a matrix product of operand *left* and operand *right*, if it is one.

    From the result's last axis: columns are of the right operand alone, rows before them of the left, the rest batches.
    A *permuted* product is calculated in the order batches, rows, columns and then copied to the result's order.
    """
    a, b = form.strides[left], form.strides[right]
    result = [r for r in form.result if form.dims[r] != 1]
    row_labels, column_labels = [r for r in result if b[r] == 0], [r for r in result if a[r] == 0]
    if permuted:
        if not row_labels or not column_labels:
            return None
        result = [*(r for r in result if a[r] != 0 and b[r] != 0), *row_labels, *column_labels]
    summed = sorted((r for r in form.summed if form.dims[r] != 1), key=lambda r: -a[r])
    if not summed or any(a[r] == 0 or b[r] == 0 for r in summed):
        return None
    rest, columns = _split_off(result, form, absent=left, walked=right)
    batch, rows = _split_off(rest, form, absent=right, walked=left)
    if not columns or _merged(summed, form, left) is None or (row_labels and not rows):
        return None
    return _ProductLabels(left, right, batch, rows, columns, summed, permuted)


def _split_off(labels: list[str], form: _Contraction, *, absent: int, walked: int) -> tuple[list[str], list[str]]:
    """Split *labels* before the last of them that operand *absent* does not have and *walked* walks as one axis."""
    last = 0
    while last < len(labels) and form.strides[absent][labels[-1 - last]] == 0:
        last += 1
    last = _suffix(labels[len(labels) - last :], form, walked)
    return labels[: len(labels) - last], labels[len(labels) - last :]


def _product(call: Call, traits: DeviceTraits, form: _Contraction, labels: _ProductLabels | None) -> Impl | None:
    """Return the implementation as the matrix product *labels*, if there is one that gains."""
    if labels is None:
        return None
    left, right, batch = labels.left, labels.right, labels.batch
    constant = _constant(call, form, labels)
    direct = _direct(call, traits, form, labels, constant)
    if not labels.rows and (not traits.is_cpu or direct is None):
        return None  # a matrix by a vector: dot products do as well
    made = ImplBuilder()
    sizes = tuple(form.dims[r] for r in batch)
    depth, (depth_step,) = _merged(labels.summed, form, left) or (1, (0,))
    m, (row_step,) = _merged(labels.rows, form, left) or (1, (0,))
    view = View((*sizes, m, depth), (*(form.strides[left][r] for r in batch), row_step, depth_step))
    second = direct or _copied(call, traits, form, labels, made)
    target = made.scratch(call.outputs[0].nbytes) if labels.permuted else out(0)
    product = matmul(
        "einsum",
        Operand(inp(left), call.dtype(left), view),
        second,
        target,
        sizes,
        traits,
        constant=constant,
        transposed=constant is not None and form.labels[right][0] == labels.columns[0],
    )
    made.launch(*product.launches)
    if labels.permuted:
        steps = dict(zip(labels.result, row_major([form.dims[r] for r in labels.result]), strict=True))
        shape = call.outputs[0].shape
        source = View(shape, tuple(steps.get(r, 0) for r in form.result))
        made.launch(copy_launch(target, source, out(0), View.dense(shape), call.dtype(left).itemsize, traits))
    made.requests += product.weights
    return made.impl(f"product, {product.name}")


def _constant(call: Call, form: _Contraction, labels: _ProductLabels) -> int | None:
    """Return the right operand's number if it is a constant matrix that could be packed."""
    right = labels.right
    if not call.constants[right] or len(form.labels[right]) != 2 or labels.batch:
        return None
    return right if set(form.labels[right]) == {*labels.summed, *labels.columns} else None


def _direct(
    call: Call, traits: DeviceTraits, form: _Contraction, labels: _ProductLabels, constant: int | None
) -> Operand | None:
    """Return the right operand where it lies, if it is a matrix there and the product reads it fast."""
    right, dtype = labels.right, call.dtype(labels.right)
    merged = _merged(labels.summed, form, right)
    n, (column_step,) = _merged(labels.columns, form, right) or (1, (0,))
    packed = constant is not None and traits.packed_weights and traits.is_cpu and dtype is FLOAT32
    if merged is None or not (packed or not traits.is_cpu or column_step == 1 or dtype is not FLOAT32):
        return None
    depth, (depth_step,) = merged
    sizes, steps = (form.dims[r] for r in labels.batch), (form.strides[right][r] for r in labels.batch)
    return Operand(inp(right), dtype, View((*sizes, depth, n), (*steps, depth_step, column_step)))


def _copied(
    call: Call, traits: DeviceTraits, form: _Contraction, labels: _ProductLabels, made: ImplBuilder
) -> Operand:
    """Copy the right operand, so that columns lie side by side."""
    right, b = labels.right, form.strides[labels.right]
    kept = [r for r in labels.batch if b[r] != 0]
    order = (*kept, *labels.summed, *labels.columns)
    shape = tuple(form.dims[r] for r in order)
    itemsize = call.dtype(right).itemsize
    ref = made.scratch(count(shape) * itemsize)
    made.launch(
        copy_launch(inp(right), View(shape, tuple(b[r] for r in order)), ref, View.dense(shape), itemsize, traits)
    )
    depth, n = (count([form.dims[r] for r in part]) for part in (labels.summed, labels.columns))
    steps = dict(zip(kept, row_major((*(form.dims[r] for r in kept), depth, n)), strict=False))
    sizes = (form.dims[r] for r in labels.batch)
    return Operand(ref, call.dtype(right), View((*sizes, depth, n), (*(steps.get(r, 0) for r in labels.batch), n, 1)))


def _generic(call: Call, traits: DeviceTraits, form: _Contraction) -> Impl:
    dtype = call.dtype(0)
    acc = accumulator_type(dtype)
    operands = range(len(call.inputs))
    summed = form.summed
    dims, strides = collapse([form.dims[r] for r in summed], *([form.strides[k][r] for r in summed] for k in operands))
    levels = range(len(dims))
    loops = " ".join(f"for (int e{s} = 0; e{s} < n{s}; e{s}++)" for s in levels)
    factors = " * ".join(
        f"({acc})LOAD({dtype.name}, x{k}, p{k} + {' + '.join(f'e{s} * t{s}_{k}' for s in levels)})" for k in operands
    )
    launch = walk(
        "einsum",
        f"{acc} a = 0; {loops} a += {factors}; STORE({dtype.name}, y, i, ({compute_type(dtype)})a);",
        call.outputs[0].shape,
        (*(WalkedBuffer(f"x{k}", inp(k), dtype, "r") for k in operands), WalkedBuffer("y", out(0), dtype, "w")),
        traits,
        offsets=tuple((f"p{k}", [form.strides[k][r] for r in form.result]) for k in operands),
        ints=tuple(
            x for s in levels for x in ((f"n{s}", dims[s]), *((f"t{s}_{k}", strides[k][s]) for k in operands))
        ),
        work=max(1, count(dims)),
    )
    return Impl("sum", () if launch is None else (launch,))


def _example(equation: str, *inputs: str) -> Example:
    return Example(inputs, {"equation": equation})


OPERATOR = Operator(
    name="Einsum",
    infer=infer,
    reference=reference,
    implement=implement,
    views=views,
    why="only unit axes move",
    examples=(
        _example("ij,jk->ik", "f32[5,7]", "f32[7,40]"),
        _example("ij,kj->ik", "f32[5,7]", "f32[33,7]"),
        _example("bij, bjk -> bik", "f32[3,5,7]", "f32[3,7,33]"),
        _example("bqhd,bkhd->bhqk", "f32[2,5,3,16]", "f32[2,9,3,16]"),
        _example("bhqk,bkhd->bqhd", "f32[2,3,5,9]", "f32[2,9,3,16]"),
        _example("bhwc,hkc->bhwk", "f32[2,3,4,8]", "f32[3,5,8]"),
        _example("ab,cb->c", "f32[3,7]", "f32[5,7]"),
        _example("abk,kc->bca", "f32[3,5,7]", "f32[7,4]"),
        _example("b...ik,kj->...jbi", "f32[3,2,5,7]", "f32[7,4]"),
        _example("bhwc,wkc->bhwk", "f32[2,3,4,8]", "f32[4,5,8]"),
        _example("bfxy,xyo->bfo", "f32[2,3,4,5]", "f32[4,5,6]"),
        _example("bfxy,yxo->bfo", "f32[2,3,4,5]", "f32[5,4,6]"),
        _example("bij,bj->bi", "f32[2,5,7]", "f32[2,7]"),
        _example("bj,bij->bi", "f32[2,7]", "f32[2,5,7]"),
        _example("ij,jk->ki", "f32[5,7]", "f32[7,40]"),
        _example("...ij,...jk->...ik", "f32[2,1,5,7]", "f32[3,7,4]"),
        _example("i,j->ij", "f32[5]", "f32[7]"),
        _example("i,i->", "f32[50]", "f32[50]"),
        _example("ij->ji", "f32[5,7]"),
        _example("ij->ij", "f32[5,7]"),
        _example("ii->i", "f32[5,5]"),
        _example("ii->", "f32[5,5]"),
        _example("ij->j", "f32[5,7]"),
        _example("ij", "f32[5,7]"),
        _example("ba", "f32[5,7]"),
        _example("a...b->b...a", "f32[2,3,4,5]"),
        _example("ij,jk", "i32[3,4]", "i32[4,5]"),
        _example("ij,jk,kl->il", "f32[3,4]", "f32[4,5]", "f32[5,6]"),
        _example("bij,bjk->bik", "f16[2,3,4]", "f16[2,4,5]"),
        _example("ijk,kj->ik", "f64[3,4,5]", "f64[5,4]"),
        _example("bld,hd->blh", "f32[2,9,8]", "f32[33,8]"),
    ),
)
