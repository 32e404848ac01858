"""Any operator at any size, as planning sees it: an example whose dims are multiplied, and no bytes.

An example is made the only node of a model. What decides shapes has a value; everything else has a layout alone, so
that a tensor may have more elements than there is memory for.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np
import onnx
from onnx import helper, numpy_helper

from asyncrt.devices.opencl.record import pack_record
from asyncrt.errors import AsyncrtError, SizeLimitError
from asyncrt.graph.build import build_program
from asyncrt.graph.ir import Program
from asyncrt.kernels.operator import Example, Operator
from asyncrt.kernels.reach import MOST
from asyncrt.kernels.traits import DeviceTraits
from asyncrt.layout import Array, Layout, layout_of
from asyncrt.options import RuntimeOptions
from asyncrt.runtime.cooperative import finished
from asyncrt.runtime.plan.chunk_plan import ChunkPlan, start_state
from asyncrt.runtime.plan.planner import Tools, prepare_chunk
from asyncrt.runtime.plan.recipe import Recipe, make_recipe

from .run import arrays

MANY = 1 << 40

CPU = DeviceTraits("cpu", 8, 8192, frozenset({"fp64", "fp16"}))
GPU = DeviceTraits("gpu", 132, 1024, frozenset({"fp64", "fp16"}))


def _tools(traits: DeviceTraits) -> Tools:
    return Tools(traits, takes_source=True, pack=pack_record, skip=False, views=False, in_place=False, origins=True)


class Atom(NamedTuple):
    """A number that is multiplied: dim *place* of input *input*, or element *place* of its value."""

    input: int
    place: int


class Scaled:
    """An example as a model of one node.

    Args:
        constants: Whether all inputs but the first are constants of the model, where they decide no shape.
    """

    def __init__(self, operator: Operator, example: Example, *, constants: bool = False) -> None:
        self.operator, self.inputs = operator, arrays(example)
        self.valued = [
            i for i in operator.shape_infer_dependencies if i < len(self.inputs) and self.inputs[i] is not None
        ]
        fixed = set(range(1, len(self.inputs))) - set(self.valued) if constants else set()
        self.fixed = {i for i in fixed if self.inputs[i] is not None}
        self.program = self._program(example)

    def _program(self, example: Example) -> Program:
        names = ["" if a is None else f"x{i}" for i, a in enumerate(self.inputs)]
        outputs = [f"y{i}" for i in range(example.outputs)]
        attributes: dict[str, Any] = {
            k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else list(v) if isinstance(v, tuple) else v
            for k, v in example.attributes.items()
        }
        node = helper.make_node(self.operator.name, names, outputs, domain=self.operator.domain, **attributes)
        self.given = [i for i, a in enumerate(self.inputs) if a is not None and i not in self.fixed]
        infos = []
        for i in self.given:
            a = self.inputs[i]
            assert a is not None
            dims = [d if i in self.valued else f"d{i}_{axis}" for axis, d in enumerate(a.shape)]
            infos.append(helper.make_tensor_value_info(names[i], helper.np_dtype_to_tensor_dtype(a.dtype), dims))
        constants = [numpy_helper.from_array(self.inputs[i], names[i]) for i in sorted(self.fixed)]  # type: ignore[arg-type]
        results = [onnx.ValueInfoProto(name=o) for o in outputs]
        graph = helper.make_graph([node], "one", infos, results, constants)
        opset = helper.make_opsetid(self.operator.domain, example.opset or 21)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        options = RuntimeOptions(without={"disk_cache"})
        return build_program(model, CPU, options)

    def atoms(self) -> list[Atom]:
        found: list[Atom] = []
        for i in self.given:
            a = self.inputs[i]
            assert a is not None
            if i in self.valued:
                found += [Atom(i, e) for e in range(a.size)] if a.dtype.kind in "if" else []
            else:
                found += [Atom(i, axis) for axis in range(a.ndim)]
        return found

    def number(self, atom: Atom) -> float:
        a = self.inputs[atom.input]
        assert a is not None
        value = a.reshape(-1)[atom.place] if atom.input in self.valued else a.shape[atom.place]
        return float(value)

    def groups(self) -> Iterator[tuple[Atom, ...]]:
        """Yield what may be multiplied together: one number, equal ones, pairs and triples of inputs."""
        atoms = self.atoms()
        yield from ((a,) for a in atoms)
        for number in dict.fromkeys(map(self.number, atoms)):
            equal = tuple(a for a in atoms if self.number(a) == number)
            if len(equal) > 1:
                yield equal
        for several in (2, 3):
            for group in itertools.combinations(atoms, several):
                if len({a.input for a in group}) == several:
                    yield group

    def layouts(self, group: Sequence[Atom], times: int) -> tuple[list[Layout], dict[int, Array]]:
        """Return the layouts of the program's inputs and the values of those that decide."""
        layouts: list[Layout] = []
        values: dict[int, Array] = {}
        for position, i in enumerate(self.given):
            a = self.inputs[i]
            assert a is not None
            mine = {atom.place for atom in group if atom.input == i}
            if i in self.valued:
                flat = [x * times if e in mine else x for e, x in enumerate(a.reshape(-1).tolist())]
                values[self.program.inputs[position]] = np.array(flat, a.dtype).reshape(a.shape)
                layouts.append(layout_of(a))
            else:
                shape = tuple(d * times if axis in mine else d for axis, d in enumerate(a.shape))
                layouts.append(Layout(layout_of(a).dtype, shape))
        return layouts, values

    def recipe(self, group: Sequence[Atom], times: int, traits: DeviceTraits) -> Recipe | None:
        """Return the recipe that is made where the numbers of *group* are multiplied, if there can be one."""
        layouts, values = self.layouts(group, times)
        tools = attrs.evolve(_tools(traits), origins=False)
        return finished(make_recipe(self.program, layouts, values, (), tools))

    def plan(self, group: Sequence[Atom], times: int, traits: DeviceTraits) -> ChunkPlan:
        """Plan it with the numbers of *group* multiplied, without skips.

        Raises:
            AsyncrtError: As planning does.
        """
        layouts, values = self.layouts(group, times)
        state = start_state(self.program, layouts, values)
        return prepare_chunk(self.program, self.program.chunks[0], state, _tools(traits))

    def growing(self, traits: DeviceTraits) -> tuple[Atom, ...] | None:
        """Return what may be multiplied by any number until planning refuses it for its size; None if nothing may."""
        for group in self.groups():
            with contextlib.suppress(AsyncrtError, OverflowError):
                if all(self.plan(group, times, traits).steps for times in (1, 3, 1000)) and self._ends(group, traits):
                    return group
        return None

    def _ends(self, group: Sequence[Atom], traits: DeviceTraits) -> bool:
        try:
            self.plan(group, MANY, traits)
        except SizeLimitError:
            return True
        return False


def most_elements(plan: ChunkPlan) -> int:
    """Return how many elements the largest tensor of a plan's steps has."""
    calls = [step.origin.call for step in plan.steps if step.origin is not None]
    assert len(calls) == len(plan.steps)
    return max(t.count for call in calls for t in (*call.inputs, *call.outputs) if t is not None)


def largest(scaled: Scaled, group: Sequence[Atom], traits: DeviceTraits) -> int:
    """Return by how much the group may be multiplied at most.

    Every second guess is that the largest tensor goes on growing by the same power, until it reaches `MOST`.
    """
    low, high = 1000, MANY
    most, twice = (most_elements(scaled.plan(group, times, traits)) for times in (low, 2 * low))
    power = max(1, round(math.log2(twice / most)))
    for guesses in itertools.cycle((True, False)):
        if high - low == 1:
            break
        middle = int(low * (MOST / most) ** (1 / power)) if guesses else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        try:
            most = most_elements(scaled.plan(group, middle, traits))
        except SizeLimitError:
            high = middle
        else:
            low = middle
    return low
