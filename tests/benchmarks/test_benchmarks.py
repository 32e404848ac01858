"""Do the benchmarks run, and do their reports hold what they promise? Never: is something fast?"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from onnx import helper

from asyncrt.cli import search
from asyncrt.devices.base import AVX512, DeviceInfo, Registers
from benchmarks import all as everything
from benchmarks import (
    callers,
    cancelling,
    compiled,
    decode,
    gemm,
    gpu,
    gpu_parts,
    growth,
    instructions,
    launches,
    load,
    loop,
    measure,
    memory,
    minilm,
    models,
    networks,
    new_shapes,
    page,
    peers,
    per_node,
    plots,
    precision,
    process,
    real_models,
    resnet,
    sequences,
    skip,
    streams,
    trained,
    tune,
    vision,
    vision_int8,
    vision_networks,
    wheels,
)  # fmt: skip
from benchmarks.gpu_parts import findings
from benchmarks.gpu_parts.findings import Aim, Finding
from benchmarks.measure import BenchmarkError, Ratio, Report, Settings

from ..environment import with_sources

HOST = Settings(device="host", blocks=2, block_s=0.0, settle_s=0.0)
OPENCL = Settings(blocks=2, block_s=0.0, settle_s=0.0)


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer, with few kernels."""
    file = tmp_path_factory.mktemp("models") / "bert.onnx"
    file.write_bytes(networks.encoder(np.float32, 1, 32, 256).SerializeToString())
    return file


