"""A short form of the attack, and that it finds what it is there to find."""

from __future__ import annotations

import asyncio
import inspect
import random

import onnx
import pytest

import asyncrt

from ..parts import found_first
from .corpus import TEXTS, from_text, origin
from .crew import IDLE_S, Finding, Report, Usage, Watch, crew
from .doors import DOORS
from .faulty import CASES, RIGHT
from .models import device_of
from .mutations import MUTATIONS, Mutation, mutate


def attacked(what: str, seeds: range) -> Report:
    """What came of those seeds; those that run on OpenCL are left to `make stress`."""
    chosen = [seed for seed in seeds if device_of(seed) != "opencl"]
    return asyncio.run(crew(what, "host", chosen, processes=2, again="--model"))


def test_each_thing_that_must_not_be_is_found() -> None:
    """A case that waits for ever, dies, raises, takes too long or too much, reads what it may not; and right ones."""
    count = len(CASES) + len(RIGHT)

    report = asyncio.run(crew("faulty", "host", range(count), processes=2, again="--model"))

    assert dict(enumerate(CASES)) == {f.seed: f.kind for f in report.findings}
    assert all(f"--model {f.seed}" in f.text for f in report.findings)
    assert count == report.cases


def test_waiting_for_a_processor_is_no_hang() -> None:
    """Time counts where a process works, and where it neither works nor wants to."""
    watch = Watch(works_s=5.0, first=Usage(1.0, True), since=100.0)

    assert watch.hangs(100.0, Usage(1.0, True)) is None
    assert watch.hangs(900.0, Usage(1.0, True)) is None
    assert watch.hangs(900.1 + IDLE_S / 2, Usage(1.0, False)) is None
    assert "done nothing" in str(watch.hangs(900.1 + IDLE_S, Usage(1.0, False)))
    assert "has worked for 5.1 s" in str(watch.hangs(901.0, Usage(6.1, True)))


def test_mutated_models_are_refused_or_right() -> None:
    """Some hundred; most of what is done to models must leave something that loads, or it would show nothing."""
    report = attacked("models", range(160))

    assert [f.text for f in report.findings] == []
    assert report.counts["ran"] > 20  # 30 to 45: what is drawn changes with every example of an operator


@pytest.mark.parametrize("mutation", [m for m, _ in MUTATIONS], ids=lambda m: m.__name__)
def test_a_mutation_changes_something(mutation: Mutation) -> None:
    """Not every model has what it changes; most have."""
    changed = 0
    for seed in range(40):
        chance = random.Random(seed)
        model = origin(chance).model
        before = model.SerializeToString(deterministic=True)
        mutation(chance, model)
        changed += model.SerializeToString(deterministic=True) != before

    assert changed > 3


def test_the_texts_are_right_before_they_are_mutated() -> None:
    """Each loads."""
    for index in range(len(TEXTS)):
        asyncio.run(_runs(from_text(index, random.Random(1)).model))


async def _runs(model: onnx.ModelProto) -> None:
    async with asyncrt.Runtime("host", options=asyncrt.RuntimeOptions(warm=False)) as rt:
        await rt.load(model)


def _public() -> list[tuple[str, object]]:
    """What is public and takes arguments, but for errors and records of what was done."""
    found: list[tuple[str, object]] = []
    for name in asyncrt.__all__:
        thing = getattr(asyncrt, name)
        if not callable(thing) or (isinstance(thing, type) and issubclass(thing, Exception)):
            continue
        if not isinstance(thing, type) or name in ("Runtime", "RuntimeOptions", "BatchOptions"):
            found.append((name, thing))
        if isinstance(thing, type):
            functions = inspect.getmembers(thing, lambda m: inspect.isfunction(m) or inspect.ismethod(m))
            found += [(f"{name}.{method}", f) for method, f in functions if not method.startswith("_")]
    return [(name, f) for name, f in found if set(inspect.signature(f).parameters) - {"self", "cls"}]  # type: ignore[arg-type]


INSIDE = {"SequenceGroup.left", "SequenceGroup.step", "Model.finished", "Model.infer_here", "RuntimeOptions.uses"}
"""Methods that other parts of asyncrt call, and no user."""


def test_every_public_argument_is_attacked() -> None:
    """A function that becomes public is attacked, or somebody says why not."""
    assert {name for name, _ in _public()} - INSIDE == set(DOORS)


def test_one_of_each_kind_is_shown_first() -> None:
    """A hundred findings of one kind do not hide another one."""
    findings = [Finding(1, "a", "first"), Finding(2, "a", "second"), Finding(3, "b", "third")]

    shown = found_first(findings)

    assert shown == ["a, 2 of them\nfirst", "b, 1 of them\nthird", "second"]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_is_the_same_model(seed: int) -> None:
    """Otherwise it could not be run again."""
    first, second = (origin(random.Random(seed)) for _ in range(2))
    for model in (first.model, second.model):
        mutate(random.Random(seed), model, 3)

    assert first.name == second.name
    assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(deterministic=True)
