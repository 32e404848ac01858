"""What `infer` lets through, the operator can carry out: every operand of every example, in sizes that it has not.

Kernels read as many elements of an operand as the shapes that `infer` saw say. One whose size nobody compared is read
beyond its end, and what lies there is another request's.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import numpy as np
import pytest

from asyncrt import Runtime, RuntimeOptions
from asyncrt.errors import AsyncrtError, ShapeError
from asyncrt.kernels.call import Attributes, Call, ValueUnknown
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.registry import operators
from asyncrt.layout import Array, layout_of

from ..builders import model, node
from .run import arrays, of_numbers, reference

LARGEST = 20_000
"""Elements of an example whose operands are changed; larger ones show nothing else."""


def changed(operand: Array) -> Iterator[tuple[str, Array]]:
    """Return *operand* with each axis of other sizes, with an axis more, and with one less."""
    for axis, size in enumerate(operand.shape):
        for other in sorted({0, 1, size - 1, size + 1, 2 * size} - {size, -1}):
            shape = (*operand.shape[:axis], other, *operand.shape[axis + 1 :])
            yield f"{list(operand.shape)} as {list(shape)}", np.resize(operand, shape).astype(operand.dtype)
    if not operand.ndim:
        yield "a vector", np.resize(operand, (3,)).astype(operand.dtype)
    yield "an axis more in front", operand[None]
    yield "an axis more behind", operand[..., None]
    if operand.ndim:
        yield "an axis less", np.resize(operand, operand.shape[1:]).astype(operand.dtype)
        yield "no axis", np.resize(operand, ()).astype(operand.dtype)


def trouble(operator: Operator, example: Example, inputs: list[Array | None], usual: list[Array]) -> str:
    """Say what went wrong with inputs that `infer` has not refused; nothing if it has, or nothing did."""
    attributes = Attributes(example.attributes, example.opset or 21, example.outputs)
    known = [a if i in operator.shape_infer_dependencies else None for i, a in enumerate(inputs)]
    layouts = tuple(None if a is None else layout_of(a) for a in inputs)
    types = tuple(layout_of(u).dtype for u in usual)
    call = Call("changed", attributes, layouts, tuple(known), (), types)
    shapes: list[tuple[int, ...]] | None = None  # known when the operator has run
    try:
        with contextlib.suppress(ValueUnknown):
            shapes = [tuple(s) for s in operator.infer(call)]
        operator.unseen_indices(call._replace(values=tuple(inputs)))
    except AsyncrtError:
        return ""
    except Exception as error:
        return f"infer raises {error!r}"
    if shapes and not any(math.prod(s) for s in shapes):
        return ""  # nothing runs where there is nothing to give
    try:
        with np.errstate(all="ignore"):
            results = reference(operator, example, inputs)
    except AsyncrtError:
        return ""
    except Exception as error:
        return f"infer lets through what raises {error!r}"
    got = [r.shape for r in results]
    return "" if shapes is None or got == shapes[: len(got)] else f"infer says {shapes}, and it is {got}"


@pytest.mark.parametrize("operator", sorted(operators().values(), key=lambda o: o.name), ids=lambda o: o.name)
@pytest.mark.filterwarnings("ignore")
def test_an_operand_of_another_size_is_refused_or_taken(operator: Operator) -> None:
    """With a `ShapeError` from `infer`, before anything runs; or the reference takes it, and gives that shape."""
    wrong = []
    for number, example in enumerate(operator.examples):
        inputs = arrays(example)
        if sum(a.size for a in inputs if a is not None) > LARGEST:
            continue
        usual = reference(operator, example, inputs)
        if not of_numbers([*inputs, *usual]):
            continue
        for index, operand in enumerate(inputs):
            for what, other in changed(operand) if operand is not None else ():
                given = [*inputs[:index], other, *inputs[index + 1 :]]
                found = trouble(operator, example, given, usual)
                if found:
                    wrong.append(f"example {number}, input {index}, {what}: {found}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.asyncio
@pytest.mark.parametrize("shape", [(3,), (39,), (2, 40), (5, 39), (4, 1), (0,)], ids=str)
@pytest.mark.parametrize("device", [None, "host"], ids=lambda d: d or "opencl")
async def test_a_bias_of_another_size_is_refused(device: str | None, shape: tuple[int, ...]) -> None:
    """What lies behind it in memory is somebody else's."""
    dims = ",".join(f"d{axis}" for axis in range(len(shape)))
    source = model([node("y = Gemm(a, b, c)")], ["a f32[n,7]", "b f32[7,m]", f"c f32[{dims}]"], ["y"])
    inputs = {"a": np.ones((5, 7), np.float32), "b": np.ones((7, 40), np.float32), "c": np.ones(shape, np.float32)}

    async with Runtime(device, options=RuntimeOptions(warm=False)) as rt:
        loaded = await rt.load(source)
        with pytest.raises(ShapeError, match=r"input 2 of shape .* does not broadcast to"):
            await loaded.infer(inputs)