@pytest.fixture
def hurried(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks measure less than figures need: no block has to agree with another, and nothing is large."""
    monkeypatch.setattr(models, "SMALL", tiny_bert)
    monkeypatch.setattr(measure, "_LONGEST_WARMUP", 1)
    monkeypatch.setattr(measure, "_LOOK_S", 0.0)
    monkeypatch.setattr(search, "PRECISION", 2.0)
    monkeypatch.setattr(tune.tune, "_ENOUGH_FOR_P99", 10)
    monkeypatch.setattr(tune, "TURN_S", 0.01)
    monkeypatch.setattr(tune, "LENGTHS", "length=lognormal:24:0.5:64")
    monkeypatch.setattr(growth, "READINGS", 4)
    monkeypatch.setattr(gpu_parts.new, "_KNOWN", 2)
    for name, size in {"WIDTH": 16, "INNER": 32, "LAYERS": 1}.items():
        monkeypatch.setattr(streams, name, size)


def words(shape: str) -> dict[str, str]:
    """Return a request to the small BERT."""
    return {"input_ids": f"i64[{shape}]<100", "attention_mask": f"i64[{shape}]=1"}


def smallest(name: str) -> Coroutine[Any, Any, Report]:
    """Return a benchmark with as little to do as it takes; a small BERT stands in for MiniLM."""
    match name:
        case "minilm":
            return minilm.bench(HOST, models.SMALL, [(1, 4), (2, 3)])
        case "resnet":
            return resnet.bench(HOST, networks.resnet((1, 1), width=4, classes=3), [(1, 33, 40), (2, 32, 32)])
        case "vision":
            chosen = {
                "MobileNet": lambda: vision_networks.mobilenet_v3(4),
                "EfficientNet": lambda: vision_networks.efficientnet_b0(2),
                "YOLO": lambda: vision_networks.yolo_n(2),
                "ViT": lambda: vision_networks.vit(1, 64),
            }
            return vision.bench(HOST, chosen, [(1, 32, 64)])
        case "vision_int8":
            return vision_int8.bench(HOST, {"MobileNet": lambda: vision_networks.mobilenet_v3(4)}, [(1, 32, 64)])
        case "real_models":
            return of_a_wheel()
        case "decode":
            return decode.bench(HOST, networks.decoder(2, 16, 2, 60), first=3, last=9)
        case "new_shapes":
            return new_shapes.bench(HOST, models.SMALL, lengths=[5, 6], rounds=1)
        case "compiled":
            return compiled.bench(OPENCL, models.SMALL, [2])
        case "growth":
            return growth.bench(HOST, many=10)
        case "memory":
            return memory.bench(HOST, models.SMALL, many=3, tokens=5, rounds=1)
        case "callers":
            return callers.bench(HOST, models.SMALL, count=4, longest=12, callers=3, pairs=4)
        case "cancelling":
            return cancelling.bench(HOST, models.SMALL, lengths=[4, 5], callers=3)
        case "tune":
            # With a latency that no machine misses: slow trials halve the rate, and so last longer and longer.
            return tune.bench(OPENCL, [1], [0.0], searched=([1, 2], [0.0]), rounds=2, seconds=0.01, max_p99=10.0)
        case "skip":
            return skip.bench(HOST, steps=(0, 6), large=(4, 8))
        case "per_node":
            return per_node.bench(OPENCL, nodes=6)
        case "launches":
            return launches.bench(OPENCL, nodes=6)
        case "streams":
            return streams.bench(OPENCL, count=2, blocks=1)
        case "loop":
            return loop.bench(HOST, callers=2, lengths=2)
        case "gemm":
            return gemm.bench(OPENCL, rows_of=[1, 3], sizes=[40])
        case "precision":
            return precision.bench(HOST, models.SMALL, networks.decoder(1, 16, 2, 60), [(1, 4)], [3])
        case "sequences":
            return sequences.bench(HOST, tokens=3, size=(1, 16, 2), callers=3)
        case "load":
            return load.bench(HOST, models.SMALL, rounds=1, trained=())
        case "gpu":
            return gpu.bench(attrs.evolve(HOST, device="host,host", quick=True))
    raise AssertionError(f"no test runs the benchmark {name!r}")


@functools.cache
def report_of(name: str) -> Report:
    """Return what a benchmark with as little to do as it takes reports, for tests that look at different parts."""
    return asyncio.run(smallest(name))


SHIPPED = (
    trained.Trained("shipped-models==1.0", "small.onnx", [words("1,5"), words("2,9")]),
    trained.Trained("shipped-models==1.0", "odd.onnx", [{"x": "f32[2,3]"}]),
)


async def of_a_wheel() -> Report:
    """Measure the models of a wheel that is there: one that all take, and one with an operator that nobody has."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(Path(folder) / "shipped_models-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("shipped/small.onnx", models.SMALL.read_bytes())
            odd = models.model([helper.make_node("Odd", ["x"], ["y"], domain="nobody")], (2, 3), {}, "y")
            wheel.writestr("shipped/odd.onnx", odd.SerializeToString())
        return await real_models.bench(HOST, SHIPPED, Path(folder))


def cells(report: Report, kind: type) -> list[Any]:
    """Return all cells of a type, in the rows and the summary."""
    return [cell for row in (*report.rows, report.summary) for cell in row.values() if isinstance(cell, kind)]


def columns(plot: plots.Plot) -> set[str]:
    """Return the columns that a plot needs of a report."""
    match plot:
        case plots.Ratios():
            return set(plot.labels)
        case plots.Bars():
            return {plot.label, *plot.columns}
        case plots.Lines():
            return {plot.label}


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("name", page.BENCHMARKS)
def test_every_benchmark_gives_a_report_that_survives_its_file(name: str) -> None:
    """Rows of equal headings, figures that are numbers, ratios within their intervals; JSON loses nothing."""
    report = report_of(name)

    assert report.name == name
    assert report.command.startswith(f"python -m benchmarks.{name}")
    assert len({tuple(row) for row in report.rows}) == 1
    alone = name == "growth" or any(note.startswith("tinygrad is left out") for note in report.notes)
    assert bool(cells(report, Ratio)) != alone
    assert all(0 < r.low <= r.high < math.inf and r.ratio > 0 for r in cells(report, Ratio))
    assert all(math.isfinite(figure) and figure >= 0 for figure in cells(report, float))
    assert report == Report.from_json(report.to_json())
    if plot := plots.PLOTS.get(name):
        assert columns(plot) <= set(report.rows[0])
    text = page.section([report])
    assert f"## {page.BENCHMARKS[name]}" in text
    assert text.count("\n| ") == 2 + len(report.rows)


def test_parts_of_the_benchmark_of_gpus_that_fail_leave_the_others_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a note says why they have none; a part of several devices has none where there is one."""

    async def failing(shared: object) -> AsyncIterator[Finding]:
        yield Finding(part="bert", case="first", unit=findings.MS, samples={findings.OURS: [1.0]})
        raise BenchmarkError("results differ")

    monkeypatch.setattr(gpu, "PARTS", {"bert": failing, "several": gpu_parts.several.measure})

    report = asyncio.run(gpu.bench(attrs.evolve(HOST, quick=True), ["bert", "several"]))

    assert [row["case"] for row in report.rows] == ["first"]
    assert report.command == "python -m benchmarks.gpu --quick --device host"
    assert "bert ended early: BenchmarkError('results differ')" in report.notes
    assert any("nothing to share requests out to" in note for note in report.notes)


@pytest.mark.parametrize(
    ("aim", "unit", "ours", "met"),
    [
        (Aim(0.7), findings.MS, 1.4, True),  # 1.0 ms of the peer over 1.4
        (Aim(0.7), findings.MS, 1.5, False),
        (Aim(0.7), findings.TOKENS, 0.7, True),
        (Aim(8000, of="figure"), findings.REQUESTS, 7999.0, False),
        (Aim(0.5, of="figure", at_most=True), findings.MS, 0.0004, True),
    ],
)
def test_an_aim_is_met_by_a_ratio_or_by_a_figure_in_its_unit(
    aim: Aim, unit: findings.Unit, ours: float, met: bool
) -> None:
    """Of times less is better, of rates more; without a peer, a ratio is neither met nor missed."""
    samples = {findings.OURS: [ours] * 3, findings.GRAPH: [1.0] * 3}
    found = Finding(part="p", case="c", unit=unit, samples=samples, aim=aim)
    alone = attrs.evolve(found, samples={findings.OURS: [ours] * 3})

    assert found.met is met
    assert found.row["met"] == ("yes" if met else "no")
    assert alone.met is (None if aim.of == "ratio" else met)
    assert findings.summary([found, alone])["aims met"] == f"{met + bool(alone.met)} of {1 + (aim.of == 'figure')}"


def test_a_report_takes_its_sections_place_in_a_page() -> None:
    """What is before and behind stays as it is, and a section that was not there comes last."""
    old = "# Benchmarks\n\n## Memory\n\nold\n\n## Loading\n\nkept\n"
    there = "\n## Memory\n\nnew\n"

    assert page.with_section(old, there) == "# Benchmarks\n\n## Memory\n\nnew\n\n## Loading\n\nkept\n"
    assert page.with_section(old, "\n## On a GPU\n\nnew\n") == old + "\n## On a GPU\n\nnew\n"


def test_one_reports_rows_of_the_first_table_are_exchanged() -> None:
    """Other benchmarks' rows stay; a page without that table stays as it is."""
    old = "# Benchmarks\n\n## At a glance\n\n| a | b |\n| --- | --- |\n| Memory | 1 |\n| Loading | 2 |\n\n## Memory\n"

    new = page.with_rows(old, "Memory", ["| Memory | 3 |"])

    assert new == old.replace("| Memory | 1 |\n| Loading | 2 |", "| Loading | 2 |\n| Memory | 3 |")
    assert page.with_rows("# Benchmarks\n\n## Memory\n", "Memory", ["| Memory | 3 |"]) == "# Benchmarks\n\n## Memory\n"


@pytest.mark.usefixtures("hurried")
def test_models_that_do_not_run_are_listed_and_count_in_no_mean() -> None:
    """A row says that there is nothing to compare, and a note why; a request of a model has a row of its own."""
    report = report_of("real_models")

    small, again, odd = report.rows
    assert [row["first input"] for row in report.rows] == ["1×5", "2×9", "2×3"]
    assert "agree" in str(small["results"])
    assert (again["first answer s"], again["kernels"]) == (None, None)
    assert (odd["results"], odd["asyncrt ms"]) == ("none to compare", None)
    assert report.summary["requests with results that agree"] == "2 of 3"
    assert any("odd.onnx: asyncrt does not take it (UnsupportedOperatorError" in note for note in report.notes)


def test_trained_models_are_summed_up_by_mean_and_least_also_of_long_ones_alone() -> None:
    """What a peer does within a millisecond says more of the host than of the layers."""
    long, short = {"asyncrt": [2e-3] * 3, "X": [4e-3] * 3}, {"asyncrt": [4e-4] * 3, "X": [1e-4] * 3, "Y": [2e-4] * 3}

    means = {heading: cell.ratio for heading, cell in real_models.summary([long, short]).items()
             if isinstance(cell, Ratio)}  # fmt: skip

    assert means == pytest.approx({
        "times as fast as X (geometric mean)": 0.5**0.5,
        "times as fast as X (least)": 0.25,
        "times as fast as Y (geometric mean)": 0.5,
        "times as fast as Y (least)": 0.5,
        "times as fast as X (geometric mean), where a peer takes 1 ms": 2,
        "times as fast as X (least), where a peer takes 1 ms": 2,
    })  # fmt: skip


def test_a_peer_with_other_results_is_named_and_the_others_are_compared() -> None:
    """Of small values as of large ones: what counts is the difference beside an output's largest value."""

    def refuse(inputs: measure.Inputs) -> list[measure.Array]:
        raise ValueError("no such input")

    ours = [np.array([1e-2, 2e-2]), np.array([True, False])]
    runs: dict[str, peers.Run] = {
        "Same": lambda inputs: [ours[0] * 1.001, ours[1]],
        "Other": lambda inputs: [ours[0] * 1.01, ours[1]],
        "Odd": lambda inputs: [ours[0], ~ours[1]],
        "Choosy": refuse,
    }

    assert real_models.disagreements(peers.Loaded(runs), {}, ours) == {
        "Other": "Other: results differ by 2.0e-04, so speeds are not compared.",
        "Odd": "Odd: results differ by 1.0e+00, so speeds are not compared.",
        "Choosy": "Choosy does not take it (ValueError: no such input).",
    }


def test_inputs_of_trained_models_are_what_their_texts_say() -> None:
    """Random values of a type and a shape, whole numbers below one, or one value throughout; the same every time."""
    picture, ids, rate = (trained.value(text) for text in ("f32[1,3,4]", "i64[2,50]<7", "i64[]=16000"))

    assert (picture.dtype.name, picture.shape, ids.dtype.name, ids.shape) == ("float32", (1, 3, 4), "int64", (2, 50))
    assert set(ids.ravel()) == set(range(7))
    assert (rate.shape, rate.item()) == ((), 16000)
    np.testing.assert_array_equal(trained.value("f32[1,3,4]"), picture)
    with pytest.raises(ValueError, match="'f32' is no input"):
        trained.value("f32")


def test_every_trained_model_has_inputs_that_can_be_made() -> None:
    """And packages with versions, so that the same files are measured everywhere."""
    for model in trained.MODELS:
        assert re.fullmatch(r"[a-z\d-]+==[\d.]+", model.package)
        assert all(trained.value(text).size for request in model.requests for text in request.values())


def test_a_wheel_that_cannot_be_had_is_left_out_and_without_any_there_is_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says where it was looked for, what pip said, and where a wheel can be put by hand."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # as without a network, at once

    with pytest.raises(BenchmarkError, match=r"no wheel is there: shipped-models==1\.0: .*put the wheel into"):
        asyncio.run(real_models.bench(HOST, SHIPPED, tmp_path))


def test_a_file_that_a_wheel_holds_twice_must_be_one(tmp_path: Path) -> None:
    """Copies are as good as one; of files that differ, nobody knows which is meant."""
    wheel = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {"a/same.onnx": "s", "b/same.onnx": "s", "a/other.onnx": "o", "b/other.onnx": "p"}.items():
            archive.writestr(name, text)

    assert wheels.read(wheel, "same.onnx") == b"s"
    with pytest.raises(BenchmarkError, match=r"2 different files other\.onnx"):
        wheels.read(wheel, "other.onnx")
    with pytest.raises(BenchmarkError, match=r"0 different files none\.onnx"):
        wheels.read(wheel, "none.onnx")


def test_reports_of_other_instructions_stand_beside_each_other(tmp_path: Path) -> None:
    """In files of their own, in rows of their own at a glance, and one below the other in one section."""
    summary: measure.Row = {"mean": Ratio(1.5, 1.4, 1.6)}
    reports = [
        Report(name="loop", command=f"do {of}", environment={"processor": "P", "instructions": of},
               rows=[{"callers": 1}], summary=summary)
        for of in ("AVX2", "AVX-512")
    ]  # fmt: skip
    for report in reports:
        (tmp_path / f"{report.stem}.json").write_text(report.to_json())

    everything.write_page(tmp_path / "page.md", tmp_path, noisy=False)

    text = (tmp_path / "page.md").read_text()
    assert "| The event loop's stalls | mean | P, AVX-512 | 1.50 (1.40 to 1.60) | `do AVX-512` |\n| The event" in text
    assert "| The event loop's stalls | mean | P, AVX2 | 1.50 (1.40 to 1.60) | `do AVX2` |" in text
    assert text.count("## The event loop's stalls") == 1
    assert text.index("**P, AVX-512**") < text.index("**P, AVX2**")


@pytest.mark.parametrize(
    ("registers", "expected"),
    [(AVX512, "AVX-512"), (Registers(8, 16), "AVX2"), (Registers(4, 32), "NEON"), (Registers(2, 8), "8 of 64 bits")],
)
def test_instructions_are_called_by_their_registers(registers: Registers, expected: str) -> None:
    """What a processor is made to do counts, not what it could; other devices and the host's reference have none."""
    cpu = DeviceInfo(spec="0", name="P", kind="cpu", registers=registers)

    assert instructions.of(cpu) == expected
    assert instructions.of(attrs.evolve(cpu, kind="gpu")) == ""
    assert instructions.of(attrs.evolve(cpu, kind="host", takes_source=False)) == ""


def test_a_command_begins_with_the_variables_that_chose_instructions() -> None:
    """Those of the peers too; but not where asyncrt was left what the processor has."""
    peers_only = {"ONEDNN_MAX_CPU_ISA": "AVX2", "HOME": "/"}

    assert instructions.chosen(peers_only) == ""
    assert instructions.chosen({**peers_only, "CL_CONFIG_CPU_TARGET_ARCH": "core-avx2"}) == (
        "CL_CONFIG_CPU_TARGET_ARCH=core-avx2 ONEDNN_MAX_CPU_ISA=AVX2"
    )


@pytest.mark.usefixtures("hurried")
def test_skipped_nodes_are_counted_not_only_timed() -> None:
    """As many launches as without the no-ops; with skipping off, one more for each of them."""
    report = report_of("skip")

    assert report.summary["launches that a graph with no-ops has more than one without"] == 0
    fused_none, fused, none, some, large, others = report.rows
    assert (none["skipped"], some["skipped"], large["skipped"]) == (0, 6, skip.LARGE_STEPS)
    assert (others["skipped"], others["launches beside it"]) == (skip.LARGE_STEPS, 2 * skip.LARGE_STEPS)
    assert fused["launches"] == fused_none["launches"]
    assert large["launches beside it"] == 2 * skip.LARGE_STEPS
    assert large["launches"] == skip.LARGE_STEPS


@pytest.mark.usefixtures("hurried")
def test_loops_of_pyopencl_launch_the_kernels_that_asyncrt_launches() -> None:
    """What is compared is the way of launching, so the kernels are the same, and as many."""
    report = report_of("per_node")

    assert "The loops launch the 6 kernels" in report.notes[0]
    assert report.summary["kernels that asyncrt launches"] == "6 for 6 nodes"


def test_peers_take_turns() -> None:
    """A B A B, after each was warmed up until two blocks agreed."""
    turns: list[str] = []
    figures = {"a": iter([9.0, 5.0, 5.1, 1.0, 2.0]), "b": iter([4.0, 4.0, 3.0, 4.0])}

    def peer(name: str) -> measure.Block:
        async def block() -> float:
            turns.append(name)
            return next(figures[name])

        return block

    samples = asyncio.run(measure.interleave({"a": peer("a"), "b": peer("b")}, HOST))

    assert turns == [*"aaabb", *"abab"]
    assert samples == {"a": [1.0, 2.0], "b": [3.0, 4.0]}


def test_a_ratio_is_of_medians_and_lies_in_its_interval() -> None:
    """Blocks that are twice as long throughout are twice as long for sure; others only about."""
    below = [1.0, 1.1, 0.9, 1.2, 5.0]

    sure = Ratio.of([2 * x for x in below], below)
    unsure = Ratio.of([2.0, 2.0, 2.0, 2.0, 2.0], below)

    assert (sure.ratio, sure.low, sure.high) == pytest.approx((2, 2, 2))
    assert unsure.ratio == pytest.approx(2 / 1.1)
    assert unsure.low < unsure.ratio < unsure.high


def test_a_geometric_mean_of_ratios_is_neither_ones_favourite() -> None:
    """Twice as fast here and half as fast there is as fast."""
    one, two = [1.0, 1.0], [2.0, 2.0]

    mean = Ratio.geometric_mean([(one, two), (two, one)])

    assert (mean.ratio, mean.low, mean.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize(
    "theirs",
    [[np.array([1.0, 2.1])], [np.array([1.0])], [np.array([1.0, np.nan])], []],
    ids=["other values", "another shape", "not a number", "one output less"],
)
def test_speeds_of_different_results_are_not_compared(theirs: list[measure.Array]) -> None:
    """A wrong answer may be given at any speed."""
    ours = [np.array([1.0, 2.0])]

    with pytest.raises(BenchmarkError):
        measure.check_equal("case", ours, theirs)


def test_a_peer_that_is_not_there_is_left_out_and_the_report_says_so() -> None:
    """Nobody needs to install all of them, nor need all take every model."""

    def refuse(model: Path | bytes, threads: int) -> peers.Run:
        raise ValueError("unknown operator\nand a traceback")

    absent = peers.Peer("Absent", "no_such_package", refuse)
    choosy = peers.Peer("Choosy", "numpy", refuse)

    loaded = peers.load(models.SMALL, [absent, choosy, peers.ONNX_RUNTIME])

    assert list(loaded.runs) == ["ONNX Runtime"]
    assert loaded.notes == [
        "Absent is left out: it is not installed (`pip install no_such_package`).",
        "Choosy is left out: it does not take the model (ValueError: unknown operator).",
    ]


@pytest.mark.parametrize("source", [models.SMALL, models.SMALL.read_bytes()], ids=["file", "bytes"])
def test_peers_give_what_they_are_believed_to_give(source: Path | bytes) -> None:
    """Every peer that is installed gives the reference's outputs in the model's order, for one shape and the next."""
    loaded = peers.load(source)
    reference = peers.load_onnx_runtime(source, 1)

    for length in (5, 9):
        inputs = models.tokens(2, length)
        assert loaded.check("small BERT", inputs, reference(inputs)) < 1e-4

    assert len(loaded.runs) + len(loaded.notes) == 2


@pytest.mark.skipif(not peers.OPENVINO.installed, reason="OpenVINO is not installed")
def test_openvinos_queue_gives_each_request_its_own_answer() -> None:
    """More requests than jobs, each of another length: the answers come in the order of the requests."""
    requests = [models.tokens(1, length) for length in range(2, 9)]
    reference = peers.load_onnx_runtime(models.SMALL, 1)

    answers = peers.OpenVinoQueue(models.SMALL, 2, 3).run(requests)

    for request, answer in zip(requests, answers, strict=True):
        measure.check_equal("queue", answer, reference(request))


_PLATFORMS = """
from asyncrt.devices.opencl import drivers
from benchmarks import models, peers
if {first}: peers.load(models.SMALL)
drivers.prepare()
import pyopencl
print(*sorted(p.name for p in pyopencl.get_platforms()), sep=", ")
"""


@pytest.mark.skipif(not peers.OPENVINO.installed, reason="OpenVINO is not installed")
def test_openvino_hides_no_opencl_driver() -> None:
    """Its libtbb would, if it were loaded first: asyncrt would run on another device than without that peer."""
    with_peer, without = (
        subprocess.run([sys.executable, "-c", _PLATFORMS.format(first=first)], cwd=measure.ROOT, env=with_sources(),
                       capture_output=True, text=True, check=True).stdout
        for first in (True, False)
    )  # fmt: skip

    assert without
    assert with_peer == without


def test_decoders_that_disagree_are_not_compared() -> None:
    """The logits of every step count, not only of the first and the last."""
    steps = [networks.next_token(length) for length in range(4)]

    class Fake:
        def __init__(self, *logits: float) -> None:
            self.logits = logits

        async def begin(self, past: measure.Inputs) -> None:
            self.left = list(self.logits)

        async def step(self, inputs: measure.Inputs) -> measure.Array:
            return np.array([self.left.pop(0)])

    texts = {
        name: decode.Text(Fake(*logits), {}, steps)
        for name, logits in {"one": (1, 2, 3, 4), "same": (1, 2, 3, 4), "other": (1, 2, 9, 4)}.items()
    }
    for text in texts.values():
        asyncio.run(text.seconds())

    with pytest.raises(BenchmarkError, match="step 2 in one and other"):
        decode.check(texts)


def test_a_process_of_its_own_says_why_it_failed() -> None:
    """The error of the other process is in the message of this one's."""
    with pytest.raises(BenchmarkError, match=r"real_models\.found_here.* ended with 1:\n(?s:.*)none\.whl"):
        process.fresh(real_models.found_here, Path("none.whl"), "none.onnx", [], "folder", {})


def test_a_table_at_a_glance_has_the_ratios_that_sum_up() -> None:
    """One line for each, with the command that measures it; nothing of what was measured beside others' work."""
    ratio = Ratio(1.5, 1.4, 1.6)
    summary: measure.Row = {"mean": ratio, "count": 3}
    quiet = Report(name="minilm", command="do", environment={"processor": "P"}, rows=[], summary=summary)
    noisy = Report(name="skip", command="not", environment={}, rows=[], summary={"mean": ratio}, others=1.0)

    text = page.glance([quiet, noisy])

    assert "| A sentence embedding | mean | P | 1.50 (1.40 to 1.60) | `do` |" in text
    assert "count" not in text
    assert "not" not in text
    assert page.glance([noisy]) == ""


@pytest.mark.skipif(not peers.installed("matplotlib"), reason="matplotlib is not installed")
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("minilm", {"batch": 1, "tokens": 8, "over X": Ratio(1.5, 1.4, 1.6), "over Y": Ratio(0.5, 0.4, 0.6)}),
        ("new_shapes", {"runtime": "asyncrt", "first ms": 3.0, "second ms": 2.0}),
        ("decode", {"runtime": "asyncrt", "ms at 1 to 2": 3.0, "ms at 3 to 4": 2.0}),
    ],
)
def test_a_report_is_drawn(tmp_path: Path, name: str, row: measure.Row) -> None:
    """As a picture beside the page, which shows it."""
    report = Report(name=name, command="do", environment={}, rows=[row, row])

    file = plots.draw(report, tmp_path / "page")

    assert file == tmp_path / "page" / f"{name}.png"
    assert file.read_bytes().startswith(b"\x89PNG")
    assert f"](page/{name}.png)" in page.page([report], plots={name: file})


