"""Malformed models of every class, each loaded and asked once; `make stress` asks them again, and beside others."""

from __future__ import annotations

import asyncio

from .crew import crew
from .malformed import CLASSES, corpus


def test_malformed_models_are_refused_or_right() -> None:
    """Every sixth one: an `AsyncrtError` or ONNX Runtime's answer, in 2 s and the limit of memory."""
    seeds = range(0, len(corpus()), 6)

    report = asyncio.run(crew("malformed once", "host", seeds, processes=2, again="--malformed"))

    assert [f.text for f in report.findings] == []
    assert len(seeds) == report.cases >= 140
    assert report.counts["ran"] > 25  # a class that is right after all shows that the others were looked at


def test_every_class_of_wrong_models_is_there() -> None:
    """Each has a name of its own and gives models, of which no two are the same."""
    models = corpus()

    assert len(CLASSES) == len({name for name, _ in models}) >= 45
    assert all(len(set(make())) > 1 for make in CLASSES)
