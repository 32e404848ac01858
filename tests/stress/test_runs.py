"""Requests with whatever a seed decides, and the summary of what is too long for every change."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from asyncrt.memory.buffer import Lease

from ..paths import AS_USERS_RUN_IT, CHECKED
from .parts import Result, summary, tried
from .runs import random_run

SEEDS = {CHECKED: range(100), AS_USERS_RUN_IT: range(100, 200)}


def test_requests_with_random_faults_and_cancellations(either_path: str) -> None:
    """Each is exact, or told what was injected; nothing hangs, and nothing is left."""
    outcomes = [random_run(seed) for seed in SEEDS[either_path]]

    assert sum(bool(o.errors) for o in outcomes) > 20
    assert sum(not o.errors for o in outcomes) > 20
    assert sum(o.prepared for o in outcomes) > 20


def test_a_failing_seed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the summary shows it, and how to see it again."""
    monkeypatch.setattr(Lease, "drop", lambda lease, after=(): None)
    failure = tried(random_run, 3)
    shown = io.StringIO()

    assert failure is not None
    summary([Result("runs", 1, [failure]), Result("graphs", 2_000)], Console(file=shown, width=200))

    assert "python -m tests.stress --run 3" in shown.getvalue()
    assert "2,000" in shown.getvalue()