def test_a_plot_that_cannot_be_drawn_again_is_removed(tmp_path: Path) -> None:
    """A picture of an earlier run would be taken for this one's."""
    file = tmp_path / "load.png"
    file.write_bytes(b"")

    drawn = plots.draw(Report(name="load", command="do", environment={}, rows=[{"model": "m"}]), tmp_path)

    assert drawn is None
    assert not file.exists()


def test_numbers_are_shown_with_three_digits() -> None:
    """No exponents, no digits that mean nothing."""
    shown = [measure.show(x) for x in (1234.5, 12.345, 1.2345, 0.012345, 0.0, 7, "x", None)]

    assert shown == ["1234", "12.3", "1.23", "0.0123", "0", "7", "x", ""]


def test_a_missing_model_is_said_with_what_to_do(tmp_path: Path) -> None:
    """The command line ends with one line, not with a traceback."""
    command = [sys.executable, "-m", "benchmarks.minilm", "--model", str(tmp_path / "none.onnx")]
    environment = with_sources()

    done = subprocess.run(command, cwd=measure.ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("error  ")
    assert "none.onnx is not a file" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_writes_a_page_of_the_reports_there_are(tmp_path: Path) -> None:
    """One benchmark through the command line, on one core: its report as JSON, and its section on the page."""
    file = tmp_path / "page.md"
    command = [sys.executable, "-m", "benchmarks", "skip", "--device", "host", "--threads", "1"]
    command += ["--reports", str(tmp_path), "--write", "--noisy", "--page", str(file)]
    environment = with_sources()

    done = subprocess.run(command, cwd=measure.ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "skip.json").read_text())
    if hasattr(os, "sched_setaffinity"):
        assert report["environment"]["cores"] == f"1 of {os.cpu_count()}"
    text = file.read_text()
    assert text.startswith("# Benchmarks")
    assert "python -m benchmarks.skip --quick --device host" in text
    assert text.count("\n## ") == 2  # at a glance, and the benchmark


def test_figures_of_a_busy_machine_are_withheld() -> None:
    """A peer that spins while it waits is hundreds of times slower beside others: no table of that is written."""
    rows: list[measure.Row] = [{"streams": 1, "requests/s": 2.5}]
    report = Report(name="streams", command="python", environment={}, others=0.5, rows=rows)

    assert "| 1 | 2.50 |" not in page.section([report])
    assert "Others used 0.500 cores" in page.section([report])
    assert "| 1 | 2.50 |" in page.section([report], noisy=True)
    assert "not to be relied on" in page.section([report], noisy=True)
