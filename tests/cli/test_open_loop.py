"""Requests that come at times fixed beforehand: when they come, what becomes of them, and what `asyncrt tune` finds."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
import typer

from asyncrt import AsyncrtError, BatchOptions, DeadlineExceeded, InputError, Overloaded, Runtime
from asyncrt.cli import bench_batched, open_loop, search, tune
from asyncrt.cli.arrivals import BURST, draw_sizes, parse_lengths, times
from asyncrt.cli.open_loop import Answer, Point, Sent, send
from asyncrt.cli.search import BATCHES, DELAYS, Setting

from .. import virtual_loop
from ..runtime.batching.batched_models import masked_mean
from .test_commands import call

TURNS_S = 100 * virtual_loop.TURN_S  # what the turns of the loop take, which are not what is measured


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# When they come, and how large they are.


def test_callers_come_at_random_as_often_as_asked() -> None:
    """The mean gap is one over the rate, and as often longer than usual as exponential gaps are."""
    found = times("poisson", 100, 50, random())

    gaps = np.diff(found)
    assert found[0] == 0
    assert found[-1] < 50
    assert float(gaps.mean()) == pytest.approx(0.01, rel=0.05)
    assert float((gaps > 0.01).mean()) == pytest.approx(math.exp(-1), abs=0.02)


def test_bursts_are_as_many_requests_but_together() -> None:
    """Each group comes at once; the rate is what it would be without groups."""
    found = times("burst", 100, 200, random())

    groups = [len(list(group)) for _, group in itertools.groupby(found)]
    assert set(groups) == {BURST}
    assert len(found) / 200 == pytest.approx(100, rel=0.1)


def test_lengths_are_drawn_as_they_were_described(tmp_path: Path) -> None:
    """From a distribution or a file; other dims take each of their sizes as often."""
    file = tmp_path / "lengths.txt"
    file.write_text("3\n5\n5\n")
    lengths = parse_lengths(["seq=lognormal:40:0.5:64", "height=uniform:2:4", f"width={file}"])

    drawn = draw_sizes(2000, {"batch": (1, 2)}, lengths, random())

    seq = [sizes["seq"] for sizes in drawn]
    assert np.median(seq) == pytest.approx(40, abs=2)
    assert max(seq) == 64
    assert {sizes["height"] for sizes in drawn} == {2, 3, 4}
    assert np.mean([sizes["width"] == 5 for sizes in drawn]) == pytest.approx(2 / 3, abs=0.05)
    assert np.mean([sizes["batch"] == 2 for sizes in drawn]) == pytest.approx(1 / 2, abs=0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq", "expected DIM=lognormal"),
        ("seq=lognormal:40:0.5", "got 'seq=lognormal:40:0.5'"),
        ("seq=lognormal:40:-1:64", "expected DIM=lognormal"),
        ("seq=uniform:8:4", "got 'seq=uniform:8:4'"),
        ("seq=uniform:a:4", "expected DIM=lognormal"),
        ("seq=nowhere.txt", "is none, and no file"),
    ],
)
def test_lengths_that_say_nothing_are_refused(text: str, said: str) -> None:
    """With the forms that there are."""
    with pytest.raises(typer.BadParameter, match=re.escape(said)):
        parse_lengths([text])


@pytest.mark.parametrize(("content", "said"), [("3\nx\n", "got 'x'"), ("0\n", "got '0'"), ("", "empty")])
def test_a_file_of_lengths_has_sizes(tmp_path: Path, content: str, said: str) -> None:
    """Whole and positive; what is not is named."""
    file = tmp_path / "lengths.txt"
    file.write_text(content)

    with pytest.raises(typer.BadParameter, match=said):
        parse_lengths([f"seq={file}"])


# What becomes of them.


def test_latency_counts_from_when_a_request_was_to_be_sent() -> None:
    """What keeps the loop from sending is part of a caller's wait, not a reason to come later."""

    async def scenario() -> Sent:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_loop.VirtualLoop)

        async def infer(inputs: open_loop.Inputs, *, deadline: float | None) -> None:
            loop.now += 1  # the loop is busy, and nobody else has a turn

        return await send(infer, [(0.0, {}), (0.25, {}), (5.0, {})], None)

    sent = virtual_loop.run(scenario())

    assert [a.seconds for a in sent.answers] == pytest.approx([1.0, 1.75, 1.0], abs=TURNS_S)
    assert sent.wall == pytest.approx(6.0, abs=TURNS_S)


def test_nobody_waits_for_the_answer_before() -> None:
    """Ten come while the first is still under way."""

    async def scenario() -> tuple[Sent, int]:
        most = under_way = 0

        async def infer(inputs: open_loop.Inputs, *, deadline: float | None) -> None:
            nonlocal most, under_way
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(1)
            under_way -= 1

        return await send(infer, [(n * 0.05, {}) for n in range(10)], None), most

    sent, most = virtual_loop.run(scenario())

    assert most == 10
    assert [a.seconds for a in sent.answers] == pytest.approx([1.0] * 10, abs=TURNS_S)


def test_refused_and_late_requests_are_counted_apart() -> None:
    """Each gets what is left of its deadline; where nothing is left it is late without being sent."""
    given: list[float | None] = []

    async def scenario() -> Sent:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_loop.VirtualLoop)

        async def infer(inputs: open_loop.Inputs, *, deadline: float | None) -> None:
            given.append(deadline)
            match len(given):
                case 1:
                    raise Overloaded("full", retry_after_s=1.0)
                case 2:
                    raise DeadlineExceeded("no answer")
                case 3:
                    loop.now += 0.75

        return await send(infer, [(0, {}), (1, {}), (2, {}), (2.25, {}), (2.3, {})], 0.6)

    sent = virtual_loop.run(scenario())

    assert [a.outcome for a in sent.answers] == ["refused", "late", "answered", "answered", "answered"]
    assert given == pytest.approx([0.6, 0.6, 0.6, 0.1, 0.15], abs=TURNS_S)


def test_a_request_that_fails_ends_the_load() -> None:
    """The error is its own, and the callers that were under way are cancelled."""
    cancelled: list[int] = []

    async def scenario() -> None:
        async def infer(inputs: open_loop.Inputs, *, deadline: float | None) -> None:
            if "bad" in inputs:
                raise InputError("no such input")
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                cancelled.append(1)
                raise

        await send(infer, [(0, {}), (0.1, {}), (0.2, {"bad": np.zeros(1)}), (50, {})], None)

    with pytest.raises(InputError, match="no such input"):
        virtual_loop.run(scenario())

    assert cancelled == [1, 1]


def test_a_point_is_of_those_who_were_answered() -> None:
    """Latencies of the others mean nothing; goodput is answers a second."""
    answers = [Answer("answered", 0.1)] * 3 + [Answer("refused", 0.0), Answer("late", 9.0)]

    point = Point.of("alone", 10, Sent(answers, 2.0))

    assert (point.requests, point.answered, point.refused, point.late) == (5, 3, 1, 1)
    assert point.goodput == 1.5
    assert (point.p50_ms, point.p99_ms) == pytest.approx((100, 100))


# The search.


def surface(best: tuple[int, int], batch_gain: float, delay_gain: float) -> dict[Setting, float]:
    """Rates that fall off on all sides of the best place."""
    return {
        Setting(batch, delay): 1000 / (1 + batch_gain * abs(b - best[0]) + delay_gain * abs(d - best[1]))
        for b, batch in enumerate(BATCHES)
        for d, delay in enumerate(DELAYS)
    }


@pytest.mark.parametrize("gains", [(0.5, 0.02), (0.1, 0.1), (0.02, 0.5), (1.0, 0.0)])
@pytest.mark.parametrize("best", [(0, 0), (3, 3), (6, 5), (6, 0), (2, 5)])
@pytest.mark.parametrize("first", [10.0, 700.0, 4000.0])
def test_the_search_is_as_good_as_a_sweep_in_a_quarter_of_its_trials(
    best: tuple[int, int], gains: tuple[float, float], first: float
) -> None:
    """Within 5 %; a sweep finds each setting's own highest rate."""
    rates = surface(best, *gains)

    async def sustains(setting: Setting, rate: float) -> bool:
        return rate <= rates[setting]

    async def sweep() -> int:
        trials = 0

        async def counted(setting: Setting, rate: float) -> bool:
            nonlocal trials
            trials += 1
            return await sustains(setting, rate)

        for setting in rates:
            await search.highest(counted, setting, first)
        return trials

    found = asyncio.run(search.search(sustains, first))

    assert found is not None
    assert found.rate <= rates[found.setting]
    assert found.rate * 1.05 >= max(rates.values())
    assert found.trials <= asyncio.run(sweep()) / 4


@pytest.mark.parametrize("best", [(0, 0), (3, 3), (6, 5), (6, 0), (2, 5)])
@pytest.mark.parametrize("slow", [range(15), range(10, 30), range(20, 40)], ids=["at first", "early", "later"])
def test_the_search_is_as_good_on_a_machine_that_is_slow_for_a_while(best: tuple[int, int], slow: range) -> None:
    """What did not sustain a rate then is tried again, and what the best sustains is what it sustains now."""
    rates = surface(best, 0.3, 0.05)
    trials = itertools.count()

    async def sustains(setting: Setting, rate: float) -> bool:
        return rate <= rates[setting] * (0.4 if next(trials) in slow else 1.0)

    found = asyncio.run(search.search(sustains, 700.0))

    assert found is not None
    assert rates[found.setting] * 1.05 >= max(rates.values())


def test_a_model_that_is_too_slow_at_any_rate_has_no_setting() -> None:
    """After a handful of trials."""
    tried: list[float] = []

    async def sustains(setting: Setting, rate: float) -> bool:
        tried.append(rate)
        return False

    found = asyncio.run(search.search(sustains, 64))

    assert found is None
    assert tried == [64, 32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize(
    ("seconds", "wall", "keeps"),
    [
        ([0.01] * 200, 1.01, True),
        ([0.01] * 195 + [0.2] * 5, 1.01, False),
        ([0.01] * 199 + [0.2], 1.01, True),
        ([n / 200 * 0.5 for n in range(200)], 1.5, False),
    ],
    ids=["in time", "too many are late", "one of two hundred may be", "they pile up"],
)
def test_a_setting_keeps_up_if_answers_come_in_time_and_as_fast_as_requests(
    seconds: list[float], wall: float, keeps: bool
) -> None:
    """A backlog that grows shows at the end of a trial, even where latencies are not too long yet."""
    point = Point.of("batched", 200, Sent([Answer("answered", s) for s in seconds], wall))

    assert tune.keeps_up(point, 0.6 if wall > 1.2 else 0.1, lasted=1.0) == keeps


@pytest.mark.parametrize(("disturbed", "found"), [(1, True), (2, False)])
@pytest.mark.asyncio
async def test_a_trial_that_was_too_slow_is_made_once_more(
    disturbed: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else the machine does makes a trial slower, so one that was in time counts; two that were not do, too."""
    rates: list[float] = []

    async def trial(batched: Any, traffic: Any, rate: float, *others: Any) -> tuple[bool, Point]:
        rates.append(rate)
        return rates.count(rate) > disturbed, Point("batched", rate, 1, 1, 0, 0, rate, 1.0, 1.0, 1.0)

    async def solo_rate(*arguments: Any) -> float:
        return 64.0

    async def one_question(sustains: search.Sustains, first: float, *grid: Any) -> bool:
        return await sustains(Setting(1, 0.0), first)

    monkeypatch.setattr(tune, "trial", trial)
    monkeypatch.setattr(tune, "solo_rate", solo_rate)
    monkeypatch.setattr(tune, "search", one_question)
    async with Runtime("host") as rt:
        loaded = await rt.load(masked_mean())

        kept = await tune.find(loaded, cast(Any, None), BatchOptions(), 1.0, 0.01)

    assert kept == found
    assert rates == [64.0, 64.0]


# The commands.


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    onnx.save(masked_mean(), path)
    return str(path)


DIMS = ("-s", "batch=1", "-s", "seq=3,5", "-d", "host")


def test_bench_batched_measures_both_ways_at_every_rate(model: str, tmp_path: Path) -> None:
    """The same requests, batched and alone; the file has every figure, and the reasons of all batches."""
    file = tmp_path / "figures.json"

    table, notes = call(
        "bench", model, "--batched", *DIMS, "--rate", "50,400", "--seconds", "0.2", "--arrivals", "burst",
        "--json", str(file),
    )  # fmt: skip

    document = json.loads(file.read_text())
    points = document["points"]
    assert [(p["rate"], p["way"]) for p in points] == [
        (50, "batched"), (50, "alone"), (400, "batched"), (400, "alone"),
    ]  # fmt: skip
    assert all(p["answered"] == p["requests"] > 0 for p in points)
    assert all(points[n]["requests"] == points[n + 1]["requests"] for n in (0, 2))
    busy = points[2]
    assert busy["mean_batch"] * sum(busy["reasons"].values()) == pytest.approx(busy["requests"])
    assert document["arrivals"] == "burst"
    assert document["options"]["max_batch"] == BatchOptions().max_batch
    assert "batches went because" in table
    assert "one after the other" in notes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batched", "-c", "4"], "--requests and --concurrency do not apply"),
        (["--batched", "--rate", "0"], "expected requests a second"),
        (["--rate", "10"], "it belongs to --batched"),
        (["--deadline", "1"], "it belongs to --batched"),
    ],
)
def test_options_that_do_not_go_together_are_refused(model: str, arguments: list[str], said: str) -> None:
    """Before anything is measured."""
    _, error = call("bench", model, *DIMS, *arguments, status=2)

    assert said in error


def test_a_plot_needs_what_draws_it(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at once, not when everything has been measured."""

    def missing() -> None:
        raise AsyncrtError("matplotlib is not there")

    monkeypatch.setattr(bench_batched, "check_matplotlib", missing)

    _, error = call("bench", model, "--batched", *DIMS, "--plot", str(tmp_path / "p.png"), status=1)

    assert "matplotlib is not there" in error


def test_latencies_are_drawn_against_load(tmp_path: Path) -> None:
    """As a picture; a rate at which nobody was answered has no point."""
    pytest.importorskip("matplotlib")
    points = [
        Point("batched", 10, 5, 5, 0, 0, 10.0, 1.0, 2.0, 3.0),
        Point("batched", 20, 5, 0, 5, 0, 0.0, None, None, None),
        Point("alone", 10, 5, 5, 0, 0, 10.0, 1.0, 2.0, 3.0),
    ]

    bench_batched.draw(points, tmp_path / "plot.png")

    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_tune_writes_what_batched_reads(model: str, tmp_path: Path) -> None:
    """The setting that it found, beside the options that it was given; every trial is told."""
    given, written = tmp_path / "given.json", tmp_path / "written.json"
    BatchOptions(max_waste=0.125).write(given)

    told, notes = call(
        "tune", model, "--max-p99", "5", *DIMS, "--seconds", "0.01", "--config", str(given),
        "--write", str(written),
    )  # fmt: skip

    options = BatchOptions.read(written)
    assert options.max_waste == 0.125
    assert options.max_batch in BATCHES
    assert options.max_delay in DELAYS
    assert f"max_batch {options.max_batch}, max_delay {options.max_delay:g} s" in told
    assert "requests/s: p99" in notes


@pytest.mark.parametrize(("streams", "delays"), [(1, DELAYS), (2, (0.004,))])
@pytest.mark.asyncio
async def test_tune_searches_delays_only_where_they_change_anything(
    streams: int, delays: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several streams nobody is held back, whatever the delay: the given one stays."""
    grids: list[tuple[Any, ...]] = []

    async def solo_rate(*arguments: Any) -> float:
        return 64.0

    async def searching(sustains: search.Sustains, first: float, *grid: Any) -> None:
        grids.append(grid)

    monkeypatch.setattr(tune, "solo_rate", solo_rate)
    monkeypatch.setattr(tune, "search", searching)
    async with Runtime("host", streams=streams) as rt:
        loaded = await rt.load(masked_mean())

        await tune.find(loaded, cast(Any, None), BatchOptions(max_delay=0.004), 1.0, 0.01)

    assert grids == [(BATCHES, delays)]


def test_tune_says_so_if_nothing_is_fast_enough(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And writes no file."""

    async def nothing(*arguments: Any) -> None:
        return None

    monkeypatch.setattr(tune, "find", nothing)

    _, error = call(
        "tune", model, "--max-p99", "1e-6", *DIMS, "--write", str(tmp_path / "none.json"), status=1
    )

    assert "no size of batches answers 99 of 100 requests within 1e-06 s" in error
    assert not (tmp_path / "none.json").exists()
